//! What most checks start from: an open instance with a device and a stream, bytes to and from the
//! device, and a stream that is held.
#![forbid(unsafe_code)]

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stepmesh_abi::Code;
use stepmesh_abi::event::{SM_EVENT_DONE, SM_WAIT_BLOCK};
use stepmesh_abi::memory::{SM_COPY_D2D, SM_COPY_D2H, SM_COPY_H2D};

use crate::check::{Stop, ensure, fail, skip};
use crate::context::Context;
use crate::raw::failure::Failure;
use crate::raw::memory::{Allocation, HostBuffer, Range, narrow};
use crate::raw::session::{Event, HostCall, Session, Stream};

/// An open instance with a stream on its first device.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) session: Session,
    pub(super) devices: u32,
    pub(super) dev: u32,
    pub(super) stream: Stream,
}

impl Setting {
    pub(super) fn new(context: &Context<'_>) -> Result<Self, Stop> {
        let session = context.open()?;
        let devices = session.device_count()?;
        ensure!(
            devices > 0,
            "the backend has no device, so nothing of this can be judged"
        );
        let stream = session.stream_create(0)?;
        Ok(Self {
            session,
            devices,
            dev: 0,
            stream,
        })
    }

    /// Skips the check unless there are two devices.
    pub(super) fn second_device(&self) -> Result<u32, Stop> {
        if self.devices < 2 {
            return skip("needs two devices");
        }
        Ok(1)
    }

    pub(super) fn has(&self, capability: u64) -> Result<bool, Stop> {
        Ok(self.session.capabilities(self.dev)? & capability != 0)
    }

    /// Skips the check unless the device has the capability.
    pub(super) fn needs(&self, capability: u64, name: &str) -> Result<(), Stop> {
        if self.has(capability)? {
            return Ok(());
        }
        skip(format!("capability {name} is not set"))
    }

    pub(super) fn alloc(&self, len_bytes: usize) -> Result<Allocation, Stop> {
        let len = crate::raw::memory::wide(len_bytes);
        Ok(self.session.alloc(self.dev, len)?)
    }

    pub(super) fn free(&self, memory: Allocation) -> Result<(), Stop> {
        Ok(self.session.free(memory.dev, memory.ptr)?)
    }

    pub(super) fn event(&self) -> Result<Event, Stop> {
        let event = self.session.event_create(self.dev, 0)?;
        ensure!(!event.is_null(), "event_create succeeded with a null event");
        Ok(event)
    }

    /// Memory of the device that holds these bytes.
    pub(super) fn alloc_with(&self, bytes: &[u8]) -> Result<Allocation, Stop> {
        let memory = self.alloc(bytes.len())?;
        self.put(memory.all(), bytes)?;
        Ok(memory)
    }

    /// Copies bytes to the device and waits.
    pub(super) fn put(&self, to: Range, bytes: &[u8]) -> Result<(), Stop> {
        let from = HostBuffer::new(bytes);
        self.session
            .memcpy_async(to, from.all(), SM_COPY_H2D, self.stream)?;
        self.sync(self.stream)
    }

    /// Copies bytes from the device and waits.
    pub(super) fn take(&self, from: Range) -> Result<Vec<u8>, Stop> {
        let to = HostBuffer::zeroed(narrow(from.len_bytes));
        self.session
            .memcpy_async(to.all(), from, SM_COPY_D2H, self.stream)?;
        self.sync(self.stream)?;
        Ok(to.bytes())
    }

    /// Copies within the device, in the order of a stream.
    pub(super) fn copy(&self, to: Range, from: Range, on: Stream) -> Result<(), Stop> {
        Ok(self.session.memcpy_async(to, from, SM_COPY_D2D, on)?)
    }

    pub(super) fn sync(&self, on: Stream) -> Result<(), Stop> {
        Ok(self.session.stream_sync(on, LONG_NS)?)
    }

    pub(super) fn sync_event(&self, event: Event) -> Result<(), Stop> {
        Ok(self.session.event_sync(event, LONG_NS, SM_WAIT_BLOCK)?)
    }

    pub(super) fn is_done(&self, event: Event) -> Result<bool, Stop> {
        Ok(self.session.event_query(event)? == SM_EVENT_DONE)
    }

    /// Holds a stream until the gate is opened, at most for [`GATE_MAX`]. `None`: the plugin has
    /// no host functions, by which alone a stream can be held.
    pub(super) fn hold(&self, on: Stream) -> Result<Option<Held>, Stop> {
        let gate = Gate::default();
        let (inside, behind) = (gate.clone(), Gate::default());
        let entered = behind.clone();
        let launched = self.session.launch(on, move || {
            entered.open();
            inside.wait(GATE_MAX);
        });
        match launched {
            Ok(call) => {
                if !behind.wait(GATE_MAX) {
                    return fail("the function of launch_host_func did not run within 5 s");
                }
                Ok(Some(Held { gate, call }))
            }
            Err(failure) if failure.is_absent => Ok(None),
            Err(failure) if failure.code == Code::Unimplemented => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Holds a stream, or skips the check.
    pub(super) fn hold_or_skip(&self, on: Stream) -> Result<Held, Stop> {
        match self.hold(on)? {
            Some(held) => Ok(held),
            None => skip("no launch_host_func, so that no stream can be held for the check"),
        }
    }
}

/// A stream that is held.
#[derive(Debug)]
pub(super) struct Held {
    gate: Gate,
    pub(super) call: HostCall,
}

impl Held {
    pub(super) fn release(&self) {
        self.gate.open();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gate.open();
    }
}

/// Something that one thread opens and others wait for.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(super) fn open(&self) {
        let (is_open, changed) = &*self.0;
        *is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }

    /// Whether it was opened within the limit.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let (is_open, changed) = &*self.0;
        let guard = is_open.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = changed.wait_timeout_while(guard, limit, |is_open| !*is_open);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Waits until something holds; false if it does not within the limit.
pub(super) fn eventually(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !holds() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Bytes in which a wrong offset, length or order shows.
pub(super) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|idx| {
            // A prime period: shifts by powers of two do not look alike.
            let low = u8::try_from(idx % 251).unwrap_or(0);
            low ^ seed.wrapping_mul(37) ^ u8::try_from((idx / 251) % 256).unwrap_or(0)
        })
        .collect()
}

/// Where two byte strings differ, for a message.
pub(super) fn difference(found: &[u8], due: &[u8]) -> Option<String> {
    if found.len() != due.len() {
        return Some(format!("{} bytes instead of {}", found.len(), due.len()));
    }
    let at = found
        .iter()
        .zip(due)
        .position(|(found, due)| found != due)?;
    Some(format!(
        "byte {at} of {} is {:#04x} instead of {:#04x}",
        due.len(),
        found[at],
        due[at]
    ))
}

/// That a call failed with one of several codes, or succeeded where that is allowed.
pub(super) fn one_of(what: &str, result: Result<(), Failure>, codes: &[Code]) -> Result<(), Stop> {
    match result {
        Ok(()) => Ok(()),
        Err(failure) if codes.contains(&failure.code) => Ok(()),
        Err(failure) => fail(format!("{what}: {failure}")),
    }
}

/// A bound for what ends at once if it ends at all.
pub(super) const LONG_NS: u64 = 20_000_000_000;
/// How long a stream is held at most: class C must not block for long.
pub(super) const GATE_MAX: Duration = Duration::from_secs(5);
