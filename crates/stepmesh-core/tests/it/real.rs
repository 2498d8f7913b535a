//! The real plugins, as `cargo xtask test` built them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stepmesh_core::abi::device::SM_CAP_IPC;
use stepmesh_core::config::{Config, PluginsConfig, Sources};
use stepmesh_core::{Backend, Device, Error, EventOptions, Registry, State, WaitMode};

use crate::plugins::candidate;

/// Where the built plugins are.
fn plugins_dir() -> PathBuf {
    let directory = std::env::var_os("STEPMESH_PLUGIN_DIR")
        .expect("STEPMESH_PLUGIN_DIR is not set: run `cargo xtask test`, which builds the plugins");
    PathBuf::from(directory).canonicalize().unwrap()
}

fn cpu_from_file() -> Backend {
    let config = PluginsConfig {
        path: vec![plugins_dir()],
        ..PluginsConfig::default()
    };
    Registry::discover(&config).select(Some("cpu")).unwrap()
}

/// The one that is linked in: its files, wherever they lie, are out of the way.
pub(crate) fn cpu_built_in() -> Backend {
    let disable = vec!["libstepmesh_backend_*".into()];
    let config = PluginsConfig {
        disable,
        ..PluginsConfig::default()
    };
    let backend = Registry::discover(&config).select(Some("cpu")).unwrap();
    assert_eq!(backend.path(), None);
    backend
}

#[test]
fn the_file_wins_over_the_built_in_backend_of_its_name() {
    let config = PluginsConfig {
        path: vec![plugins_dir()],
        ..PluginsConfig::default()
    };
    let registry = Registry::discover(&config);
    let file = candidate(&registry, &plugins_dir().join("libstepmesh_backend_cpu.so"));
    assert_eq!((file.name(), file.state()), (Some("cpu"), State::Loaded));
    let built_in = registry.candidates().last().unwrap();
    assert_eq!((built_in.path(), built_in.state()), (None, State::Shadowed));
    let reason = built_in.reason().unwrap().to_string();
    assert!(
        reason.ends_with("comes first (a file comes before what is built in)"),
        "{reason}"
    );
    assert_eq!(
        file.probe().unwrap().device_count,
        file.open().unwrap().device_count()
    );
}

#[test]
fn both_copies_of_the_cpu_backend_do_the_same_work() {
    for backend in [cpu_from_file(), cpu_built_in()] {
        let device = backend.device(0).unwrap();
        let stream = device.create_stream().unwrap();
        let from = Arc::new(device.alloc(1 << 20).unwrap());
        let to = Arc::new(device.alloc(1 << 20).unwrap());
        from.write_bytes(0, &[7; 4096]).unwrap();
        stream.copy(&to, 100, &from, 0, 4096).unwrap();
        stream.fill(&to, 0, 50, 9).unwrap();
        let event = device.create_event(EventOptions::default()).unwrap();
        event.record(&stream).unwrap();
        event
            .synchronize(Duration::from_secs(10), WaitMode::Block)
            .unwrap();
        assert!(event.is_done().unwrap());
        let view = to.host_bytes().unwrap();
        assert_eq!((view[0], view[49], view[50], view[99]), (9, 9, 0, 0));
        assert_eq!((view[100], view[4195], view[4196]), (7, 7, 0));
        stream.release().unwrap();
    }
}

#[test]
fn exported_memory_is_the_same_memory() {
    use std::io::{Read, Seek, SeekFrom};

    for backend in [cpu_from_file(), cpu_built_in()] {
        let device = backend.device(0).unwrap();
        assert!(device.capabilities().unwrap().contains(SM_CAP_IPC));
        let buffer = device.alloc(12_345).unwrap();
        buffer.write_bytes(12_340, b"there").unwrap();
        let exported = buffer.export_fd().unwrap();
        assert!(exported.is_mappable && exported.len_bytes >= 12_345);
        drop(buffer);
        let mut file = std::fs::File::from(exported.fd);
        file.seek(SeekFrom::Start(exported.offset + 12_340))
            .unwrap();
        let mut bytes = [0; 5];
        file.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"there", "the descriptor outlives the buffer");
    }
}

#[test]
fn host_functions_run_in_stream_order() {
    let backend = cpu_from_file();
    let device = backend.device(0).unwrap();
    let stream = device.create_stream().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    for n in 0..10 {
        let sender = sender.clone();
        stream
            .launch_host_func(move || sender.send(n).unwrap())
            .unwrap();
    }
    stream.synchronize(Duration::from_secs(10)).unwrap();
    assert_eq!(
        receiver.try_iter().collect::<Vec<_>>(),
        (0..10).collect::<Vec<_>>()
    );
}

#[test]
fn time_passes_between_two_events() {
    let device = cpu_from_file().device(0).unwrap();
    let options = EventOptions {
        timing: true,
        ..EventOptions::default()
    };
    let (start, end) = (
        device.create_event(options).unwrap(),
        device.create_event(options).unwrap(),
    );
    let stream = device.create_stream().unwrap();
    start.record(&stream).unwrap();
    end.record(&stream).unwrap();
    end.synchronize(Duration::from_secs(10), WaitMode::Yield)
        .unwrap();
    assert!(start.elapsed_ms(&end).unwrap() >= 0.0);
}

#[test]
fn pointers_into_the_middle_resolve_and_foreign_ones_are_unknown() {
    let device = cpu_from_file().device(0).unwrap();
    let buffer = device.alloc(10_000).unwrap();
    let facts = device
        .pointer_attributes(buffer.device_ptr() + 9_999)
        .unwrap();
    assert_eq!(
        (facts.alloc_id, facts.base),
        (buffer.alloc_id(), buffer.device_ptr())
    );
    let local = 7_u8;
    let facts = device
        .pointer_attributes((&raw const local).addr() as u64)
        .unwrap();
    assert_eq!(facts.alloc_id, 0);
}

/// A device of the simulated accelerator with these faults.
fn sim(faults: &str) -> Device {
    let path = plugins_dir().display().to_string();
    let sources = Sources::from_env([
        ("STEPMESH_BACKEND", "sim"),
        ("STEPMESH_PLUGIN_PATH", path.as_str()),
        ("STEPMESH_OPTIONS_SIM_FAULTS", faults),
    ]);
    let backend = Backend::open(&Config::load(&sources).unwrap().config).unwrap();
    backend.device(0).unwrap()
}

#[test]
fn a_number_behind_failed_work_never_comes_and_is_in_nobodys_way() {
    let device = sim("copy:fail@1");
    let (first, second) = (
        device.create_stream().unwrap(),
        device.create_stream().unwrap(),
    );
    let number = device.create_mem_event().unwrap();
    let (a, b) = (
        Arc::new(device.alloc(64).unwrap()),
        Arc::new(device.alloc(64).unwrap()),
    );
    let long = Duration::from_secs(30);
    first.copy(&a, 0, &b, 0, 64).unwrap();
    let lost = number.arm_next(&first).unwrap();
    let error = number.wait(lost, long).unwrap_err().to_string();
    assert!(
        error.starts_with("memevent.query failed on sim:0"),
        "{error}"
    );
    let next = number.arm_next(&second).unwrap();
    number.wait(next, long).unwrap();
    assert_eq!(number.reached(), next);
}

/// A stream that stands still and a device that is lost while the host polls: the number never comes,
/// and no event of the backend wakes anyone.
#[test]
fn a_lost_device_ends_a_wait_for_a_number_in_memory() {
    let device = sim("stream:stuck@1, device:lost@1000ms");
    let stream = device.create_stream().unwrap();
    let (number, event) = (
        device.create_mem_event().unwrap(),
        device.create_event(EventOptions::default()).unwrap(),
    );
    let memory = Arc::new(device.alloc(4096).unwrap());
    stream.fill(&memory, 0, 4096, 1).unwrap();
    let seq = number.arm_next(&stream).unwrap();
    event.record(&stream).unwrap();
    assert!(event.is_mem_synced());
    let long = Duration::from_secs(30);
    for error in [
        number.wait(seq, long).unwrap_err(),
        event.synchronize(long, WaitMode::Yield).unwrap_err(),
    ] {
        let Error::Backend { flags, .. } = &error else {
            panic!("not the device's loss: {error}");
        };
        assert!(flags.is_device_lost(), "{error}");
    }
    assert_eq!(number.reached(), 0);
}
