//! The example plugins outside Rust, built by the line that their README shows, behind the safe API.
//! What each slot promises is judged by stepmesh-conformance.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stepmesh_core::{Backend, Error, EventOptions, MemoryKind, WaitMode};

use crate::plugins::Plugins;

#[test]
fn the_example_in_c_works() {
    let plugins = Plugins::new();
    assert!(
        build(&plugins, "example-c"),
        "these tests need a C compiler"
    );
    check(&plugins, "example-c");
}

#[test]
fn the_example_in_cpp_works() {
    let plugins = Plugins::new();
    if build(&plugins, "example-cpp") {
        check(&plugins, "example-cpp");
    } else {
        // `cargo xtask test` reports the same absence, and fails where it is not allowed.
        eprintln!("not checked: no C++ compiler");
    }
}

/// Runs the command of the README; false if there is no such compiler.
fn build(plugins: &Plugins, name: &str) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = fs::read_to_string(root.join("plugins").join(name).join("README.md")).unwrap();
    let line = readme.lines().find_map(|line| line.strip_prefix("$ "));
    let mut words = line.expect("the README shows the command").split(' ');
    let compiler = words.next().unwrap();
    let mut args: Vec<_> = words.map(Into::into).collect();
    let out = plugins.file(name);
    assert_eq!(args.pop(), out.file_name().map(Into::into));
    args.push(out.into_os_string());
    let output = Command::new(compiler)
        .current_dir(root)
        .args(args)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => return false,
        Err(error) => panic!("{compiler}: {error}"),
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    true
}

fn check(plugins: &Plugins, name: &str) {
    let registry = plugins.discover();
    let backend = registry.select(Some(name)).unwrap();
    assert_eq!(backend.path(), Some(plugins.file(name).as_path()));
    assert_eq!((backend.device_count(), backend.version()), (1, "0.1.0"));
    memory_and_streams_work(&backend);
    errors_name_the_object_and_leave_the_device_usable(&backend);
}

fn memory_and_streams_work(backend: &Backend) {
    let device = backend.device(0).unwrap();
    let stream = device.create_stream().unwrap();
    let from = Arc::new(device.alloc(100_000).unwrap());
    let to = Arc::new(device.alloc(100_000).unwrap());
    assert!(from.device_ptr().is_multiple_of(64 << 10), "made for NICs");
    assert_ne!(from.alloc_id(), to.alloc_id());
    from.write_bytes(9, b"hidden states").unwrap();
    stream.copy(&to, 50, &from, 9, 13).unwrap();
    stream.fill(&to, 0, 50, 7).unwrap();
    let event = device.create_event(EventOptions::default()).unwrap();
    event.record(&stream).unwrap();
    device
        .default_stream()
        .wait_event(&event)
        .expect("streams wait for each other");
    event.synchronize(Duration::ZERO, WaitMode::Spin).unwrap();
    assert!(event.is_done().unwrap() && stream.is_done().unwrap());
    let mut bytes = [0; 15];
    to.read_bytes(48, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\x07\x07hidden states");

    let inside = device.pointer_attributes(to.device_ptr() + 99_999).unwrap();
    assert_eq!((inside.base, inside.len_bytes), (to.device_ptr(), 100_000));
    assert_eq!(inside.alloc_id, to.alloc_id());
    let beyond = device.pointer_attributes(1).unwrap();
    assert_eq!((beyond.kind, beyond.device), (MemoryKind::Unknown, None));

    // Not in the plugin: the host stands in.
    let (sender, receiver) = std::sync::mpsc::channel();
    stream
        .launch_host_func(move || sender.send(()).unwrap())
        .unwrap();
    receiver.recv_timeout(Duration::from_secs(10)).unwrap();
    stream.release().unwrap();
    event.release().unwrap();
}

fn errors_name_the_object_and_leave_the_device_usable(backend: &Backend) {
    let device = backend.device(0).unwrap();
    let error = device.alloc(1 << 62).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert_eq!(device.alloc(1).unwrap().len_bytes(), 1);
    let options = EventOptions {
        timing: true,
        ..EventOptions::default()
    };
    let error = device.create_event(options).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    let info = device.info();
    assert_eq!(info.torch_device_type, "cpu");
}
