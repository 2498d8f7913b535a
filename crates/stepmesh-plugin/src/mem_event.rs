//! `stepmesh.memevent.v1` for backends: the trait, and the table made from it.
#![expect(unsafe_code, reason = "functions of the C table")]

use std::sync::atomic::{AtomicU64, Ordering};

use stepmesh_abi::{SmBackend, SmError, SmHdr, SmMemEvent, SmMemEventV1};

use crate::boundary::Value;
use crate::instance::{Instance, Phase, slot};
use crate::{Backend, Error, EventState, Extension, Result, Stream};

/// A backend whose streams can write a number to memory that the host polls.
///
/// Numbers are checked before a method sees them: each is greater than those before.
pub trait MemEvents: Backend {
    /// A mem-event. Dropping it is `destroy`, and must be safe while it is armed.
    type MemEvent: Send + Sync + 'static;

    /// Makes one.
    ///
    /// # Errors
    /// If there is no memory for its word.
    fn mem_event_create(&self, device: u32) -> Result<Self::MemEvent>;

    /// The word: 0 at first, and at the same address for the life of the event.
    fn mem_event_word(event: &Self::MemEvent) -> &AtomicU64;

    /// Has the stream write `seq` to the word (release) when it gets there.
    ///
    /// # Errors
    /// If the stream is unknown or its queue is full.
    fn mem_event_arm(&self, event: &Self::MemEvent, stream: Stream, seq: u64) -> Result<()>;

    /// Whether the word has `seq`, the number last armed.
    ///
    /// # Errors
    /// The failure because of which it never will.
    fn mem_event_query(&self, event: &Self::MemEvent, seq: u64) -> Result<bool>;
}

/// What an `SmMemEvent*` points to.
struct MemEventBox<B: MemEvents> {
    owner: usize,
    last_seq: AtomicU64,
    event: B::MemEvent,
}

impl Extension {
    /// The table of `stepmesh.memevent.v1`.
    #[must_use]
    pub fn mem_event<B: MemEvents>() -> Self {
        Self::new(const { &mem_event_table::<B>() }, 1)
    }
}

const fn mem_event_table<B: MemEvents>() -> SmMemEventV1 {
    SmMemEventV1 {
        hdr: SmHdr::of::<SmMemEventV1>(),
        create: Some(create::<B>),
        destroy: Some(destroy::<B>),
        arm: Some(arm::<B>),
        poll_addr: Some(poll_addr::<B>),
        query: Some(query::<B>),
    }
}

/// The event of an argument.
///
/// # Safety
/// - `raw` is null or a live mem-event made by an instance of `B`, and stays live for `'a`.
unsafe fn event<'a, B: MemEvents>(raw: *mut SmMemEvent) -> Option<&'a MemEventBox<B>> {
    // SAFETY: this function's contract; a live mem-event is a `MemEventBox<B>`, shared only.
    unsafe { raw.cast::<MemEventBox<B>>().as_ref() }
}

fn own<'a, B: MemEvents>(
    instance: &Instance<B>,
    event: Option<&'a MemEventBox<B>>,
) -> Result<&'a MemEventBox<B>> {
    let event = event.ok_or_else(|| Error::invalid_argument("the mem-event is null"))?;
    if event.owner != instance.address() {
        return Err(Error::invalid_argument(
            "the mem-event belongs to another instance",
        ));
    }
    Ok(event)
}

unsafe extern "C" fn create<B: MemEvents>(
    s: *mut SmBackend,
    dev: u32,
    out: *mut *mut SmMemEvent,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let event = MemEventBox::<B> {
            owner: i.address(),
            last_seq: AtomicU64::new(0),
            event: i.backend.mem_event_create(i.check_device(dev)?)?,
        };
        Ok(i.add_object(event).cast())
    };
    // SAFETY: the table's contract for the instance, the out pointer and `err`.
    unsafe { slot::<B, _>(s, err, "memevent.create", Phase::Open, Value(out), work) }
}

unsafe extern "C" fn destroy<B: MemEvents>(
    s: *mut SmBackend,
    event: *mut SmMemEvent,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        if event.is_null() || i.remove_object::<MemEventBox<B>>(event.addr()) {
            return Ok(());
        }
        Err(Error::invalid_argument(format!(
            "{event:p} is no live mem-event of this instance; was it destroyed already?"
        )))
    };
    // SAFETY: the table's contract for the instance and `err`.
    unsafe { slot::<B, _>(s, err, "memevent.destroy", Phase::Ending, (), work) }
}

unsafe extern "C" fn arm<B: MemEvents>(
    s: *mut SmBackend,
    raw: *mut SmMemEvent,
    stream_dev: u32,
    stream: u64,
    seq: u64,
    err: *mut SmError,
) -> i32 {
    // SAFETY: the table's contract: null or a live mem-event.
    let event = unsafe { event::<B>(raw) };
    let work = |i: &Instance<B>| {
        let event = own(i, event)?;
        let stream = Stream::from_raw(i.check_device(stream_dev)?, stream)?;
        // One call at a time (class H), so nothing comes between the look and the store.
        let last = event.last_seq.load(Ordering::Relaxed);
        if seq <= last {
            return Err(Error::invalid_argument(format!(
                "the number {seq} is not greater than {last}, which was armed before"
            )));
        }
        i.backend.mem_event_arm(&event.event, stream, seq)?;
        event.last_seq.store(seq, Ordering::Relaxed);
        Ok(())
    };
    // SAFETY: the table's contract for the instance and `err`.
    unsafe { slot::<B, _>(s, err, "memevent.arm", Phase::Open, (), work) }
}

unsafe extern "C" fn poll_addr<B: MemEvents>(
    s: *mut SmBackend,
    raw: *mut SmMemEvent,
    addr: *mut *const u64,
    err: *mut SmError,
) -> i32 {
    // SAFETY: the table's contract: null or a live mem-event.
    let event = unsafe { event::<B>(raw) };
    let work = |i: &Instance<B>| {
        let word = B::mem_event_word(&own(i, event)?.event);
        Ok(word.as_ptr().cast_const())
    };
    // SAFETY: the table's contract for the instance, the out pointer and `err`.
    unsafe { slot::<B, _>(s, err, "memevent.poll_addr", Phase::Open, Value(addr), work) }
}

unsafe extern "C" fn query<B: MemEvents>(
    s: *mut SmBackend,
    raw: *mut SmMemEvent,
    state: *mut u32,
    err: *mut SmError,
) -> i32 {
    // SAFETY: the table's contract: null or a live mem-event.
    let event = unsafe { event::<B>(raw) };
    let work = |i: &Instance<B>| {
        let event = own(i, event)?;
        let seq = event.last_seq.load(Ordering::Relaxed);
        let is_done = i.backend.mem_event_query(&event.event, seq)?;
        let state = if is_done {
            EventState::Done
        } else {
            EventState::Pending
        };
        Ok(state.raw())
    };
    // SAFETY: the table's contract for the instance, the out pointer and `err`.
    unsafe { slot::<B, _>(s, err, "memevent.query", Phase::Open, Value(state), work) }
}
