//! `stepmesh.graph.v1` for backends: the trait, and the table made from it.
#![expect(unsafe_code, reason = "functions of the C table")]

use stepmesh_abi::extension::{SM_CAPTURE_ACTIVE, SM_CAPTURE_INVALIDATED, SM_CAPTURE_NONE};
use stepmesh_abi::{SmBackend, SmError, SmGraphV1, SmHdr};

use crate::boundary::Value;
use crate::instance::{Instance, Phase, slot};
use crate::{Backend, Error, Extension, Result, Stream};

/// A backend whose streams can be captured, and write and wait for flags in memory. Offer it with
/// `Extension::graph` in [`Backend::extension`].
///
/// Addresses of words are neither 0 nor unaligned when a method sees them, except for those that may
/// be left out.
pub trait Graph: Backend {
    /// Whether a stream is being captured.
    ///
    /// # Errors
    /// If the stream is unknown.
    fn capture(&self, stream: Stream) -> Result<Capture>;

    /// Has the stream write the word at `seq` to that at `flag` (release) when it gets there.
    ///
    /// # Safety
    /// - Both are words of 8 bytes that the device reaches, until the stream and every graph that
    ///   captured the work are done with them.
    ///
    /// # Errors
    /// `SM_UNIMPLEMENTED` where the device has no such work.
    unsafe fn write_flag(&self, stream: Stream, flag: u64, seq: u64) -> Result<()>;

    /// Has the stream wait for a flag.
    ///
    /// # Safety
    /// - As [`Graph::write_flag`], for each word that is there.
    ///
    /// # Errors
    /// As [`Graph::write_flag`].
    unsafe fn wait_flag(&self, stream: Stream, wait: &FlagWait) -> Result<()>;

    /// Has the stream add 1 to the word at `seq`.
    ///
    /// # Safety
    /// - As [`Graph::write_flag`].
    ///
    /// # Errors
    /// As [`Graph::write_flag`].
    unsafe fn seq_add_one(&self, stream: Stream, seq: u64) -> Result<()>;
}

/// State of a stream's capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// It is not captured.
    None,
    /// It is, under this number.
    Active(u64),
    /// It was, and an error ended that.
    Invalidated,
}

/// A wait for a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagWait {
    /// Address of the flag.
    pub flag: u64,
    /// Address of the number that the flag must have at least.
    pub seq: u64,
    /// Address of the word that ends the wait when it is not 0; 0 for none.
    pub abort: u64,
    /// Address of the word that gets `SM_FLAG_WAIT_*`; 0 for none.
    pub outcome: u64,
    /// Bound in nanoseconds; not 0.
    pub timeout_ns: u64,
}

impl Extension {
    /// The table of `stepmesh.graph.v1`.
    #[must_use]
    pub fn graph<B: Graph>() -> Self {
        Self::new(const { &graph_table::<B>() }, 1)
    }
}

const fn graph_table<B: Graph>() -> SmGraphV1 {
    SmGraphV1 {
        hdr: SmHdr::of::<SmGraphV1>(),
        capture_state: Some(capture_state::<B>),
        write_flag: Some(write_flag::<B>),
        wait_flag: Some(wait_flag::<B>),
        seq_add_one: Some(seq_add_one::<B>),
    }
}

fn word(what: &str, address: u64) -> Result<u64> {
    if address != 0 && address.is_multiple_of(WORD_LEN) {
        return Ok(address);
    }
    let message = format!("the {what} at {address:#x} is no word of {WORD_LEN} aligned bytes");
    Err(Error::invalid_argument(message))
}

fn word_or_none(what: &str, address: u64) -> Result<u64> {
    if address == 0 {
        return Ok(0);
    }
    word(what, address)
}

unsafe extern "C" fn capture_state<B: Graph>(
    s: *mut SmBackend,
    stream_dev: u32,
    stream: u64,
    state: *mut u32,
    id: *mut u64,
    err: *mut SmError,
) -> i32 {
    let out = (Value(state), Value(id));
    let work = |i: &Instance<B>| {
        let stream = Stream::from_raw(i.check_device(stream_dev)?, stream)?;
        Ok(match i.backend.capture(stream)? {
            Capture::None => (SM_CAPTURE_NONE, 0),
            Capture::Active(id) => (SM_CAPTURE_ACTIVE, id),
            Capture::Invalidated => (SM_CAPTURE_INVALIDATED, 0),
        })
    };
    // SAFETY: the table's contract for the instance, the out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "graph.capture_state", Phase::Open, out, work) }
}

unsafe extern "C" fn write_flag<B: Graph>(
    s: *mut SmBackend,
    stream_dev: u32,
    stream: u64,
    flag: u64,
    seq: u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let stream = Stream::from_raw(i.check_device(stream_dev)?, stream)?;
        let (flag, seq) = (word("flag", flag)?, word("number", seq)?);
        // SAFETY: the table's contract: words that the device reaches while the work is there.
        unsafe { i.backend.write_flag(stream, flag, seq) }
    };
    // SAFETY: the table's contract for the instance and `err`.
    unsafe { slot::<B, _>(s, err, "graph.write_flag", Phase::Open, (), work) }
}

unsafe extern "C" fn wait_flag<B: Graph>(
    s: *mut SmBackend,
    stream_dev: u32,
    stream: u64,
    flag: u64,
    seq: u64,
    abort: u64,
    outcome: u64,
    timeout_ns: u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let stream = Stream::from_raw(i.check_device(stream_dev)?, stream)?;
        if timeout_ns == 0 {
            return Err(Error::invalid_argument("a wait for a flag without time"));
        }
        let wait = FlagWait {
            flag: word("flag", flag)?,
            seq: word("number", seq)?,
            abort: word_or_none("abort word", abort)?,
            outcome: word_or_none("outcome", outcome)?,
            timeout_ns,
        };
        // SAFETY: the table's contract: words that the device reaches while the work is there.
        unsafe { i.backend.wait_flag(stream, &wait) }
    };
    // SAFETY: the table's contract for the instance and `err`.
    unsafe { slot::<B, _>(s, err, "graph.wait_flag", Phase::Open, (), work) }
}

unsafe extern "C" fn seq_add_one<B: Graph>(
    s: *mut SmBackend,
    stream_dev: u32,
    stream: u64,
    seq: u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let stream = Stream::from_raw(i.check_device(stream_dev)?, stream)?;
        let seq = word("number", seq)?;
        // SAFETY: the table's contract: a word that the device reaches while the work is there.
        unsafe { i.backend.seq_add_one(stream, seq) }
    };
    // SAFETY: the table's contract for the instance and `err`.
    unsafe { slot::<B, _>(s, err, "graph.seq_add_one", Phase::Open, (), work) }
}

/// Bytes of a flag and of a number.
const WORD_LEN: u64 = 8;
