//! The opaque event, its flags, states and ways to wait. The slots are in [`crate::SmBackendApi`].

use core::marker::{PhantomData, PhantomPinned};

/// An event of a plugin. Opaque to the host; made by `event_create`, given back to
/// `event_destroy`.
#[repr(C)]
pub struct SmEvent {
    opaque: [u8; 0],
    marker: PhantomData<(*mut u8, PhantomPinned)>,
}

impl core::fmt::Debug for SmEvent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SmEvent")
    }
}

/// Event flag: measures time.
pub const SM_EVENT_TIMING: u32 = 1 << 0;
/// Event flag: other processes may wait for it.
pub const SM_EVENT_IPC: u32 = 1 << 1;
/// Event flag: waiting sleeps by preference.
pub const SM_EVENT_BLOCKING: u32 = 1 << 2;
/// Event flag: backed by a word in memory that the host polls.
pub const SM_EVENT_MEMSYNC: u32 = 1 << 3;

/// Event state: work before the last record is still running.
pub const SM_EVENT_PENDING: u32 = 0;
/// Event state: that work is done. Also the state of an event that was never recorded.
pub const SM_EVENT_DONE: u32 = 1;
/// Event state: that work failed; `event_sync` tells how.
pub const SM_EVENT_ERROR: u32 = 2;

/// Wait mode: spin on the processor.
pub const SM_WAIT_SPIN: u32 = 0;
/// Wait mode: yield between looks.
pub const SM_WAIT_YIELD: u32 = 1;
/// Wait mode: sleep until woken.
pub const SM_WAIT_BLOCK: u32 = 2;
