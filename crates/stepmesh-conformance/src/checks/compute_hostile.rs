//! Z: what a plugin that computes must refuse, and what that must not cost.
#![forbid(unsafe_code)]

use stepmesh_abi::compute::{
    SM_COMPUTE_NODES_MAX, SM_DTYPE_F32, SM_OP_ADD, SM_OP_NEG, SM_OP_PARAMETER,
};
use stepmesh_abi::{Code, SmCompileOptions, SmGraph, SmNode};
use stepmesh_graph::{Alias, Attribute, OpKind, RawGraph, RawNode, RawValue};

use super::memory::resident_bytes;
use super::program::{Computing, Memory, no_stream};
use super::setting::Setting;
use crate::check::{Stop, Verdict, ensure, expect_code, fail, pass, skip};
use crate::context::Context;
use crate::raw::compute::Executable;
use crate::raw::failure::Failure;

pub(super) fn unknown(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let computing = Computing::new(&setting)?;
    let good = computing.some_graph()?.graph.to_raw();
    let last = good.nodes.len() - 1;
    let refused = |what: &str, spoil: &dyn Fn(&mut RawNode), name: &str| {
        let mut graph = good.clone();
        spoil(&mut graph.nodes[last]);
        let failure = expect_code(
            what,
            computing.compute.compile(setting.dev, graph),
            Code::Unimplemented,
        )?;
        ensure!(
            failure.message().contains(name),
            "{what}: the message does not name {name}: {}",
            failure.message()
        );
        Ok::<(), Stop>(())
    };
    refused("op 4711", &|node| node.op = 4711, "4711")?;
    refused("op 0", &|node| node.op = 0, "0")?;
    refused("dtype 99", &|node| node.dtype = 99, "99")?;
    let attribute = |node: &mut RawNode| node.attributes.push((9999, Attribute::Int(1)));
    refused("attribute 9999", &attribute, "9999")?;
    lacking(&computing)?;
    pass()
}

/// An operation that the plugin said no to is refused by name, too.
fn lacking(computing: &Computing<'_>) -> Result<(), Stop> {
    for op in OpKind::ALL {
        for dtype in stepmesh_graph::DType::ALL {
            if !op.allows(dtype) || computing.supports(*op, dtype)? {
                continue;
            }
            let samples = super::program::samples_of(*op, dtype)?;
            let Some(sample) = samples.into_iter().next() else {
                continue;
            };
            let what = format!("{}, which is not supported", sample.name);
            let compiled = computing
                .compute
                .compile(computing.setting.dev, sample.graph.to_raw());
            let failure = expect_code(&what, compiled, Code::Unimplemented)?;
            ensure!(!failure.message().is_empty(), "{what}: no message");
        }
    }
    Ok(())
}

/// Two parameters and what is done with them; whether the plugin could does not matter, since
/// everything here is refused for what it is.
fn victim() -> RawGraph {
    let node = |op, operands: &[u32]| RawNode {
        op,
        dtype: SM_DTYPE_F32,
        dims: vec![2, 3],
        operands: operands
            .iter()
            .map(|node| RawValue {
                node: *node,
                output: 0,
            })
            .collect(),
        ..RawNode::default()
    };
    RawGraph {
        name: "victim".into(),
        nodes: vec![
            node(SM_OP_PARAMETER, &[]),
            node(SM_OP_PARAMETER, &[]),
            node(SM_OP_ADD, &[0, 1]),
        ],
        params: vec![0, 1],
        results: vec![RawValue { node: 2, output: 0 }],
        aliases: Vec::new(),
    }
}

type Spoil = (&'static str, fn(&mut RawGraph));
type SpoilStructs = (&'static str, fn(&mut SmGraph, &mut [SmNode]));

pub(super) fn malformed(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let computing = Computing::new(&setting)?;
    let (compute, dev) = (computing.compute, setting.dev);
    for (what, spoil) in GRAPHS {
        let mut graph = victim();
        spoil(&mut graph);
        refused(what, compute.compile(dev, graph))?;
    }
    for (what, spoil) in STRUCTS {
        refused(what, compute.compile_spoilt(dev, victim(), spoil))?;
    }
    let nothing = compute.compile_nothing(dev);
    expect_code("a null graph", nothing, Code::InvalidArgument)?;
    let options = SmCompileOptions {
        flags: 1 << 31,
        ..SmCompileOptions::new()
    };
    let good = computing.some_graph()?;
    let unknown_flag = compute.compile_with(dev, good.graph.to_raw(), options);
    expect_code("an unknown option", unknown_flag, Code::InvalidArgument)?;
    let nowhere = compute.compile(setting.devices + 41, good.graph.to_raw());
    expect_code(
        "a device that does not exist",
        nowhere,
        Code::InvalidArgument,
    )?;
    // After all this it still works.
    computing.judge(&good)?;
    pass()
}

/// A malformed graph is an invalid argument; where an operation is not supported either, that may be
/// said first.
fn refused(what: &str, compiled: Result<Executable, Failure>) -> Result<(), Stop> {
    match compiled {
        Err(failure) if failure.code == Code::InvalidArgument => Ok(()),
        Err(failure) if failure.code == Code::Unimplemented => Ok(()),
        Err(failure) => fail(format!(
            "{what}: {failure}, where `invalid argument` was due"
        )),
        Ok(_) => fail(format!("{what}: it was compiled")),
    }
}

const GRAPHS: [Spoil; 25] = [
    ("no nodes", |graph| *graph = RawGraph::default()),
    ("no results", |graph| graph.results.clear()),
    ("a result that is no node", |graph| {
        graph.results[0].node = 3
    }),
    ("a result far out", |graph| graph.results[0].node = u32::MAX),
    ("a second output", |graph| graph.results[0].output = 1),
    ("an operand that is the node itself", |graph| {
        graph.nodes[2].operands[0].node = 2
    }),
    ("an operand after the node", |graph| {
        graph.nodes[2].operands[0].node = 3;
        graph.nodes.push(graph.nodes[2].clone());
    }),
    ("a cycle", |graph| {
        let mut back = graph.nodes[2].clone();
        back.operands[0].node = 2;
        graph.nodes[2].operands[0].node = 3;
        graph.nodes.push(back);
    }),
    ("an operand far out", |graph| {
        graph.nodes[2].operands[1].node = u32::MAX
    }),
    ("an operand's second output", |graph| {
        graph.nodes[2].operands[1].output = u32::MAX
    }),
    ("too few operands", |graph| {
        graph.nodes[2].operands.truncate(1)
    }),
    ("too many operands", |graph| {
        let more = vec![RawValue::default(); 100_000];
        graph.nodes[2].operands.extend(more);
    }),
    ("a type that does not follow", |graph| {
        graph.nodes[2].dtype = 5
    }),
    ("a shape that does not follow", |graph| {
        graph.nodes[2].dims = vec![3, 2]
    }),
    ("a rank that does not follow", |graph| {
        graph.nodes[2].dims = vec![6]
    }),
    ("operands of two shapes", |graph| {
        graph.nodes[1].dims = vec![2, 4]
    }),
    ("rank 9", |graph| graph.nodes[0].dims = vec![1; 9]),
    ("extents that overflow", |graph| {
        for node in &mut graph.nodes {
            node.dims = vec![1 << 40, 1 << 40];
        }
    }),
    ("extents that overflow beside an empty one", |graph| {
        for node in &mut graph.nodes {
            node.dims = vec![0, 1 << 62, 1 << 62];
        }
    }),
    ("a parameter that is not listed", |graph| {
        graph.params.truncate(1)
    }),
    ("a parameter that is listed twice", |graph| {
        graph.params.push(0)
    }),
    ("a parameter that is none", |graph| graph.params[1] = 2),
    ("a parameter far out", |graph| graph.params[1] = u32::MAX),
    ("a donation far out", |graph| {
        let result = 7;
        graph.aliases.push(Alias { param: 0, result });
    }),
    ("two donations of one parameter", |graph| {
        let alias = Alias {
            param: 0,
            result: 0,
        };
        graph.aliases.extend([alias, alias]);
    }),
];

const STRUCTS: [SpoilStructs; 15] = [
    ("a graph without a size", |graph, _| {
        graph.hdr.struct_size = 0
    }),
    ("a graph of 16 bytes", |graph, _| graph.hdr.struct_size = 16),
    ("a node without a size", |_, nodes| {
        nodes[0].hdr.struct_size = 0
    }),
    ("a node of 12 bytes", |_, nodes| {
        nodes[0].hdr.struct_size = 12
    }),
    ("null nodes", |graph, _| graph.nodes = std::ptr::null()),
    ("null parameters", |graph, _| {
        graph.params = std::ptr::null()
    }),
    ("null results", |graph, _| graph.results = std::ptr::null()),
    ("null donations", |graph, _| {
        graph.aliases = std::ptr::null();
        graph.n_aliases = 1;
    }),
    ("more nodes than there may be", |graph, _| {
        graph.n_nodes = SM_COMPUTE_NODES_MAX + 1
    }),
    ("2^32 - 1 nodes", |graph, _| graph.n_nodes = u32::MAX),
    ("2^32 - 1 parameters", |graph, _| graph.n_params = u32::MAX),
    ("2^32 - 1 results", |graph, _| graph.n_results = u32::MAX),
    ("2^32 - 1 operands", |_, nodes| {
        nodes[2].n_operands = u32::MAX
    }),
    ("null operands", |_, nodes| {
        nodes[2].operands = std::ptr::null()
    }),
    ("2^32 - 1 dimensions", |_, nodes| nodes[2].rank = u32::MAX),
];

pub(super) fn calls(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let computing = Computing::new(&setting)?;
    let compute = computing.compute;
    let sample = computing.some_graph()?;
    let executable = computing.compile(&sample.graph)?;
    let memory = Memory::new(&setting, &sample.graph, &sample.args)?;
    let (args, outs, on) = (memory.args(), memory.outs(), setting.stream);
    let few = compute.execute(executable, &args[..args.len() - 1], &outs, on);
    expect_code("an argument too few", few, Code::InvalidArgument)?;
    let many = compute.execute(executable, &args, &[&outs[..], &outs[..]].concat(), on);
    expect_code("a result too many", many, Code::InvalidArgument)?;
    let is_empty = |address: &u64| *address == 0;
    if !outs.iter().all(is_empty) {
        let nulls = vec![0; outs.len()];
        let null = compute.execute(executable, &args, &nulls, on);
        expect_code("a null result", null, Code::InvalidArgument)?;
    }
    let size = sample
        .graph
        .result_types()
        .next()
        .map_or(1, |ty| ty.dtype().size_bytes());
    if size > 1 && !outs.iter().any(is_empty) {
        let askew: Vec<u64> = outs.iter().map(|address| address + 1).collect();
        let askew = compute.execute(executable, &args, &askew, on);
        expect_code("an askew result", askew, Code::InvalidArgument)?;
    }
    let zero = compute.execute(executable, &args, &outs, no_stream(&setting));
    expect_code("stream 0", zero, Code::InvalidArgument)?;
    let null = compute.execute(Executable::NULL, &args, &outs, on);
    expect_code("a null executable", null, Code::InvalidArgument)?;
    expect_code(
        "facts of null",
        compute.info(Executable::NULL),
        Code::InvalidArgument,
    )?;
    compute.execute(executable, &args, &outs, on)?;
    setting.sync(on)?;
    memory.compare(&setting, &sample)?;
    memory.free(&setting)?;
    compute.destroy(Executable::NULL)?;
    compute.destroy(executable)?;
    let twice = compute.destroy(executable);
    expect_code("destroying twice", twice, Code::InvalidArgument)?;
    pass()
}

pub(super) fn leak(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let computing = Computing::new(&setting)?;
    let good = computing.some_graph()?;
    // A graph of a thousand nodes of which the last is wrong, so that much is there to be forgotten.
    let mut graph = victim();
    let node = RawNode {
        op: SM_OP_NEG,
        operands: vec![RawValue::default()],
        ..graph.nodes[0].clone()
    };
    graph.nodes.extend(vec![node; 1000]);
    graph.nodes[1002].operands[0].node = 9999;
    let round = || -> Result<(), Stop> {
        refused(
            "a bad last node",
            computing.compute.compile(setting.dev, graph.clone()),
        )?;
        let executable = computing.compile(&good.graph)?;
        Ok(computing.compute.destroy(executable)?)
    };
    let rounds = context.count(2000, 200);
    // The first ones fill what is kept for good: caches, arenas.
    for _ in 0..rounds {
        round()?;
    }
    let before = resident_bytes();
    for _ in 0..rounds {
        round()?;
    }
    let grown = resident_bytes().saturating_sub(before);
    if before == 0 {
        return skip("the system does not tell how much memory the process has");
    }
    ensure!(
        grown < u64::from(rounds) * LEAK_MAX_BYTES,
        "{rounds} failed and {rounds} good compilations left {grown} bytes"
    );
    pass()
}

/// Less than a failed graph of a thousand nodes takes anywhere, more than the noise of an allocator.
const LEAK_MAX_BYTES: u64 = 8192;
