//! Streams, events and host functions.

use std::ffi::c_void;

use stepmesh_simdriver::{HostCall, HostFn, Out, Status, Work};

use crate::current::{current, functions, hip};

functions! {
    fn hipStreamCreateWithFlags(stream: Out<u64>, flags: u32) {
        let (driver, device) = current()?;
        stream.set(driver.create_stream(device, is_blocking(flags)?)?)
    }

    fn hipStreamCreateWithPriority(stream: Out<u64>, flags: u32, _priority: i32) {
        let (driver, device) = current()?;
        stream.set(driver.create_stream(device, is_blocking(flags)?)?)
    }

    fn hipStreamDestroy(stream: u64) {
        hip()?.destroy_stream(stream)
    }

    fn hipStreamQuery(stream: u64) {
        let (driver, device) = current()?;
        driver.query(device, stream)
    }

    fn hipStreamSynchronize(stream: u64) {
        let (driver, device) = current()?;
        driver.synchronize(device, stream)
    }

    fn hipStreamWaitEvent(stream: u64, event: u64, _flags: u32) {
        let (driver, device) = current()?;
        driver.wait_event(device, stream, event)
    }

    fn hipStreamWriteValue64(stream: u64, ptr: u64, value: u64, _flags: u32) {
        let (driver, device) = current()?;
        let work = Work::Write { ptr, value, len_bytes: 8 };
        check_word(ptr, 8)?;
        driver.submit(device, stream, work)
    }

    fn hipStreamWriteValue32(stream: u64, ptr: u64, value: u32, _flags: u32) {
        let (driver, device) = current()?;
        let work = Work::Write { ptr, value: u64::from(value), len_bytes: 4 };
        check_word(ptr, 4)?;
        driver.submit(device, stream, work)
    }

    fn hipStreamWaitValue64(stream: u64, ptr: u64, value: u64, flags: u32, mask: u64) {
        let (driver, device) = current()?;
        check_word(ptr, 8)?;
        if flags != WAIT_AT_LEAST || mask != u64::MAX {
            return Err(Status::NOT_SUPPORTED);
        }
        driver.submit(device, stream, Work::WaitValue { ptr, value })
    }

    fn hipLaunchHostFunc(
        stream: u64, func: Option<HostFn>, arg: *mut c_void,
    ) {
        let (driver, device) = current()?;
        let func = func.ok_or(Status::INVALID_VALUE)?;
        let call = HostCall { func, arg: arg.expose_provenance() };
        driver.submit(device, stream, Work::Host(call))
    }

    fn hipEventCreateWithFlags(event: Out<u64>, flags: u32) {
        let (driver, device) = current()?;
        event.set(driver.create_event(device, flags & DISABLE_TIMING == 0)?)
    }

    fn hipEventDestroy(event: u64) {
        hip()?.destroy_event(event)
    }

    fn hipEventRecord(event: u64, stream: u64) {
        let (driver, device) = current()?;
        driver.record(device, event, stream)
    }

    fn hipEventQuery(event: u64) {
        hip()?.query_event(event)
    }

    fn hipEventSynchronize(event: u64) {
        hip()?.synchronize_event(event)
    }

    fn hipEventElapsedTime(ms: Out<f32>, start: u64, end: u64) {
        ms.set(hip()?.elapsed_ms(start, end)?)
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
    if ptr.is_multiple_of(len) && hip()?.block_at(ptr).is_some() {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

/// `hipStreamNonBlocking`.
const NON_BLOCKING: u32 = 1;
/// `hipEventDisableTiming`.
const DISABLE_TIMING: u32 = 2;
/// `hipStreamWaitValueGte`.
const WAIT_AT_LEAST: u32 = 0;
