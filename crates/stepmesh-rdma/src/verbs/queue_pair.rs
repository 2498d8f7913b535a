//! A reliable connection: made, brought up, posted to, brought down. What is posted is built in
//! `send_list`, what completes comes out of `completion`.
#![expect(unsafe_code, reason = "holds a queue pair of libibverbs")]

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{
    ibv_access_flags, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr,
    ibv_qp_state, ibv_qp_type, ibv_recv_wr,
};

use super::completion::{CompletionQueue, Queue};
use super::ledger::Kind;
use super::path::{Endpoint, PathOptions};
use super::protection_domain::ProtectionDomain;
use super::result::{self, Failure};
use super::send_list::SendList;
use crate::{PostError, VerbsError};

/// One end of a reliable connection. It holds on to its domain and completion queues.
///
/// Posting takes `&mut self`: only one thread posts at a time.
pub struct QueuePair {
    raw: NonNull<ibv_qp>,
    number: u32,
    caps: QpCaps,
    // Dropped after `drop` ran.
    _send_queue: Arc<Queue>,
    _receive_queue: Arc<Queue>,
    domain: Arc<ProtectionDomain>,
}

/// What is asked of a new queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpOptions {
    /// How many sends may be outstanding.
    pub max_send_wr: u32,
    /// How many receives may be posted.
    pub max_recv_wr: u32,
    /// How many bytes a send may carry in the request itself.
    pub max_inline_len_bytes: u32,
}

/// What the device gave: at least what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCaps {
    /// How many sends may be outstanding.
    pub max_send_wr: u32,
    /// How many receives may be posted.
    pub max_recv_wr: u32,
    /// How many bytes a send may carry in the request itself.
    pub max_inline_len_bytes: u32,
}

impl QueuePair {
    /// Makes a queue pair, which must be brought up before it can send.
    ///
    /// # Errors
    /// `ibv_create_qp` failed: deeper or with more inline bytes than the device can, or no more of
    /// them.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        send_queue: &CompletionQueue,
        receive_queue: &CompletionQueue,
        options: &QpOptions,
    ) -> Result<Self, VerbsError> {
        let (send_queue, receive_queue) = (send_queue.shared(), receive_queue.shared());
        let mut attributes = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: send_queue.raw().as_ptr(),
            recv_cq: receive_queue.raw().as_ptr(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: options.max_send_wr,
                max_recv_wr: options.max_recv_wr,
                max_send_sge: 1,
                // Receives are empty, but some providers refuse a queue of none.
                max_recv_sge: 1,
                max_inline_data: options.max_inline_len_bytes,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let context = domain.context();
        // SAFETY: domain and queues are alive; a queue of another device is refused by the library.
        let raw = unsafe { result::create_qp(context.functions(), domain.raw(), &mut attributes) };
        let raw =
            raw.map_err(|failure| failure.on(format!("{options:?} on {}", context.device_name())))?;
        Kind::QueuePair.made();
        let caps = QpCaps {
            max_send_wr: attributes.cap.max_send_wr,
            max_recv_wr: attributes.cap.max_recv_wr,
            max_inline_len_bytes: attributes.cap.max_inline_data,
        };
        // SAFETY: just made; the number never changes.
        let number = unsafe { raw.as_ref().qp_num };
        Ok(Self {
            raw,
            number,
            caps,
            _send_queue: send_queue,
            _receive_queue: receive_queue,
            domain: Arc::clone(domain),
        })
    }

    /// What the device gave.
    #[must_use]
    pub fn caps(&self) -> QpCaps {
        self.caps
    }

    /// Its number on this device, 24 bits.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The domain of the regions that it may use.
    #[must_use]
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Connects a new or reset queue pair with the peer's: from then on it can receive and send. The
    /// peer may send as soon as it has done the same; post receives first, with
    /// [`post_recv_empty`](Self::post_recv_empty) after [`prepare`](Self::prepare).
    ///
    /// # Errors
    /// `ibv_modify_qp` failed: the path does not fit the port, or there is no way to the peer. The
    /// queue pair must then be [reset](Self::to_reset) before another attempt.
    pub fn bring_up(&mut self, peer: &Endpoint, path: &PathOptions) -> Result<(), VerbsError> {
        self.prepare(path)?;
        self.connect(peer, path)
    }

    /// The first half of [`bring_up`](Self::bring_up): receives may be posted then, and are kept.
    ///
    /// # Errors
    /// As there.
    pub fn prepare(&mut self, path: &PathOptions) -> Result<(), VerbsError> {
        let mut attributes = zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attributes.pkey_index = 0;
        attributes.port_num = path.port;
        attributes.qp_access_flags = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ibv_qp_attr_mask::IBV_QP_PORT
            | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, mask, "to INIT")
    }

    /// The second half of [`bring_up`](Self::bring_up).
    ///
    /// # Errors
    /// As there.
    pub fn connect(&mut self, peer: &Endpoint, path: &PathOptions) -> Result<(), VerbsError> {
        self.ready_to_receive(peer, path)?;
        let mut attributes = zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
        // 0 would wait for ever for a peer that is gone.
        attributes.timeout = path.timeout.clamp(1, 31);
        attributes.retry_cnt = path.retry_count.min(7);
        attributes.rnr_retry = path.rnr_retry.min(7);
        attributes.sq_psn = path.local_psn & PSN_MASK;
        // Of reads and atomics, which are never sent; 0 is not taken by every provider.
        attributes.max_rd_atomic = 1;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attributes, mask, "to RTS")
    }

    /// Pins a queue pair that is up to one port of a bonded adapter, from 1, so that several queue
    /// pairs use all of them.
    ///
    /// # Errors
    /// `mlx5dv_modify_qp_lag_port` failed: the adapter is not bonded or of another make, or there is no
    /// libmlx5. The queue pair goes on as it was.
    pub fn pin_to_lag_port(&mut self, port: u8) -> Result<(), VerbsError> {
        // SAFETY: the queue pair is alive.
        let pinned = unsafe { result::modify_qp_lag_port(self.raw, port) };
        pinned.map_err(|failure| failure.on(self.object(&format!("to port {port}"))))
    }

    /// Fails everything that is outstanding: it completes as flushed.
    ///
    /// # Errors
    /// `ibv_modify_qp` failed: the device is gone.
    pub fn to_error(&mut self) -> Result<(), VerbsError> {
        let mut attributes = zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        self.modify(&mut attributes, ibv_qp_attr_mask::IBV_QP_STATE, "to ERR")
    }

    /// Forgets the connection and everything that is outstanding, without completions for it; what
    /// has completed may still be in the completion queues. It can be brought up again.
    ///
    /// # Errors
    /// `ibv_modify_qp` failed: the device is gone.
    pub fn to_reset(&mut self) -> Result<(), VerbsError> {
        let mut attributes = zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RESET;
        self.modify(&mut attributes, ibv_qp_attr_mask::IBV_QP_STATE, "to RESET")
    }

    /// Posts `count` receives without memory, for writes with immediate. Allocates nothing.
    ///
    /// # Errors
    /// `ibv_post_recv` refused one: the queue is full, or the queue pair was not prepared yet.
    pub fn post_recv_empty(&mut self, wr_id: u64, count: usize) -> Result<(), PostError> {
        let mut posted = 0;
        while posted < count {
            let len = (count - posted).min(RECEIVES_AT_ONCE);
            let mut receives = [ibv_recv_wr {
                wr_id,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: 0,
            }; RECEIVES_AT_ONCE];
            let first = receives.as_mut_ptr();
            for index in 0..len - 1 {
                let receive = first.wrapping_add(index);
                // SAFETY: an element of the array, which nothing else refers to.
                unsafe { (*receive).next = first.wrapping_add(index + 1) };
            }
            let Some(list) = NonNull::new(first) else {
                break;
            };
            // SAFETY: the queue pair is alive, and the list ends.
            if let Err((failure, refused)) = unsafe { result::post_recv(self.raw, list) } {
                let bytes = refused.addr().saturating_sub(first.addr());
                let taken = posted + (bytes / size_of::<ibv_recv_wr>()).min(len);
                let error = failure.on(self.object(""));
                return Err(PostError { taken, error });
            }
            posted += len;
        }
        Ok(())
    }

    /// Posts a list with one call of the provider, and says how many that were. The list is as it was.
    /// Allocates nothing.
    ///
    /// # Errors
    /// `ibv_post_send` refused one: the queue is full, an inline write is too long, or the queue pair
    /// is not up. Those before it were taken.
    #[inline]
    pub fn post(&mut self, list: &mut SendList) -> Result<usize, PostError> {
        let Some(first) = list.link() else {
            return Ok(0);
        };
        // SAFETY: the queue pair is alive and the list linked; the memory that it names is the promise
        // of who pushed it.
        match unsafe { result::post_send(self.raw, first) } {
            Ok(()) => Ok(list.len()),
            Err((failure, refused)) => {
                let taken = list.index_of(refused);
                let error = failure.on(self.object(""));
                Err(PostError { taken, error })
            }
        }
    }

    fn ready_to_receive(&mut self, peer: &Endpoint, path: &PathOptions) -> Result<(), VerbsError> {
        let mut attributes = zeroed();
        attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attributes.path_mtu = path.mtu.raw();
        attributes.dest_qp_num = peer.qp_num;
        attributes.rq_psn = peer.psn & PSN_MASK;
        attributes.max_dest_rd_atomic = 1;
        attributes.min_rnr_timer = path.min_rnr_timer & 31;
        let address = &mut attributes.ah_attr;
        address.dlid = peer.lid;
        address.sl = path.service_level;
        address.port_num = path.port;
        if peer.gid != [0; 16] {
            address.is_global = 1;
            address.grh.dgid.raw = peer.gid;
            address.grh.sgid_index = path.gid_index;
            address.grh.hop_limit = path.hop_limit;
            address.grh.traffic_class = path.traffic_class;
        }
        let mask = ibv_qp_attr_mask::IBV_QP_STATE
            | ibv_qp_attr_mask::IBV_QP_AV
            | ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        let to = format!(" to RTR with {peer:?} by {path:?}");
        self.modify(&mut attributes, mask, &to)
    }

    fn modify(
        &mut self,
        attributes: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        to: &str,
    ) -> Result<(), VerbsError> {
        let functions = self.domain.context().functions();
        let mask = mask.0.cast_signed();
        // SAFETY: the queue pair is alive.
        let modified = unsafe { result::modify_qp(functions, self.raw, attributes, mask) };
        modified.map_err(|failure: Failure| failure.on(self.object(to)))
    }

    fn object(&self, detail: &str) -> String {
        let device = self.domain.context().device_name();
        let space = if detail.is_empty() { "" } else { " " };
        let detail = detail.trim_start();
        format!("queue pair {} of {device}{space}{detail}", self.number)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let context = self.domain.context();
        // SAFETY: the queue pair is alive, and nothing hangs from it.
        match unsafe { result::destroy_qp(context.functions(), self.raw) } {
            Ok(()) => Kind::QueuePair.destroyed(),
            Err(failure) if context.took_it_down(failure) => Kind::QueuePair.destroyed(),
            Err(failure) => {
                let error = failure.on(self.object(""));
                tracing::warn!(%error, "a queue pair could not be destroyed");
            }
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("device", &self.domain.context().device_name())
            .field("number", &self.number)
            .field("caps", &self.caps)
            .finish_non_exhaustive()
    }
}

// SAFETY: verbs are thread safe.
unsafe impl Send for QueuePair {}
// SAFETY: what changes it takes `&mut self`.
unsafe impl Sync for QueuePair {}

impl Default for QpOptions {
    /// Enough for a few requests; the fabric asks for what its credits need.
    fn default() -> Self {
        Self {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_inline_len_bytes: 64,
        }
    }
}

fn zeroed() -> ibv_qp_attr {
    // SAFETY: integers and a union of them, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}

/// Packet sequence numbers have 24 bits.
const PSN_MASK: u32 = 0x00ff_ffff;

/// Receives of one call into the provider: two kibibytes of stack.
const RECEIVES_AT_ONCE: usize = 64;
