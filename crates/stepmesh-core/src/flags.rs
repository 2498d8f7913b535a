//! Work that is captured into graphs (`stepmesh.graph.v1`): whether a stream is being captured, and flags
//! in memory by which such work and the host wait for each other. Capturing itself is the framework's.
#![expect(unsafe_code, reason = "calls the extension with addresses of words")]

use std::time::Duration;

use stepmesh_abi::extension::{
    SM_CAPTURE_ACTIVE, SM_CAPTURE_INVALIDATED, SM_CAPTURE_NONE, SM_FLAG_WAIT_ABORTED,
    SM_FLAG_WAIT_REACHED, SM_FLAG_WAIT_TIMED_OUT,
};
use stepmesh_abi::{SmBackend, SmError, SmGraphV1};

use crate::{Buffer, Device, Error, Stream};

/// Flags of a device's streams. Any thread may use it.
///
/// A flag is a [`Word`] in memory. Which number it gets, or must have, is read from another word when the
/// work runs, so that a graph that is replayed sees new numbers: [`Flags::add_one`] counts them.
#[derive(Debug, Clone)]
pub struct Flags {
    device: Device,
    functions: Functions,
}

/// Eight aligned bytes of a buffer that the device reaches.
#[derive(Debug, Clone, Copy)]
pub struct Word<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// Where in it, in bytes; a multiple of 8.
    pub offset: u64,
}

/// State of a stream's capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CaptureState {
    /// It is not captured.
    None,
    /// It is, under this number.
    Active(u64),
    /// It was, and an error ended that.
    Invalidated,
}

/// How a wait for a flag ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlagOutcome {
    /// The flag has the number.
    Reached,
    /// The abort word was set.
    Aborted,
    /// The time was up.
    TimedOut,
}

/// The functions of the extension, all of them present.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Functions {
    capture_state:
        unsafe extern "C" fn(*mut SmBackend, u32, u64, *mut u32, *mut u64, *mut SmError) -> i32,
    write_flag: unsafe extern "C" fn(*mut SmBackend, u32, u64, u64, u64, *mut SmError) -> i32,
    wait_flag: unsafe extern "C" fn(
        *mut SmBackend,
        u32,
        u64,
        u64,
        u64,
        u64,
        u64,
        u64,
        *mut SmError,
    ) -> i32,
    seq_add_one: unsafe extern "C" fn(*mut SmBackend, u32, u64, u64, *mut SmError) -> i32,
}

impl Functions {
    /// `None` if one is missing: then the extension is as good as absent.
    pub(crate) fn of(table: &SmGraphV1) -> Option<Self> {
        Some(Self {
            capture_state: table.capture_state?,
            write_flag: table.write_flag?,
            wait_flag: table.wait_flag?,
            seq_add_one: table.seq_add_one?,
        })
    }
}

impl Flags {
    /// `None` when the backend has no `stepmesh.graph.v1`.
    pub(crate) fn of(device: &Device) -> Option<Self> {
        let functions = device.backend().instance().flag_functions()?;
        let device = device.clone();
        Some(Self { device, functions })
    }

    /// Whether a stream is being captured.
    ///
    /// # Errors
    /// `ForeignHandle`, `Backend`, `BadAnswer`.
    pub fn capture_state(&self, stream: &Stream) -> Result<CaptureState, Error> {
        let operation = "graph.capture_state";
        let (dev, raw) = self.check(stream, operation)?;
        let instance = self.device.backend().instance();
        let (mut state, mut id) = (0, 0);
        instance.call(operation, Some(dev), |s, e| {
            // SAFETY: the out pointers are live locals.
            unsafe { (self.functions.capture_state)(s, dev, raw, &raw mut state, &raw mut id, e) }
        })?;
        match state {
            SM_CAPTURE_NONE => Ok(CaptureState::None),
            SM_CAPTURE_ACTIVE => Ok(CaptureState::Active(id)),
            SM_CAPTURE_INVALIDATED => Ok(CaptureState::Invalidated),
            other => Err(instance.bad_answer(operation, format!("state {other}"))),
        }
    }

    /// In stream order: `flag` becomes what `seq` is then, after all earlier work of the stream.
    ///
    /// # Safety
    /// - Both buffers live until the stream, and every graph that captured the work, is done with it.
    /// - What else reads and writes the words meanwhile does so atomically.
    ///
    /// # Errors
    /// `ForeignHandle`, `OutOfRange`, `InvalidArgument` for an odd offset, `Backend`.
    pub unsafe fn write_flag(
        &self,
        stream: &Stream,
        flag: Word<'_>,
        seq: Word<'_>,
    ) -> Result<(), Error> {
        let operation = "graph.write_flag";
        let (dev, raw) = self.check(stream, operation)?;
        let (flag, seq) = (self.at(flag, operation)?, self.at(seq, operation)?);
        let instance = self.device.backend().instance();
        instance.call(operation, Some(dev), |s, e| {
            // SAFETY: words of buffers of this backend, which live by this method's contract.
            unsafe { (self.functions.write_flag)(s, dev, raw, flag, seq, e) }
        })
    }

    /// In stream order: waits until `flag` is what `seq` is then, or more, until `abort` is not 0, or
    /// until the time is up. The stream goes on in each case; [`FlagOutcome::of`] reads the number that
    /// `outcome` gets.
    ///
    /// # Safety
    /// - As [`Flags::write_flag`], for each word.
    ///
    /// # Errors
    /// As [`Flags::write_flag`].
    pub unsafe fn wait_flag(
        &self,
        stream: &Stream,
        flag: Word<'_>,
        seq: Word<'_>,
        abort: Option<Word<'_>>,
        outcome: Option<Word<'_>>,
        timeout: Duration,
    ) -> Result<(), Error> {
        let operation = "graph.wait_flag";
        let (dev, raw) = self.check(stream, operation)?;
        let (flag, seq) = (self.at(flag, operation)?, self.at(seq, operation)?);
        let optional = |word: Option<Word<'_>>| word.map_or(Ok(0), |word| self.at(word, operation));
        let (abort, outcome) = (optional(abort)?, optional(outcome)?);
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let instance = self.device.backend().instance();
        instance.call(operation, Some(dev), |s, e| {
            // SAFETY: words of buffers of this backend, which live by this method's contract.
            unsafe {
                let wait = self.functions.wait_flag;
                wait(s, dev, raw, flag, seq, abort, outcome, timeout_ns, e)
            }
        })
    }

    /// In stream order: adds 1 to `seq`.
    ///
    /// # Safety
    /// - As [`Flags::write_flag`].
    ///
    /// # Errors
    /// As [`Flags::write_flag`].
    pub unsafe fn add_one(&self, stream: &Stream, seq: Word<'_>) -> Result<(), Error> {
        let operation = "graph.seq_add_one";
        let (dev, raw) = self.check(stream, operation)?;
        let seq = self.at(seq, operation)?;
        let instance = self.device.backend().instance();
        instance.call(operation, Some(dev), |s, e| {
            // SAFETY: a word of a buffer of this backend, which lives by this method's contract.
            unsafe { (self.functions.seq_add_one)(s, dev, raw, seq, e) }
        })
    }

    fn check(&self, stream: &Stream, operation: &'static str) -> Result<(u32, u64), Error> {
        let backend = self.device.backend();
        backend.check_same(stream.device().backend(), operation)?;
        Ok((stream.device().ordinal(), stream.handle()))
    }

    fn at(&self, word: Word<'_>, operation: &'static str) -> Result<u64, Error> {
        let backend = self.device.backend();
        backend.check_same(word.buffer.device().backend(), operation)?;
        let at = word.buffer.range(operation, word.offset, WORD_LEN)?;
        if at.is_multiple_of(WORD_LEN) {
            return Ok(at);
        }
        let fault = format!("a word at {at:#x} is not aligned to {WORD_LEN} bytes");
        Err(Error::InvalidArgument { operation, fault })
    }
}

impl FlagOutcome {
    /// The outcome of a number that [`Flags::wait_flag`] wrote; `None` if it wrote none yet.
    #[must_use]
    pub fn of(number: u64) -> Option<Self> {
        match number {
            SM_FLAG_WAIT_REACHED => Some(Self::Reached),
            SM_FLAG_WAIT_ABORTED => Some(Self::Aborted),
            SM_FLAG_WAIT_TIMED_OUT => Some(Self::TimedOut),
            _ => None,
        }
    }
}

/// Bytes of a word.
const WORD_LEN: u64 = 8;
