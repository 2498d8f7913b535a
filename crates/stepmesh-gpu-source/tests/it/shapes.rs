//! Sizes at which kernels take another form, and values that stay where arguments were.

use stepmesh_gpu_source::{Place, Program, Step};
use stepmesh_graph::reference::Tensor;
use stepmesh_graph::samples::Sample;
use stepmesh_graph::{
    CompileOptions, DType, F64, Graph, GraphBuilder, NodeId, Op, Shape, TensorType,
};

use crate::bench::judge;

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).expect("few dimensions")
}

/// A graph of parameters of these shapes.
fn case(
    name: &str,
    dtype: DType,
    params: &[&[usize]],
    build: impl FnOnce(&mut GraphBuilder, &[NodeId]) -> Vec<NodeId>,
) -> Sample {
    let mut graph = GraphBuilder::new(name);
    let (mut ids, mut args) = (Vec::new(), Vec::new());
    for dims in params {
        let ty = TensorType::new(dtype, shape(dims)).expect("a small value");
        let count = ty.shape().element_count();
        let number = |idx: usize| ((idx * 7919 + 13 * ids.len()) % 33) as f64 / 8.0 - 2.0;
        let numbers: Vec<f64> = (0..count).map(number).collect();
        args.push(Tensor::from_f64(ty, &numbers).to_bytes());
        ids.push(graph.parameter(dtype, ty.shape()).expect("a parameter"));
    }
    let results = build(&mut graph, &ids);
    Sample {
        name: name.to_owned(),
        graph: graph.build(&results).expect("a valid graph"),
        args,
    }
}

fn node(graph: &mut GraphBuilder, op: Op, operands: &[NodeId]) -> NodeId {
    graph.node(op, operands).expect("a valid node")
}

fn functions(case: &Sample) -> Vec<String> {
    let program = Program::compile(&case.graph, &CompileOptions::default()).expect("a program");
    let launches = program.steps.iter().filter_map(|step| match step {
        Step::Launch(launch) => Some(launch.function.clone()),
        Step::Product(_) => None,
    });
    launches.collect()
}

fn reduced(name: &str, dtype: DType, dims: &[usize], over: Vec<usize>) -> Sample {
    case(name, dtype, &[dims], |graph, ids| {
        let squares = node(graph, Op::Mul, &[ids[0], ids[0]]);
        let mean = node(graph, Op::Sum { dims: over.clone() }, &[squares]);
        let greatest = node(graph, Op::ReduceMax { dims: over.clone() }, &[squares]);
        let both = node(graph, Op::Sub, &[greatest, mean]);
        let mut results = vec![squares, both];
        if let [dim] = over[..] {
            results.push(node(graph, Op::Argmax { dim }, &[ids[0]]));
        }
        results
    })
}

#[test]
fn long_rows_and_columns_are_cut_into_parts() {
    let cases = [
        reduced("one_row", DType::F32, &[1, 40_000], vec![1]),
        reduced("a_scalar", DType::F64, &[30_000], vec![0]),
        reduced("few_columns", DType::F32, &[3_000, 3], vec![0]),
        reduced("between", DType::I32, &[2, 1_000, 5], vec![1]),
        reduced("narrow", DType::BF16, &[2, 17_000], vec![1]),
    ];
    for case in &cases {
        let functions = functions(case);
        let parts = functions.iter().filter(|name| name.ends_with("_parts"));
        assert!(parts.count() > 0, "{}: {functions:?}", case.name);
    }
    assert_eq!(judge(&cases), Vec::<String>::new());
}

#[test]
fn rows_of_every_length_are_reduced() {
    let lengths = [1, 2, 31, 32, 33, 127, 128, 129, 1000, 1024, 1025, 5000];
    let cases: Vec<Sample> = lengths
        .into_iter()
        .flat_map(|len| {
            [
                reduced(&format!("rows_of_{len}"), DType::F32, &[3, len], vec![1]),
                reduced(&format!("columns_of_{len}"), DType::I64, &[len, 3], vec![0]),
            ]
        })
        .collect();
    assert_eq!(judge(&cases), Vec::<String>::new());
}

#[test]
fn a_norm_is_one_kernel_of_several_walks() {
    let norm = |name, dims: &[usize]| {
        let weight = dims[dims.len() - 1];
        case(
            name,
            DType::F32,
            &[dims, &[weight], &[weight]],
            |graph, ids| {
                let dim = dims.len() - 1;
                let epsilon = F64::new(1e-5);
                let normed = node(
                    graph,
                    Op::LayerNorm { dim, epsilon },
                    &[ids[0], ids[1], ids[2]],
                );
                vec![node(graph, Op::Softmax { dim }, &[normed])]
            },
        )
    };
    let cases = [norm("hidden", &[5, 384]), norm("long", &[2, 3000])];
    assert_eq!(functions(&cases[0]), ["k0_layer_norm_softmax"]);
    let across = case("columns", DType::F32, &[&[40, 6]], |graph, ids| {
        vec![node(graph, Op::Softmax { dim: 0 }, &[ids[0]])]
    });
    assert_eq!(judge(&cases), Vec::<String>::new());
    assert_eq!(judge(&[across]), Vec::<String>::new());
}

#[test]
fn products_take_operands_as_they_lie_where_that_is_possible() {
    let product = |graph: &mut GraphBuilder, ids: &[NodeId], exchanged| {
        let op = Op::Matmul {
            transpose_a: false,
            transpose_b: exchanged,
        };
        node(graph, op, ids)
    };
    let plain = case(
        "plain",
        DType::F32,
        &[&[3, 4, 5], &[3, 6, 5]],
        |graph, ids| vec![product(graph, ids, true)],
    );
    assert_eq!(functions(&plain), Vec::<String>::new());
    let sliced = case("sliced", DType::BF16, &[&[8, 10], &[5, 6]], |graph, ids| {
        let every_second = Op::Slice {
            starts: vec![0, 1],
            limits: vec![8, 10],
            strides: vec![1, 2],
        };
        let half = node(graph, every_second, &[ids[0]]);
        let product = product(graph, &[half, ids[1]], false);
        vec![node(graph, Op::GeluTanh, &[product])]
    });
    assert_eq!(functions(&sliced), ["k0_matmul_left", "k1_gelu_tanh"]);
    let repeated = case(
        "repeated",
        DType::F64,
        &[&[2, 3, 4, 5], &[5, 6]],
        |graph, ids| {
            let spread = Op::Broadcast {
                shape: shape(&[2, 3, 5, 6]),
                dims: vec![2, 3],
            };
            let spread = node(graph, spread, &[ids[1]]);
            vec![product(graph, &[ids[0], spread], false)]
        },
    );
    assert_eq!(functions(&repeated), Vec::<String>::new());
    let integers = case("integers", DType::U8, &[&[7, 9], &[9, 5]], |graph, ids| {
        vec![product(graph, ids, false)]
    });
    assert_eq!(functions(&integers), ["k0_matmul"]);
    let empty = case("empty", DType::F32, &[&[7, 0], &[0, 5]], |graph, ids| {
        vec![product(graph, ids, false)]
    });
    let cases = [plain, sliced, repeated, integers, empty];
    assert_eq!(judge(&cases), Vec::<String>::new());
}

#[test]
fn a_result_that_replaces_an_argument_is_written_last_if_it_must_be() {
    let donating = |ops: fn(&mut GraphBuilder, NodeId) -> NodeId| {
        let mut graph = GraphBuilder::new("donated");
        let x = graph
            .parameter(DType::F32, shape(&[4, 4]))
            .expect("a parameter");
        let made = ops(&mut graph, x);
        graph.donate(0, 0);
        let graph = graph.build(&[made]).expect("a valid graph");
        Program::compile(&graph, &CompileOptions::default()).expect("a program")
    };
    let in_place = donating(|graph, x| node(graph, Op::Exp, &[x]));
    assert_eq!(in_place.steps.len(), 1);
    let exchanged = donating(|graph, x| {
        let turned = node(graph, Op::Transpose { dims: vec![1, 0] }, &[x]);
        node(graph, Op::Add, &[x, turned])
    });
    let [Step::Launch(first), Step::Launch(last)] = &exchanged.steps[..] else {
        panic!("{}", exchanged.text());
    };
    assert!(matches!(
        first.arguments[..],
        [Place::Argument { .. }, Place::Scratch { .. }]
    ));
    assert!(matches!(
        last.arguments[..],
        [Place::Scratch { .. }, Place::Result { .. }]
    ));
}

#[test]
fn what_has_more_elements_than_32_bits_count_is_indexed_by_64() {
    let compile = |dims: &[usize]| -> String {
        let mut graph: GraphBuilder = GraphBuilder::new("wide");
        let x = graph
            .parameter(DType::U8, shape(dims))
            .expect("a parameter");
        let y = node(&mut graph, Op::Neg, &[x]);
        let graph: Graph = graph.build(&[y]).expect("a valid graph");
        let program = Program::compile(&graph, &CompileOptions::default()).expect("a program");
        let Step::Launch(launch) = &program.steps[0] else {
            panic!("a kernel");
        };
        assert!(launch.grid[0] <= 1 << 14, "{launch:?}");
        program.source
    };
    assert!(compile(&[1 << 16, 1 << 15]).contains("for (u64 i ="));
    assert!(compile(&[1 << 16, (1 << 15) - 1]).contains("for (u32 i ="));
}

#[test]
fn nothing_is_launched_for_empty_values() {
    let empty = case("empty", DType::F32, &[&[0, 7]], |graph, ids| {
        let negative = node(graph, Op::Neg, &[ids[0]]);
        vec![
            negative,
            node(graph, Op::Sum { dims: vec![1] }, &[negative]),
            node(graph, Op::Concat { dim: 0 }, &[negative, ids[0]]),
        ]
    });
    assert_eq!(functions(&empty), Vec::<String>::new());
    let sums = case("sums", DType::F32, &[&[0, 7]], |graph, ids| {
        vec![node(graph, Op::Mean { dims: vec![0] }, &[ids[0]])]
    });
    assert_eq!(functions(&sums).len(), 1);
    assert_eq!(judge(&[sums]), Vec::<String>::new());
}
