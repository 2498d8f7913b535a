//! A list of writes that is posted at once. Posting is in `queue_pair`.
#![expect(
    unsafe_code,
    reason = "builds work requests that name memory by address"
)]

use std::fmt;
use std::ptr::{self, NonNull};

use rdma_sys::{
    bind_mw_tso_union_t, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
    imm_data_invalidated_rkey_union_t, qp_type_t, rdma_t, tso_t, wr_t, xrc_t,
};

/// Writes in the order in which they are sent. Made once and used again: nothing is allocated after
/// [`with_capacity`](Self::with_capacity).
pub struct SendList {
    requests: Vec<ibv_send_wr>,
    /// The piece of local memory of each request.
    pieces: Vec<ibv_sge>,
    capacity: usize,
    signalled: usize,
}

/// A one-sided write: from memory of this side into memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The local region's key; not looked at when the write is inline.
    pub lkey: u32,
    /// Where the bytes are.
    pub local_address: u64,
    /// How many.
    pub len_bytes: u32,
    /// The peer's key.
    pub rkey: u32,
    /// Where they go.
    pub remote_address: u64,
    /// Whether a completion is reported when it was done. One that fails always is.
    pub signalled: bool,
}

impl SendList {
    /// A list with room for so many writes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            requests: Vec::with_capacity(capacity),
            pieces: Vec::with_capacity(capacity),
            capacity,
            signalled: 0,
        }
    }

    /// How many writes are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// How many more writes there is room for.
    #[must_use]
    pub fn room(&self) -> usize {
        self.capacity - self.requests.len()
    }

    /// How many of them report a completion when they were done.
    #[must_use]
    pub fn signalled(&self) -> usize {
        self.signalled
    }

    /// Forgets the writes; those that were posted go on.
    pub fn clear(&mut self) {
        self.signalled = 0;
        self.requests.clear();
        self.pieces.clear();
    }

    /// Appends a write; false when the list is full.
    ///
    /// # Safety
    /// - The local range stays registered under `lkey`, in the domain of the queue pair that this is
    ///   posted to, until the write or a later one of that queue pair completed, or the queue pair
    ///   is in the reset state or destroyed.
    /// - The peer gave the remote range and its key for writing.
    #[must_use = "a full list takes nothing"]
    pub unsafe fn push_write(&mut self, write: &Write) -> bool {
        let flags = signalled(write);
        self.push(write, ibv_wr_opcode::IBV_WR_RDMA_WRITE, flags, 0)
    }

    /// Appends a write that takes a receive of the peer and gives it `imm`; false when the list is
    /// full. When it is inline, the bytes are copied while it is posted, and no more than the queue
    /// pair's real inline size may be written.
    ///
    /// # Safety
    /// As for [`push_write`](Self::push_write); if `inline`, the local range must be readable by the
    /// CPU until the list was posted, and need not be registered.
    #[must_use = "a full list takes nothing"]
    pub unsafe fn push_write_imm(&mut self, write: &Write, imm: u32, inline: bool) -> bool {
        let mut flags = signalled(write);
        if inline {
            flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        self.push(write, opcode, flags, imm)
    }

    /// As [`push_write`](Self::push_write), with the bytes copied while it is posted.
    ///
    /// # Safety
    /// As for an inline [`push_write_imm`](Self::push_write_imm).
    #[must_use = "a full list takes nothing"]
    pub unsafe fn push_write_inline(&mut self, write: &Write) -> bool {
        let flags = signalled(write) | ibv_send_flags::IBV_SEND_INLINE.0;
        self.push(write, ibv_wr_opcode::IBV_WR_RDMA_WRITE, flags, 0)
    }

    fn push(
        &mut self,
        write: &Write,
        opcode: ibv_wr_opcode::Type,
        send_flags: u32,
        imm: u32,
    ) -> bool {
        if self.requests.len() == self.capacity {
            return false;
        }
        self.signalled += usize::from(write.signalled);
        self.pieces.push(ibv_sge {
            addr: write.local_address,
            length: write.len_bytes,
            lkey: write.lkey,
        });
        let imm_data = imm.to_be();
        let rdma = rdma_t {
            remote_addr: write.remote_address,
            rkey: write.rkey,
        };
        let tso = tso_t {
            hdr: ptr::null_mut(),
            hdr_sz: 0,
            mss: 0,
        };
        self.requests.push(ibv_send_wr {
            wr_id: write.wr_id,
            // The pointers are set when the list is posted.
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: i32::from(write.len_bytes != 0),
            opcode,
            send_flags,
            imm_data_invalidated_rkey_union: imm_data_invalidated_rkey_union_t { imm_data },
            wr: wr_t { rdma },
            qp_type: qp_type_t {
                xrc: xrc_t { remote_srqn: 0 },
            },
            bind_mw_tso_union: bind_mw_tso_union_t { tso },
        });
        true
    }

    /// Links the requests as the library wants them: the first, or nothing when there is none. The
    /// pointers hold until the list is changed.
    pub(super) fn link(&mut self) -> Option<NonNull<ibv_send_wr>> {
        let len = self.requests.len();
        let first = self.requests.as_mut_ptr();
        let pieces = self.pieces.as_mut_ptr();
        for index in 0..len {
            let next = if index + 1 < len {
                first.wrapping_add(index + 1)
            } else {
                ptr::null_mut()
            };
            let request = first.wrapping_add(index);
            // SAFETY: an element of the vector, which nothing else refers to while `self` is borrowed.
            unsafe { (*request).next = next };
            // SAFETY: the same; the other vector is as long.
            unsafe { (*request).sg_list = pieces.wrapping_add(index) };
        }
        (len != 0).then(|| NonNull::new(first)).flatten()
    }

    /// How many requests stand before `refused`, which is one of `link`'s.
    pub(super) fn index_of(&self, refused: *const ibv_send_wr) -> usize {
        let bytes = refused.addr().saturating_sub(self.requests.as_ptr().addr());
        (bytes / size_of::<ibv_send_wr>()).min(self.requests.len())
    }
}

impl fmt::Debug for SendList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendList")
            .field("len", &self.len())
            .field("capacity", &self.capacity)
            .finish()
    }
}

// SAFETY: the pointers in it are into its own vectors and set anew before each use.
unsafe impl Send for SendList {}
// SAFETY: nothing behind a shared reference follows the pointers.
unsafe impl Sync for SendList {}

fn signalled(write: &Write) -> u32 {
    if write.signalled {
        ibv_send_flags::IBV_SEND_SIGNALED.0
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    //! The list without a device: room, links, and which request was refused.

    use super::{SendList, Write};

    fn list(len: usize) -> SendList {
        let mut list = SendList::with_capacity(4);
        for wr_id in 0..len as u64 {
            let write = Write {
                wr_id,
                lkey: 1,
                local_address: 0x1000,
                len_bytes: 8,
                rkey: 2,
                remote_address: 0x2000,
                signalled: false,
            };
            // SAFETY: never posted.
            assert!(unsafe { list.push_write(&write) });
        }
        list
    }

    #[test]
    fn a_full_list_takes_nothing_and_an_empty_one_links_nothing() {
        let mut full = list(4);
        let write = Write {
            wr_id: 4,
            lkey: 1,
            local_address: 0,
            len_bytes: 0,
            rkey: 2,
            remote_address: 0,
            signalled: true,
        };
        // SAFETY: never posted.
        assert!(!unsafe { full.push_write(&write) });
        assert_eq!((full.len(), full.room()), (4, 0));
        full.clear();
        assert!(full.is_empty());
        assert!(full.link().is_none());
    }

    #[test]
    fn links_lead_through_all_requests_in_order_and_end() {
        let mut list = list(3);
        let mut next = list.link().unwrap().as_ptr();
        let mut seen = Vec::new();
        while !next.is_null() {
            // SAFETY: a request of the list, which is not changed meanwhile.
            let request = unsafe { &*next };
            seen.push(request.wr_id);
            // SAFETY: the piece of that request.
            assert_eq!(unsafe { (*request.sg_list).addr }, 0x1000);
            next = request.next;
        }
        assert_eq!(seen, [0, 1, 2]);
    }

    #[test]
    fn the_refused_request_tells_how_many_were_taken() {
        let mut list = list(3);
        let first = list.link().unwrap().as_ptr();
        assert_eq!(list.index_of(first), 0);
        assert_eq!(list.index_of(first.wrapping_add(2)), 2);
        assert_eq!(list.index_of(std::ptr::null()), 0);
    }
}
