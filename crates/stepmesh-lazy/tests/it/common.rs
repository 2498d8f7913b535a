//! What the tests share: a device of the cpu backend, once as it is and once interpreted.

use stepmesh_core::config::{Config, Sources};
use stepmesh_core::{Backend, Device};
use stepmesh_lazy::{Fallback, FallbackPolicy, LazyDevice, Options};

pub(crate) fn core_device() -> Device {
    let sources = Sources::from_env([("STEPMESH_BACKEND", "cpu")]);
    let config = Config::load(&sources).unwrap().config;
    Backend::open(&config).unwrap().device(0).unwrap()
}

/// A device whose graphs are interpreted: the engine without any plugin's arithmetic.
pub(crate) fn interpreted(change: impl FnOnce(&mut Options)) -> LazyDevice {
    let mut options = Options::default();
    options.backend.interpret = true;
    change(&mut options);
    LazyDevice::open(&core_device(), options).unwrap()
}

/// A device whose graphs the backend compiles, every operation of them.
pub(crate) fn compiled(change: impl FnOnce(&mut Options)) -> LazyDevice {
    let mut options = Options::default();
    options.fallback = FallbackPolicy::all(Fallback::Deny);
    change(&mut options);
    LazyDevice::open(&core_device(), options).unwrap()
}
