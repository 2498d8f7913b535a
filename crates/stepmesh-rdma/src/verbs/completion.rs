//! Completion queues and the channels that wake who waits for them. What completes is posted in
//! `queue_pair`.
#![expect(unsafe_code, reason = "holds completion queues of libibverbs")]

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_comp_channel, ibv_cq, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use super::context::{self, Context};
use super::ledger::Kind;
use super::result;
use crate::VerbsError;

/// Where completion queues report that something completed, for those who sleep.
pub struct CompletionChannel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

/// Where finished work requests are reported. Several queue pairs may share one.
pub struct CompletionQueue {
    queue: Arc<Queue>,
    polled: [MaybeUninit<ibv_wc>; POLLED_AT_ONCE],
}

/// A finished work request. Where it failed, only `wr_id`, `status`, `qp_num` and `vendor_error` mean
/// something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// What the request was posted with.
    pub wr_id: u64,
    /// How it ended.
    pub status: WorkStatus,
    /// What it did.
    pub opcode: Opcode,
    /// The immediate of a write that came from a peer.
    pub imm_data: Option<u32>,
    /// The queue pair, on this side.
    pub qp_num: u32,
    /// How many bytes came.
    pub byte_len: u32,
    /// The vendor's number for a failure, which their support asks for.
    pub vendor_error: u32,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkStatus {
    /// It was done.
    Success,
    /// A buffer was too short, or a message too long.
    LocalLength,
    /// The request itself is wrong for this queue pair.
    LocalOperation,
    /// The local memory is not registered for this, or not any more.
    LocalProtection,
    /// Another request of the queue pair failed before: this one was not done.
    Flushed,
    /// An answer of the peer made no sense.
    BadResponse,
    /// The local memory may not be written to.
    LocalAccess,
    /// The peer's adapter refused the request.
    RemoteInvalidRequest,
    /// The peer's memory is not registered for this: a wrong key or a range outside of it.
    RemoteAccess,
    /// The peer's adapter could not do it.
    RemoteOperation,
    /// The peer did not acknowledge in time, over all retries: it or the way to it is gone.
    RetriesExhausted,
    /// The peer had no receive posted, over all retries.
    ReceiverNotReady,
    /// The peer's side gave up.
    RemoteAborted,
    /// The adapter broke.
    Fatal,
    /// The peer did not answer in time.
    ResponseTimeout,
    /// Something else failed.
    General,
    /// A status that this library does not know.
    Unknown(u32),
}

/// What a work request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Opcode {
    /// A send of this side.
    Send,
    /// A write of this side, with or without immediate.
    RdmaWrite,
    /// A message came.
    Receive,
    /// A write with immediate came.
    ReceiveRdmaWithImmediate,
    /// Something that this library never posts.
    Unknown(u32),
}

impl CompletionChannel {
    /// Makes a channel whose descriptor does not block.
    ///
    /// # Errors
    /// `ibv_create_comp_channel` failed: no more descriptors.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, VerbsError> {
        let failed = |failure: result::Failure| failure.on(context.device_name());
        // SAFETY: the context is open.
        let raw = unsafe { result::create_comp_channel(context.functions(), context.raw()) };
        let raw = raw.map_err(failed)?;
        Kind::CompletionChannel.made();
        let context_of_it = Arc::clone(context);
        let channel = Self {
            raw,
            context: context_of_it,
        };
        context::set_non_blocking(channel.raw_fd()).map_err(failed)?;
        Ok(Arc::new(channel))
    }

    /// Takes all events that are there now; how many. Queues that reported one are no longer armed.
    ///
    /// # Errors
    /// `ibv_get_cq_event` failed: the device is gone.
    pub fn drain(&self) -> Result<usize, VerbsError> {
        self.take(EVENTS_PER_DRAIN_MAX)
    }

    /// As [`drain`](Self::drain), up to a bound. To look for one event more than there are costs a
    /// system call too, so the best bound is the number of armed queues.
    ///
    /// # Errors
    /// As for [`drain`](Self::drain).
    pub fn take(&self, events_max: usize) -> Result<usize, VerbsError> {
        let functions = self.context.functions();
        for taken in 0..events_max {
            // SAFETY: the channel is alive and does not block.
            match unsafe { result::take_cq_event(functions, self.raw) } {
                Ok(true) => {}
                Ok(false) => return Ok(taken),
                Err(failure) => return Err(failure.on(self.context.device_name())),
            }
        }
        Ok(events_max)
    }

    fn raw_fd(&self) -> RawFd {
        // SAFETY: the channel is alive, and the field never changes.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl AsFd for CompletionChannel {
    /// Readable when an armed queue got a completion.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library closes it with the channel, which the borrow keeps alive.
        unsafe { BorrowedFd::borrow_raw(self.raw_fd()) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: queues hold an `Arc` of `self`, so none is left.
        match unsafe { result::destroy_comp_channel(self.context.functions(), self.raw) } {
            Ok(()) => Kind::CompletionChannel.destroyed(),
            Err(failure) => {
                let error = failure.on(self.context.device_name());
                tracing::warn!(%error, "a completion channel could not be destroyed");
            }
        }
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel")
            .field("device", &self.context.device_name())
            .field("fd", &self.raw_fd())
            .finish()
    }
}

// SAFETY: verbs are thread safe, and the fields never change.
unsafe impl Send for CompletionChannel {}
// SAFETY: as for `Send`.
unsafe impl Sync for CompletionChannel {}

impl CompletionQueue {
    /// Makes a queue with room for at least `depth` completions. Whoever shares it must together
    /// never have more requests and receives posted: a queue that runs over is lost.
    ///
    /// # Errors
    /// `ibv_create_cq` failed: deeper than the device can, or no more of them.
    pub fn new(
        context: &Arc<Context>,
        depth: u32,
        channel: Option<&Arc<CompletionChannel>>,
    ) -> Result<Self, VerbsError> {
        let entries = i32::try_from(depth).unwrap_or(i32::MAX);
        let raw_channel = channel.map(|channel| channel.raw);
        let functions = context.functions();
        // SAFETY: the context is open, the channel alive.
        let raw = unsafe { result::create_cq(functions, context.raw(), entries, raw_channel) };
        let raw = raw.map_err(|failure| {
            failure.on(format!("{depth} completions on {}", context.device_name()))
        })?;
        Kind::CompletionQueue.made();
        let queue = Arc::new(Queue {
            raw,
            _channel: channel.cloned(),
            context: Arc::clone(context),
        });
        let polled = [const { MaybeUninit::uninit() }; POLLED_AT_ONCE];
        Ok(Self { queue, polled })
    }

    /// Room for how many completions the device made.
    #[must_use]
    pub fn depth(&self) -> u32 {
        // SAFETY: the queue is alive; the field changes only on a resize, which is not done here.
        let entries = unsafe { (*self.queue.raw.as_ptr()).cqe };
        u32::try_from(entries).unwrap_or(0)
    }

    /// Takes finished requests from the head of the queue into the head of `completions`; how many.
    /// Allocates nothing.
    ///
    /// # Errors
    /// `ibv_poll_cq` failed: the queue ran over or broke.
    #[inline]
    pub fn poll(&mut self, completions: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let mut taken = 0;
        while taken < completions.len() {
            let room = (completions.len() - taken).min(POLLED_AT_ONCE);
            let polled = &mut self.polled[..room];
            // SAFETY: the queue is alive.
            let count = unsafe { result::poll_cq(self.queue.raw, polled) };
            let count = match count {
                Ok(count) => count,
                // The next call will meet the failure again.
                Err(_) if taken > 0 => break,
                Err(failure) => return Err(failure.on(self.queue.context.device_name())),
            };
            for (raw, out) in polled.iter().take(count).zip(&mut completions[taken..]) {
                // SAFETY: the device filled the first `count`.
                *out = WorkCompletion::of(unsafe { raw.assume_init_ref() });
            }
            taken += count;
            if count < room {
                break;
            }
        }
        Ok(taken)
    }

    /// Asks for one event in the channel when the next completion comes. What came before is not
    /// reported: poll once more after arming, before sleeping.
    ///
    /// # Errors
    /// `ibv_req_notify_cq` failed.
    pub fn arm(&self) -> Result<(), VerbsError> {
        // SAFETY: the queue is alive.
        let armed = unsafe { result::req_notify_cq(self.queue.raw) };
        armed.map_err(|failure| failure.on(self.queue.context.device_name()))
    }

    /// What keeps the queue alive, for queue pairs.
    pub(super) fn shared(&self) -> Arc<Queue> {
        Arc::clone(&self.queue)
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("device", &self.queue.context.device_name())
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}

/// The queue itself: alive until the last queue pair that reports to it is gone.
pub(super) struct Queue {
    raw: NonNull<ibv_cq>,
    // Dropped after `drop` ran.
    _channel: Option<Arc<CompletionChannel>>,
    context: Arc<Context>,
}

impl Queue {
    /// Alive while `self` is.
    pub(super) fn raw(&self) -> NonNull<ibv_cq> {
        self.raw
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold an `Arc` of `self`, so none is left, and every event that was
        // read is acknowledged already.
        match unsafe { result::destroy_cq(self.context.functions(), self.raw) } {
            Ok(()) => Kind::CompletionQueue.destroyed(),
            Err(failure) if self.context.took_it_down(failure) => {
                Kind::CompletionQueue.destroyed();
            }
            Err(failure) => {
                let error = failure.on(self.context.device_name());
                tracing::warn!(%error, "a completion queue could not be destroyed");
            }
        }
    }
}

// SAFETY: verbs are thread safe, and the fields never change.
unsafe impl Send for Queue {}
// SAFETY: as for `Send`.
unsafe impl Sync for Queue {}

impl WorkCompletion {
    /// For a buffer to poll into.
    pub const EMPTY: Self = Self {
        wr_id: 0,
        status: WorkStatus::Unknown(u32::MAX),
        opcode: Opcode::Unknown(u32::MAX),
        imm_data: None,
        qp_num: 0,
        byte_len: 0,
        vendor_error: 0,
    };

    #[inline]
    fn of(raw: &ibv_wc) -> Self {
        let has_imm = raw.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        let imm_data = has_imm.then(|| {
            // SAFETY: both fields of the union are plain 32-bit numbers; the flag says which it is.
            u32::from_be(unsafe { raw.imm_data_invalidated_rkey_union.imm_data })
        });
        Self {
            wr_id: raw.wr_id,
            status: WorkStatus::of(raw.status),
            opcode: Opcode::of(raw.opcode),
            imm_data,
            qp_num: raw.qp_num,
            byte_len: raw.byte_len,
            vendor_error: raw.vendor_err,
        }
    }
}

impl Default for WorkCompletion {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl WorkStatus {
    /// Whether the request was only not done because an earlier one failed: look for that one.
    #[must_use]
    pub fn is_flush(self) -> bool {
        self == Self::Flushed
    }

    /// Whether it was done.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Success
    }

    #[inline]
    fn of(raw: ibv_wc_status::Type) -> Self {
        match raw {
            ibv_wc_status::IBV_WC_SUCCESS => Self::Success,
            ibv_wc_status::IBV_WC_LOC_LEN_ERR => Self::LocalLength,
            ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => Self::LocalOperation,
            ibv_wc_status::IBV_WC_LOC_PROT_ERR => Self::LocalProtection,
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR => Self::Flushed,
            ibv_wc_status::IBV_WC_BAD_RESP_ERR => Self::BadResponse,
            ibv_wc_status::IBV_WC_LOC_ACCESS_ERR => Self::LocalAccess,
            ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => Self::RemoteInvalidRequest,
            ibv_wc_status::IBV_WC_REM_ACCESS_ERR => Self::RemoteAccess,
            ibv_wc_status::IBV_WC_REM_OP_ERR => Self::RemoteOperation,
            ibv_wc_status::IBV_WC_RETRY_EXC_ERR => Self::RetriesExhausted,
            ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => Self::ReceiverNotReady,
            ibv_wc_status::IBV_WC_REM_ABORT_ERR => Self::RemoteAborted,
            ibv_wc_status::IBV_WC_FATAL_ERR => Self::Fatal,
            ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR => Self::ResponseTimeout,
            ibv_wc_status::IBV_WC_GENERAL_ERR => Self::General,
            other => Self::Unknown(other),
        }
    }
}

impl Opcode {
    #[inline]
    fn of(raw: ibv_wc_opcode::Type) -> Self {
        match raw {
            ibv_wc_opcode::IBV_WC_SEND => Self::Send,
            ibv_wc_opcode::IBV_WC_RDMA_WRITE => Self::RdmaWrite,
            ibv_wc_opcode::IBV_WC_RECV => Self::Receive,
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => Self::ReceiveRdmaWithImmediate,
            other => Self::Unknown(other),
        }
    }
}

/// Completions of one call into the provider: enough that its cost is spread, few enough to stay in
/// the cache (48 bytes each).
const POLLED_AT_ONCE: usize = 32;

/// A queue reports one event each time that it is armed, so there are as many as queues; the bound is
/// for a channel that never runs dry.
const EVENTS_PER_DRAIN_MAX: usize = 1024;

#[cfg(test)]
mod tests;
