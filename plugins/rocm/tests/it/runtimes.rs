//! Scenarios about runtimes that are not there, too old, or without devices.

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use stepmesh_backend_rocm::RocmBackend;
use stepmesh_plugin::abi::Code;
use stepmesh_plugin::abi::device::{SM_CAP_IPC, SM_CAP_STREAM_ORDERED_ALLOC};
use stepmesh_plugin::{Backend as _, Host, MemEvents as _};

use crate::scenarios::ABSENT;
use crate::support::{LONG_NS, alloc, open, refused, stream};

pub(crate) fn a_file_that_is_no_library() -> ExitCode {
    let error = refused();
    let names = [
        "looked for libamdhip64.so.7: ",
        ", libamdhip64.so.6: ",
        ", libamdhip64.so.5: ",
        ", libamdhip64.so: ",
    ];
    for said in names {
        assert!(error.message().contains(said), "{error}");
    }
    assert_eq!(error.native_code(), 0);
    ExitCode::SUCCESS
}

pub(crate) fn a_runtime_that_is_too_old() -> ExitCode {
    let error = refused();
    let said = "the runtime is HIP 4.3, 5.0 or later is needed";
    assert!(error.message().contains(said), "{error}");
    assert!(error.message().contains("libamdhip64.so.7"), "{error}");
    ExitCode::SUCCESS
}

pub(crate) fn devices_that_are_hidden() -> ExitCode {
    let error = refused();
    let said = "hipInit answered hipErrorNoDevice (100)";
    assert!(error.message().contains(said), "{error}");
    assert_eq!(error.native_code(), 100);
    ExitCode::SUCCESS
}

/// A machine may have none, or one whose devices are there: then there is nothing to see here.
pub(crate) fn the_runtime_of_this_machine() -> ExitCode {
    match RocmBackend::open(Host::absent()) {
        Ok(backend) => {
            println!("this machine has {} AMD device(s)", backend.device_count());
            ExitCode::from(ABSENT)
        }
        Err(error) if error.message().contains("looked for ") => {
            println!("this machine has no libamdhip64.so");
            ExitCode::from(ABSENT)
        }
        Err(error) => {
            // Before version 6 `hipInit` calls the missing device an invalid one.
            let said = [
                "hipInit answered hipErrorInvalidDevice (101)",
                "hipInit answered hipErrorNoDevice (100)",
            ];
            assert!(
                said.iter().any(|said| error.message().contains(said)),
                "{error}"
            );
            let said = "hipGetDeviceCount answered hipErrorNoDevice (100)";
            assert!(error.message().contains(said), "{error}");
            assert_eq!(error.native_code(), 100);
            ExitCode::SUCCESS
        }
    }
}

pub(crate) fn a_runtime_without_newer_functions() -> ExitCode {
    let backend = open();
    let capabilities = backend.capabilities(0).unwrap();
    assert_eq!(capabilities & (SM_CAP_STREAM_ORDERED_ALLOC | SM_CAP_IPC), 0);
    let on = stream(&backend, 0);
    let ptr = backend.alloc_async(0, 4096, on).unwrap();
    // SAFETY: nothing uses it.
    unsafe { backend.free_async(0, ptr, on).unwrap() };
    // Numbers are copied where streams cannot write them.
    let event = backend.mem_event_create(0).unwrap();
    for seq in 1..=1000 {
        backend.mem_event_arm(&event, on, seq).unwrap();
    }
    backend.stream_sync(on, LONG_NS).unwrap();
    let word = RocmBackend::mem_event_word(&event);
    assert_eq!(word.load(Ordering::Acquire), 1000);
    // What nothing stands in for is named.
    let error = backend.device_sync(0).expect_err("the function is missing");
    assert_eq!(error.code(), Code::Unimplemented, "{error}");
    let said = "the driver library has no hipDeviceSynchronize";
    assert!(error.message().contains(said), "{error}");
    alloc(&backend, 0, 64).unwrap();
    ExitCode::SUCCESS
}
