//! Slots about devices.
#![expect(unsafe_code, reason = "functions of the C table")]

use stepmesh_abi::{SmBackend, SmDeviceInfo, SmError};

use crate::boundary::{Struct, Value};
use crate::instance::{Instance, Phase, slot};
use crate::{Backend, Health};

pub(crate) unsafe extern "C" fn device_count<B: Backend>(
    s: *mut SmBackend,
    n: *mut u32,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| Ok(i.device_count);
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "device_count", Phase::Open, Value(n), work) }
}

pub(crate) unsafe extern "C" fn device_info<B: Backend>(
    s: *mut SmBackend,
    dev: u32,
    out: *mut SmDeviceInfo,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| i.backend.device_info(i.check_device(dev)?);
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "device_info", Phase::Open, Struct(out), work) }
}

pub(crate) unsafe extern "C" fn mem_info<B: Backend>(
    s: *mut SmBackend,
    dev: u32,
    free: *mut u64,
    total: *mut u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| i.backend.mem_info(i.check_device(dev)?);
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe {
        slot::<B, _>(
            s,
            err,
            "mem_info",
            Phase::Open,
            (Value(free), Value(total)),
            work,
        )
    }
}

pub(crate) unsafe extern "C" fn capabilities<B: Backend>(
    s: *mut SmBackend,
    dev: u32,
    bits: *mut u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| i.backend.capabilities(i.check_device(dev)?);
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "capabilities", Phase::Open, Value(bits), work) }
}

pub(crate) unsafe extern "C" fn set_current_device<B: Backend>(
    s: *mut SmBackend,
    dev: u32,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| i.backend.set_current_device(i.check_device(dev)?);
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "set_current_device", Phase::Open, (), work) }
}

pub(crate) unsafe extern "C" fn get_current_device<B: Backend>(
    s: *mut SmBackend,
    dev: *mut i32,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        Ok(i.backend
            .current_device()?
            .map_or(-1, |dev| i32::try_from(dev).unwrap_or(i32::MAX)))
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "get_current_device", Phase::Open, Value(dev), work) }
}

pub(crate) unsafe extern "C" fn device_sync<B: Backend>(
    s: *mut SmBackend,
    dev: u32,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| i.backend.device_sync(i.check_device(dev)?);
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "device_sync", Phase::Open, (), work) }
}

pub(crate) unsafe extern "C" fn health<B: Backend>(
    s: *mut SmBackend,
    dev: u32,
    state: *mut u32,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| i.backend.health(i.check_device(dev)?).map(Health::raw);
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "health", Phase::Open, Value(state), work) }
}
