//! Mem-events (`stepmesh.memevent.v1`): a number in memory that a stream raises and the host waits
//! for with nothing but loads. Events that use one live in `event`.
#![expect(
    unsafe_code,
    reason = "calls the extension, and loads from an address that a plugin gave"
)]

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use stepmesh_abi::device::SM_HEALTH_LOST;
use stepmesh_abi::event::SM_EVENT_PENDING;
use stepmesh_abi::extension::SM_EXTENSION_MEMEVENT_V1;
use stepmesh_abi::{Code, SmBackend, SmError, SmMemEvent, SmMemEventV1};

use crate::{Device, Error, ErrorFlags, Stream, cleanup};

/// A number in memory that streams raise: 0 at first, and only ever growing. Each [`MemEvent::arm`]
/// names a greater number, so nothing is reset, and a waiter cannot miss what it waits for.
///
/// Waiting costs a load while the number is not there, and no call into the backend but a look now
/// and then whether the work or the device failed. Dropping is safe while it is armed. Any thread may
/// use it; arms take turns.
#[derive(Debug)]
pub struct MemEvent {
    device: Device,
    functions: Functions,
    /// `None` once released.
    raw: Option<NonNull<SmMemEvent>>,
    word: NonNull<AtomicU64>,
    armed: Mutex<Armed>,
}

// SAFETY: the handle's functions are of class A, or H and serialised by `armed` or by ownership; the
// word is only loaded, atomically.
unsafe impl Send for MemEvent {}
// SAFETY: as for `Send`.
unsafe impl Sync for MemEvent {}

/// What was armed last.
#[derive(Debug, Default)]
struct Armed {
    seq: u64,
    /// Device and handle.
    stream: (u32, u64),
}

/// The functions of the extension, all of them present.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Functions {
    create: unsafe extern "C" fn(*mut SmBackend, u32, *mut *mut SmMemEvent, *mut SmError) -> i32,
    destroy: unsafe extern "C" fn(*mut SmBackend, *mut SmMemEvent, *mut SmError) -> i32,
    arm: unsafe extern "C" fn(*mut SmBackend, *mut SmMemEvent, u32, u64, u64, *mut SmError) -> i32,
    poll_addr:
        unsafe extern "C" fn(*mut SmBackend, *mut SmMemEvent, *mut *const u64, *mut SmError) -> i32,
    query: unsafe extern "C" fn(*mut SmBackend, *mut SmMemEvent, *mut u32, *mut SmError) -> i32,
}

impl Functions {
    /// `None` if one is missing: then the extension is as good as absent.
    pub(crate) fn of(table: &SmMemEventV1) -> Option<Self> {
        Some(Self {
            create: table.create?,
            destroy: table.destroy?,
            arm: table.arm?,
            poll_addr: table.poll_addr?,
            query: table.query?,
        })
    }
}

impl MemEvent {
    pub(crate) fn new(device: Device) -> Result<Self, Error> {
        let (instance, dev) = (device.backend().instance(), device.ordinal());
        let Some(functions) = instance.mem_event_functions() else {
            return Err(Error::Unsupported {
                operation: SM_EXTENSION_MEMEVENT_V1,
                backend: instance.name(),
                device: Some(dev),
                message: "the plugin has no such extension".into(),
            });
        };
        let mut raw = ptr::null_mut();
        instance.call("memevent.create", Some(dev), |s, e| {
            // SAFETY: the out pointer is a live local.
            unsafe { (functions.create)(s, dev, &raw mut raw, e) }
        })?;
        let Some(raw) = NonNull::new(raw) else {
            return Err(instance.bad_answer("memevent.create", "no mem-event".into()));
        };
        // From here on dropping destroys. The word is a placeholder until the plugin named it.
        let mut event = Self {
            device,
            functions,
            raw: Some(raw),
            word: NonNull::dangling(),
            armed: Mutex::default(),
        };
        event.word = event.find_word(raw)?;
        Ok(event)
    }

    fn find_word(&self, raw: NonNull<SmMemEvent>) -> Result<NonNull<AtomicU64>, Error> {
        let instance = self.device.backend().instance();
        let mut addr = ptr::null();
        instance.call("memevent.poll_addr", Some(self.device.ordinal()), |s, e| {
            // SAFETY: the event is alive, the out pointer is a live local.
            unsafe { (self.functions.poll_addr)(s, raw.as_ptr(), &raw mut addr, e) }
        })?;
        NonNull::new(addr.cast::<AtomicU64>().cast_mut())
            .filter(|word| word.is_aligned())
            .ok_or_else(|| instance.bad_answer("memevent.poll_addr", format!("a word at {addr:p}")))
    }

    /// The device it was made for.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The greatest number that a stream has reached; 0 at first. What was written before it on that
    /// stream is visible to the caller.
    #[inline]
    #[must_use]
    pub fn reached(&self) -> u64 {
        // SAFETY: the plugin's word: aligned and not null (checked in `find_word`), readable for the
        // life of the event by the ABI, which `self` keeps, and written atomically.
        unsafe { self.word.as_ref() }.load(Ordering::Acquire)
    }

    /// Has the number become `seq` once the stream's work so far is done.
    ///
    /// # Errors
    /// `InvalidArgument` when `seq` is not greater than those before, or when another stream was
    /// armed last and is still to get there: two streams that are not ordered must not share one.
    /// `ForeignHandle`, `Backend`.
    pub fn arm(&self, stream: &Stream, seq: u64) -> Result<(), Error> {
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        self.arm_locked(&mut armed, stream, seq)
    }

    /// The same with the next number, which is returned.
    ///
    /// # Errors
    /// As for [`MemEvent::arm`].
    pub fn arm_next(&self, stream: &Stream) -> Result<u64, Error> {
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let seq = armed.seq.saturating_add(1);
        self.arm_locked(&mut armed, stream, seq)?;
        Ok(seq)
    }

    fn arm_locked(&self, armed: &mut Armed, stream: &Stream, seq: u64) -> Result<(), Error> {
        let backend = self.device.backend();
        backend.check_same(stream.device().backend(), "memevent.arm")?;
        let fault = |fault| {
            let operation = "memevent.arm";
            Err(Error::InvalidArgument { operation, fault })
        };
        if seq <= armed.seq {
            return fault(format!(
                "the number {seq} is not greater than {}, which was armed before",
                armed.seq
            ));
        }
        let (dev, handle) = (stream.device().ordinal(), stream.handle());
        let is_other = armed.stream != (dev, handle) && self.reached() < armed.seq;
        // A number that will never come stands in nobody's way.
        if is_other && self.is_pending().unwrap_or(false) {
            return fault(format!(
                "the number {} is pending on another stream; wait for it or take another mem-event",
                armed.seq
            ));
        }
        let raw = self.raw();
        backend.instance().call("memevent.arm", Some(dev), |s, e| {
            // SAFETY: the event is alive; the lock of `armed` makes this the only call on it of
            // class H.
            unsafe { (self.functions.arm)(s, raw, dev, handle, seq, e) }
        })?;
        *armed = Armed {
            seq,
            stream: (dev, handle),
        };
        Ok(())
    }

    /// Waits until the number is `seq` or greater, spinning.
    ///
    /// # Errors
    /// `Timeout`, after which it is still usable; `Backend` when the work before the last arm failed
    /// or the device is lost.
    #[inline]
    pub fn wait(&self, seq: u64, timeout: Duration) -> Result<(), Error> {
        // What is there already costs one load: no clock, and no call, which costs more than it.
        if self.reached() >= seq {
            return Ok(());
        }
        self.wait_spinning(seq, timeout)
    }

    fn wait_spinning(&self, seq: u64, timeout: Duration) -> Result<(), Error> {
        self.wait_with(seq, timeout, SPINS_PER_LOOK, std::hint::spin_loop)
    }

    /// The same, letting other threads run between loads.
    pub(crate) fn wait_yielding(&self, seq: u64, timeout: Duration) -> Result<(), Error> {
        if self.reached() >= seq {
            return Ok(());
        }
        self.wait_with(seq, timeout, YIELDS_PER_LOOK, std::thread::yield_now)
    }

    fn wait_with(
        &self,
        seq: u64,
        timeout: Duration,
        loads_per_look: u32,
        pause: impl Fn(),
    ) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            for _ in 0..loads_per_look {
                if self.reached() >= seq {
                    return Ok(());
                }
                pause();
            }
            self.look()?;
            if start.elapsed() >= timeout && self.reached() < seq {
                return Err(Error::Timeout {
                    operation: "memevent.wait",
                    backend: self.device.backend().name(),
                    device: Some(self.device.ordinal()),
                    timeout,
                });
            }
        }
    }

    /// Asks whether the number will come at all.
    fn look(&self) -> Result<(), Error> {
        let (instance, dev) = (self.device.backend().instance(), self.device.ordinal());
        self.is_pending()?;
        if instance.health(dev)? == SM_HEALTH_LOST {
            return Err(Error::Backend {
                operation: "memevent.wait",
                backend: instance.name(),
                device: Some(dev),
                code: Code::Unavailable,
                native_code: 0,
                flags: ErrorFlags::DEVICE_LOST,
                message: "the device is lost".into(),
            });
        }
        Ok(())
    }

    /// Whether the number last armed is still to come; an error if it never will.
    fn is_pending(&self) -> Result<bool, Error> {
        let (instance, dev) = (self.device.backend().instance(), self.device.ordinal());
        let (raw, mut state) = (self.raw(), 0);
        instance.call("memevent.query", Some(dev), |s, e| {
            // SAFETY: the event is alive, the out pointer is a live local.
            unsafe { (self.functions.query)(s, raw, &raw mut state, e) }
        })?;
        Ok(state == SM_EVENT_PENDING)
    }

    /// Gives it back and says whether that worked; dropping only logs.
    ///
    /// # Errors
    /// `Backend`.
    pub fn release(mut self) -> Result<(), Error> {
        self.destroy()
    }

    fn destroy(&mut self) -> Result<(), Error> {
        let Some(raw) = self.raw.take() else {
            return Ok(());
        };
        let (instance, dev) = (self.device.backend().instance(), self.device.ordinal());
        instance.call("memevent.destroy", Some(dev), |s, e| {
            // SAFETY: the event is alive, and `take` made sure that this is the only end of it.
            unsafe { (self.functions.destroy)(s, raw.as_ptr(), e) }
        })
    }

    fn raw(&self) -> *mut SmMemEvent {
        self.raw
            .expect("invariant: only the end takes it, and that has the event to itself")
            .as_ptr()
    }
}

impl Drop for MemEvent {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            cleanup::failed("memevent.destroy", &error);
        }
    }
}

/// Loads between two looks at the backend and the clock: some ten microseconds, so that a look costs
/// little beside them and a bound is kept well enough.
const SPINS_PER_LOOK: u32 = 256;
/// The same where each load is followed by a system call.
const YIELDS_PER_LOOK: u32 = 32;

#[cfg(test)]
mod tests;
