//! The list of devices. What a device can do is asked of its `Context`; which one to use is told in
//! `select`.
#![expect(unsafe_code, reason = "holds the library's list of devices")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::ibv_device;

use super::result;
use super::sys::{self, Functions};
use crate::Error;

/// The verbs devices of this machine. A kernel without verbs has none, which is not an error.
///
/// # Errors
/// The library is missing or unusable, or `ibv_get_device_list` failed.
pub fn devices() -> Result<Vec<DeviceHandle>, Error> {
    let functions = sys::functions()?;
    // SAFETY: there are no pointers in it yet.
    let list = unsafe { result::device_list(functions) };
    let list = list.map_err(|failure| failure.on("this machine"))?;
    let Some((array, count)) = list else {
        return Ok(Vec::new());
    };
    let list = Arc::new(DeviceList { array, functions });
    let device_at = |index| {
        // SAFETY: the library's array has `count` entries, of which this is one.
        let device = unsafe { *list.array.as_ptr().wrapping_add(index) };
        NonNull::new(device).map(|device| DeviceHandle::of(&list, device))
    };
    Ok((0..count).filter_map(device_at).collect())
}

/// A device that can be opened. It may be unplugged meanwhile; then opening fails.
#[derive(Clone)]
pub struct DeviceHandle {
    device: NonNull<ibv_device>,
    name: Arc<str>,
    list: Arc<DeviceList>,
}

impl DeviceHandle {
    fn of(list: &Arc<DeviceList>, device: NonNull<ibv_device>) -> Self {
        // SAFETY: a device of the list is alive while the list is.
        let raw = unsafe { device.as_ref() };
        Self {
            device,
            name: sys::text(&raw.name).into(),
            list: Arc::clone(list),
        }
    }

    /// Its name, for example `mlx5_0`: that of its folder in /sys/class/infiniband.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.list.functions
    }

    /// Alive while `self` is.
    pub(super) fn raw(&self) -> NonNull<ibv_device> {
        self.device
    }
}

impl fmt::Debug for DeviceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceHandle").field(&self.name).finish()
    }
}

// SAFETY: only opened with it, which any thread may do: verbs are thread safe.
unsafe impl Send for DeviceHandle {}
// SAFETY: as for `Send`.
unsafe impl Sync for DeviceHandle {}

/// The library's array, freed with the last handle. A context that was opened from it stays valid.
struct DeviceList {
    array: NonNull<*mut ibv_device>,
    functions: &'static Functions,
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the array is the library's own and freed once.
        unsafe { (self.functions.ibv_free_device_list)(self.array.as_ptr()) };
    }
}

// SAFETY: read only after it was made, and freed once, by whichever thread drops it last.
unsafe impl Send for DeviceList {}
// SAFETY: as for `Send`.
unsafe impl Sync for DeviceList {}
