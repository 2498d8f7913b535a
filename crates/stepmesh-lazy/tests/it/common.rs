//! What the tests share: a device of the cpu backend, once as it is and once interpreted, and one of
//! the simulated accelerator.
#![expect(unsafe_code, reason = "names the entry of a backend that is linked in")]

use std::collections::BTreeMap;

use stepmesh_core::config::{Config, Sources};
use stepmesh_core::{Backend, Device, StaticPlugin};
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

/// The second device of a simulated accelerator, with options of its own.
pub(crate) fn sim_device(options: &[(&str, &str)]) -> Device {
    let options = options
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let config = Config {
        backend: "sim".into(),
        options: BTreeMap::from([("sim".to_owned(), options.collect())]),
        ..Config::default()
    };
    let backend = Backend::open_with(&config, &[SIM]).unwrap();
    backend.device(1).unwrap()
}

// SAFETY: the entry of a backend made by the kit.
const SIM: StaticPlugin = unsafe { StaticPlugin::new(stepmesh_backend_sim::query) };
