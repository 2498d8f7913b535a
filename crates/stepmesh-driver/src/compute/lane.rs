//! What executions on one stream share: scratch memory, a handle for products, and an event after the
//! last of them. Work of one stream is done one after the other, so one of each is enough for all
//! executables; streams do not wait for each other.
//!
//! Streams may be anybody's, and a stream's number may come back for another one, so that an execution
//! waits for the event before it uses what the one before it used. That costs a stream nothing that has
//! the order anyway.
#![expect(unsafe_code, reason = "calls the driver with handles of its own")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stepmesh_plugin::WaitMode;

use super::Executable;
use crate::shared::lock;
use crate::{Answer, Blas as _, Driver, Kind, wait};

/// The lanes of a device, by stream.
#[derive(Debug)]
pub(crate) struct Lanes<D: Driver> {
    lanes: Mutex<BTreeMap<u64, Slot<D>>>,
    /// Counts uses, so that the lane that was not used for longest is known.
    turn: AtomicU64,
    /// Handles for products that no lane has taken. One is made when a graph with products is
    /// compiled: making one takes long, and may be refused while a stream is captured.
    spare_blas: Mutex<Vec<u64>>,
    /// Executables that were captured: nobody tells when the last graph of them goes.
    captured: Mutex<Vec<Arc<Executable<D>>>>,
}

#[derive(Debug)]
struct Slot<D: Driver> {
    lane: Arc<Mutex<Lane<D>>>,
    used_at: u64,
}

/// What executions on one stream share.
#[derive(Debug)]
pub(crate) struct Lane<D: Driver> {
    /// Recorded after each execution; 0 until the first.
    event: u64,
    is_recorded: bool,
    scratch: Scratch,
    /// Scratch memory that was too small, which executions before the event may still use.
    outgrown: Vec<u64>,
    /// Executables that may run until the event.
    used: Vec<Arc<Executable<D>>>,
    /// A handle for products; 0 until one is needed.
    blas: u64,
}

/// Memory for intermediate values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scratch {
    pub(crate) ptr: u64,
    pub(crate) len_bytes: u64,
}

impl<D: Driver> Default for Lanes<D> {
    fn default() -> Self {
        Self {
            lanes: Mutex::default(),
            turn: AtomicU64::new(0),
            spare_blas: Mutex::default(),
            captured: Mutex::default(),
        }
    }
}

impl<D: Driver> Default for Lane<D> {
    fn default() -> Self {
        Self {
            event: 0,
            is_recorded: false,
            scratch: Scratch::default(),
            outgrown: Vec::new(),
            used: Vec::new(),
            blas: 0,
        }
    }
}

impl<D: Driver> Lanes<D> {
    /// The lane of a stream. Beyond a number of streams, that of the one that was not used for longest
    /// becomes this one's.
    pub(crate) fn of(&self, stream: u64) -> Arc<Mutex<Lane<D>>> {
        let used_at = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut lanes = lock(&self.lanes);
        if let Some(slot) = lanes.get_mut(&stream) {
            slot.used_at = used_at;
            return Arc::clone(&slot.lane);
        }
        let oldest = lanes.iter().min_by_key(|(_, slot)| slot.used_at);
        let oldest = oldest
            .map(|(raw, _)| *raw)
            .filter(|_| lanes.len() >= LANES_MAX);
        let taken = oldest.and_then(|raw| lanes.remove(&raw));
        let lane = taken.map_or_else(Arc::default, |slot| slot.lane);
        let slot = Slot {
            lane: Arc::clone(&lane),
            used_at,
        };
        lanes.insert(stream, slot);
        lane
    }

    /// Sees to it that a lane need not make a handle for products itself. The device is entered.
    pub(crate) fn make_spare_blas(&self, blas: &D::Blas) -> Answer<()> {
        if lock(&self.spare_blas).is_empty() {
            let made = blas.create()?;
            lock(&self.spare_blas).push(made);
        }
        Ok(())
    }

    /// A handle for products, spare or new. The device is entered.
    pub(crate) fn take_blas(&self, blas: &D::Blas) -> Answer<u64> {
        // The guard ends with the statement: the library is called without the lock.
        let spare = lock(&self.spare_blas).pop();
        spare.map_or_else(|| blas.create(), Ok)
    }

    /// Keeps an executable for as long as the instance lives.
    pub(crate) fn keep(&self, executable: &Arc<Executable<D>>) {
        let mut captured = lock(&self.captured);
        if !captured.iter().any(|kept| Arc::ptr_eq(kept, executable)) {
            captured.push(Arc::clone(executable));
        }
    }

    /// Gives back what no work uses, and says whether there was memory among it. The device is entered.
    pub(crate) fn trim(&self, driver: &D) -> Answer<bool> {
        let mut has_freed = false;
        for lane in self.all() {
            // One that is locked is in use.
            if let Ok(mut lane) = lane.try_lock() {
                has_freed |= lane.trim(driver)?;
            }
        }
        Ok(has_freed)
    }

    /// Whether all work is done. The device is entered.
    pub(crate) fn is_idle(&self, driver: &D) -> Answer<bool> {
        for lane in self.all() {
            if !lock(&lane).is_idle(driver)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// All lanes there are. Who holds one may want the list, so that the list is not held for one.
    fn all(&self) -> Vec<Arc<Mutex<Lane<D>>>> {
        let lanes = lock(&self.lanes);
        lanes.values().map(|slot| Arc::clone(&slot.lane)).collect()
    }

    /// Takes out everything, for the end of the instance. The work is done.
    pub(crate) fn drain(&self) -> Drained<D> {
        let lanes = std::mem::take(&mut *lock(&self.lanes));
        let lanes = lanes
            .into_values()
            .map(|slot| std::mem::take(&mut *lock(&slot.lane)))
            .collect();
        Drained {
            lanes,
            blas: std::mem::take(&mut *lock(&self.spare_blas)),
            captured: std::mem::take(&mut *lock(&self.captured)),
        }
    }
}

/// What was taken out.
#[derive(Debug)]
pub(crate) struct Drained<D: Driver> {
    lanes: Vec<Lane<D>>,
    blas: Vec<u64>,
    captured: Vec<Arc<Executable<D>>>,
}

impl<D: Driver> Drained<D> {
    /// Gives it back to the driver, all of it also when something is refused. The device is entered.
    pub(crate) fn give_back(self, driver: &D) -> Answer<()> {
        let mut first = Ok(());
        let mut note = |answer: Answer<()>| {
            if first.is_ok() {
                first = answer;
            }
        };
        let mut handles = self.blas;
        for lane in self.lanes {
            handles.extend((lane.blas != 0).then_some(lane.blas));
            let scratch = (lane.scratch.ptr != 0).then_some(lane.scratch.ptr);
            for ptr in lane.outgrown.into_iter().chain(scratch) {
                // SAFETY: allocated by a lane, taken out of it, and no work uses it.
                note(unsafe { driver.free_device(ptr) });
            }
            if lane.event != 0 {
                // SAFETY: made by a lane and taken out of it.
                note(unsafe { driver.destroy_event(lane.event) });
            }
        }
        if let Ok(blas) = driver.blas() {
            for handle in handles {
                // SAFETY: made by this library, taken out of its lane, and its work is done.
                note(unsafe { blas.destroy(handle) });
            }
        }
        drop(self.captured);
        first
    }
}

impl<D: Driver> Lane<D> {
    /// Gets ready for an execution on a stream: what it queues runs after all that used this lane
    /// before, and has as much scratch memory as it needs. The device is entered.
    pub(crate) fn begin(
        &mut self,
        driver: &D,
        stream: u64,
        scratch_len_bytes: u64,
    ) -> Answer<Scratch> {
        if self.event == 0 {
            self.event = driver.create_event(false, false)?;
        }
        if self.is_idle(driver)? {
            self.settle(driver)?;
        } else {
            // SAFETY: this lane's own event; the caller's contract: a live stream.
            unsafe { driver.wait_event(stream, self.event)? };
        }
        if self.scratch.len_bytes < scratch_len_bytes {
            self.grow(driver, scratch_len_bytes)?;
        }
        Ok(self.scratch)
    }

    /// Takes more scratch memory. What is in use stays until the event; only where there is not room for
    /// both is it waited for.
    fn grow(&mut self, driver: &D, len_bytes: u64) -> Answer<()> {
        let len_bytes = len_bytes.next_multiple_of(SCRATCH_LEN_UNIT);
        if !self.is_recorded {
            self.free_scratch(driver)?;
        }
        let ptr = match driver.alloc_device(len_bytes) {
            Err(failure)
                if failure.kind::<D>() == Kind::OutOfMemory
                    && self.scratch.ptr != 0
                    && wait::until(ROOM_NS_MAX, WaitMode::Block, || self.is_idle(driver))? =>
            {
                self.settle(driver)?;
                self.free_scratch(driver)?;
                driver.alloc_device(len_bytes)?
            }
            answer => answer?,
        };
        if self.scratch.ptr != 0 {
            self.outgrown.push(self.scratch.ptr);
        }
        self.scratch = Scratch { ptr, len_bytes };
        Ok(())
    }

    /// Gives the scratch memory back, which nothing uses.
    fn free_scratch(&mut self, driver: &D) -> Answer<bool> {
        let scratch = std::mem::take(&mut self.scratch);
        if scratch.ptr != 0 {
            // SAFETY: this lane's own memory, and the work that used it is done.
            unsafe { driver.free_device(scratch.ptr)? };
        }
        Ok(scratch.ptr != 0)
    }

    /// Marks the end of what was queued, of whichever part of an execution that was.
    pub(crate) fn end(
        &mut self,
        driver: &D,
        stream: u64,
        executable: &Arc<Executable<D>>,
    ) -> Answer<()> {
        if !self.used.iter().any(|used| Arc::ptr_eq(used, executable)) {
            self.used.push(Arc::clone(executable));
        }
        self.is_recorded = true;
        // SAFETY: this lane's own event; the caller's contract: a live stream.
        unsafe { driver.record_event(self.event, stream) }
    }

    /// The lane's handle for products.
    pub(crate) fn blas(&mut self, lanes: &Lanes<D>, blas: &D::Blas) -> Answer<u64> {
        if self.blas == 0 {
            self.blas = lanes.take_blas(blas)?;
        }
        Ok(self.blas)
    }

    fn is_idle(&self, driver: &D) -> Answer<bool> {
        if !self.is_recorded {
            return Ok(true);
        }
        // SAFETY: this lane's own event.
        unsafe { driver.is_event_done(self.event) }
    }

    /// Lets go of what nothing uses once the event is reached.
    fn settle(&mut self, driver: &D) -> Answer<()> {
        self.is_recorded = false;
        self.used.clear();
        for ptr in std::mem::take(&mut self.outgrown) {
            // SAFETY: this lane's own memory, and the work that used it is done.
            unsafe { driver.free_device(ptr)? };
        }
        Ok(())
    }

    fn trim(&mut self, driver: &D) -> Answer<bool> {
        if !self.is_idle(driver)? {
            return Ok(false);
        }
        let has_outgrown = !self.outgrown.is_empty();
        self.settle(driver)?;
        Ok(self.free_scratch(driver)? || has_outgrown)
    }
}

/// Streams of a device that have scratch memory of their own at a time: more than programs execute on.
const LANES_MAX: usize = 32;
/// Scratch memory is taken in pieces of this many bytes, so that it does not grow bit by bit; also what
/// drivers take memory in.
const SCRATCH_LEN_UNIT: u64 = 2 << 20;
/// How long an execution waits for the ones before it when there is not room for more scratch memory
/// beside theirs: work that is not done then may be waiting for the caller.
const ROOM_NS_MAX: u64 = 1_000_000_000;
