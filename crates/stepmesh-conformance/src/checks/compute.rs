//! Z: computing (`stepmesh.compute.v1`): what an executable is and does. Operations are judged by
//! their values here too; what must be refused is in `compute_hostile`.
#![forbid(unsafe_code)]

use std::sync::Mutex;
use std::sync::PoisonError;

use stepmesh_abi::SmTensorInfo;
use stepmesh_abi::compute::{SM_COMPUTE_TEXT_PLAN, SM_COMPUTE_TEXT_SOURCE};
use stepmesh_abi::{Code, SmCompileOptions};
use stepmesh_graph::samples::Sample;
use stepmesh_graph::{CompileOptions, DType, Graph, GraphBuilder, Op, OpKind, TensorType};

use super::compute_hostile;
use super::program::{
    Computing, Memory, expected, judge_all, no_stream, node, own_fault, parameter, typed,
};
use super::setting::Setting;
use crate::check::{Check, Group, Stop, Tier, Verdict, ensure, expect_code, fail, pass, skip};
use crate::context::Context;
use crate::raw::compute::{Executable, FILLER};
use crate::raw::memory::narrow;

const fn check(
    id: &'static str,
    name: &'static str,
    proves: &'static str,
    run: fn(&Context<'_>) -> Verdict,
) -> Check {
    Check {
        id,
        name,
        tier: Tier::Capability,
        group: Group::Compute,
        proves,
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "Z1",
        "what is supported",
        "each operation and type is 0 or 1, and unknown ones are 0",
        supported,
    ),
    check(
        "Z2",
        "elementwise operations",
        "every one that is claimed gives right values for every type, strange ones too",
        |context| judge_all(context, ELEMENTWISE),
    ),
    check(
        "Z3",
        "sums and products",
        "reductions, matmul, softmax and norms give right values",
        |context| judge_all(context, REDUCTIONS),
    ),
    check(
        "Z4",
        "casts, moves and indices",
        "casts round, elements arrive, indices out of range do as is written",
        |context| judge_all(context, MOVES),
    ),
    check(
        "Z5",
        "execution is asynchronous",
        "the stream's order holds, an event orders what follows, an executable may go meanwhile",
        asynchronous,
    ),
    check(
        "Z6",
        "donation",
        "a result may take the place of its argument, and need not",
        donation,
    ),
    check(
        "Z7",
        "what is unknown is named",
        "the caller can fall back, and say why",
        compute_hostile::unknown,
    ),
    check(
        "Z8",
        "malformed graphs are refused",
        "counts, indices, ranks, shapes, attributes and sizes are checked before they are used",
        compute_hostile::malformed,
    ),
    check(
        "Z9",
        "executables as bytes",
        "they work again, fingerprints are stable, cut and changed ones are refused",
        serialized,
    ),
    check(
        "Z10",
        "random numbers repeat",
        "a seed gives the very numbers that are written",
        |context| judge_all(context, &[OpKind::RngUniform, OpKind::RngNormal]),
    ),
    check(
        "Z11",
        "facts and texts",
        "types, shapes and donations are the graph's, texts are UTF-8 within their room",
        facts,
    ),
    check(
        "Z12",
        "a failed compilation leaks nothing",
        "memory is as before, and good graphs still compile",
        compute_hostile::leak,
    ),
    check(
        "Z13",
        "many operations in one graph",
        "chains, shared values, results twice, parameters as results",
        chains,
    ),
    check(
        "Z14",
        "wrong calls are refused",
        "counts, null and askew addresses, stream 0, destroyed handles",
        compute_hostile::calls,
    ),
    check(
        "Z15",
        "sixteen threads",
        "compile, execute and destroy at once, and one executable on many streams",
        threads,
    ),
];

fn supported(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let computing = Computing::new(&setting)?;
    let mut count = 0;
    for op in OpKind::ALL {
        for dtype in DType::ALL {
            let yes = computing.supports(*op, dtype)?;
            ensure!(
                !yes || op.allows(dtype),
                "{op} is claimed for {dtype}, for which it is not defined"
            );
            count += u32::from(yes);
        }
    }
    for (op, dtype) in [(0, 1), (u32::MAX, 1), (1, 0), (1, u32::MAX), (15, 1)] {
        let answer = computing.compute.supported(setting.dev, op, dtype)?;
        ensure!(answer == 0, "op {op} for type {dtype} is claimed: {answer}");
    }
    let beyond = computing.compute.supported(setting.devices + 41, 1, 1);
    expect_code(
        "a device that does not exist",
        beyond,
        Code::InvalidArgument,
    )?;
    crate::check::pass_noting(format!("{count} operations by type"))
}

fn asynchronous(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let computing = Computing::new(&setting)?;
    let sample = computing.some_graph()?;
    let executable = computing.compile(&sample.graph)?;
    let memory = Memory::new(&setting, &sample.graph, &sample.args)?;
    let other = setting.session.stream_create(setting.dev)?;
    let (held, event) = (setting.hold_or_skip(setting.stream)?, setting.event()?);
    let (args, outs) = (memory.args(), memory.outs());
    computing
        .compute
        .execute(executable, &args, &outs, setting.stream)?;
    setting.session.event_record(event, setting.stream)?;
    ensure!(
        !setting.is_done(event)?,
        "an execution on a held stream is done"
    );
    // Its handle may go; the work is still to be done.
    computing.compute.destroy(executable)?;
    setting.session.stream_wait_event(other, event)?;
    held.release();
    setting.sync(other)?;
    ensure!(
        setting.is_done(event)?,
        "a stream that waits for the execution was done before it"
    );
    memory.compare(&setting, &sample)?;
    memory.free(&setting)?;
    pass()
}

/// `x op x` with a donation, for the first operation that the device has.
fn donating(computing: &Computing<'_>) -> Result<Sample, Stop> {
    for op in [Op::Add, Op::Mul, Op::Neg, Op::Exp, Op::Relu] {
        for dtype in DType::ALL {
            if !op.kind().allows(dtype) {
                continue;
            }
            let ty = typed(dtype, &[300])?;
            let mut graph = GraphBuilder::new("donation");
            let x = parameter(&mut graph, ty)?;
            let operands = [x, x];
            let is_binary = matches!(op, Op::Add | Op::Mul);
            let operands = if is_binary {
                &operands[..]
            } else {
                &operands[..1]
            };
            let y = node(&mut graph, op.clone(), operands)?;
            graph.donate(0, 0);
            let graph = graph.build(&[y]).map_err(own_fault)?;
            if computing.can(&graph)? {
                let numbers: Vec<f64> = (0..300).map(|n| f64::from(n % 11)).collect();
                let arg = stepmesh_graph::reference::Tensor::from_f64(ty, &numbers).to_bytes();
                return Ok(Sample {
                    name: format!("{} of {ty} in place", op.kind()),
                    graph,
                    args: vec![arg],
                });
            }
        }
    }
    skip("the device has none of the operations that the check could use")
}

fn donation(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let computing = Computing::new(&setting)?;
    let sample = donating(&computing)?;
    // Elsewhere: the argument stays.
    computing.judge(&sample)?;
    let executable = computing.compile(&sample.graph)?;
    let memory = Memory::new(&setting, &sample.graph, &sample.args)?;
    let args = memory.args();
    computing
        .compute
        .execute(executable, &args, &args, setting.stream)?;
    setting.sync(setting.stream)?;
    let found = memory.arg(&setting, 0)?;
    if let Some(why) = expected(&sample)?[0].mismatch(&found) {
        return fail(format!("{}: {why}", sample.name));
    }
    ensure!(
        memory.out(&setting, 0)?.iter().all(|byte| *byte == FILLER),
        "memory that was not named was written to"
    );
    computing.compute.destroy(executable)?;
    memory.free(&setting)?;
    pass()
}

fn serialized(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let computing = Computing::new(&setting)?;
    let compute = computing.compute;
    let print = compute.fingerprint(setting.dev)?;
    let hex: String = print.iter().map(|byte| format!("{byte:02x}")).collect();
    if context.part.is_some() {
        return crate::check::pass_noting(hex);
    }
    ensure!(print != [0; 32], "the fingerprint is all zeros");
    let elsewhere = context.rerun_well("fingerprint", &[])?;
    ensure!(
        elsewhere == hex,
        "the fingerprint is {hex}, in another process {elsewhere}"
    );
    let sample = computing.some_graph()?;
    let executable = computing.compile(&sample.graph)?;
    let len = match compute.serialize(executable, 0) {
        Err(failure) if failure.code == Code::Unimplemented => {
            return skip("the plugin does not serialise executables");
        }
        asked => narrow(asked?.0),
    };
    let bytes = whole(&computing, executable, len)?;
    ensure!(
        bytes == whole(&computing, executable, len)?,
        "serialising twice gives different bytes"
    );
    compute.destroy(executable)?;
    let again = compute.deserialize(setting.dev, &bytes)?;
    ensure!(
        again != Executable::NULL,
        "deserialize succeeded with a null executable"
    );
    let memory = Memory::new(&setting, &sample.graph, &sample.args)?;
    compute.execute(again, &memory.args(), &memory.outs(), setting.stream)?;
    setting.sync(setting.stream)?;
    memory.compare(&setting, &sample)?;
    memory.free(&setting)?;
    check_facts(&computing, again, &sample.graph)?;
    compute.destroy(again)?;
    damaged(&computing, &bytes)?;
    pass()
}

fn whole(computing: &Computing<'_>, executable: Executable, len: usize) -> Result<Vec<u8>, Stop> {
    let (again, mut bytes) = computing.compute.serialize(executable, len)?;
    ensure!(narrow(again) == len, "its length was {len} and is {again}");
    ensure!(
        bytes.pop() == Some(FILLER),
        "serialize wrote beyond the buffer"
    );
    Ok(bytes)
}

fn damaged(computing: &Computing<'_>, bytes: &[u8]) -> Result<(), Stop> {
    let dev = computing.setting.dev;
    let refused = |what: String, bytes: &[u8]| match computing.compute.deserialize(dev, bytes) {
        Err(failure) if DAMAGED.contains(&failure.code) => Ok(()),
        Err(failure) => fail(format!("{what}: {failure}, where data loss was due")),
        Ok(_) => fail(format!("{what}: they were taken")),
    };
    refused("no bytes".into(), &[])?;
    refused("foreign bytes".into(), b"an executable of somebody else's")?;
    let step = (bytes.len() / 200).max(1);
    for at in (0..bytes.len()).step_by(step) {
        refused(format!("the first {at} bytes"), &bytes[..at])?;
        let mut changed = bytes.to_vec();
        changed[at] ^= 0x40;
        refused(format!("a changed byte at {at}"), &changed)?;
    }
    refused("a byte too many".into(), &[bytes, &[0]].concat())
}

fn facts(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let computing = Computing::new(&setting)?;
    let sample = match donating(&computing) {
        Err(Stop::Skip(_)) => computing.some_graph()?,
        other => other?,
    };
    let executable = computing.compile(&sample.graph)?;
    check_facts(&computing, executable, &sample.graph)?;
    for form in [SM_COMPUTE_TEXT_PLAN, SM_COMPUTE_TEXT_SOURCE] {
        let len = match computing.compute.text(executable, form, 0) {
            Err(failure) if failure.code == Code::Unimplemented => continue,
            asked => narrow(asked?.0),
        };
        for cap in [len, len / 2] {
            let (again, bytes) = computing.compute.text(executable, form, cap)?;
            ensure!(
                narrow(again) == len,
                "the text had {len} bytes, and has {again}"
            );
            ensure!(bytes[cap] == FILLER, "text {form} went beyond its room");
            let is_text = std::str::from_utf8(&bytes[..len.min(cap)]);
            ensure!(
                cap < len || is_text.is_ok_and(|text| !text.contains('\0')),
                "text {form} is not UTF-8 without NUL"
            );
        }
    }
    let unknown = computing.compute.text(executable, 4711, 0);
    expect_code("an unknown form of text", unknown, Code::InvalidArgument)?;
    // Every option is taken.
    for (is_deterministic, allows_tf32, threads_max) in
        [(true, false, 1), (true, true, 2), (false, true, 0)]
    {
        let options = CompileOptions {
            is_deterministic,
            allows_tf32,
            threads_max,
        };
        let raw = SmCompileOptions {
            flags: options.flags(),
            threads_max,
            ..SmCompileOptions::new()
        };
        let graph = sample.graph.to_raw();
        let other = computing.compute.compile_with(setting.dev, graph, raw)?;
        computing.compute.destroy(other)?;
    }
    computing.compute.destroy(executable)?;
    pass()
}

/// What the plugin says of an executable is what the graph is.
fn check_facts(
    computing: &Computing<'_>,
    executable: Executable,
    graph: &Graph,
) -> Result<(), Stop> {
    let info = computing.compute.info(executable)?;
    let (Some(params), Some(results)) = (info.params, info.results) else {
        return fail("executable_info has an array that is null, askew, or of too short items");
    };
    let sides = |alias: &stepmesh_graph::Alias| [alias.param, alias.result];
    let aliases: Vec<[u32; 2]> = graph.aliases().iter().map(sides).collect();
    for (what, found, wanted, own) in [
        (
            "parameter",
            params,
            graph.param_types().collect::<Vec<_>>(),
            0,
        ),
        ("result", results, graph.result_types().collect(), 1),
    ] {
        ensure!(
            found.len() == wanted.len(),
            "executable_info has {} of {} {what}s",
            found.len(),
            wanted.len()
        );
        for (number, (found, wanted)) in (0_u32..).zip(found.iter().zip(wanted)) {
            let other = aliases.iter().find(|pair| pair[own] == number);
            let alias = other.map_or(-1, |pair| i32::try_from(pair[1 - own]).unwrap_or(-1));
            ensure!(
                is_of(found, wanted) && found.alias == alias,
                "{what} {number} is {found:?}, not {wanted} with alias {alias}"
            );
        }
    }
    Ok(())
}

fn is_of(found: &SmTensorInfo, wanted: TensorType) -> bool {
    let shape = wanted.shape();
    let dims = shape
        .dims()
        .iter()
        .map(|dim| crate::raw::memory::wide(*dim));
    let padded = dims.chain(std::iter::repeat(0)).take(found.dims.len());
    found.dtype == wanted.dtype().number()
        && narrow(found.rank.into()) == shape.rank()
        && found.dims.iter().copied().eq(padded)
        && narrow(found.len_bytes) == wanted.len_bytes()
}

fn chains(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let computing = Computing::new(&setting)?;
    let mut run = 0;
    for dtype in DType::ALL {
        for op in [Op::Add, Op::Mul, Op::Max] {
            if !(op.kind().allows(dtype) && computing.supports(op.kind(), dtype)?) {
                continue;
            }
            for len in [3, 200] {
                let sample = chain(op.clone(), dtype, len)?;
                if computing.can(&sample.graph)? {
                    computing.judge(&sample)?;
                    run += 1;
                }
            }
        }
    }
    if run == 0 {
        return skip("the device has none of the operations that the check could use");
    }
    crate::check::pass_noting(format!("{run} graphs"))
}

/// Each value of the two before it; the last ones, one of them twice, and a parameter are results.
fn chain(op: Op, dtype: DType, len: usize) -> Result<Sample, Stop> {
    let ty = typed(dtype, &[7, 5])?;
    let name = format!("{len} times {} of {ty}", op.kind());
    let mut graph = GraphBuilder::new(name.clone());
    let (x, y) = (parameter(&mut graph, ty)?, parameter(&mut graph, ty)?);
    let mut values = vec![x, y];
    for idx in 0..len {
        // Products of products would overflow: one factor is a parameter.
        let value = node(&mut graph, op.clone(), &[values[idx + 1], values[idx % 2]])?;
        values.push(value);
    }
    let last = values[len + 1];
    let graph = graph
        .build(&[last, values[len], last, x])
        .map_err(own_fault)?;
    let numbers = |start: u32| (0..35).map(|n| f64::from((n + start) % 3) / 2.0).collect();
    let args: [Vec<f64>; 2] = [numbers(0), numbers(1)];
    let args = args.map(|list| stepmesh_graph::reference::Tensor::from_f64(ty, &list).to_bytes());
    Ok(Sample {
        name,
        graph,
        args: args.to_vec(),
    })
}

fn threads(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let computing = Computing::new(&setting)?;
    let sample = computing.some_graph()?;
    let shared = computing.compile(&sample.graph)?;
    let rounds = context.count(200, 10);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let (setting, compute) = (computing.setting, computing.compute);
            let (sample, failure) = (&sample, &failure);
            scope.spawn(move || {
                let one = |own: Executable| -> Result<(), Stop> {
                    let on = setting.session.stream_create(setting.dev)?;
                    let memory = Memory::new(setting, &sample.graph, &sample.args)?;
                    let (args, outs) = (memory.args(), memory.outs());
                    compute.execute(shared, &args, &outs, on)?;
                    compute.execute(own, &args, &outs, on)?;
                    setting.sync(on)?;
                    memory.compare(setting, sample)?;
                    memory.free(setting)?;
                    Ok(setting.session.stream_destroy(on)?)
                };
                let all = || -> Result<(), Stop> {
                    for _ in 0..rounds {
                        let own = compute.compile(setting.dev, sample.graph.to_raw())?;
                        one(own)?;
                        compute.destroy(own)?;
                    }
                    Ok(())
                };
                if let Err(stop) = all() {
                    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert(stop);
                }
            });
        }
    });
    let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(stop) = failure {
        return Err(stop);
    }
    let refused = computing
        .compute
        .execute(shared, &[], &[], no_stream(&setting));
    expect_code("stream 0", refused, Code::InvalidArgument)?;
    computing.compute.destroy(shared)?;
    pass()
}

/// What damaged bytes may be called: lost, of another build, or plainly wrong.
const DAMAGED: [Code; 3] = [
    Code::DataLoss,
    Code::FailedPrecondition,
    Code::InvalidArgument,
];
/// More than there are cores in a test machine, so that they are torn apart.
const THREADS: u32 = 16;
const ELEMENTWISE: &[OpKind] = &[
    OpKind::Add,
    OpKind::Sub,
    OpKind::Mul,
    OpKind::Div,
    OpKind::Pow,
    OpKind::Max,
    OpKind::Min,
    OpKind::Neg,
    OpKind::Exp,
    OpKind::Log,
    OpKind::Sqrt,
    OpKind::Rsqrt,
    OpKind::Tanh,
    OpKind::Sigmoid,
    OpKind::Relu,
    OpKind::Silu,
    OpKind::GeluErf,
    OpKind::GeluTanh,
    OpKind::Compare,
    OpKind::Select,
    OpKind::Clamp,
];
const REDUCTIONS: &[OpKind] = &[
    OpKind::Sum,
    OpKind::Mean,
    OpKind::ReduceMax,
    OpKind::Argmax,
    OpKind::Matmul,
    OpKind::Softmax,
    OpKind::LayerNorm,
    OpKind::RmsNorm,
];
const MOVES: &[OpKind] = &[
    OpKind::Parameter,
    OpKind::Constant,
    OpKind::Cast,
    OpKind::Reshape,
    OpKind::Transpose,
    OpKind::Broadcast,
    OpKind::Slice,
    OpKind::Concat,
    OpKind::Gather,
    OpKind::IndexAdd,
];
