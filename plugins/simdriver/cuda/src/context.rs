//! Initialisation, errors, primary contexts and the stack of contexts of each thread.

use std::cell::RefCell;

use stepmesh_simdriver::{Answer, Driver, Out, Status, api, driver, init};

thread_local! {
    /// Devices whose primary contexts are current, the last on top. `None` is no context, pushed.
    static STACK: RefCell<Vec<Option<u32>>> = const { RefCell::new(Vec::new()) };
}

/// The device of the current context, whose context must be there.
pub(crate) fn current() -> Answer<(&'static Driver, u32)> {
    let driver = driver()?;
    let device = top()?.ok_or(Status::INVALID_CONTEXT)?;
    if driver.retained(device)? == 0 {
        // It was released: the context is destroyed.
        return Err(Status::INVALID_CONTEXT);
    }
    Ok((driver, device))
}

fn top() -> Answer<Option<u32>> {
    let top = STACK.try_with(|stack| stack.borrow().last().copied().flatten());
    top.map_err(|_| Status::DEINITIALIZED)
}

fn on_stack<T>(work: impl FnOnce(&mut Vec<Option<u32>>) -> Answer<T>) -> Answer<T> {
    let done = STACK.try_with(|stack| work(&mut stack.borrow_mut()));
    done.map_err(|_| Status::DEINITIALIZED)?
}

fn context_of(device: u32) -> u64 {
    CONTEXT_BASE + u64::from(device) * CONTEXT_STEP
}

/// The device of a context's handle, `None` for null.
pub(crate) fn device_of(driver: &Driver, context: u64) -> Answer<Option<u32>> {
    if context == 0 {
        return Ok(None);
    }
    let count = driver.device_count();
    let device = (0..count).find(|device| context_of(*device) == context);
    let device = device.ok_or(Status::INVALID_CONTEXT)?;
    if driver.retained(device)? == 0 {
        return Err(Status::INVALID_CONTEXT);
    }
    Ok(Some(device))
}

/// The device of a `CUdevice`.
pub(crate) fn device(driver: &Driver, device: i32) -> Answer<u32> {
    let device = u32::try_from(device).map_err(|_| Status::INVALID_DEVICE)?;
    if device < driver.device_count() {
        Ok(device)
    } else {
        Err(Status::INVALID_DEVICE)
    }
}

api! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        init("CUDA_VISIBLE_DEVICES")
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(VERSION)
    }

    fn cuGetErrorName(status: i32, name: Out<*const u8>) {
        let text = Status(status).cuda_name().ok_or(Status::INVALID_VALUE)?;
        name.set(text.as_ptr())
    }

    fn cuGetErrorString(status: i32, text: Out<*const u8>) {
        let name = Status(status).cuda_name().ok_or(Status::INVALID_VALUE)?;
        text.set(name.as_ptr())
    }

    fn cuDevicePrimaryCtxRetain(context: Out<u64>, ordinal: i32) {
        let driver = driver()?;
        let device = device(driver, ordinal)?;
        driver.retain(device)?;
        context.set(context_of(device))
    }

    fn cuDevicePrimaryCtxRelease_v2(ordinal: i32) {
        let driver = driver()?;
        driver.release(device(driver, ordinal)?)
    }

    fn cuDevicePrimaryCtxGetState(ordinal: i32, flags: Out<u32>, is_active: Out<i32>) {
        let driver = driver()?;
        let retained = driver.retained(device(driver, ordinal)?)?;
        flags.set(0)?;
        is_active.set(i32::from(retained != 0))
    }

    fn cuCtxGetCurrent(context: Out<u64>) {
        driver()?;
        context.set(top()?.map_or(0, context_of))
    }

    fn cuCtxSetCurrent(context: u64) {
        let device = device_of(driver()?, context)?;
        on_stack(|stack| {
            stack.pop();
            if device.is_some() {
                stack.push(device);
            }
            Ok(())
        })
    }

    fn cuCtxPushCurrent_v2(context: u64) {
        let device = device_of(driver()?, context)?;
        on_stack(|stack| {
            stack.push(device);
            Ok(())
        })
    }

    fn cuCtxPopCurrent_v2(context: Out<u64>) {
        driver()?;
        let popped = on_stack(|stack| stack.pop().ok_or(Status::INVALID_CONTEXT))?;
        context.set_if_wanted(popped.map_or(0, context_of));
        Ok(())
    }

    fn cuCtxGetDevice(ordinal: Out<i32>) {
        driver()?;
        let device = top()?.ok_or(Status::INVALID_CONTEXT)?;
        ordinal.set(device.cast_signed())
    }

    fn cuCtxSynchronize() {
        let (driver, device) = current()?;
        driver.synchronize_device(device)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(PRIORITY_GREATEST);
        Ok(())
    }

    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) {
        let (driver, device) = current()?;
        let peer = device_of(driver, peer)?.ok_or(Status::INVALID_CONTEXT)?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        driver.enable_peer(device, peer)
    }
}

/// CUDA 12.8, of which everything that is used is part.
const VERSION: i32 = 12080;
/// Where no memory is mapped.
const CONTEXT_BASE: u64 = 0x5e10_0000_0000_0000;
/// Contexts look like addresses of structs.
const CONTEXT_STEP: u64 = 0x100;
/// Priorities from 0 to -5, as cards have them.
const PRIORITY_GREATEST: i32 = -5;
