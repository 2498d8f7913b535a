//! Events: marks in a stream's work that the host and other streams can wait for.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use stepmesh_abi::event::{
    SM_EVENT_BLOCKING, SM_EVENT_DONE, SM_EVENT_ERROR, SM_EVENT_IPC, SM_EVENT_MEMSYNC,
    SM_EVENT_PENDING, SM_EVENT_TIMING, SM_WAIT_BLOCK, SM_WAIT_SPIN, SM_WAIT_YIELD,
};

use crate::instance::RawEvent;
use crate::{Device, Error, MemEvent, Stream, cleanup};

/// A mark in a stream's work. Dropping it is safe while it is pending. Any thread may use it;
/// records take turns.
#[derive(Debug)]
pub struct Event {
    device: Device,
    /// `None` once released.
    raw: Option<RawEvent>,
    /// `event_record` is of class H: one call at a time for each event.
    record: Mutex<()>,
    /// The word that the streams raise too, if there is one.
    memory: Option<MemEvent>,
    /// The number of the last record in `memory`; 0 if it has none.
    armed: AtomicU64,
}

/// What an event is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventOptions {
    /// It measures time, see [`Event::elapsed_ms`].
    pub timing: bool,
    /// Other processes may wait for it.
    pub interprocess: bool,
    /// Waiting sleeps by preference.
    pub blocking: bool,
    /// Also raises a number in memory, which waits that spin or yield poll instead of calling the
    /// backend. Left out where the backend cannot do that; the configuration's `transport.mem_sync`
    /// turns it on for every event that does not prefer to sleep.
    pub mem_sync: bool,
}

/// How a thread waits for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WaitMode {
    /// Spins: lowest latency, a whole core.
    Spin,
    /// Yields between looks.
    Yield,
    /// Sleeps until woken.
    #[default]
    Block,
}

impl Event {
    pub(crate) fn new(device: Device, options: EventOptions) -> Result<Self, Error> {
        let instance = device.backend().instance();
        let raw = instance.event_create(device.ordinal(), options.raw())?;
        let has_memory = options.mem_sync && instance.mem_event_functions().is_some();
        // From here on dropping destroys.
        let mut event = Self {
            device,
            raw: Some(raw),
            record: Mutex::new(()),
            memory: None,
            armed: AtomicU64::new(0),
        };
        if has_memory {
            event.memory = Some(MemEvent::new(event.device.clone())?);
        }
        Ok(event)
    }

    /// The device it was made for.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Marks the present end of the stream's work. Recording again moves the mark; those who wait
    /// for the earlier one are not disturbed.
    ///
    /// # Errors
    /// `ForeignHandle`, `Backend`.
    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        let backend = self.device.backend();
        backend.check_same(stream.device().backend(), "event_record")?;
        let _turn = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let dev = stream.device().ordinal();
        // Until the word is armed again, the backend is asked.
        self.armed.store(0, Ordering::Release);
        backend
            .instance()
            .event_record(self.raw(), dev, stream.handle())?;
        if let Some(memory) = &self.memory {
            match memory.arm_next(stream) {
                Ok(seq) => self.armed.store(seq, Ordering::Release),
                // An earlier record is still pending on another stream: the backend is asked.
                Err(Error::InvalidArgument { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the work before the last record is done. True for an event never recorded.
    ///
    /// # Errors
    /// `Backend` when that work failed, `BadAnswer`.
    pub fn is_done(&self) -> Result<bool, Error> {
        if self
            .in_memory()
            .is_some_and(|(memory, seq)| memory.reached() >= seq)
        {
            return Ok(true);
        }
        let instance = self.device.backend().instance();
        match instance.event_query(self.raw())? {
            SM_EVENT_DONE => Ok(true),
            SM_EVENT_PENDING => Ok(false),
            SM_EVENT_ERROR => {
                // Waiting for a failed event returns at once and says how it failed.
                instance.event_sync(self.raw(), Duration::ZERO, WaitMode::Spin)?;
                Err(instance.bad_answer("event_query", "a failure that event_sync denies".into()))
            }
            state => Err(instance.bad_answer("event_query", format!("state {state}"))),
        }
    }

    /// Waits until the work before the last record is done.
    ///
    /// # Errors
    /// `Timeout`, after which the event is still usable; `Backend` when the work failed.
    pub fn synchronize(&self, timeout: Duration, mode: WaitMode) -> Result<(), Error> {
        match (mode, self.in_memory()) {
            (WaitMode::Spin, Some((memory, seq))) => return memory.wait(seq, timeout),
            (WaitMode::Yield, Some((memory, seq))) => return memory.wait_yielding(seq, timeout),
            _ => {}
        }
        self.device
            .backend()
            .instance()
            .event_sync(self.raw(), timeout, mode)
    }

    /// Milliseconds from this event's mark to that of `later`; both made with
    /// [`EventOptions::timing`] and done.
    ///
    /// # Errors
    /// `ForeignHandle`, `Unsupported`, `Backend` when one is not done or has no timing.
    pub fn elapsed_ms(&self, later: &Self) -> Result<f64, Error> {
        let backend = self.device.backend();
        backend.check_same(later.device.backend(), "event_elapsed")?;
        backend.instance().event_elapsed_ms(self.raw(), later.raw())
    }

    /// Gives it back and says whether that worked; dropping only logs.
    ///
    /// # Errors
    /// `Backend`.
    pub fn release(mut self) -> Result<(), Error> {
        let raw = self.raw.take();
        raw.map_or(Ok(()), |raw| {
            self.device.backend().instance().event_destroy(raw)
        })
    }

    /// Whether waits that spin or yield poll memory instead of calling the backend.
    #[must_use]
    pub fn is_mem_synced(&self) -> bool {
        self.memory.is_some()
    }

    /// The word of the last record and the number that it will have.
    fn in_memory(&self) -> Option<(&MemEvent, u64)> {
        let seq = self.armed.load(Ordering::Acquire);
        self.memory
            .as_ref()
            .filter(|_| seq != 0)
            .map(|memory| (memory, seq))
    }

    pub(crate) fn raw(&self) -> RawEvent {
        self.raw
            .expect("invariant: only `release` takes it, and that consumes the event")
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take()
            && let Err(error) = self.device.backend().instance().event_destroy(raw)
        {
            cleanup::failed("event_destroy", &error);
        }
    }
}

impl EventOptions {
    fn raw(self) -> u32 {
        [
            (self.timing, SM_EVENT_TIMING),
            (self.interprocess, SM_EVENT_IPC),
            (self.blocking, SM_EVENT_BLOCKING),
            (self.mem_sync, SM_EVENT_MEMSYNC),
        ]
        .into_iter()
        .filter(|(is_set, _)| *is_set)
        .fold(0, |bits, (_, bit)| bits | bit)
    }
}

impl WaitMode {
    pub(crate) fn raw(self) -> u32 {
        match self {
            Self::Spin => SM_WAIT_SPIN,
            Self::Yield => SM_WAIT_YIELD,
            Self::Block => SM_WAIT_BLOCK,
        }
    }
}
