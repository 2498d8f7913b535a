//! What a method of a backend is asked and what it answers, as checked Rust types. Their raw forms
//! live in stepmesh-abi.

use std::ffi::c_void;

use stepmesh_abi::device::{SM_HEALTH_DEGRADED, SM_HEALTH_LOST, SM_HEALTH_OK};
use stepmesh_abi::event::{
    SM_EVENT_BLOCKING, SM_EVENT_DONE, SM_EVENT_ERROR, SM_EVENT_IPC, SM_EVENT_MEMSYNC,
    SM_EVENT_PENDING, SM_EVENT_TIMING, SM_WAIT_BLOCK, SM_WAIT_SPIN, SM_WAIT_YIELD,
};
use stepmesh_abi::memory::{
    SM_ALLOC_RDMA, SM_ALLOC_SHAREABLE, SM_COPY_AUTO, SM_COPY_D2D, SM_COPY_D2H, SM_COPY_H2D,
    SM_COPY_P2P, SM_MEMORY_DEVICE, SM_MEMORY_HOST_PINNED, SM_MEMORY_MANAGED, SM_RDMA_ALIGN_BYTES,
};
use stepmesh_abi::stream::{SM_STREAM_CURRENT, SM_STREAM_INVALID};

use crate::{Error, Result};

/// What a backend could do on this machine, found without touching a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Usable devices.
    pub device_count: u32,
    /// 0: unusable; the higher, the better.
    pub score: u32,
}

/// A stream argument: never 0 and never "current", which the host resolves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// Device of the stream.
    pub device: u32,
    /// `SM_STREAM_LEGACY`, `SM_STREAM_PER_THREAD` or the native handle.
    pub raw: u64,
}

impl Stream {
    pub(crate) fn from_raw(device: u32, raw: u64) -> Result<Self> {
        match raw {
            SM_STREAM_INVALID => Err(Error::invalid_argument(
                "stream 0 is no stream; name the default stream as 1 (legacy) or 2 (per thread)",
            )),
            SM_STREAM_CURRENT => Err(Error::invalid_argument(
                "the current stream must be resolved by the host before the call",
            )),
            _ => Ok(Self { device, raw }),
        }
    }
}

/// Memory that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocKind {
    /// The device's own.
    Device,
    /// Host memory locked in place.
    HostPinned,
    /// Migrates between host and device.
    Managed,
}

/// An allocation: the size is not 0, the alignment a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocRequest {
    /// Bytes.
    pub len_bytes: u64,
    /// Alignment in bytes; 1 if the caller has no wish, at least 64 KiB with `rdma`.
    pub align_bytes: u64,
    /// Kind of memory.
    pub kind: AllocKind,
    /// A NIC will read and write it.
    pub rdma: bool,
    /// It must be possible to export it to other processes.
    pub shareable: bool,
}

impl AllocRequest {
    pub(crate) fn from_raw(size: u64, align: u64, kind: u32, flags: u32) -> Result<Self> {
        let kind = match kind {
            SM_MEMORY_DEVICE => AllocKind::Device,
            SM_MEMORY_HOST_PINNED => AllocKind::HostPinned,
            SM_MEMORY_MANAGED => AllocKind::Managed,
            other => {
                return Err(Error::invalid_argument(format!(
                    "memory of kind {other} is unknown"
                )));
            }
        };
        if align != 0 && !align.is_power_of_two() {
            let message = format!("alignment {align} is not a power of two");
            return Err(Error::invalid_argument(message));
        }
        known_bits("alloc flags", flags, SM_ALLOC_RDMA | SM_ALLOC_SHAREABLE)?;
        let rdma = flags & SM_ALLOC_RDMA != 0;
        let least = if rdma { SM_RDMA_ALIGN_BYTES } else { 1 };
        let shareable = flags & SM_ALLOC_SHAREABLE != 0;
        Ok(Self {
            len_bytes: size,
            align_bytes: align.max(least),
            kind,
            rdma,
            shareable,
        })
    }
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Direction {
    /// Found from the pointers.
    Auto,
    /// Host to device.
    HostToDevice,
    /// Device to host.
    DeviceToHost,
    /// Within one device.
    DeviceToDevice,
    /// From one device to another.
    PeerToPeer,
}

/// A copy. The addresses are claims: the caller of the unsafe method vouches for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// First address written.
    pub dst: u64,
    /// First address read.
    pub src: u64,
    /// Bytes.
    pub len_bytes: u64,
    /// Direction.
    pub direction: Direction,
    /// Device of the written side, where that is a device's.
    pub dst_device: u32,
    /// Device of the read side, where that is a device's.
    pub src_device: u32,
}

impl CopyRequest {
    pub(crate) fn direction_from_raw(direction: u32) -> Result<Direction> {
        Ok(match direction {
            SM_COPY_AUTO => Direction::Auto,
            SM_COPY_H2D => Direction::HostToDevice,
            SM_COPY_D2H => Direction::DeviceToHost,
            SM_COPY_D2D => Direction::DeviceToDevice,
            SM_COPY_P2P => Direction::PeerToPeer,
            other => {
                return Err(Error::invalid_argument(format!(
                    "copy direction {other} is unknown"
                )));
            }
        })
    }
}

/// A fill: `len_bytes` and `dst` are multiples of the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillRequest {
    /// First address written.
    pub dst: u64,
    /// The pattern in its low `width_bytes` bytes.
    pub value: u32,
    /// 1, 2 or 4.
    pub width_bytes: u32,
    /// Bytes.
    pub len_bytes: u64,
}

impl FillRequest {
    pub(crate) fn from_raw(dst: u64, value: u32, width: u32, size: u64) -> Result<Self> {
        if !matches!(width, 1 | 2 | 4) {
            return Err(Error::invalid_argument(format!(
                "fill width {width} is not 1, 2 or 4"
            )));
        }
        if !size.is_multiple_of(u64::from(width)) || !dst.is_multiple_of(u64::from(width)) {
            return Err(Error::invalid_argument(format!(
                "a fill of {size} bytes at {dst:#x} is not a multiple of its width {width}"
            )));
        }
        Ok(Self {
            dst,
            value,
            width_bytes: width,
            len_bytes: size,
        })
    }
}

/// What an event is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventOptions {
    /// Measures time.
    pub timing: bool,
    /// Other processes may wait for it.
    pub ipc: bool,
    /// Waiting sleeps by preference.
    pub blocking: bool,
    /// Backed by a word in memory that the host polls.
    pub memsync: bool,
}

impl EventOptions {
    pub(crate) fn from_raw(flags: u32) -> Result<Self> {
        let known = SM_EVENT_TIMING | SM_EVENT_IPC | SM_EVENT_BLOCKING | SM_EVENT_MEMSYNC;
        known_bits("event flags", flags, known)?;
        Ok(Self {
            timing: flags & SM_EVENT_TIMING != 0,
            ipc: flags & SM_EVENT_IPC != 0,
            blocking: flags & SM_EVENT_BLOCKING != 0,
            memsync: flags & SM_EVENT_MEMSYNC != 0,
        })
    }
}

/// State of an event's last record; an event never recorded is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventState {
    /// Still running.
    Pending,
    /// Done.
    Done,
    /// Failed.
    Error,
}

impl EventState {
    pub(crate) fn raw(self) -> u32 {
        match self {
            Self::Pending => SM_EVENT_PENDING,
            Self::Done => SM_EVENT_DONE,
            Self::Error => SM_EVENT_ERROR,
        }
    }
}

/// How to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Spin on the processor.
    Spin,
    /// Yield between looks.
    Yield,
    /// Sleep until woken.
    Block,
}

impl WaitMode {
    pub(crate) fn from_raw(raw: u32) -> Result<Self> {
        match raw {
            SM_WAIT_SPIN => Ok(Self::Spin),
            SM_WAIT_YIELD => Ok(Self::Yield),
            SM_WAIT_BLOCK => Ok(Self::Block),
            other => Err(Error::invalid_argument(format!(
                "wait mode {other} is unknown"
            ))),
        }
    }
}

/// Health of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Ok,
    /// It works but reports errors.
    Degraded,
    /// It is gone or must be reset.
    Lost,
}

impl Health {
    pub(crate) fn raw(self) -> u32 {
        match self {
            Self::Ok => SM_HEALTH_OK,
            Self::Degraded => SM_HEALTH_DEGRADED,
            Self::Lost => SM_HEALTH_LOST,
        }
    }
}

/// A function of the host's that a stream must run once. Dropping it runs it too, so a queue that is
/// torn down cannot lose one.
#[derive(Debug)]
pub struct HostFunc {
    func: unsafe extern "C" fn(*mut c_void),
    // An address instead of a pointer: the kit only carries it back.
    arg: usize,
}

impl HostFunc {
    pub(crate) fn new(func: unsafe extern "C" fn(*mut c_void), arg: *mut c_void) -> Self {
        Self {
            func,
            arg: arg.expose_provenance(),
        }
    }

    /// Runs it now, on this thread.
    pub fn run(self) {
        drop(self);
    }
}

impl Drop for HostFunc {
    #[expect(unsafe_code, reason = "the call back into the host")]
    fn drop(&mut self) {
        let arg = std::ptr::with_exposed_provenance_mut(self.arg);
        // SAFETY: the host handed function and argument to `launch_host_func`, whose contract is
        // that the plugin calls it exactly once from any thread; this value is not `Clone`.
        unsafe { (self.func)(arg) }
    }
}

/// The table of an extension, for [`crate::Backend::extension`].
#[derive(Clone, Copy, Debug)]
pub struct Extension {
    pub(crate) table: usize,
    pub(crate) version: u32,
}

impl Extension {
    /// A static table that starts with an `SmHdr`.
    #[must_use]
    pub fn new<T>(table: &'static T, version: u32) -> Self {
        Self {
            table: std::ptr::from_ref(table).expose_provenance(),
            version,
        }
    }
}

pub(crate) fn known_bits(what: &str, bits: u32, known: u32) -> Result<()> {
    if bits & !known == 0 {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "{what} {:#x} are unknown",
        bits & !known
    )))
}
