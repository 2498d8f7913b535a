//! What a network adapter does to the memory of devices, for tests that have none: it writes past the
//! backend, and with the option `rdma_unordered` the device sees that only after a flush.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::memory::Memory;

/// Writes to device memory of whichever instance it is of, as an adapter does that was given it. False
/// when it is no live allocation. Any thread may call it.
pub fn adapter_write(ptr: u64, bytes: &[u8]) -> bool {
    let instances = INSTANCES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut living = instances.iter().filter_map(Weak::upgrade);
    living.any(|memory| memory.adapter_write(ptr, bytes))
}

/// Lets adapters reach an instance's memory until it ends.
pub(crate) fn attach(memory: &Arc<Memory>) {
    let mut instances = INSTANCES.lock().unwrap_or_else(PoisonError::into_inner);
    instances.retain(|memory| memory.strong_count() > 0);
    instances.push(Arc::downgrade(memory));
}

/// The memory of all instances of this process.
static INSTANCES: Mutex<Vec<Weak<Memory>>> = Mutex::new(Vec::new());
