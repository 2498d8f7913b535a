//! Streams, events and host functions.

use std::ffi::c_void;

use stepmesh_simdriver::{HostCall, HostFn, Out, Status, Work, api, driver};

use crate::context::current;

api! {
    fn cuStreamCreate(stream: Out<u64>, flags: u32) {
        let (driver, device) = current()?;
        stream.set(driver.create_stream(device, is_blocking(flags)?)?)
    }

    fn cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, _priority: i32) {
        let (driver, device) = current()?;
        stream.set(driver.create_stream(device, is_blocking(flags)?)?)
    }

    fn cuStreamDestroy_v2(stream: u64) {
        driver()?.destroy_stream(stream)
    }

    fn cuStreamQuery(stream: u64) {
        let (driver, device) = current()?;
        driver.query(device, stream)
    }

    fn cuStreamSynchronize(stream: u64) {
        let (driver, device) = current()?;
        driver.synchronize(device, stream)
    }

    fn cuStreamWaitEvent(stream: u64, event: u64, _flags: u32) {
        let (driver, device) = current()?;
        driver.wait_event(device, stream, event)
    }

    fn cuStreamWriteValue64_v2(stream: u64, ptr: u64, value: u64, _flags: u32) {
        let (driver, device) = current()?;
        let work = Work::Write { ptr, value, len_bytes: 8 };
        check_word(ptr, 8)?;
        driver.submit(device, stream, work)
    }

    fn cuStreamWriteValue32_v2(stream: u64, ptr: u64, value: u32, _flags: u32) {
        let (driver, device) = current()?;
        let work = Work::Write { ptr, value: u64::from(value), len_bytes: 4 };
        check_word(ptr, 4)?;
        driver.submit(device, stream, work)
    }

    fn cuStreamWaitValue64_v2(stream: u64, ptr: u64, value: u64, flags: u32) {
        let (driver, device) = current()?;
        check_word(ptr, 8)?;
        if flags & !FLUSH != WAIT_AT_LEAST {
            return Err(Status::NOT_SUPPORTED);
        }
        driver.submit(device, stream, Work::WaitValue { ptr, value })
    }

    fn cuLaunchHostFunc(
        stream: u64, func: Option<HostFn>, arg: *mut c_void,
    ) {
        let (driver, device) = current()?;
        let func = func.ok_or(Status::INVALID_VALUE)?;
        let call = HostCall { func, arg: arg.expose_provenance() };
        driver.submit(device, stream, Work::Host(call))
    }

    fn cuEventCreate(event: Out<u64>, flags: u32) {
        let (driver, device) = current()?;
        event.set(driver.create_event(device, flags & DISABLE_TIMING == 0)?)
    }

    fn cuEventDestroy_v2(event: u64) {
        driver()?.destroy_event(event)
    }

    fn cuEventRecord(event: u64, stream: u64) {
        let (driver, device) = current()?;
        driver.record(device, event, stream)
    }

    fn cuEventQuery(event: u64) {
        driver()?.query_event(event)
    }

    fn cuEventSynchronize(event: u64) {
        driver()?.synchronize_event(event)
    }

    fn cuEventElapsedTime(ms: Out<f32>, start: u64, end: u64) {
        ms.set(driver()?.elapsed_ms(start, end)?)
    }
}

fn is_blocking(flags: u32) -> stepmesh_simdriver::Answer<bool> {
    match flags {
        0 => Ok(true),
        NON_BLOCKING => Ok(false),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Refuses an address that devices do not reach.
fn check_word(ptr: u64, len: u64) -> crate::Answer {
    if ptr.is_multiple_of(len) && driver()?.block_at(ptr).is_some() {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_STREAM_WAIT_VALUE_GEQ`.
const WAIT_AT_LEAST: u32 = 0;
/// `CU_STREAM_WAIT_VALUE_FLUSH`.
const FLUSH: u32 = 1 << 30;
