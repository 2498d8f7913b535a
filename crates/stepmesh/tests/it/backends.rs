//! The backends that the tests run on, linked in: host memory, and a simulated accelerator whose
//! memory kills whoever touches it from the host.
#![expect(unsafe_code, reason = "names the entry functions of two backends")]

use std::collections::BTreeMap;

use stepmesh_core::config::Config;
use stepmesh_core::{Backend, Device, StaticPlugin};

/// A device of host memory.
pub(crate) fn cpu() -> Device {
    open("cpu", CPU, &[])
}

/// A device whose memory no fabric reaches, and whose copies take a while.
pub(crate) fn sim(options: &[(&str, &str)]) -> Device {
    open("sim", SIM, options)
}

/// One of each.
pub(crate) fn all() -> [Device; 2] {
    [cpu(), sim(&[("stream_delay_us", "100")])]
}

fn open(name: &str, plugin: StaticPlugin, options: &[(&str, &str)]) -> Device {
    let options = options
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()));
    let config = Config {
        backend: name.into(),
        options: BTreeMap::from([(name.to_owned(), options.collect())]),
        ..Config::default()
    };
    let backend = Backend::open_with(&config, &[plugin]).unwrap();
    backend.device(0).unwrap()
}

// SAFETY: the entry of a backend made by the kit.
const SIM: StaticPlugin = unsafe { StaticPlugin::new(stepmesh_backend_sim::query) };
// SAFETY: as above.
const CPU: StaticPlugin = unsafe { StaticPlugin::new(stepmesh_backend_cpu::query) };
