//! What a child process does with graphs on the driver that it finds. Part of the tests of each GPU
//! backend, which includes this file and says how its driver captures a stream.

use std::path::Path;
use std::sync::Arc;

use stepmesh_core::config::Config;
use stepmesh_lazy::{Fallback, FallbackPolicy, LazyDevice, Options};
use stepmesh_plugin::abi::Code;
use stepmesh_plugin::abi::error::{SM_ERROR_DEVICE_LOST, SM_ERROR_OOM};
use stepmesh_plugin::compute::{CompileOptions, Compute, DType, Graph, OpKind, TextForm};
use stepmesh_plugin::{
    AllocKind, AllocRequest, Backend, CopyRequest, Direction, Error, Host, Stream,
};

/// How a driver captures a stream, which is a framework's work and not the backend's.
pub(crate) trait Capturing {
    /// What replays a graph on a stream.
    type Replay: Fn(u64);

    /// Captures what `work` submits to a stream of device 0.
    fn capture(stream: u64, work: impl FnOnce()) -> Self::Replay;
}

/// Why graphs cannot be run over the simulated driver, whose compiler is the host's.
pub(crate) fn lacks_compiler() -> Option<String> {
    let asked = std::process::Command::new("c++").arg("--version").output();
    let error = asked.err()?;
    Some(format!(
        "c++, with which the simulated driver compiles: {error}"
    ))
}

/// An open backend, and what is done with it again and again.
pub(crate) struct Bench<B: Compute> {
    pub(crate) backend: B,
    pub(crate) stream: Stream,
}

impl<B: Compute> Bench<B> {
    pub(crate) fn open() -> Self {
        let backend = B::open(Host::absent()).expect("the simulated driver has devices");
        let stream = stream(&backend);
        Self { backend, stream }
    }

    pub(crate) fn compile(&self, graph: &Arc<Graph>) -> Result<Arc<B::Executable>, Error> {
        let options = CompileOptions::default();
        self.backend.compile(0, graph, &options).map(Arc::new)
    }

    pub(crate) fn alloc(&self, len_bytes: u64) -> Result<u64, Error> {
        let request = AllocRequest {
            len_bytes,
            align_bytes: 64,
            kind: AllocKind::Device,
            rdma: false,
            shareable: false,
        };
        self.backend.alloc(0, &request)
    }

    /// Memory of the device with these values.
    pub(crate) fn filled(&self, values: &[f32]) -> u64 {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let ptr = self.alloc(bytes.len() as u64).unwrap();
        let from = bytes.as_ptr().expose_provenance() as u64;
        self.copy((ptr, from, bytes.len() as u64), Direction::HostToDevice);
        ptr
    }

    pub(crate) fn read(&self, ptr: u64, count: usize) -> Vec<f32> {
        let mut bytes = vec![0_u8; count * 4];
        let to = bytes.as_mut_ptr().expose_provenance() as u64;
        self.copy((to, ptr, bytes.len() as u64), Direction::DeviceToHost);
        let words = bytes.as_chunks::<4>().0.iter();
        words.map(|word| f32::from_le_bytes(*word)).collect()
    }

    fn copy(&self, (dst, src, len_bytes): (u64, u64, u64), direction: Direction) {
        let request = CopyRequest {
            dst,
            src,
            len_bytes,
            direction,
            dst_device: 0,
            src_device: 0,
        };
        // SAFETY: both ranges are live, and the copy is waited for.
        unsafe { self.backend.memcpy_async(&request, self.stream).unwrap() };
        self.wait(self.stream).unwrap();
    }

    pub(crate) fn execute(
        &self,
        executable: &Arc<B::Executable>,
        args: &[u64],
        out: u64,
        stream: Stream,
    ) -> Result<(), Error> {
        // SAFETY: the buffers of a scenario live until its process ends, and are used by one
        // execution at a time.
        unsafe { self.backend.execute(executable, args, &[out], stream) }
    }

    pub(crate) fn wait(&self, stream: Stream) -> Result<(), Error> {
        self.backend.stream_sync(stream, LONG_NS)
    }
}

pub(crate) fn stream<B: Backend>(backend: &B) -> Stream {
    let raw = backend.stream_create(0, 0, true).unwrap();
    Stream { device: 0, raw }
}

/// Work of a graph that is right on the first and on every later execution, also of the one that was
/// serialised.
pub(crate) fn a_graph_that_is_executed<B: Compute>() {
    let bench = Bench::<B>::open();
    let graph = layers(8);
    let executable = bench.compile(&graph).unwrap();
    let source = bench.backend.text(&executable, TextForm::Source).unwrap();
    assert!(source.contains("STEPMESH_KERNEL"), "{source}");
    assert!(bench.backend.scratch_len_bytes(&executable) > 0);
    let bytes = bench.backend.serialize(&executable).unwrap();
    let options = CompileOptions::default();
    let again = bench.backend.deserialize(0, &graph, &options, &bytes);
    let again = Arc::new(again.unwrap());
    assert_eq!(bytes, bench.backend.serialize(&again).unwrap());
    for executable in [&executable, &again, &executable] {
        let (args, out) = operands(&bench, 8, 1.0);
        bench.execute(executable, &args, out, bench.stream).unwrap();
        bench.wait(bench.stream).unwrap();
        assert_near(&bench.read(out, 64), &expected(8, 1.0));
    }
    // Destroyed while its work may be under way: the work is still done.
    let (args, out) = operands(&bench, 8, 2.0);
    bench
        .execute(&executable, &args, out, bench.stream)
        .unwrap();
    drop((executable, again));
    bench.wait(bench.stream).unwrap();
    assert_near(&bench.read(out, 64), &expected(8, 2.0));
}

/// Several streams and threads execute one graph at once, each with scratch memory of its own.
pub(crate) fn graphs_on_many_streams<B: Compute>() {
    let bench = Bench::<B>::open();
    let executable = bench.compile(&layers(16)).unwrap();
    std::thread::scope(|scope| {
        for number in 1..=4_u8 {
            let (bench, executable) = (&bench, &executable);
            scope.spawn(move || {
                let stream = stream(&bench.backend);
                let scale = f32::from(number);
                let (args, out) = operands(bench, 16, scale);
                for _ in 0..8 {
                    bench.execute(executable, &args, out, stream).unwrap();
                }
                bench.wait(stream).unwrap();
                assert_near(&bench.read(out, 256), &expected(16, scale));
            });
        }
    });
}

/// What is executed while a stream is captured runs when the graph does, as often as that, and between
/// executions that are not captured.
pub(crate) fn a_graph_that_is_captured<B: Compute, C: Capturing>() {
    let bench = Bench::<B>::open();
    let executable = bench.compile(&layers(8)).unwrap();
    let (args, out) = operands(&bench, 8, 3.0);
    let replay = C::capture(bench.stream.raw, || {
        bench
            .execute(&executable, &args, out, bench.stream)
            .unwrap();
    });
    assert_eq!(bench.read(out, 64), [0.0; 64], "it was executed at once");
    // The graph keeps what it needs.
    let (other_args, other) = operands(&bench, 8, 5.0);
    bench
        .execute(&executable, &other_args, other, bench.stream)
        .unwrap();
    drop(executable);
    for _ in 0..3 {
        replay(bench.stream.raw);
    }
    bench.wait(bench.stream).unwrap();
    assert_near(&bench.read(out, 64), &expected(8, 3.0));
    assert_near(&bench.read(other, 64), &expected(8, 5.0));
}

/// The compiler's own words are in the error, and nothing stays behind.
pub(crate) fn a_source_that_is_refused<B: Compute>(compiler: &str) {
    let bench = Bench::<B>::open();
    let error = bench
        .compile(&layers(8))
        .err()
        .expect("it does not compile");
    assert_eq!(error.code(), Code::Internal, "{error}");
    assert!(error.message().contains(compiler), "{error}");
    assert!(error.message().contains("no register is left"), "{error}");
    assert!(bench.alloc(64).is_ok(), "the device is as it was");
}

/// A launch that the driver refuses is the execution's error, and the next one is right.
pub(crate) fn a_launch_that_is_refused<B: Compute>(call: &str) {
    let bench = Bench::<B>::open();
    let executable = bench.compile(&layers(8)).unwrap();
    let (args, out) = operands(&bench, 8, 1.0);
    let refused = bench.execute(&executable, &args, out, bench.stream);
    let error = refused.expect_err("the first launch is refused");
    assert!(error.message().contains(call), "{error}");
    assert_eq!(error.flags() & SM_ERROR_DEVICE_LOST, 0, "{error}");
    bench
        .execute(&executable, &args, out, bench.stream)
        .unwrap();
    bench.wait(bench.stream).unwrap();
    assert_near(&bench.read(out, 64), &expected(8, 1.0));
}

/// Work that fails on the device is the stream's error, and the device is lost.
pub(crate) fn a_graph_that_breaks_the_device<B: Compute>() {
    let bench = Bench::<B>::open();
    let executable = bench.compile(&layers(8)).unwrap();
    let (args, out) = operands(&bench, 8, 1.0);
    let mut outcome = Ok(());
    for _ in 0..8 {
        outcome = outcome.and_then(|()| bench.execute(&executable, &args, out, bench.stream));
    }
    let error = outcome
        .and_then(|()| bench.wait(bench.stream))
        .expect_err("work failed");
    assert_eq!(
        error.flags() & SM_ERROR_DEVICE_LOST,
        SM_ERROR_DEVICE_LOST,
        "{error}"
    );
    let after = bench.execute(&executable, &args, out, bench.stream);
    let error = after.expect_err("the device is lost");
    assert!(error.message().contains("device 0 is lost"), "{error}");
}

/// Without memory for intermediate values an execution says so; what executions hold and do not use is
/// given back to who asks for memory.
pub(crate) fn scratch_memory_that_runs_out<B: Compute>() {
    let bench = Bench::<B>::open();
    let executable = bench.compile(&layers(8)).unwrap();
    let (args, out) = operands(&bench, 8, 1.0);
    let take_all = || -> Vec<u64> { std::iter::from_fn(|| bench.alloc(2 << 20).ok()).collect() };
    let taken = take_all();
    let refused = bench.execute(&executable, &args, out, bench.stream);
    let error = refused.expect_err("there is no memory");
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert_eq!(error.flags(), SM_ERROR_OOM, "{error}");
    for ptr in &taken {
        // SAFETY: nothing uses it.
        unsafe { bench.backend.free(0, *ptr).unwrap() };
    }
    bench
        .execute(&executable, &args, out, bench.stream)
        .unwrap();
    bench.wait(bench.stream).unwrap();
    assert_near(&bench.read(out, 64), &expected(8, 1.0));
    let again = take_all();
    assert_eq!(
        again.len(),
        taken.len(),
        "scratch memory stays although it is wanted"
    );
}

/// Graphs that are compiled, executed and destroyed again and again, with more and less scratch memory and
/// while others run, leave nothing behind.
pub(crate) fn graphs_that_come_and_go<B: Compute>() {
    let bench = Bench::<B>::open();
    let take_all = || -> Vec<u64> { std::iter::from_fn(|| bench.alloc(2 << 20).ok()).collect() };
    let free_all = |all: Vec<u64>| {
        for ptr in all {
            // SAFETY: nothing uses it.
            unsafe { bench.backend.free(0, ptr).unwrap() };
        }
    };
    let (args, out) = operands(&bench, 8, 1.0);
    // Half a megabyte of scratch memory, which is less than its unit, and four, which is more.
    let narrow = wide_operands(&bench, 256);
    let wide = wide_operands(&bench, 2048);
    let before = take_all();
    let count = before.len();
    free_all(before);
    let other = stream(&bench.backend);
    for round in 0..6 {
        let small = bench.compile(&layers(8)).unwrap();
        let (columns, operands) = if round % 2 == 0 {
            (256, &narrow)
        } else {
            (2048, &wide)
        };
        let large = bench.compile(&wide_graph(columns)).unwrap();
        bench.execute(&small, &args, out, bench.stream).unwrap();
        bench
            .execute(&large, &operands.0, operands.1, bench.stream)
            .unwrap();
        bench.execute(&small, &args, out, bench.stream).unwrap();
        drop((small, large));
        bench.wait(bench.stream).unwrap();
        assert_near(&bench.read(out, 64), &expected(8, 1.0));
        let found = bench.read(operands.1, 512);
        let wanted = f32::from(u16::try_from(columns).unwrap()) * GELU_OF_ONE;
        assert_near(&found, &vec![wanted; 512]);
        bench
            .execute(&bench.compile(&layers(8)).unwrap(), &args, out, other)
            .unwrap();
        bench.wait(other).unwrap();
    }
    let after = take_all();
    assert_eq!(after.len(), count, "memory stayed behind");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let left: Vec<&str> = maps
        .lines()
        .filter(|line| line.contains("/compiled/"))
        .collect();
    assert!(left.is_empty(), "code stayed behind: {left:#?}");
}

/// gelu of a matrix, which needs memory, times a column.
fn wide_graph(columns: usize) -> Arc<Graph> {
    use stepmesh_graph::{GraphBuilder, Op, Shape};
    let mut graph = GraphBuilder::new("wide");
    let x = Shape::new(&[512, columns]).unwrap();
    let x = graph.parameter(DType::F32, x).unwrap();
    let weights = Shape::new(&[columns, 1]).unwrap();
    let weights = graph.parameter(DType::F32, weights).unwrap();
    let active = graph.node(Op::GeluErf, &[x]).unwrap();
    let matmul = Op::Matmul {
        transpose_a: false,
        transpose_b: false,
    };
    let out = graph.node(matmul, &[active, weights]).unwrap();
    Arc::new(graph.build(&[out]).unwrap())
}

/// Ones for [`wide_graph`].
fn wide_operands<B: Compute>(bench: &Bench<B>, columns: usize) -> (Vec<u64>, u64) {
    let x = bench.filled(&vec![1.0; 512 * columns]);
    let weights = bench.filled(&vec![1.0; columns]);
    (vec![x, weights], bench.filled(&[0.0; 512]))
}

/// Without the compiler nothing is supported, the error says why, and all else works.
pub(crate) fn no_compiler<B: Compute>(library: &str) {
    let bench = Bench::<B>::open();
    assert!(!bench.backend.supports(0, OpKind::Add, DType::F32));
    let why = bench.backend.why_unsupported(0, OpKind::Add, DType::F32);
    let why = why.expect("there is a reason");
    assert!(why.contains("no compiler of kernels: looked for"), "{why}");
    assert!(why.contains(library), "{why}");
    let error = bench
        .compile(&layers(8))
        .err()
        .expect("there is no compiler");
    assert_eq!(error.code(), Code::Unimplemented, "{error}");
    assert!(error.message().contains(library), "{error}");
    let ptr = bench.filled(&[1.0, 2.0]);
    assert_eq!(bench.read(ptr, 2), [1.0, 2.0]);
}

/// Without the library of products there are none of its types, and graphs without them are executed.
pub(crate) fn no_products<B: Compute>(library: &str) {
    let bench = Bench::<B>::open();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        assert!(!bench.backend.supports(0, OpKind::Matmul, dtype), "{dtype}");
        let why = bench.backend.why_unsupported(0, OpKind::Matmul, dtype);
        let why = why.expect("there is a reason");
        assert!(
            why.contains("no library of matrix products: looked for"),
            "{why}"
        );
        assert!(why.contains(library), "{why}");
    }
    assert!(bench.backend.supports(0, OpKind::Matmul, DType::I32));
    assert!(bench.backend.supports(0, OpKind::Add, DType::F32));
    let mut graph = stepmesh_graph::GraphBuilder::new("sum");
    let shape = stepmesh_graph::Shape::new(&[4]).unwrap();
    let value = graph.parameter(DType::F32, shape).unwrap();
    let sum = graph
        .node(stepmesh_graph::Op::Add, &[value, value])
        .unwrap();
    let graph = Arc::new(graph.build(&[sum]).unwrap());
    let executable = bench.compile(&graph).unwrap();
    let (from, to) = (bench.filled(&[1.0, 2.0, 3.0, 4.0]), bench.filled(&[0.0; 4]));
    bench
        .execute(&executable, &[from], to, bench.stream)
        .unwrap();
    bench.wait(bench.stream).unwrap();
    assert_eq!(bench.read(to, 4), [2.0, 4.0, 6.0, 8.0]);
}

/// Bytes that are no executable are refused before a driver sees them.
pub(crate) fn bytes_that_are_no_executable<B: Compute>() {
    let bench = Bench::<B>::open();
    let graph = layers(8);
    let executable = bench.compile(&graph).unwrap();
    let bytes = bench.backend.serialize(&executable).unwrap();
    let options = CompileOptions::default();
    let refused = |bytes: &[u8], what: &str| {
        let taken = bench.backend.deserialize(0, &graph, &options, bytes);
        let error = taken.err().unwrap_or_else(|| panic!("{what} was taken"));
        assert_eq!(error.code(), Code::DataLoss, "{what}: {error}");
    };
    let steps = (0..bytes.len()).step_by(bytes.len() / 64 + 1);
    for len in steps.chain([0, 1, bytes.len() - 1]) {
        refused(&bytes[..len], &format!("{len} of {} bytes", bytes.len()));
    }
    refused(&[&bytes[..], &[0]].concat(), "a byte more");
    let other = bench.backend.deserialize(0, &layers(9), &options, &bytes);
    let error = other.err().expect("it is of another graph");
    assert_eq!(error.code(), Code::DataLoss, "{error}");
    // Code that is none: the driver says so, and the device is as it was.
    let mut none = bytes;
    let image_at = none.len() - 64;
    let image = none.windows(7).position(|bytes| bytes == b"SIMCODE");
    for byte in &mut none[image.unwrap_or(image_at)..] {
        *byte = b'x';
    }
    *none.last_mut().unwrap() = 0;
    let taken = bench.backend.deserialize(0, &graph, &options, &none);
    assert!(taken.is_err(), "code that is none was taken");
    assert!(bench.compile(&graph).is_ok(), "the device is as it was");
}

/// A feed-forward network of bf16 by lazy tensors on the plugin that the host loads, nothing of it on the
/// host; twice, so that the second step is one of compiled graphs only.
pub(crate) fn lazy_tensors(plugin: &Path, backend: &str) {
    let mut config = Config {
        backend: backend.into(),
        ..Config::default()
    };
    config.plugins.path = vec![plugin.to_owned()];
    let device = stepmesh_core::Backend::open(&config)
        .unwrap()
        .device(0)
        .unwrap();
    let open = |interpret| {
        let mut options = Options::default();
        options.fallback = FallbackPolicy::all(Fallback::Deny);
        options.backend.interpret = interpret;
        LazyDevice::open(&device, options).unwrap()
    };
    let run = |device: &LazyDevice, step: usize| {
        let tensor = |dims: [usize; 2], seed: usize| {
            let count = dims[0] * dims[1];
            let value = |idx: usize| {
                let part = u8::try_from((idx * 7 + (seed + step) * 5) % 13).unwrap();
                (f32::from(part) - 6.0) / 13.0
            };
            let values: Vec<f32> = (0..count).map(value).collect();
            let tensor = device.from_slice(&dims, &values).unwrap();
            tensor.cast(DType::BF16).unwrap()
        };
        let (x, up, down) = (tensor([8, 32], 1), tensor([32, 64], 2), tensor([64, 32], 3));
        let hidden = x.matmul(&up).unwrap().gelu().unwrap();
        let out = hidden.matmul(&down).unwrap();
        let out = (out + &x).unwrap().cast(DType::F32).unwrap();
        out.to_vec::<f32>().unwrap()
    };
    let (compiled, interpreted) = (open(false), open(true));
    for step in 0..2 {
        let (found, wanted) = (run(&compiled, step), run(&interpreted, step));
        assert_eq!(found.len(), 8 * 32);
        for (found, wanted) in found.iter().zip(&wanted) {
            // The interpreter rounds nothing on the way, and the graph to 8 bits four times.
            let bound = wanted.abs().max(1.0) / 16.0;
            assert!((found - wanted).abs() <= bound, "{found} for {wanted}");
        }
    }
    let report = compiled.metrics_report();
    assert!(report.contains("CachedCompile"), "{report}");
    assert!(
        compiled.fallbacks().is_empty(),
        "{:?}",
        compiled.fallbacks()
    );
}

/// Two products with gelu between, of matrices of `size` by `size`.
fn layers(size: usize) -> Arc<Graph> {
    use stepmesh_graph::{GraphBuilder, Op, Shape};
    let matmul = Op::Matmul {
        transpose_a: false,
        transpose_b: true,
    };
    let mut graph = GraphBuilder::new("layers");
    let shape = Shape::new(&[size, size]).unwrap();
    let [x, up, down] = [0, 1, 2].map(|_| graph.parameter(DType::F32, shape).unwrap());
    let hidden = graph.node(matmul.clone(), &[x, up]).unwrap();
    let hidden = graph.node(Op::GeluErf, &[hidden]).unwrap();
    let out = graph.node(matmul, &[hidden, down]).unwrap();
    let out = graph.node(Op::Add, &[out, x]).unwrap();
    Arc::new(graph.build(&[out]).unwrap())
}

/// Values of the parameters of [`layers`].
fn values(size: usize, scale: f32) -> [Vec<f32>; 3] {
    [1, 2, 3].map(|seed| {
        let value =
            |idx: usize| (f32::from(u8::try_from((idx * 7 + seed * 5) % 11).unwrap()) - 5.0) / 11.0;
        (0..size * size).map(|idx| value(idx) * scale).collect()
    })
}

fn operands<B: Compute>(bench: &Bench<B>, size: usize, scale: f32) -> (Vec<u64>, u64) {
    let args = values(size, scale).map(|values| bench.filled(&values));
    (args.to_vec(), bench.filled(&vec![0.0; size * size]))
}

/// The result of [`layers`] by the interpreter of graphs.
fn expected(size: usize, scale: f32) -> Vec<f32> {
    use stepmesh_graph::reference::{Tensor, evaluate};
    let graph = layers(size);
    let values = values(size, scale);
    let tensors = graph.param_types().zip(&values).map(|(ty, values)| {
        let values: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
        Tensor::from_f64(ty, &values)
    });
    let tensors: Vec<Tensor> = tensors.collect();
    let bytes = evaluate(&graph, &tensors).unwrap()[0].to_bytes();
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|word| f32::from_le_bytes(*word)).collect()
}

fn assert_near(found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    for (idx, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let bound = 1e-4 * wanted.abs().max(1.0);
        assert!(
            (found - wanted).abs() <= bound,
            "element {idx}: {found} for {wanted}"
        );
    }
}

/// gelu(1), by the error function.
const GELU_OF_ONE: f32 = 0.841_344_7;
/// What ends at once if it ends at all.
const LONG_NS: u64 = 20_000_000_000;
