//! Initialisation, versions, errors, and the current device and last error of each thread.

use std::cell::Cell;

use stepmesh_simdriver::{Answer, Driver, Out, Status, api, driver, init};

thread_local! {
    static DEVICE: Cell<u32> = const { Cell::new(0) };
    static LAST_ERROR: Cell<i32> = const { Cell::new(0) };
}

/// The driver, initialised as HIP does with the first call, and the current device.
pub(crate) fn current() -> Answer<(&'static Driver, u32)> {
    let device = DEVICE
        .try_with(Cell::get)
        .map_err(|_| Status::DEINITIALIZED)?;
    Ok((hip()?, device))
}

pub(crate) fn hip() -> Answer<&'static Driver> {
    init("HIP_VISIBLE_DEVICES")?;
    driver()
}

/// The device of an `int`.
pub(crate) fn device(driver: &Driver, device: i32) -> Answer<u32> {
    let device = u32::try_from(device).map_err(|_| Status::INVALID_DEVICE)?;
    if device < driver.device_count() {
        Ok(device)
    } else {
        Err(Status::INVALID_DEVICE)
    }
}

/// Does the work of a function and remembers its failure for the thread.
pub(crate) fn remembered(work: impl FnOnce() -> crate::Answer) -> crate::Answer {
    let done = work();
    if let Err(status) = done
        && status != Status::NOT_READY
    {
        // A thread that ends asks no more.
        let _ = LAST_ERROR.try_with(|last| last.set(status.0));
    }
    done
}

fn last_error(takes: bool) -> i32 {
    let take = |last: &Cell<i32>| if takes { last.take() } else { last.get() };
    LAST_ERROR.try_with(take).unwrap_or(0)
}

/// Functions of HIP: each failure becomes the thread's last error.
macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        stepmesh_simdriver::api! {
            $(fn $name($($arg: $type),*) {
                $crate::current::remembered(|| $body)
            })*
        }
    };
}
pub(crate) use functions;

functions! {
    fn hipInit(flags: u32) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        hip().map(|_| ())
    }

    fn hipDriverGetVersion(version: Out<i32>) {
        version.set(VERSION)
    }

    fn hipRuntimeGetVersion(version: Out<i32>) {
        version.set(VERSION)
    }

    fn hipSetDevice(ordinal: i32) {
        let device = device(hip()?, ordinal)?;
        let set = DEVICE.try_with(|current| current.set(device));
        set.map_err(|_| Status::DEINITIALIZED)
    }

    fn hipGetDevice(ordinal: Out<i32>) {
        let (_, device) = current()?;
        ordinal.set(device.cast_signed())
    }

    fn hipDeviceSynchronize() {
        let (driver, device) = current()?;
        driver.synchronize_device(device)
    }

    fn hipDeviceEnablePeerAccess(peer: i32, flags: u32) {
        let (driver, current) = current()?;
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        driver.enable_peer(current, device(driver, peer)?)
    }
}

api! {
    fn hipGetLastError() {
        match last_error(true) {
            0 => Ok(()),
            status => Err(Status(status)),
        }
    }

    fn hipPeekAtLastError() {
        match last_error(false) {
            0 => Ok(()),
            status => Err(Status(status)),
        }
    }
}

stepmesh_simdriver::text_api! {
    fn hipGetErrorName(status: i32) {
        Status(status).hip_name().unwrap_or("hipErrorUnknown\0")
    }

    fn hipGetErrorString(status: i32) {
        Status(status).hip_name().unwrap_or("hipErrorUnknown\0")
    }
}

/// HIP 6.2, of which everything that is used is part but one function of HSA.
const VERSION: i32 = 60_200_000;
