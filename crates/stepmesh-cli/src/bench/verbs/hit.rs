//! What a look-up in the cache of registrations costs when it hits. That calls no verb, so what
//! registers is a stand-in here: the look-up can be measured where there is no adapter, and on real
//! processors instead of emulated ones.
#![expect(unsafe_code, reason = "describes memory by address")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use stepmesh_rdma::VerbsError;
use stepmesh_rdma::registration::{Cache, CacheLimits, Machine, Registrar, Target};
use stepmesh_transport::memory::{Allocation, Dmabuf, DmabufMapping, Memory, MemoryKind};

use crate::bench::statistics::{block_median, to_f64};

/// Gives out keys and registers nothing.
struct StandIn;

impl Registrar for StandIn {
    type Region = u32;

    fn adapter(&self) -> &'static str {
        "a stand-in"
    }

    fn has_direct_dmabuf(&self) -> bool {
        false
    }

    fn register(&self, target: &Target) -> Result<u32, VerbsError> {
        Ok(u32::try_from(target.len_bytes).unwrap_or(u32::MAX))
    }

    fn register_dmabuf(
        &self,
        _dmabuf: &Dmabuf,
        _mapping: DmabufMapping,
        target: &Target,
    ) -> Result<u32, VerbsError> {
        self.register(target)
    }
}

/// Nanoseconds of one look-up, with the drop of what it returns: the median over blocks of them.
pub(super) fn measure() -> Result<f64> {
    let mut cache = Cache::new(StandIn, Machine::this(), CacheLimits::default());
    let memories: Vec<Memory> = (1..=ALLOCATIONS).map(memory).collect();
    for memory in &memories {
        look_up(&mut cache, memory)?;
    }
    let misses = cache.statistics().misses;
    let mut blocks = Vec::with_capacity(BLOCKS);
    for _ in 0..BLOCKS {
        let start = Instant::now();
        for memory in &memories {
            black_box(look_up(&mut cache, black_box(memory))?);
        }
        blocks.push(u64::try_from(start.elapsed().as_nanos())?);
    }
    ensure!(cache.statistics().misses == misses, "a look-up missed");
    Ok(block_median(&mut blocks) / to_f64(ALLOCATIONS))
}

#[inline]
fn look_up(cache: &mut Cache<StandIn>, memory: &Memory) -> Result<u32> {
    let held = cache.source(memory).ok();
    Ok(*held.context("memory of the host was refused")?)
}

/// An allocation of its own.
fn memory(id: u64) -> Memory {
    let bytes = Arc::new([0_u8; LEN_BYTES]);
    let base = bytes.as_ptr().addr() as u64;
    let len_bytes = bytes.len() as u64;
    // SAFETY: the array is allocated as long as the keep-alive that holds it, and nothing writes to it.
    let memory = unsafe { Memory::new(base, len_bytes, true, None, bytes) };
    memory.with_allocation(Allocation {
        base,
        len_bytes,
        id,
        kind: MemoryKind::Host,
        pci_address: None,
        numa_node: None,
        dmabuf: None,
    })
}

/// As many as a process that serves a model has, by the order.
const ALLOCATIONS: u64 = 1024;

const LEN_BYTES: usize = 64;

/// Enough for a median.
const BLOCKS: usize = 101;
