//! What PyTorch costs beside us, each in turns in one process: a step of the lazy engine beside one
//! of PyTorch's lazy core, a chain of operations beside PyTorch eager, and handing a tensor over by
//! DLPack. `cargo xtask torch-bench` runs it; `--out FILE` takes the numbers as JSON.
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::hint::black_box;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use stepmesh::{DType, Tensor as MeshTensor};
use stepmesh_core::config::Config;
use stepmesh_core::{Backend, Device};
use stepmesh_lazy::{Error, LazyDevice, LazyTensor, Options};
use stepmesh_torch::{ManagedTensor, lazy};
use tch::{Kind, Tensor};

fn main() -> Result<()> {
    let args: Vec<String> = env::args().collect();
    let is_quick = args.iter().any(|arg| arg == "--quick");
    let budget = Duration::from_millis(if is_quick { 1500 } else { 8000 });
    let device = cpu()?;
    lazy::register(std::slice::from_ref(&device))?;
    lazy::use_reference(true)?;
    let engine = engine(&device)?;
    let rows = [
        lazy_step(&engine, budget)?,
        fused(&engine, budget)?,
        from_dlpack(&device, budget)?,
    ];
    println!("one thread each; medians");
    for row in &rows {
        println!("{}", row.line());
    }
    let out = args.iter().position(|arg| arg == "--out");
    if let Some(path) = out.and_then(|index| args.get(index + 1)) {
        let values: Vec<_> = rows.iter().map(Row::as_json).collect();
        let text = format!("{:#}\n", json!({ "rows": values }));
        fs::write(path, text).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

/// One number, and what it is made of.
struct Row {
    name: &'static str,
    value: f64,
    /// At most this, if there is an aim.
    aim: Option<f64>,
    ours_us: f64,
    theirs_us: Option<f64>,
}

impl Row {
    fn line(&self) -> String {
        let aim = match self.aim {
            Some(aim) if self.value <= aim => format!("aim <= {aim}, met"),
            Some(aim) => format!("aim <= {aim}, MISSED"),
            None => "reported".into(),
        };
        let theirs = self.theirs_us.map(|us| format!(" over {us:.1} us"));
        format!(
            "{:<28} {:>8.2}  {aim:<18} {:.1} us{}",
            self.name,
            self.value,
            self.ours_us,
            theirs.unwrap_or_default()
        )
    }

    fn as_json(&self) -> serde_json::Value {
        json!({
            "name": self.name,
            "value": self.value,
            "aim_max": self.aim,
            "ours_us": self.ours_us,
            "theirs_us": self.theirs_us,
        })
    }
}

fn cpu() -> Result<Device> {
    let mut config = Config {
        backend: "cpu".into(),
        ..Config::default()
    };
    let options = config.options.entry("cpu".into()).or_default();
    options.insert("threads".into(), "1".into());
    tch::set_num_threads(1);
    Ok(Backend::open(&config)?.device(0)?)
}

fn engine(device: &Device) -> Result<LazyDevice> {
    let mut options = Options::default();
    options.backend.compile.threads_max = 1;
    Ok(LazyDevice::open(device, options)?)
}

/// 100 operations on four elements, in the cache on both sides: traced, looked up, executed, waited
/// for. The chain is the same for both.
fn lazy_step(engine: &LazyDevice, budget: Duration) -> Result<Row> {
    let (x, y) = ([0.5_f32, 0.25, -0.5, 1.0], [0.5_f32; 4]);
    let (ours_x, ours_y) = (engine.from_slice(&[4], &x)?, engine.from_slice(&[4], &y)?);
    let their_x = lazy::to_lazy(&Tensor::from_slice(&x), 0)?;
    let their_y = lazy::to_lazy(&Tensor::from_slice(&y), 0)?;
    let ours = || -> Result<LazyTensor, Error> {
        let mut value = ours_x.clone();
        for _ in 0..OPERATIONS / 2 {
            value = value.mul(&ours_y)?.add(&ours_x)?;
        }
        value.wait()?;
        Ok(value)
    };
    let theirs = || -> Result<Tensor> {
        let mut value = their_x.shallow_clone();
        for _ in 0..OPERATIONS / 2 {
            value = value.f_mul(&their_y)?.f_add(&their_x)?;
        }
        lazy::mark_step(0, true)?;
        Ok(value)
    };
    let found: Vec<f32> = ours()?.to_vec()?;
    let expected = Vec::<f32>::try_from(theirs()?.f_to_device(tch::Device::Cpu)?)?;
    ensure!(found == expected, "{found:?} is not {expected:?}");
    let (ours_us, theirs_us, value) =
        in_turns(budget, || Ok(ours().map(drop)?), || theirs().map(drop))?;
    Ok(Row {
        name: "torch.lazy_step_over_reference",
        value,
        aim: Some(0.5),
        ours_us,
        theirs_us: Some(theirs_us),
    })
}

/// Ten operations on 16 MiB of f32.
fn fused(engine: &LazyDevice, budget: Duration) -> Result<Row> {
    let values: Vec<f32> = (0_u16..1000)
        .cycle()
        .take(ELEMENTS)
        .map(f32::from)
        .collect();
    let ours_x = engine.from_slice(&[ELEMENTS], &values)?;
    let their_x = Tensor::from_slice(&values);
    let ours = || -> Result<LazyTensor, Error> {
        let mut value = ours_x.clone();
        for number in 0..CHAIN_LEN {
            value = match number % 5 {
                0 => value.add(&ours_x)?,
                1 => value.mul(0.5)?,
                2 => value.sub(&ours_x)?,
                3 => value.maximum(&ours_x)?,
                _ => value.neg()?,
            };
        }
        value.wait()?;
        Ok(value)
    };
    let theirs = || -> Result<Tensor> {
        let mut value = their_x.shallow_clone();
        for number in 0..CHAIN_LEN {
            value = match number % 5 {
                0 => value.f_add(&their_x)?,
                1 => value.f_mul_scalar(0.5)?,
                2 => value.f_sub(&their_x)?,
                3 => value.f_maximum(&their_x)?,
                _ => value.f_neg()?,
            };
        }
        Ok(value)
    };
    let found = Tensor::from_slice(&ours()?.to_vec::<f32>()?);
    ensure!(
        theirs()?.allclose(&found, 1e-6, 1e-6, false),
        "the two chains differ"
    );
    let (ours_us, theirs_us, value) =
        in_turns(budget, || Ok(ours().map(drop)?), || theirs().map(drop))?;
    Ok(Row {
        name: "torch.fused_over_eager",
        value,
        aim: Some(0.5),
        ours_us,
        theirs_us: Some(theirs_us),
    })
}

/// A tensor of the mesh to torch and back to nothing, in nanoseconds.
fn from_dlpack(device: &Device, budget: Duration) -> Result<Row> {
    let mesh = MeshTensor::empty(device, DType::F32, &[64, 7168])?;
    let mut times = Vec::new();
    let deadline = Instant::now() + budget / 4;
    while Instant::now() < deadline {
        let started = Instant::now();
        for _ in 0..BATCH {
            let torch = ManagedTensor::from_mesh(&mesh)?.into_torch()?;
            debug_assert_eq!(torch.kind(), Kind::Float);
            drop(black_box(torch));
        }
        times.push(started.elapsed().as_secs_f64() * 1e9 / f64::from(BATCH));
    }
    let value = median(&mut times);
    Ok(Row {
        name: "torch.from_dlpack_ns",
        value,
        aim: None,
        ours_us: value / 1000.0,
        theirs_us: None,
    })
}

/// Medians of both in microseconds, and the median of the ratio of neighbours.
fn in_turns(
    budget: Duration,
    mut ours: impl FnMut() -> Result<()>,
    mut theirs: impl FnMut() -> Result<()>,
) -> Result<(f64, f64, f64)> {
    for _ in 0..3 {
        ours()?;
        theirs()?;
    }
    let (mut ours_us, mut theirs_us, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let deadline = Instant::now() + budget;
    while Instant::now() < deadline {
        let (a, b) = (timed(&mut ours)?, timed(&mut theirs)?);
        ours_us.push(a);
        theirs_us.push(b);
        ratios.push(a / b);
    }
    Ok((
        median(&mut ours_us),
        median(&mut theirs_us),
        median(&mut ratios),
    ))
}

fn timed(round: &mut impl FnMut() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    round()?;
    Ok(started.elapsed().as_secs_f64() * 1e6)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Operations of a step.
const OPERATIONS: usize = 100;
/// Operations of the chain.
const CHAIN_LEN: usize = 10;
/// 16 MiB of f32.
const ELEMENTS: usize = 4 << 20;
/// Hand-overs between two looks at the clock.
const BATCH: u32 = 1000;
