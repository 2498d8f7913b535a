//! A device: its state, its default streams and who may reach it.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::faults::Faults;
use crate::{Answer, Status};

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ordinal: u32,
    /// The status that broke it, 0 if it is well.
    fault: AtomicI32,
    /// Its context is being destroyed: nothing stands still any longer.
    is_ending: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// How often its primary context was retained.
    pub(crate) retained: u32,
    /// Peers whose memory it may map.
    pub(crate) peers: BTreeSet<u32>,
}

impl Device {
    pub(crate) fn new(ordinal: u32) -> Self {
        Self {
            ordinal,
            fault: AtomicI32::new(0),
            is_ending: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Refuses a broken device.
    pub(crate) fn check(&self) -> Answer<()> {
        if let Some(status) = Faults::of_process().device_fault(self.ordinal) {
            self.break_with(Status(status));
        }
        match self.fault.load(Ordering::Acquire) {
            0 if self.is_ending.load(Ordering::Acquire) => Err(Status::DEINITIALIZED),
            0 => Ok(()),
            status => Err(Status(status)),
        }
    }

    /// The first fault stays.
    pub(crate) fn break_with(&self, status: Status) {
        let set = self
            .fault
            .compare_exchange(0, status.0, Ordering::AcqRel, Ordering::Acquire);
        // It was broken before; that is known.
        let _ = set;
    }

    /// Says that the context ends, or that another one begins, which is well.
    pub(crate) fn set_ending(&self, is_ending: bool) {
        if !is_ending {
            self.fault.store(0, Ordering::Release);
        }
        self.is_ending.store(is_ending, Ordering::Release);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
