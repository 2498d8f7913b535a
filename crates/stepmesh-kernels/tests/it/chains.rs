//! Chains of operations give the bits that the operations give one by one, of special numbers too.

use stepmesh_graph::{CompileOptions, DType, GraphBuilder, NodeId, Op};
use stepmesh_kernels::{Executable, Pool, Region};

use crate::support::{Dice, shape};

macro_rules! chains {
    ($name:ident, $number:ident, $dtype:expr) => {
        #[test]
        fn $name() {
            type Operation = (Op, usize, fn($number, $number) -> $number);
            let larger = |a: $number, b| if a > b || a.is_nan() { a } else { b };
            let smaller = |a: $number, b| if a < b || a.is_nan() { a } else { b };
            let operations: [Operation; 10] = [
                (Op::Add, 2, |a, b| a + b),
                (Op::Sub, 2, |a, b| a - b),
                (Op::Mul, 2, |a, b| a * b),
                (Op::Div, 2, |a, b| a / b),
                (Op::Max, 2, larger),
                (Op::Min, 2, smaller),
                (Op::Neg, 1, |a, _| -a),
                (Op::Relu, 1, |a, _| if a < 0.0 { 0.0 } else { a }),
                (Op::Sqrt, 1, |a, _| a.sqrt()),
                (Op::Rsqrt, 1, |a, _| 1.0 / a.sqrt()),
            ];
            let special = [0.0, -0.0, $number::NAN, $number::INFINITY, 1.0, -1.5, 3.25];
            // Less than a vector, parts of a tile, whole tiles, and what is left of one.
            let lens = [1, 7, 127, 128, 512, 1024 + 65];
            for seed in 0..150 {
                let mut dice = Dice::new(seed);
                let len = lens[dice.roll(lens.len())];
                let mut graph = GraphBuilder::new("chain");
                let mut nodes: Vec<NodeId> = Vec::new();
                let mut values: Vec<Vec<$number>> = Vec::new();
                for _ in 0..3 {
                    nodes.push(graph.parameter($dtype, shape(&[len])).expect("few"));
                    let value = (0..len).map(|_| special[dice.roll(special.len())]);
                    values.push(value.collect());
                }
                let mut args = values.clone();
                for _ in 0..=dice.roll(12) {
                    // Mostly of the last value, sometimes of one that is long gone.
                    let (last, any) = (nodes.len() - 1, dice.roll(nodes.len()));
                    let (a, b) = [(last, any), (any, last), (last, last)][dice.roll(3)];
                    let (op, count, apply) = &operations[dice.roll(operations.len())];
                    let operands = [nodes[a], nodes[b]];
                    nodes.push(
                        graph
                            .node(op.clone(), &operands[..*count])
                            .expect("of one type"),
                    );
                    let pairs = values[a].iter().zip(&values[b]);
                    values.push(pairs.map(|(a, b)| apply(*a, *b)).collect());
                }
                let mut results = vec![nodes.len() - 1];
                results.extend((dice.roll(2) == 0).then(|| dice.roll(nodes.len())));
                let ids: Vec<NodeId> = results.iter().map(|idx| nodes[*idx]).collect();
                let graph = graph.build(&ids).expect("a valid graph");
                let executable = Executable::compile(&graph, &CompileOptions::default());
                let mut found: Vec<Vec<$number>> = vec![vec![9.0; len]; results.len()];
                let executable = executable.expect("a small graph");
                let pool = Pool::new(1).expect("one thread");
                let done = executable.run(&pool, &regions(&mut args), &regions(&mut found));
                done.expect("regions of the right size");
                for (found, idx) in found.iter().zip(results) {
                    for (place, (found, wanted)) in found.iter().zip(&values[idx]).enumerate() {
                        let is_it = found.to_bits() == wanted.to_bits()
                            || (found.is_nan() && wanted.is_nan());
                        let what = format!("seed {seed}, element {place} of {len}");
                        assert!(
                            is_it,
                            "{what}: {found}, not {wanted}\n{}",
                            executable.text()
                        );
                    }
                }
            }
        }
    };
}

chains!(chains_of_f32_are_exact, f32, DType::F32);
chains!(chains_of_f64_are_exact, f64, DType::F64);

/// Regions of vectors that the caller keeps while they are used, and uses for nothing else.
fn regions<T>(memory: &mut [Vec<T>]) -> Vec<Region> {
    let region = |memory: &mut Vec<T>| {
        let len_bytes = size_of_val(&memory[..]);
        // SAFETY: the vectors outlive the runs of the tests, which alone use them meanwhile.
        unsafe { Region::new(memory.as_mut_ptr().expose_provenance(), len_bytes) }
    };
    memory.iter_mut().map(region).collect()
}
