//! The kernels of StepMesh's own, by the names under which its plugins load them. The driver cannot run
//! a GPU's code; these are what that code does, written again.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::memory::{Memory, Place};
use crate::{Answer, Status};

/// A kernel that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// `stepmesh_write_flag(flag, seq)`: `*flag = *seq`.
    WriteFlag,
    /// `stepmesh_wait_flag(flag, seq, abort, outcome, timeout_ns)`: waits until `*flag >= *seq`.
    WaitFlag,
    /// `stepmesh_seq_add_one(seq)`: `*seq += 1`.
    SeqAddOne,
}

impl Kernel {
    /// The kernel of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "stepmesh_write_flag" => Some(Self::WriteFlag),
            "stepmesh_wait_flag" => Some(Self::WaitFlag),
            "stepmesh_seq_add_one" => Some(Self::SeqAddOne),
            _ => None,
        }
    }

    /// Parameters of 8 bytes that it takes.
    #[must_use]
    pub fn param_count(self) -> usize {
        match self {
            Self::WriteFlag => 2,
            Self::WaitFlag => 5,
            Self::SeqAddOne => 1,
        }
    }

    pub(crate) fn run(self, device: &Device, memory: &Memory, params: &[u64]) -> Answer<()> {
        match (self, params) {
            (Self::WriteFlag, &[flag, seq]) => {
                let value = word(memory, seq)?.word().load(Ordering::Acquire);
                word(memory, flag)?.word().store(value, Ordering::Release);
                Ok(())
            }
            (Self::WaitFlag, &[flag, seq, abort, outcome, timeout_ns]) => {
                let words = [flag, seq];
                let reached = wait(device, memory, words, abort, timeout_ns)?;
                if outcome != 0 {
                    word(memory, outcome)?
                        .word()
                        .store(reached, Ordering::Release);
                }
                Ok(())
            }
            (Self::SeqAddOne, &[seq]) => {
                word(memory, seq)?.word().fetch_add(1, Ordering::AcqRel);
                Ok(())
            }
            _ => Err(Status::LAUNCH_FAILED),
        }
    }
}

fn wait(
    device: &Device,
    memory: &Memory,
    [flag, seq]: [u64; 2],
    abort: u64,
    timeout_ns: u64,
) -> Answer<u64> {
    let start = Instant::now();
    let least = word(memory, seq)?.word().load(Ordering::Acquire);
    loop {
        // Looked up each time: memory that is freed meanwhile is a fault, as on a device.
        if word(memory, flag)?.word().load(Ordering::Acquire) >= least {
            return Ok(REACHED);
        }
        if abort != 0 && word(memory, abort)?.word().load(Ordering::Acquire) != 0 {
            return Ok(ABORTED);
        }
        if start.elapsed() >= Duration::from_nanos(timeout_ns) {
            return Ok(TIMED_OUT);
        }
        device.check()?;
        std::thread::yield_now();
    }
}

/// A word in memory that devices reach.
pub(crate) fn word(memory: &Memory, ptr: u64) -> Answer<Place> {
    let place = memory
        .place(ptr, WORD_LEN)
        .map_err(|_| Status::ILLEGAL_ADDRESS)?;
    if place.kind.is_none() || !ptr.is_multiple_of(WORD_LEN) {
        return Err(Status::ILLEGAL_ADDRESS);
    }
    Ok(place)
}

const WORD_LEN: u64 = 8;
/// `SM_FLAG_WAIT_REACHED`.
const REACHED: u64 = 1;
/// `SM_FLAG_WAIT_ABORTED`.
const ABORTED: u64 = 2;
/// `SM_FLAG_WAIT_TIMED_OUT`.
const TIMED_OUT: u64 = 3;
