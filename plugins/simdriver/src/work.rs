//! What a stream does: one piece of work, and how it is done.
#![expect(unsafe_code, reason = "calls functions of the driver's callers")]

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::code::Launch;
use crate::device::Device;
use crate::event::Point;
use crate::faults::{Effect, Faults};
use crate::kernel::word;
use crate::memory::{Memory, MemoryKind, Place};
use crate::product::Gemm;
use crate::{Answer, Status};

/// A piece of work.
#[derive(Clone, Debug)]
pub enum Work {
    /// Copies.
    Copy(CopyWork),
    /// Fills.
    Fill(FillWork),
    /// Writes 8 or 4 bytes, after all that was done before.
    Write {
        /// Address.
        ptr: u64,
        /// Value.
        value: u64,
        /// Bytes: 4 or 8.
        len_bytes: u64,
    },
    /// Waits until a word is at least a value.
    WaitValue {
        /// Address.
        ptr: u64,
        /// Value.
        value: u64,
    },
    /// Calls a function of the host's.
    Host(HostCall),
    /// Runs a function of a module.
    Launch(Launch),
    /// Multiplies matrices.
    Product(Gemm),
    /// Frees memory.
    Free(u64),
    /// Replays a graph.
    Graph(Arc<[Self]>),
    #[doc(hidden)]
    Reach(PointWork),
    #[doc(hidden)]
    Wait(PointWork),
}

/// A copy that was checked when it was submitted.
#[derive(Clone, Copy, Debug)]
pub struct CopyWork {
    pub(crate) dst: u64,
    pub(crate) src: u64,
    pub(crate) len_bytes: u64,
    /// Numbers of the allocations that it was submitted for.
    pub(crate) ids: [u64; 2],
}

/// A fill that was checked when it was submitted.
#[derive(Clone, Copy, Debug)]
pub struct FillWork {
    pub(crate) dst: u64,
    pub(crate) value: u32,
    pub(crate) width: u32,
    pub(crate) count: u64,
    pub(crate) id: u64,
}

/// A point that is reached or waited for.
#[derive(Clone, Debug)]
pub struct PointWork(pub(crate) Arc<Point>);

/// A function that a stream calls.
pub type HostFn = unsafe extern "C" fn(*mut c_void);

/// A function of the caller's with its argument.
#[derive(Clone, Copy, Debug)]
pub struct HostCall {
    /// The function.
    pub func: HostFn,
    /// The address that it gets.
    pub arg: usize,
}

impl Work {
    /// Does it. An error breaks the device.
    pub(crate) fn run(&self, device: &Device, memory: &Memory) -> Answer<()> {
        device.check()?;
        match self {
            // Marks are no work that could go wrong.
            Self::Reach(point) => {
                point.0.reach();
                return Ok(());
            }
            Self::Wait(point) => {
                while !point.0.wait(LOOK_UP_EVERY) {
                    device.check()?;
                }
                return Ok(());
            }
            Self::Graph(all) => {
                return all.iter().try_for_each(|work| work.run(device, memory));
            }
            _ => go_wrong(device)?,
        }
        match self {
            Self::Copy(copy) => {
                let dst = same_place(memory, copy.dst, copy.len_bytes, copy.ids[0])?;
                let src = same_place(memory, copy.src, copy.len_bytes, copy.ids[1])?;
                dst.copy_from(src, copy.len_bytes);
                Ok(())
            }
            Self::Fill(fill) => {
                let len = fill.count.saturating_mul(u64::from(fill.width));
                let dst = same_place(memory, fill.dst, len, fill.id)?;
                dst.fill(fill.value, fill.width, fill.count);
                Ok(())
            }
            Self::Write {
                ptr,
                value,
                len_bytes: 8,
            } => {
                word(memory, *ptr)?.word().store(*value, Ordering::Release);
                Ok(())
            }
            Self::Write { ptr, value, .. } => {
                let place = memory.place(*ptr, 4).map_err(|_| Status::ILLEGAL_ADDRESS)?;
                place.fill(u32::try_from(value & 0xffff_ffff).unwrap_or(0), 4, 1);
                Ok(())
            }
            Self::WaitValue { ptr, value } => {
                while word(memory, *ptr)?.word().load(Ordering::Acquire) < *value {
                    device.check()?;
                    std::thread::yield_now();
                }
                Ok(())
            }
            Self::Host(call) => {
                call.run();
                Ok(())
            }
            Self::Launch(launch) => launch.run(device, memory),
            Self::Product(gemm) => gemm.run(memory),
            Self::Free(ptr) => {
                let freed = memory.free(*ptr, &[MemoryKind::Pool]);
                freed.map_err(|_| Status::ILLEGAL_ADDRESS)
            }
            Self::Reach(_) | Self::Wait(_) | Self::Graph(_) => Ok(()),
        }
    }
}

impl HostCall {
    fn run(self) {
        let arg = std::ptr::with_exposed_provenance_mut(self.arg);
        // SAFETY: who submitted it promised that the function may be called with this argument from
        // a thread of the driver's.
        unsafe { (self.func)(arg) };
    }
}

/// Counts the work, and lets it fail or stand still if that was asked for.
fn go_wrong(device: &Device) -> Answer<()> {
    match Faults::of_process().count("work", Some(device.ordinal)) {
        None => Ok(()),
        Some(Effect::Status(status) | Effect::Sticky(status)) => Err(Status(status)),
        Some(Effect::Stuck) => loop {
            device.check()?;
            std::thread::sleep(LOOK_UP_EVERY);
        },
    }
}

/// Where memory is that must still be the same as when the work was submitted.
fn same_place(memory: &Memory, ptr: u64, len: u64, id: u64) -> Answer<Place> {
    let place = memory
        .place(ptr, len)
        .map_err(|_| Status::ILLEGAL_ADDRESS)?;
    if place.id == id {
        Ok(place)
    } else {
        Err(Status::ILLEGAL_ADDRESS)
    }
}

/// How often waiting work looks whether its device is broken.
const LOOK_UP_EVERY: Duration = Duration::from_millis(2);
