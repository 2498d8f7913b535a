//! PyTorch's lazy core on our backend, beside PyTorch eager and beside the core's reference backend.
//! The core is one for a process, so tests take turns. `cargo xtask torch-test` runs them.
#![cfg(feature = "lazy")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may, as tests themselves do"
)]

mod collision;
mod counters;
mod ops;
mod refused;
mod table;
mod training;
mod transformer;

use std::env;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use stepmesh_core::Backend;
use stepmesh_core::config::Config;
use stepmesh_lazy::{LazyBackend, LazyDevice, Options};
use stepmesh_torch::{TorchBackend, lazy};
use tch::{Device, Kind, Tensor};

/// Who computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// PyTorch at once.
    Eager,
    /// PyTorch's lazy core on TorchScript.
    Reference,
    /// PyTorch's lazy core on our backend.
    Ours,
}

/// A turn at the core, with one of its backends in place. Lazy tensors end before it does.
struct Turn {
    mode: Mode,
    _turn: MutexGuard<'static, ()>,
}

impl Turn {
    fn new(mode: Mode) -> Self {
        static REGISTERED: Once = Once::new();
        static TURNS: Mutex<()> = Mutex::new(());
        let turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        REGISTERED.call_once(|| {
            lazy::register(&plugin().devices()).unwrap();
        });
        if mode != Mode::Eager {
            lazy::use_reference(mode == Mode::Reference).unwrap();
        }
        lazy::reset_metrics().unwrap();
        Self { mode, _turn: turn }
    }

    /// The tensor where this mode computes.
    fn tensor(&self, tensor: &Tensor) -> Tensor {
        match self.mode {
            Mode::Eager => tensor.copy(),
            Mode::Reference | Mode::Ours => lazy::to_lazy(tensor, 0).unwrap(),
        }
    }

    /// Ends a step, where there are steps.
    fn mark_step(&self) {
        if self.mode != Mode::Eager {
            lazy::mark_step(0, true).unwrap();
        }
    }
}

/// The plugin that STEPMESH_BACKEND names, or cpu.
fn plugin() -> Backend {
    let plugins = env::var_os("STEPMESH_PLUGIN_DIR");
    let plugins = plugins.expect("STEPMESH_PLUGIN_DIR is not set: run `cargo xtask torch-test`");
    let mut config = Config {
        backend: env::var("STEPMESH_BACKEND").unwrap_or_else(|_| "cpu".into()),
        ..Config::default()
    };
    config.plugins.path = vec![plugins.into()];
    Backend::open(&config).unwrap()
}

/// stepmesh-lazy alone, without PyTorch's core: on the plugin, and served by torch.
fn alone() -> [(&'static str, LazyDevice); 2] {
    let torch = TorchBackend::new(&[Device::Cpu]).unwrap();
    let name = torch.get_backend_devices()[0];
    let torch = LazyDevice::new(std::sync::Arc::new(torch), name, Options::default());
    let plugin = LazyDevice::open(&plugin().device(0).unwrap(), Options::default());
    [("alone", plugin.unwrap()), ("by torch", torch.unwrap())]
}

/// What the core counted of compilations, steps, and operations that ran eagerly.
fn counted() -> Vec<(String, i64)> {
    let report = lazy::metrics_report().unwrap();
    let names = report
        .lines()
        .filter_map(|line| line.strip_prefix("Counter: "));
    let is_wanted = |name: &&str| {
        ["CachedCompile", "UncachedCompile", "MarkStep"].contains(name)
            || name.starts_with("aten::")
    };
    names
        .filter(is_wanted)
        .map(|name| (name.to_owned(), lazy::counter(name).unwrap()))
        .collect()
}

/// The value on the host.
fn value(tensor: &Tensor) -> Tensor {
    tensor.to_device(Device::Cpu)
}

/// The elements of a tensor of doubles.
fn elements(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.flatten(0, -1)).unwrap()
}

/// What is unlike in two values: type, shape, or elements beyond the type's tolerance.
fn difference(found: &Tensor, expected: &Tensor) -> Option<String> {
    let types = [found, expected].map(|tensor| (tensor.kind(), tensor.size()));
    if types[0] != types[1] {
        return Some(format!("{:?} is not {:?}", types[0], types[1]));
    }
    let tolerance = match expected.kind() {
        Kind::Double => 1e-9,
        Kind::Float => 1e-5,
        Kind::Half => 4e-3,
        Kind::BFloat16 => 3e-2,
        _ => 0.0,
    };
    let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
    let is_close = found.allclose(&expected, tolerance, tolerance, true);
    let both = || format!("{:?} is not {:?}", elements(&found), elements(&expected));
    (!is_close).then(both)
}
