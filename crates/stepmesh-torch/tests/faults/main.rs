//! PyTorch's lazy core on simulated devices on which something goes wrong: the failure is an error of
//! whoever asked, and the next step works. `cargo xtask torch-test` runs them.
#![cfg(feature = "lazy")]
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may, as tests themselves do"
)]

mod early;
mod exit;
mod failures;
mod leaks;
mod threads;

use std::env;
use std::process::Command;
use std::sync::{Once, OnceLock};

use stepmesh_core::config::Config;
use stepmesh_core::{Backend, Device};
use stepmesh_torch::{Error, lazy};
use tch::{Kind, Tensor};

/// Whether this is a process for one test, whose name starts so; if not, it is run in one.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "STEPMESH_TORCH_TEST_ALONE";
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let mut child = Command::new(env::current_exe().unwrap());
    let output = child.args([test, "--test-threads=1"]).env(ALONE, "1");
    let output = output.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(text.contains("1 passed"), "{text}");
    false
}

/// Lazy devices by what is wrong with them, as `devices` registers them.
#[derive(Clone, Copy, Debug)]
enum On {
    Healthy,
    OtherHealthy,
    Bystander,
    /// Nothing is wrong with it, but with a graph.
    Untranslated,
    /// Of one thread alone.
    Thread0,
    Thread1,
    /// Of several threads in turn.
    Crossing,
    /// For what nothing else may disturb.
    Counted,
    /// There is no `exp`.
    WithoutExp,
    /// It has 128 KiB of memory.
    Small,
    /// One copy fails.
    FailingCopy,
    /// It is lost after some operations.
    Lost,
}

impl On {
    /// Its number, once the devices are registered. Each is one test's own, for a step computes all
    /// that is alive on its device.
    fn ordinal(self) -> u32 {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| lazy::register(devices()).unwrap());
        self as u32
    }

    /// The device behind it.
    fn device(self) -> &'static Device {
        &devices()[usize::try_from(self.ordinal()).unwrap()]
    }

    fn tensor(self, values: &[f32]) -> Tensor {
        lazy::to_lazy(&Tensor::from_slice(values), self.ordinal()).unwrap()
    }

    fn mark_step(self) -> Result<(), Error> {
        lazy::mark_step(self.ordinal(), true)
    }

    /// A step of its own, x x + x, or what went wrong.
    fn step(self) -> Result<Vec<f32>, String> {
        let x = lazy::to_lazy(&Tensor::from_slice(&[1.0_f32, 2.0]), self.ordinal());
        let x = x.map_err(|error| first_line(&error))?;
        let y = x.f_mul(&x).and_then(|square| square.f_add(&x));
        let y = y.map_err(|error| first_line(&error))?;
        self.mark_step().map_err(|error| first_line(&error))?;
        let y = y.f_to_device(tch::Device::Cpu);
        let y = y.map_err(|error| first_line(&error))?;
        Ok(Vec::try_from(y).unwrap())
    }
}

/// What [`On::step`] gives where nothing goes wrong.
const RIGHT: [f32; 2] = [2.0, 6.0];

/// Without the backtrace that libtorch adds.
fn first_line(error: &impl ToString) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

fn sim(options: &[(&str, &str)]) -> Backend {
    let mut config = Config {
        backend: "sim".into(),
        ..Config::default()
    };
    let plugins = env::var_os("STEPMESH_PLUGIN_DIR");
    let plugins = plugins.expect("STEPMESH_PLUGIN_DIR is not set: run `cargo xtask torch-test`");
    config.plugins.path = vec![plugins.into()];
    let own = config.options.entry("sim".into()).or_default();
    for (name, value) in options {
        own.insert((*name).into(), (*value).into());
    }
    Backend::open(&config).unwrap()
}

/// In the order of [`On`].
fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(open_devices)
}

fn open_devices() -> Vec<Device> {
    let mut devices = sim(&[("devices", "8")]).devices();
    for options in [
        ("lacks", "exp"),
        ("memory_len_bytes", "131072"),
        ("faults", "copy:fail@5"),
        ("faults", "device:lost@30"),
    ] {
        devices.extend(sim(&[("devices", "1"), options]).devices());
    }
    devices
}

fn ones(len: i64) -> Tensor {
    Tensor::ones([len], (Kind::Float, tch::Device::Cpu))
}
