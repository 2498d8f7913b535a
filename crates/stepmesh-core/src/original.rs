//! The original system's backend methods under their own names, over one backend of the process.
//!
//! | Original | Here | What failure does |
//! |---|---|---|
//! | `SetDevice(int)` | [`set_device`] | an error; any device of the backend, not the first eight |
//! | `GetDeviceId()` | [`get_device_id`] | the runtime's own answer, -1 only if there is none |
//! | `GetDevice()` | [`get_device`] | an error |
//! | `Alloc(u64)` | [`alloc`] | an error instead of null, never the end of the process |
//! | `Free(void*)` | [`free`] | an error; nothing is fine |
//! | `CreateEvent()` | [`create_event`] | an error; a real event on the CPU too |
//! | `FreeEvent(event)` | [`free_event`] | an error; safe while it is pending |
//! | `RecordEvent(event, stream)` | [`record_event`] | an error |
//! | `SyncEvent(event)` | [`sync_event`] | a bound, and an error when the device failed |
//! | `Get()` | [`get`] | an error that lists every candidate and its reason |
//! | `Register(name, backend)` | [`register`] | an error when the name is taken |
//!
//! A thin module: new code is better served by [`Backend`] and [`Device`], which do not depend on
//! what thread calls. All functions may be called from any thread.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use crate::config::{Config, Sources};
use crate::{Backend, Buffer, Device, Error, Event, EventOptions, Stream, WaitMode};

/// The name that torch has for a device, `cuda:0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TorchDevice {
    /// `cuda` for ROCm too.
    pub device_type: String,
    /// Index of the device in torch's counting.
    pub index: i32,
}

/// `Register(name, backend)`: adds a backend under a name, without regard to case. [`get`] looks
/// here before it looks for plugins, so `STEPMESH_BACKEND` can name it.
///
/// # Errors
/// `NameTaken` when another backend has the name.
pub fn register(name: &str, backend: Backend) -> Result<(), Error> {
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    match registered.get(&name.to_lowercase()) {
        Some(other) if !other.is_same(&backend) => Err(Error::NameTaken { name: name.into() }),
        _ => {
            registered.insert(name.to_lowercase(), backend);
            Ok(())
        }
    }
}

/// `Get()`: the backend of this process, chosen at the first call by the configuration
/// (`STEPMESH_BACKEND`; `GPU` if one is usable, else `cpu`, when unset) and the same ever after. A
/// call that failed is tried anew by the next one.
///
/// # Errors
/// Those of [`Config::load`] and [`Backend::open`].
pub fn get() -> Result<Backend, Error> {
    chosen().map(|chosen| chosen.backend.clone())
}

/// `SetDevice(int)`: makes a device the calling thread's current one.
///
/// # Errors
/// Those of [`get`]; `NoSuchDevice`, `Backend`.
pub fn set_device(ordinal: u32) -> Result<(), Error> {
    let device = get()?.device(ordinal)?;
    device.backend().instance().set_current_device(ordinal)
}

/// `GetDeviceId()`: the calling thread's current device as the backend's own runtime says, -1 if
/// there is none.
///
/// # Errors
/// Those of [`get`]; `Backend`, `BadAnswer`.
pub fn get_device_id() -> Result<i32, Error> {
    let current = get()?.instance().current_device()?;
    Ok(current
        .and_then(|ordinal| i32::try_from(ordinal).ok())
        .unwrap_or(-1))
}

/// `GetDevice()`: torch's name of the calling thread's current device.
///
/// # Errors
/// As for [`get_device_id`].
pub fn get_device() -> Result<TorchDevice, Error> {
    let device = current_device()?;
    let info = device.info();
    Ok(TorchDevice {
        device_type: info.torch_device_type.clone(),
        index: info.torch_index,
    })
}

/// `Alloc(bytes)`: memory of the current device, fit for a NIC. Dropping it frees it too.
///
/// # Errors
/// Those of [`get_device_id`] and [`Device::alloc`].
pub fn alloc(len_bytes: u64) -> Result<Buffer, Error> {
    current_device()?.alloc(len_bytes)
}

/// `Free(ptr)`: gives memory back; nothing is fine.
///
/// # Errors
/// `Backend`.
pub fn free(buffer: impl Into<Option<Buffer>>) -> Result<(), Error> {
    buffer.into().map_or(Ok(()), Buffer::release)
}

/// `CreateEvent()`: an event of the current device.
///
/// # Errors
/// Those of [`get_device_id`] and [`Device::create_event`].
pub fn create_event() -> Result<Event, Error> {
    current_device()?.create_event(EventOptions::default())
}

/// `FreeEvent(event)`: ends an event, which may be pending. Dropping it does too.
///
/// # Errors
/// `Backend`.
pub fn free_event(event: Event) -> Result<(), Error> {
    event.release()
}

/// `RecordEvent(event, stream)`: marks the present end of the stream's work; without a stream that
/// of the default stream of the event's device.
///
/// # Errors
/// `ForeignHandle`, `Backend`.
pub fn record_event(event: &Event, stream: Option<&Stream>) -> Result<(), Error> {
    match stream {
        Some(stream) => event.record(stream),
        None => event.record(&event.device().default_stream()),
    }
}

/// `SyncEvent(event)`: waits for the event, at most `timeouts.request_ms`.
///
/// # Errors
/// `Timeout`, `Backend` when the work before it failed; those of [`get`].
pub fn sync_event(event: &Event) -> Result<(), Error> {
    // Polling memory is what the original does by default; without it, waiting sleeps.
    let mode = if event.is_mem_synced() {
        WaitMode::Yield
    } else {
        WaitMode::Block
    };
    event.synchronize(chosen()?.timeout, mode)
}

impl fmt::Display for TorchDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device_type, self.index)
    }
}

/// The backend of the process and the bound of its waits.
struct Chosen {
    backend: Backend,
    timeout: Duration,
}

fn current_device() -> Result<Device, Error> {
    let backend = get()?;
    // A thread that never chose a device has the first one, as in CUDA.
    let ordinal = backend.instance().current_device()?.unwrap_or(0);
    backend.device(ordinal)
}

fn chosen() -> Result<&'static Chosen, Error> {
    static CHOSEN: OnceLock<Chosen> = OnceLock::new();
    // Threads that race wait here for the first one; the registry's own lock is not held.
    static CHOOSING: Mutex<()> = Mutex::new(());
    if let Some(chosen) = CHOSEN.get() {
        return Ok(chosen);
    }
    let _turn = CHOOSING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(chosen) = CHOSEN.get() {
        return Ok(chosen);
    }
    let loaded = Config::load(&Sources::from_process())?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let timeout = Duration::from_millis(loaded.config.timeouts.request_ms);
    let backend = match registered(&loaded.config.backend) {
        Some(backend) => backend,
        None => Backend::open(&loaded.config)?,
    };
    Ok(CHOSEN.get_or_init(|| Chosen { backend, timeout }))
}

/// A registered backend; the original's default name is `GPU`.
fn registered(name: &str) -> Option<Backend> {
    let name = if name.is_empty() {
        "gpu".into()
    } else {
        name.to_lowercase()
    };
    REGISTERED
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&name)
        .cloned()
}

/// Backends by lower-case name.
static REGISTERED: RwLock<BTreeMap<String, Backend>> = RwLock::new(BTreeMap::new());
