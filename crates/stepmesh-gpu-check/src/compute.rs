//! Graphs through the backend: what a fused chain makes of the memory's speed, what products make of the
//! card's, and what compiling costs.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use stepmesh_core::compute::{
    Argument, CompileOptions, Compute, DType, Executable, Graph, GraphBuilder, Op, Shape,
};
use stepmesh_core::{Buffer, Device, Stream};

use crate::rows::{Rows, gigabytes_per_second};

/// `is_small` for a driver that is simulated, where sizes of a card would take hours.
pub(crate) fn measure(device: &Device, is_small: bool, rows: &mut Rows) -> Result<()> {
    let Some(compute) = device.compute() else {
        rows.add_bad("graphs", "no stepmesh.compute.v1", "");
        return Ok(());
    };
    if !compute.supports(Op::Add.kind(), DType::F32)? {
        let error = compute.compile(&chain(1)?, &CompileOptions::default());
        let why = error
            .err()
            .map_or_else(String::new, |error| error.to_string());
        rows.add_bad("graphs", "no operation is supported", why);
        return Ok(());
    }
    let stream = device.create_stream()?;
    elementwise(&compute, &stream, is_small, rows).context("a chain")?;
    let exact = CompileOptions::default();
    let rounded = CompileOptions {
        allows_tf32: true,
        ..exact
    };
    for (dtype, title, options) in [
        (DType::BF16, "bf16", exact),
        (DType::F16, "f16", exact),
        (DType::F32, "f32", exact),
        (DType::F32, "f32, TF32 allowed", rounded),
        (DType::F64, "f64", exact),
    ] {
        if !compute.supports(product_kind(), dtype)? {
            rows.add(format!("matmul, {title}"), "not supported", "");
            continue;
        }
        product(&compute, &stream, (dtype, options), is_small, (title, rows))
            .with_context(|| format!("a product of {title}"))?;
    }
    Ok(())
}

fn elementwise(compute: &Compute, stream: &Stream, is_small: bool, rows: &mut Rows) -> Result<()> {
    let len_bytes: u64 = if is_small { 1 << 16 } else { 64 << 20 };
    let graph = chain(len_bytes / 4)?;
    let start = Instant::now();
    let executable = compute.compile(&graph, &CompileOptions::default())?;
    let compiled = start.elapsed();
    let (from, to) = buffers(compute.device(), len_bytes)?;
    let ours = best(stream, || {
        Ok(executable.execute(&[Argument::from(&from)], &[Argument::from(&to)], stream)?)
    })?;
    let bare = best(stream, || Ok(stream.copy(&to, 0, &from, 0, len_bytes)?))?;
    // Both read all of it and write all of it.
    let [speed, copied] = [ours, bare].map(|took| gigabytes_per_second(2 * len_bytes, took));
    rows.add(
        format!("10 elementwise operations, {} KiB of f32", len_bytes >> 10),
        format!("{speed:.2} GB/s"),
        format!(
            "{copied:.2} GB/s by a copy, time over it {:.3}",
            ours.as_secs_f64() / bare.as_secs_f64().max(f64::EPSILON)
        ),
    );
    rows.add(
        "compile 10 elementwise operations",
        format!("{:.1} ms", compiled.as_secs_f64() * 1e3),
        "",
    );
    Ok(())
}

fn product(
    compute: &Compute,
    stream: &Stream,
    (dtype, options): (DType, CompileOptions),
    is_small: bool,
    (title, rows): (&str, &mut Rows),
) -> Result<()> {
    let size: u64 = match dtype {
        _ if is_small => 32,
        DType::F64 => 4096,
        _ => 8192,
    };
    let executable = compute.compile(&matmul(size, dtype)?, &options)?;
    let len_bytes = size * size * dtype.size_bytes() as u64;
    let (left, right) = buffers(compute.device(), len_bytes)?;
    let out = Arc::new(compute.device().alloc(len_bytes)?);
    let took = best(stream, || {
        let args = [Argument::from(&left), Argument::from(&right)];
        Ok(executable.execute(&args, &[Argument::from(&out)], stream)?)
    })?;
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let operations = 2.0 * (size as f64).powi(3);
    rows.add(
        format!("matmul, {title}, {size} x {size} x {size}"),
        format!(
            "{:.2} TFLOPS",
            operations / took.as_secs_f64().max(f64::EPSILON) / 1e12
        ),
        scratch(&executable),
    );
    Ok(())
}

fn scratch(executable: &Executable) -> String {
    let kib = executable.info().scratch_len_bytes >> 10;
    format!("{kib} KiB of scratch memory")
}

/// Two buffers, of zeros: their values do not matter to the time.
fn buffers(device: &Device, len_bytes: u64) -> Result<(Arc<Buffer>, Arc<Buffer>)> {
    let zeroed = || -> Result<Arc<Buffer>> {
        let buffer = device.alloc(len_bytes)?;
        buffer.write_bytes(0, &vec![0; usize::try_from(len_bytes)?])?;
        Ok(Arc::new(buffer))
    };
    Ok((zeroed()?, zeroed()?))
}

/// The best of some turns, of one piece of work each; noise only slows down.
fn best(stream: &Stream, work: impl Fn() -> Result<()>) -> Result<Duration> {
    let turn = || -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..WORK_PER_TURN {
            work()?;
        }
        stream.synchronize(LONG)?;
        Ok(start.elapsed() / WORK_PER_TURN)
    };
    // Once for the caches.
    turn()?;
    let mut best = Duration::MAX;
    for _ in 0..TURNS {
        best = best.min(turn()?);
    }
    Ok(best)
}

fn chain(len: u64) -> Result<Graph> {
    let mut graph = GraphBuilder::new("chain");
    let shape = Shape::new(&[usize::try_from(len)?])?;
    let input = graph.parameter(DType::F32, shape)?;
    let mut value = input;
    for op in [Op::Add, Op::Mul, Op::Sub, Op::Max, Op::Add] {
        value = graph.node(op, &[value, input])?;
        value = graph.node(Op::Relu, &[value])?;
    }
    Ok(graph.build(&[value])?)
}

fn matmul(size: u64, dtype: DType) -> Result<Graph> {
    let size = usize::try_from(size)?;
    let mut graph = GraphBuilder::new("matmul");
    let left = graph.parameter(dtype, Shape::new(&[size, size])?)?;
    let right = graph.parameter(dtype, Shape::new(&[size, size])?)?;
    let product = graph.node(plain_product(), &[left, right])?;
    Ok(graph.build(&[product])?)
}

fn plain_product() -> Op {
    Op::Matmul {
        transpose_a: false,
        transpose_b: false,
    }
}

fn product_kind() -> stepmesh_core::compute::OpKind {
    plain_product().kind()
}

/// Turns of each.
const TURNS: u32 = 5;
/// Executions in a turn, so that what one launch costs does not count.
const WORK_PER_TURN: u32 = 10;
/// More than a turn takes on any card.
const LONG: Duration = Duration::from_secs(60);
