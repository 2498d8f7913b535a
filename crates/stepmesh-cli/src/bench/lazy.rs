//! What the lazy engine costs beside what it stands on: a copy of memory, a bare matrix product, a
//! layer written by hand. What is written by hand is in `hand`.

mod hand;

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use stepmesh_core::config::Config;
use stepmesh_lazy::{Error, LazyDevice, LazyTensor, Options};

use crate::bench::mesh;
use crate::bench::statistics::median;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Subject {
    /// Ten operations on each of 16 Mi elements of f32, beside a copy of them.
    FusedChain,
    /// The same, beside a loop written by hand on as many threads.
    FusedChainByHand,
    /// A product of f32 matrices of 512 by 512, beside the bare product.
    Matmul,
    /// A feed-forward network as the demo's, in f64, beside one written by hand.
    Ffn,
    /// Tracing and launching 100 operations that are in the cache.
    Hit,
    /// Compiling 100 operations.
    Compile,
}

/// Times of one round, in nanoseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LazyOutcome {
    pub(crate) ours_ns: f64,
    /// What it stands on; 0 if nothing was measured beside it.
    pub(crate) floor_ns: f64,
    /// Ours over the floor.
    pub(crate) ratio: f64,
}

/// Measures for `budget`, on the cpu backend; with one thread for each execution where the floor has
/// one too, but for the chain, which has all that a user's has.
pub(crate) fn measure(config: &Config, subject: Subject, budget: Duration) -> Result<LazyOutcome> {
    let mut config = config.clone();
    config.backend = "cpu".into();
    let core = mesh::device(&config)?;
    let mut options = Options::default();
    if !matches!(subject, Subject::FusedChain | Subject::FusedChainByHand) {
        options.backend.compile.threads_max = 1;
    }
    let device = LazyDevice::open(&core, options)?;
    match subject {
        Subject::FusedChain => fused_chain(&device, budget),
        Subject::FusedChainByHand => fused_chain_by_hand(&device, budget),
        Subject::Matmul => matmul(&device, budget),
        Subject::Ffn => ffn(&device, budget),
        Subject::Hit => hit(&device, budget),
        Subject::Compile => compile(&device, budget),
    }
}

/// Ours and the floor in turns; the least of each counts. A round of some milliseconds is cut by
/// whatever else wants the cores, ours more often, because it crosses to the stream's thread and
/// back; the least is what the work itself takes.
fn in_turns(
    budget: Duration,
    mut ours: impl FnMut() -> Result<()>,
    mut floor: impl FnMut() -> Result<()>,
) -> Result<LazyOutcome> {
    // Once each that does not count: it compiles, and touches memory.
    ours()?;
    floor()?;
    let (mut ours_ns, mut floor_ns) = (f64::INFINITY, f64::INFINITY);
    let deadline = Instant::now() + budget;
    while Instant::now() < deadline || ours_ns.is_infinite() {
        ours_ns = ours_ns.min(timed(&mut ours)?);
        floor_ns = floor_ns.min(timed(&mut floor)?);
    }
    Ok(LazyOutcome {
        ours_ns,
        floor_ns,
        ratio: ours_ns / floor_ns,
    })
}

fn timed(round: &mut impl FnMut() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    round()?;
    Ok(started.elapsed().as_secs_f64() * 1e9)
}

fn fused_chain(device: &LazyDevice, budget: Duration) -> Result<LazyOutcome> {
    let values = vec![0.5_f32; CHAIN_ELEMENTS];
    let x = device.from_slice(&[CHAIN_ELEMENTS], &values)?;
    let mut copy = vec![0.0_f32; CHAIN_ELEMENTS];
    in_turns(
        budget,
        || Ok(chain(&x, CHAIN_LEN)?.wait()?),
        || {
            black_box(&mut copy).copy_from_slice(black_box(&values));
            Ok(())
        },
    )
}

fn fused_chain_by_hand(device: &LazyDevice, budget: Duration) -> Result<LazyOutcome> {
    let values: Vec<f32> = (0_u16..1000)
        .cycle()
        .take(CHAIN_ELEMENTS)
        .map(f32::from)
        .collect();
    let x = device.from_slice(&[CHAIN_ELEMENTS], &values)?;
    let mut by_hand = vec![0.0_f32; CHAIN_ELEMENTS];
    let outcome = in_turns(
        budget,
        || Ok(chain(&x, CHAIN_LEN)?.wait()?),
        || {
            hand::chain(black_box(&mut by_hand), black_box(&values), CHAIN_FACTOR);
            Ok(())
        },
    )?;
    let found = chain(&x, CHAIN_LEN)?.to_vec::<f32>()?;
    ensure!(found == by_hand, "the chain and the one by hand differ");
    Ok(outcome)
}

/// Sums, products, differences and bounds in turns, none of which can be left out.
fn chain(x: &LazyTensor, len: usize) -> Result<LazyTensor, Error> {
    let mut value = x.clone();
    for number in 0..len {
        value = match number % 5 {
            0 => value.add(x)?,
            1 => value.mul(CHAIN_FACTOR)?,
            2 => value.sub(x)?,
            3 => value.maximum(x)?,
            _ => value.neg()?,
        };
    }
    Ok(value)
}

fn matmul(device: &LazyDevice, budget: Duration) -> Result<LazyOutcome> {
    let values: Vec<f32> = (0_u16..1000)
        .cycle()
        .take(SIDE * SIDE)
        .map(f32::from)
        .collect();
    let a = device.from_slice(&[SIDE, SIDE], &values)?;
    let b = device.from_slice(&[SIDE, SIDE], &values)?;
    let mut product = vec![0.0_f32; SIDE * SIDE];
    let outcome = in_turns(
        budget,
        || Ok(a.matmul(&b)?.wait()?),
        || {
            hand::product(&mut product, &values, &values, [SIDE; 3], false);
            black_box(&mut product);
            Ok(())
        },
    )?;
    let found = a.matmul(&b)?.to_vec::<f32>()?;
    let differs = found
        .iter()
        .zip(&product)
        .any(|(a, b)| (a - b).abs() > b.abs() * 1e-4);
    ensure!(!differs, "the two products differ");
    Ok(outcome)
}

fn ffn(device: &LazyDevice, budget: Duration) -> Result<LazyOutcome> {
    let layer = hand::Layer::new();
    let tensor = |dims: &[usize], values: &[f64]| device.from_slice(dims, values);
    let x = tensor(&[hand::ROWS, hand::WIDTH], &layer.x)?;
    let w1 = tensor(&[hand::HIDDEN, hand::WIDTH], &layer.w1)?;
    let b1 = tensor(&[hand::HIDDEN], &layer.b1)?;
    let w2 = tensor(&[hand::WIDTH, hand::HIDDEN], &layer.w2)?;
    let b2 = tensor(&[hand::WIDTH], &layer.b2)?;
    let ours = || -> Result<LazyTensor, Error> {
        let hidden = x.linear(&w1, Some(&b1))?.gelu()?;
        let y = hidden.linear(&w2, Some(&b2))?;
        y.wait()?;
        Ok(y)
    };
    let mut by_hand = Vec::new();
    let outcome = in_turns(
        budget,
        || Ok(ours().map(drop)?),
        || {
            by_hand = black_box(layer.forward());
            Ok(())
        },
    )?;
    let found = ours()?.to_vec::<f64>()?;
    let differs = found
        .iter()
        .zip(&by_hand)
        .any(|(a, b)| (a - b).abs() > 1e-6);
    ensure!(!differs, "the layer and the one by hand differ");
    Ok(outcome)
}

fn hit(device: &LazyDevice, budget: Duration) -> Result<LazyOutcome> {
    let x = device.from_slice(&[16], &[0.5_f32; 16])?;
    chain(&x, OPERATIONS)?.wait()?;
    let mut ours_ns = Vec::new();
    let deadline = Instant::now() + budget;
    while Instant::now() < deadline || ours_ns.is_empty() {
        let mut launched = None;
        ours_ns.push(timed(&mut || {
            let value = chain(&x, OPERATIONS)?;
            launched = Some(value.data()?);
            Ok(())
        })?);
        if let Some(data) = launched {
            data.wait()?;
        }
    }
    Ok(alone(&ours_ns))
}

fn compile(device: &LazyDevice, budget: Duration) -> Result<LazyOutcome> {
    let x = device.from_slice(&[16], &[0.5_f32; 16])?;
    let mut ours_ns = Vec::new();
    let deadline = Instant::now() + budget;
    while Instant::now() < deadline || ours_ns.is_empty() {
        device.clear_computation_cache();
        let value = chain(&x, OPERATIONS)?;
        ours_ns.push(timed(&mut || Ok(value.wait()?))?);
    }
    Ok(alone(&ours_ns))
}

fn alone(ours_ns: &[f64]) -> LazyOutcome {
    LazyOutcome {
        ours_ns: median(ours_ns).unwrap_or_default(),
        floor_ns: 0.0,
        ratio: 0.0,
    }
}

/// 64 MiB of f32: no cache holds them.
const CHAIN_ELEMENTS: usize = 16 << 20;
/// Operations of the chain that is to be one pass over memory.
const CHAIN_LEN: usize = 10;
/// What a chain multiplies by.
const CHAIN_FACTOR: f32 = 0.5;
/// Rows and columns of the matrices.
const SIDE: usize = 512;
/// Operations of a graph as small models have.
const OPERATIONS: usize = 100;
