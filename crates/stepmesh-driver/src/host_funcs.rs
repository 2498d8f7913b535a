//! Functions of the host's that wait for their turn in a stream. A driver may never call one whose
//! stream failed, and calls one again when a graph is replayed; each must run exactly once. So they
//! are kept here by number, and who comes first takes one out.
#![expect(unsafe_code, reason = "is called by the driver with a number")]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepmesh_plugin::HostFunc;

/// Keeps a function of an instance and gives the argument for [`run`].
pub(crate) fn keep(instance: u64, device: u32, func: HostFunc) -> *mut c_void {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let waiting = Waiting {
        instance,
        device,
        func,
    };
    lock().insert(id, waiting);
    // A number in the place of a pointer: what comes back late finds nothing and touches nothing.
    std::ptr::without_provenance_mut(usize::try_from(id).unwrap_or(usize::MAX))
}

/// What the driver calls.
pub(crate) unsafe extern "C" fn run(arg: *mut c_void) {
    run_one(u64::try_from(arg.addr()).unwrap_or(0));
}

/// Runs one that the driver did not take.
pub(crate) fn run_refused(arg: *mut c_void) {
    run_one(u64::try_from(arg.addr()).unwrap_or(0));
}

/// Runs those of an instance, or of one device of it, that are left.
pub(crate) fn run_all_of(instance: u64, device: Option<u32>) {
    let is_due = |waiting: &Waiting| {
        waiting.instance == instance && device.is_none_or(|device| device == waiting.device)
    };
    loop {
        let due = lock()
            .iter()
            .find(|(_, waiting)| is_due(waiting))
            .map(|(id, _)| *id);
        match due {
            Some(id) => run_one(id),
            None => return,
        }
    }
}

fn run_one(id: u64) {
    // The lock is free again before the host's code runs.
    let taken = lock().remove(&id);
    if let Some(waiting) = taken {
        waiting.func.run();
    }
}

#[derive(Debug)]
struct Waiting {
    instance: u64,
    device: u32,
    func: HostFunc,
}

fn lock() -> MutexGuard<'static, BTreeMap<u64, Waiting>> {
    // Each change is one insert or remove, so the map is whole after a panic.
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Functions whose turn has not come, by number.
static WAITING: Mutex<BTreeMap<u64, Waiting>> = Mutex::new(BTreeMap::new());
/// Never 0, so that no argument is null.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
