//! The backend linked into a program and opened by stepmesh-core.

use std::sync::Arc;
use std::time::Duration;

use stepmesh_core::config::Config;
use stepmesh_core::{AllocOptions, Backend, Health, MemoryKind, StaticPlugin, WaitMode};

fn config(backend: &str, options: &[(&str, &str)]) -> Config {
    let mut config = Config {
        backend: backend.into(),
        ..Config::default()
    };
    // Files beside the test program are not what is tested.
    config.plugins.disable = vec!["*.so".into()];
    let of_sim = config.options.entry("sim".into()).or_default();
    of_sim.extend(
        options
            .iter()
            .map(|(option, text)| ((*option).into(), (*text).into())),
    );
    config
}

fn open(options: &[(&str, &str)]) -> Backend {
    Backend::open_with(&config("sim", options), &[SIM]).expect("the options are good")
}

#[test]
fn it_is_opened_by_its_name_with_its_options_and_by_nothing_else() {
    let four = open(&[("devices", "4")]);
    assert_eq!((four.name(), four.device_count()), ("sim", 4));
    let three = Backend::open_with(&config("SIM", &[("devices", "3")]), &[SIM]).unwrap();
    assert_eq!(three.device_count(), 3);
    for other in ["GPU", "", "cuda"] {
        let error = Backend::open_with(&config(other, &[]), &[SIM]).unwrap_err();
        assert!(error.to_string().contains("sim"), "{other}: {error}");
    }
    let default = Backend::open_with(&config("", &[]), &[SIM, CPU]).unwrap();
    assert_eq!(default.name(), "cpu");
    let error = Backend::open_with(&config("sim", &[("devices", "many")]), &[SIM]).unwrap_err();
    assert!(
        error.to_string().contains("`sim.devices` = `many`"),
        "{error}"
    );
}

#[test]
fn buffers_are_read_and_written_though_the_host_cannot_touch_them() {
    let backend = open(&[]);
    let device = backend.device(1).unwrap();
    let (x, y) = (
        Arc::new(device.alloc(70_000).unwrap()),
        Arc::new(device.alloc(70_000).unwrap()),
    );
    assert_eq!(x.kind(), MemoryKind::Device);
    assert!(!x.is_host_accessible() && x.host_bytes().is_none());
    assert!(matches!(
        x.export_fd(),
        Err(stepmesh_core::Error::Unsupported { .. })
    ));
    x.write_bytes(9, b"hidden states").unwrap();
    let stream = device.create_stream().unwrap();
    let event = device.create_event(Default::default()).unwrap();
    stream.copy(&y, 5, &x, 9, 13).unwrap();
    event.record(&stream).unwrap();
    event.synchronize(LONG, WaitMode::Block).unwrap();
    let mut out = [0; 13];
    y.read_bytes(5, &mut out).unwrap();
    assert_eq!(&out, b"hidden states");
}

#[test]
fn pinned_buffers_are_the_hosts_and_can_be_mapped() {
    let backend = open(&[]);
    let device = backend.device(0).unwrap();
    let options = AllocOptions {
        kind: MemoryKind::HostPinned,
        ..AllocOptions::default()
    };
    let pinned = Arc::new(device.alloc_with(5000, options).unwrap());
    assert!(pinned.is_host_accessible());
    let exported = pinned.export_fd().unwrap();
    assert!(exported.is_mappable);
    let memory = Arc::new(device.alloc(5000).unwrap());
    pinned.write_bytes(0, &[8; 5000]).unwrap();
    let stream = device.create_stream().unwrap();
    stream.copy(&memory, 0, &pinned, 0, 5000).unwrap();
    stream.synchronize(LONG).unwrap();
    let mut out = [0; 5000];
    memory.read_bytes(0, &mut out).unwrap();
    assert_eq!(out, [8; 5000]);
}

#[test]
fn faults_reach_the_host_as_its_errors() {
    let backend = open(&[("faults", "copy.0:fail@1, device.1:lost@0ms, alloc.0:oom@3")]);
    let device = backend.device(0).unwrap();
    let (x, y) = (
        Arc::new(device.alloc(8).unwrap()),
        Arc::new(device.alloc(8).unwrap()),
    );
    let full = device.alloc(8).unwrap_err();
    assert!(
        matches!(full, stepmesh_core::Error::OutOfMemory { .. }),
        "{full:?}"
    );
    let stream = device.create_stream().unwrap();
    stream.copy(&x, 0, &y, 0, 8).unwrap();
    let failed = stream.synchronize(LONG).unwrap_err().to_string();
    assert!(failed.contains("copy.0:fail@1"), "{failed}");
    assert_eq!(device.health().unwrap(), Health::Ok);
    let lost = backend.device(1).unwrap();
    assert_eq!(lost.health().unwrap(), Health::Lost);
    let refused = lost.alloc(8).unwrap_err().to_string();
    assert!(refused.contains("lost"), "{refused}");
}

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);
/// As a test of another crate links it.
// SAFETY: the entry of a backend made by the kit.
const SIM: StaticPlugin = unsafe { StaticPlugin::new(stepmesh_backend_sim::query) };
// SAFETY: as above.
const CPU: StaticPlugin = unsafe { StaticPlugin::new(stepmesh_backend_cpu::query) };
