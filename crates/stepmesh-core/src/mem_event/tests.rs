//! A backend whose word never comes, or is nowhere: waits end with the fault.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stepmesh_abi::error::{SM_DATA_LOSS, SM_OK};
use stepmesh_abi::event::SM_EVENT_PENDING;
use stepmesh_abi::{SmBackend, SmBackendApi, SmError, SmHdr, SmHostApi, SmMemEvent, SmMemEventV1};

use super::Functions;
use crate::config::PluginsConfig;
use crate::{Device, Error, Registry, StaticPlugin, fake};

/// How the mem-events of a backend fail.
#[derive(Clone, Copy)]
struct Way {
    word: usize,
    query: i32,
    health: u32,
}

/// The device of a backend with these mem-events.
macro_rules! device {
    ($way:expr) => {{
        const WAY: Way = $way;
        unsafe extern "C" fn create(
            _: *mut SmBackend,
            _: u32,
            out: *mut *mut SmMemEvent,
            _: *mut SmError,
        ) -> i32 {
            // SAFETY: the host's out pointer.
            unsafe { *out = std::ptr::dangling_mut::<u64>().cast() };
            SM_OK
        }
        unsafe extern "C" fn destroy(
            _: *mut SmBackend,
            _: *mut SmMemEvent,
            _: *mut SmError,
        ) -> i32 {
            DESTROYED.fetch_add(1, Ordering::Relaxed);
            SM_OK
        }
        unsafe extern "C" fn arm(
            _: *mut SmBackend,
            _: *mut SmMemEvent,
            _: u32,
            _: u64,
            _: u64,
            _: *mut SmError,
        ) -> i32 {
            SM_OK
        }
        unsafe extern "C" fn poll_addr(
            _: *mut SmBackend,
            _: *mut SmMemEvent,
            addr: *mut *const u64,
            _: *mut SmError,
        ) -> i32 {
            let word = match WAY.word {
                REAL => WORD.as_ptr().cast_const(),
                other => std::ptr::without_provenance(other),
            };
            // SAFETY: the host's out pointer.
            unsafe { *addr = word };
            SM_OK
        }
        unsafe extern "C" fn query(
            _: *mut SmBackend,
            _: *mut SmMemEvent,
            state: *mut u32,
            err: *mut SmError,
        ) -> i32 {
            if WAY.query != SM_OK {
                // SAFETY: the host's error struct.
                unsafe { *err = SmError::with_message(WAY.query, "a page was lost") };
                return WAY.query;
            }
            // SAFETY: the host's out pointer.
            unsafe { *state = SM_EVENT_PENDING };
            SM_OK
        }
        static TABLE: SmMemEventV1 = SmMemEventV1 {
            hdr: SmHdr::of::<SmMemEventV1>(),
            create: Some(create),
            destroy: Some(destroy),
            arm: Some(arm),
            poll_addr: Some(poll_addr),
            query: Some(query),
        };
        unsafe extern "C" fn get_extension(
            _: *mut SmBackend,
            id: *const c_char,
            len: u32,
            _: u32,
            table: *mut *const c_void,
            version: *mut u32,
            _: *mut SmError,
        ) -> i32 {
            // SAFETY: by the ABI the name has its length.
            let id = unsafe { std::slice::from_raw_parts(id.cast::<u8>(), len as usize) };
            if id != super::SM_EXTENSION_MEMEVENT_V1.as_bytes() {
                return stepmesh_abi::error::SM_NOT_FOUND;
            }
            // SAFETY: the host's out pointer.
            unsafe { *table = (&raw const TABLE).cast() };
            // SAFETY: the host's out pointer.
            unsafe { *version = 1 };
            SM_OK
        }
        unsafe extern "C" fn health(
            _: *mut SmBackend,
            _: u32,
            state: *mut u32,
            _: *mut SmError,
        ) -> i32 {
            // SAFETY: the host's out pointer.
            unsafe { *state = WAY.health };
            SM_OK
        }
        unsafe extern "C" fn entry(_: *const SmHostApi, _: *mut SmError) -> *const SmBackendApi {
            let api = SmBackendApi {
                get_extension: Some(get_extension),
                health: Some(health),
                ..fake::api()
            };
            Box::leak(Box::new(api))
        }
        open(entry)
    }};
}

fn open(entry: stepmesh_abi::SmBackendQueryFn) -> Device {
    // SAFETY: the entries above follow the contract.
    let plugin = unsafe { StaticPlugin::new(entry) };
    let registry = Registry::discover_with(&PluginsConfig::default(), &[plugin]);
    registry.select(Some("fake")).unwrap().device(0).unwrap()
}

fn wait(device: &Device) -> Error {
    let event = device.create_mem_event().unwrap();
    let stream = device.create_stream().unwrap();
    let seq = event.arm_next(&stream).unwrap();
    event.wait(seq, Duration::from_secs(30)).unwrap_err()
}

#[test]
fn failed_work_ends_the_wait_with_its_error() {
    let device = device!(Way {
        word: REAL,
        query: SM_DATA_LOSS,
        health: 0,
    });
    assert_eq!(
        wait(&device).to_string(),
        "memevent.query failed on fake:0: a page was lost (data loss)"
    );
}

#[test]
fn a_lost_device_ends_the_wait() {
    let device = device!(Way {
        word: REAL,
        query: SM_OK,
        health: stepmesh_abi::device::SM_HEALTH_LOST,
    });
    let Error::Backend { flags, message, .. } = wait(&device) else {
        panic!("the backend's failure is expected");
    };
    assert!(flags.is_device_lost());
    assert_eq!(message, "the device is lost");
}

#[test]
fn a_word_that_cannot_be_read_is_refused_and_the_event_given_back() {
    let null = device!(Way {
        word: 0,
        query: SM_OK,
        health: 0,
    });
    let odd = device!(Way {
        word: 0x1001,
        query: SM_OK,
        health: 0,
    });
    for (device, word) in [(null, "0x0"), (odd, "0x1001")] {
        let before = DESTROYED.load(Ordering::Relaxed);
        let error = device.create_mem_event().unwrap_err().to_string();
        assert_eq!(
            error,
            format!("backend fake gave a bad answer to memevent.poll_addr: a word at {word}")
        );
        assert!(DESTROYED.load(Ordering::Relaxed) > before);
    }
}

#[test]
fn without_the_extension_it_is_unsupported_by_name_and_events_work() {
    let device = fake::backend().device(0).unwrap();
    assert_eq!(
        device.create_mem_event().unwrap_err().to_string(),
        "fake:0 does not support stepmesh.memevent.v1: the plugin has no such extension"
    );
    let event = device.create_event(crate::EventOptions::default()).unwrap();
    assert!(!event.is_mem_synced());
}

#[test]
fn a_table_with_a_hole_is_as_good_as_none() {
    let table = SmMemEventV1 {
        hdr: SmHdr::of::<SmMemEventV1>(),
        create: None,
        destroy: None,
        arm: None,
        poll_addr: None,
        query: None,
    };
    assert!(Functions::of(&table).is_none());
}

static WORD: AtomicU64 = AtomicU64::new(0);
static DESTROYED: AtomicU64 = AtomicU64::new(0);
/// Stands for the address of `WORD`.
const REAL: usize = 1;
