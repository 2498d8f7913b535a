//! Registrations that are kept. Memory that is only sent from is registered for its whole allocation
//! and kept after its use, so that a tensor anywhere in the allocation finds it; it does not keep the
//! memory allocated. Memory that peers may write to is registered for exactly its range, and that
//! ends with its use: a key that a peer was once told opens nothing afterwards.

#![forbid(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use stepmesh_transport::memory::{Allocation, Memory};

use super::machine::Machine;
use super::plan::{Refused, Registered, Registrar, Target, Way, register};
use crate::Access;

/// Registrations of one adapter's domain. Not shared between threads: whoever owns the adapter owns
/// it.
pub struct Cache<R: Registrar> {
    registrar: R,
    machine: Machine,
    limits: CacheLimits,
    /// By the number of the allocation, which is never given out twice.
    entries: FxHashMap<u64, Entry<R::Region>>,
    bytes: u64,
    /// Counts look-ups, to know which entry was used last.
    clock: u64,
    statistics: CacheStatistics,
}

/// Up to where registrations are kept. What is in use is never given up, and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// How many.
    pub entries_max: usize,
    /// How much memory, in bytes.
    pub bytes_max: u64,
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Look-ups that found a registration.
    pub hits: u64,
    /// Look-ups that had to register.
    pub misses: u64,
    /// Registrations that were given up to make room.
    pub evictions: u64,
    /// Registrations that ended with their memory.
    pub invalidations: u64,
}

/// A registration in use, with the memory that it was asked for. The cache may forget it meanwhile.
pub struct Held<T> {
    region: Arc<T>,
    way: Way,
    _memory: Arc<dyn Any + Send + Sync>,
}

struct Entry<T> {
    region: Arc<T>,
    way: Way,
    base: u64,
    len_bytes: u64,
    last_used: u64,
}

impl<R: Registrar> Cache<R> {
    /// An empty cache of an adapter's domain.
    pub fn new(registrar: R, machine: Machine, limits: CacheLimits) -> Self {
        Self {
            registrar,
            machine,
            limits,
            entries: FxHashMap::default(),
            bytes: 0,
            clock: 0,
            statistics: CacheStatistics::default(),
        }
    }

    /// The registration by which `memory` can be sent from: of its whole allocation where that has a
    /// number, else of its own range, which is then not kept. The addresses in it are those of
    /// `memory`.
    ///
    /// # Errors
    /// No way to register it worked.
    #[inline]
    pub fn source(&mut self, memory: &Memory) -> Result<Held<R::Region>, Refused> {
        let Some(allocation) = memory.allocation().filter(|known| covers(known, memory)) else {
            self.statistics.misses += 1;
            return self.exactly(memory, Access::LOCAL).map(|(held, _)| held);
        };
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(&allocation.id)
            && (entry.base, entry.len_bytes) == (allocation.base, allocation.len_bytes)
        {
            entry.last_used = self.clock;
            self.statistics.hits += 1;
            return Ok(Held {
                region: Arc::clone(&entry.region),
                way: entry.way,
                _memory: Arc::clone(memory.keep_alive()),
            });
        }
        self.register_allocation(memory, &Arc::clone(allocation))
    }

    /// A registration by which peers can write to `memory` and nothing else. It ends when it is
    /// dropped.
    ///
    /// # Errors
    /// No way to register it worked.
    pub fn target(&mut self, memory: &Memory, access: Access) -> Result<Held<R::Region>, Refused> {
        self.exactly(memory, access).map(|(held, _)| held)
    }

    /// Forgets an allocation that ends. Its registration is over at once, or, while somebody still
    /// holds it, with that: call it before the memory is freed.
    pub fn invalidate(&mut self, allocation_id: u64) {
        if let Some(entry) = self.entries.remove(&allocation_id) {
            self.bytes -= entry.len_bytes;
            self.statistics.invalidations += 1;
        }
    }

    /// Forgets everything that nobody holds.
    pub fn clear(&mut self) {
        self.entries
            .retain(|_, entry| Arc::strong_count(&entry.region) > 1);
        self.bytes = self.entries.values().map(|entry| entry.len_bytes).sum();
    }

    /// How many registrations are kept.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How much memory is kept registered, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.bytes
    }

    /// What it has done.
    pub fn statistics(&self) -> CacheStatistics {
        self.statistics
    }

    /// What registers.
    pub fn registrar(&self) -> &R {
        &self.registrar
    }

    /// The slow half of [`source`](Self::source).
    #[cold]
    fn register_allocation(
        &mut self,
        memory: &Memory,
        allocation: &Allocation,
    ) -> Result<Held<R::Region>, Refused> {
        self.statistics.misses += 1;
        // The same number with another range: the allocation grew, or a backend is wrong.
        self.invalidate(allocation.id);
        if !self.make_room(allocation.len_bytes) {
            return self.exactly(memory, Access::LOCAL).map(|(held, _)| held);
        }
        let target = Target {
            address: allocation.base,
            len_bytes: allocation.len_bytes,
            access: Access::LOCAL,
            // Kept memory would never be freed. What is sent holds its memory by `Held`.
            keep_alive: Arc::new(()),
        };
        let whole = register(&self.registrar, &self.machine, memory, &target);
        // All of it may be more than limits and windows allow, when a part is not.
        let Ok(Registered { region, way, .. }) = whole else {
            return self.exactly(memory, Access::LOCAL).map(|(held, _)| held);
        };
        let region = Arc::new(region);
        let entry = Entry {
            region: Arc::clone(&region),
            way,
            base: allocation.base,
            len_bytes: allocation.len_bytes,
            last_used: self.clock,
        };
        self.entries.insert(allocation.id, entry);
        self.bytes += allocation.len_bytes;
        Ok(Held {
            region,
            way,
            _memory: Arc::clone(memory.keep_alive()),
        })
    }

    /// Registers the range of `memory` alone, for as long as it is held. A registration that was given
    /// up for it may make it possible.
    fn exactly(
        &mut self,
        memory: &Memory,
        access: Access,
    ) -> Result<(Held<R::Region>, Vec<super::Refusal>), Refused> {
        let target = Target {
            address: memory.address(),
            len_bytes: memory.len_bytes(),
            access,
            keep_alive: Arc::clone(memory.keep_alive()),
        };
        let mut registered = register(&self.registrar, &self.machine, memory, &target);
        if registered.is_err() && self.evict_unused(usize::MAX) > 0 {
            registered = register(&self.registrar, &self.machine, memory, &target);
        }
        let Registered {
            region,
            way,
            refusals,
        } = registered?;
        let held = Held {
            region: Arc::new(region),
            way,
            _memory: Arc::clone(memory.keep_alive()),
        };
        Ok((held, refusals))
    }

    /// Whether there is room for one more of this length, after giving up what was not used for
    /// longest.
    fn make_room(&mut self, len_bytes: u64) -> bool {
        let fits = |cache: &Self| {
            let bytes = cache.bytes.saturating_add(len_bytes);
            cache.entries.len() < cache.limits.entries_max && bytes <= cache.limits.bytes_max
        };
        while !fits(self) {
            // An eighth at a time, so that looking for them costs little for each.
            if self.evict_unused(self.entries.len() / 8 + 1) == 0 {
                return false;
            }
        }
        true
    }

    /// Gives up at most `count` of those that nobody holds, the one that was not used for longest
    /// first; how many.
    fn evict_unused(&mut self, count: usize) -> usize {
        let unused = self.entries.iter();
        let unused = unused.filter(|(_, entry)| Arc::strong_count(&entry.region) == 1);
        let mut unused: Vec<(u64, u64)> =
            unused.map(|(id, entry)| (entry.last_used, *id)).collect();
        unused.sort_unstable();
        unused.truncate(count);
        for (_, id) in &unused {
            if let Some(entry) = self.entries.remove(id) {
                self.bytes -= entry.len_bytes;
                self.statistics.evictions += 1;
            }
        }
        unused.len()
    }
}

impl<R: Registrar> fmt::Debug for Cache<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("adapter", &self.registrar.adapter())
            .field("entries", &self.entries.len())
            .field("bytes", &self.bytes)
            .field("limits", &self.limits)
            .field("statistics", &self.statistics)
            .finish_non_exhaustive()
    }
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self {
            // Adapters have hundreds of thousands of keys; a process that serves a model has some
            // thousands of allocations.
            entries_max: 16 * 1024,
            // What may be locked is the system's to limit.
            bytes_max: u64::MAX,
        }
    }
}

impl<T> Held<T> {
    /// How it was registered.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.region
    }
}

impl<T: fmt::Debug> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("region", &self.region)
            .field("way", &self.way)
            .finish_non_exhaustive()
    }
}

/// Whether what is said about an allocation can be relied on for this memory.
#[inline]
fn covers(allocation: &Allocation, memory: &Memory) -> bool {
    let end = allocation.base.checked_add(allocation.len_bytes);
    let memory_end = memory.address().checked_add(memory.len_bytes());
    allocation.id != 0
        && allocation.base <= memory.address()
        && end.zip(memory_end).is_some_and(|(end, inner)| inner <= end)
}
