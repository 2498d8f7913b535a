//! Events and mem-events of an instance.
#![expect(unsafe_code, reason = "calls the driver with handles of its own")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stepmesh_plugin::{Error, EventOptions, EventState, LogLevel, Result, Stream, WaitMode};

use crate::shared::{Shared, lock};
use crate::words::word;
use crate::{Driver, Kind, wait};

/// An event. Dropping it destroys it, pending or not.
#[derive(Debug)]
pub struct Event<D: Driver> {
    shared: Arc<Shared<D>>,
    pub(crate) device: u32,
    pub(crate) raw: u64,
    measures_time: bool,
    was_recorded: AtomicBool,
}

impl<D: Driver> Event<D> {
    pub(crate) fn new(shared: &Arc<Shared<D>>, device: u32, options: EventOptions) -> Result<Self> {
        if options.ipc {
            return Err(Error::unimplemented(format!(
                "the {} backend has no events between processes; memory of stepmesh.ipc.v1 and \
                 mem-events can stand for them",
                D::NOTE.name
            )));
        }
        let what = || format!("make an event of device {device}");
        let raw = shared.on_relaxed(device, what, |driver| {
            driver.create_event(options.timing, options.blocking)
        })?;
        Ok(Self {
            shared: Arc::clone(shared),
            device,
            raw,
            measures_time: options.timing,
            was_recorded: AtomicBool::new(false),
        })
    }

    pub(crate) fn record(&self, stream: Stream) -> Result<()> {
        self.shared.check_stream(stream)?;
        if self.device != stream.device {
            return Err(Error::invalid_argument(format!(
                "an event of device {} cannot be recorded on a stream of device {}",
                self.device, stream.device
            )));
        }
        let what = || format!("record an event of device {}", self.device);
        self.shared.on(self.device, what, |driver| {
            // SAFETY: this event's own handle; the table's contract: a live stream.
            unsafe { driver.record_event(self.raw, stream.raw) }
        })?;
        self.was_recorded.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn is_done(&self) -> Result<bool> {
        let what = || format!("look at an event of device {}", self.device);
        self.shared.on_relaxed(self.device, what, |driver| {
            // SAFETY: this event's own handle.
            unsafe { driver.is_event_done(self.raw) }
        })
    }

    pub(crate) fn state(&self) -> Result<EventState> {
        match self.is_done() {
            Ok(true) => Ok(EventState::Done),
            Ok(false) => Ok(EventState::Pending),
            // Failed work is a state; a call that the driver refuses is none.
            Err(_) if self.shared.device(self.device)?.is_lost() => Ok(EventState::Error),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn synchronize(&self, timeout_ns: u64, mode: WaitMode) -> Result<()> {
        if wait::until(timeout_ns, mode, || self.is_done())? {
            return Ok(());
        }
        Err(Error::deadline_exceeded(format!(
            "an event of device {} was not reached within {} us",
            self.device,
            timeout_ns / 1000
        )))
    }

    pub(crate) fn elapsed_ms(&self, end: &Self) -> Result<f64> {
        for (which, event) in [("start", self), ("end", end)] {
            let why = if !event.measures_time {
                "does not measure time; make it with SM_EVENT_TIMING"
            } else if !event.was_recorded.load(Ordering::Relaxed) {
                "was never recorded"
            } else {
                continue;
            };
            return Err(Error::failed_precondition(format!(
                "the {which} event {why}"
            )));
        }
        let what = || format!("measure the time between events of device {}", self.device);
        let ms = self.shared.on_relaxed(self.device, what, |driver| {
            // SAFETY: the handles of two live events.
            match unsafe { driver.elapsed_ms(self.raw, end.raw) } {
                Err(failure) if failure.kind::<D>() == Kind::NotReady => Ok(None),
                answer => answer.map(Some),
            }
        })?;
        ms.ok_or_else(|| Error::failed_precondition("an event was not reached yet"))
    }
}

impl<D: Driver> Drop for Event<D> {
    fn drop(&mut self) {
        let what = || format!("destroy an event of device {}", self.device);
        let ended = self.shared.on_ending(self.device, what, |driver| {
            // SAFETY: this event's own handle, which goes with it.
            unsafe { driver.destroy_event(self.raw) }
        });
        if let Err(error) = ended {
            self.shared.log(LogLevel::Warn, format_args!("{error}"));
        }
    }
}

/// A mem-event: a word of pinned memory that streams raise. Dropping it is safe while it is armed.
#[derive(Debug)]
pub struct MemEvent<D: Driver> {
    shared: Arc<Shared<D>>,
    device: u32,
    at: u64,
    last_seq: AtomicU64,
    /// For devices whose streams copy the numbers.
    staged: Option<Mutex<Staged>>,
}

/// Numbers in pinned memory, from where streams copy them. A place is used again when the word has the
/// number that was in it.
#[derive(Debug)]
struct Staged {
    places: Vec<u64>,
    next: usize,
}

impl<D: Driver> MemEvent<D> {
    pub(crate) fn new(shared: &Arc<Shared<D>>, device: u32) -> Result<Self> {
        let at = shared.words.take(shared, device)?;
        let mut event = Self {
            shared: Arc::clone(shared),
            device,
            at,
            last_seq: AtomicU64::new(0),
            staged: None,
        };
        if !shared.device(device)?.facts.has_stream_writes {
            let mut staged = Staged {
                places: Vec::new(),
                next: 0,
            };
            let taken = (0..STAGED_PLACES).try_for_each(|_| {
                staged.places.push(shared.words.take(shared, device)?);
                Ok(())
            });
            // What was taken goes back with the event.
            event.staged = Some(Mutex::new(staged));
            taken?;
        }
        Ok(event)
    }

    pub(crate) fn word(&self) -> &AtomicU64 {
        // SAFETY: the word is this event's until it is dropped, and the pool lives in `shared`.
        unsafe { word(self.at) }
    }

    pub(crate) fn arm(&self, stream: Stream, seq: u64) -> Result<()> {
        self.shared.check_stream(stream)?;
        if self.device != stream.device {
            return Err(Error::invalid_argument(format!(
                "a mem-event of device {} cannot be armed on a stream of device {}",
                self.device, stream.device
            )));
        }
        let what = || format!("arm a mem-event of device {} with {seq}", self.device);
        match &self.staged {
            None => self.shared.on(self.device, what, |driver| {
                // SAFETY: this event's own word, which is kept until the stream wrote to it; the
                // table's contract: a live stream.
                unsafe { driver.write_value(stream.raw, self.at, seq) }
            })?,
            Some(staged) => self.arm_by_copy(&mut lock(staged), stream, seq)?,
        }
        self.last_seq.store(seq, Ordering::Relaxed);
        Ok(())
    }

    fn arm_by_copy(&self, staged: &mut Staged, stream: Stream, seq: u64) -> Result<()> {
        let at = staged.places[staged.next];
        // SAFETY: a place of this event's own.
        let place = unsafe { word(at) };
        // The copy of the number that is in it must be over.
        let due = place.load(Ordering::Relaxed);
        let is_over = || Ok(self.word().load(Ordering::Acquire) >= due);
        if !wait::until(STAGED_NS_MAX, WaitMode::Block, is_over)? {
            return Err(Error::new(
                stepmesh_plugin::abi::Code::Unavailable,
                format!("{STAGED_PLACES} numbers of a mem-event are on their way already"),
            )
            .with_flags(stepmesh_plugin::abi::error::SM_ERROR_RETRYABLE));
        }
        place.store(seq, Ordering::Release);
        let request = stepmesh_plugin::CopyRequest {
            dst: self.at,
            src: at,
            len_bytes: 8,
            direction: stepmesh_plugin::Direction::Auto,
            dst_device: self.device,
            src_device: self.device,
        };
        // SAFETY: word and place are this event's own, and kept until the stream is through.
        unsafe { self.shared.copy(&request, stream)? };
        staged.next = (staged.next + 1) % staged.places.len();
        Ok(())
    }

    pub(crate) fn query(&self, seq: u64) -> Result<bool> {
        let has_it = || self.word().load(Ordering::Acquire) >= seq;
        if has_it() {
            return Ok(true);
        }
        // The word will never come if the device is lost: whoever asks finds out here.
        let what = || format!("look at a mem-event of device {}", self.device);
        self.shared
            .on_relaxed(self.device, what, |driver| driver.memory_info())?;
        Ok(has_it())
    }
}

impl<D: Driver> Drop for MemEvent<D> {
    fn drop(&mut self) {
        let mut words = vec![self.at];
        if let Some(staged) = self.staged.take() {
            let staged = staged.into_inner().unwrap_or_else(PoisonError::into_inner);
            words.extend(staged.places);
        }
        self.shared.words.give(words, *self.last_seq.get_mut());
    }
}

/// Numbers that may be on their way at once where streams copy them.
const STAGED_PLACES: usize = 128;
/// How long arming waits for a place.
const STAGED_NS_MAX: u64 = 1_000_000_000;
