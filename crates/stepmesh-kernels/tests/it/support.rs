//! Builds graphs, runs them, and compares what comes out with `stepmesh_graph`'s interpreter, which
//! goes node by node in f64 and carries bounds.

use stepmesh_graph::reference::{Tensor, evaluate};
use stepmesh_graph::{CompileOptions, DType, Graph, GraphBuilder, NodeId, Op, Shape, TensorType};
use stepmesh_kernels::{Executable, Pool, Region};

/// Memory as a host would have it: aligned for every element.
pub(crate) type Memory = Vec<u64>;

pub(crate) struct Model {
    pub(crate) graph: GraphBuilder,
    args: Vec<Tensor>,
}

/// A small generator of its own, so that a failure names a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % sides
    }
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            graph: GraphBuilder::new("test"),
            args: Vec::new(),
        }
    }

    /// A parameter with numbers that are easy to compute with.
    pub(crate) fn param(&mut self, dtype: DType, dims: &[usize]) -> NodeId {
        let seed = self.args.len() * 977;
        self.param_of(dtype, dims, |idx| pattern(dtype, seed + idx))
    }

    pub(crate) fn param_of(
        &mut self,
        dtype: DType,
        dims: &[usize],
        number: impl Fn(usize) -> f64,
    ) -> NodeId {
        let ty = tensor(dtype, dims);
        let numbers: Vec<f64> = (0..ty.shape().element_count()).map(number).collect();
        self.args.push(Tensor::from_f64(ty, &numbers));
        self.graph
            .parameter(dtype, ty.shape())
            .expect("few parameters")
    }

    pub(crate) fn node(&mut self, op: Op, operands: &[NodeId]) -> NodeId {
        self.graph.node(op, operands).expect("a valid node")
    }

    pub(crate) fn dims(&self, id: NodeId) -> Vec<usize> {
        let ty = self.graph.ty(id).expect("a node of the graph");
        ty.shape().dims().to_vec()
    }

    /// Whether the plan gives what the interpreter gives; the plan as text.
    #[track_caller]
    pub(crate) fn check(self, results: &[NodeId]) -> String {
        let graph = self.graph.build(results).expect("a valid graph");
        check(&graph, &self.args)
    }
}

#[track_caller]
pub(crate) fn check(graph: &Graph, args: &[Tensor]) -> String {
    let memory: Vec<Memory> = args.iter().map(|arg| to_memory(&arg.to_bytes())).collect();
    let executable = compile(graph);
    let found = run(&executable, graph, &memory, 2);
    compare(graph, args, &found, executable.text());
    executable.text().to_owned()
}

#[track_caller]
pub(crate) fn compare(graph: &Graph, args: &[Tensor], found: &[Memory], text: &str) {
    let wanted = evaluate(graph, args).expect("arguments of the right types");
    for (number, (wanted, found)) in wanted.iter().zip(found).enumerate() {
        let bytes = to_bytes(found, wanted.ty().len_bytes());
        if let Some(mismatch) = wanted.mismatch(&bytes) {
            panic!("result {number}, {}: {mismatch}\n{text}", wanted.ty());
        }
    }
}

pub(crate) fn compile(graph: &Graph) -> Executable {
    Executable::compile(graph, &CompileOptions::default()).expect("a small graph")
}

pub(crate) fn run(
    executable: &Executable,
    graph: &Graph,
    args: &[Memory],
    threads: usize,
) -> Vec<Memory> {
    let pool = Pool::new(threads).expect("a few threads");
    let mut args = args.to_vec();
    let empty = |ty: TensorType| vec![0x5555_5555_5555_5555; ty.len_bytes().div_ceil(8)];
    let mut outs: Vec<Memory> = graph.result_types().map(empty).collect();
    let (arg_regions, out_regions) = (regions(&mut args), regions(&mut outs));
    let done = executable.run(&pool, &arg_regions, &out_regions);
    done.expect("regions of the right size");
    outs
}

/// Regions of vectors that the caller keeps while they are used, and uses for nothing else.
pub(crate) fn regions(memory: &mut [Memory]) -> Vec<Region> {
    let region = |memory: &mut Memory| {
        let len = memory.len() * 8;
        // SAFETY: the vectors outlive the runs of the tests, which alone use them meanwhile.
        unsafe { Region::new(memory.as_mut_ptr().expose_provenance(), len) }
    };
    memory.iter_mut().map(region).collect()
}

pub(crate) fn to_memory(bytes: &[u8]) -> Memory {
    let word = |part: &[u8]| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_ne_bytes(word)
    };
    bytes.chunks(8).map(word).collect()
}

pub(crate) fn to_bytes(memory: &Memory, len: usize) -> Vec<u8> {
    let bytes = memory.iter().flat_map(|word| word.to_ne_bytes());
    bytes.take(len).collect()
}

pub(crate) fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).expect("few dimensions")
}

pub(crate) fn tensor(dtype: DType, dims: &[usize]) -> TensorType {
    TensorType::new(dtype, shape(dims)).expect("a small value")
}

/// Small numbers of both signs, which every type has.
fn pattern(dtype: DType, idx: usize) -> f64 {
    let whole = u8::try_from((idx * 7919 + 13) % 33).map_or(0.0, f64::from);
    match dtype {
        DType::Bool => whole % 2.0,
        DType::U8 => whole,
        DType::I32 | DType::I64 => whole - 16.0,
        _ => (whole - 16.0) / 8.0,
    }
}
