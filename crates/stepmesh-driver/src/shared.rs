//! What all parts of an instance share: the driver, its devices, and the way in which a device is
//! entered for some calls and left again. What the calls are for lives in the other modules.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use stepmesh_plugin::abi::error::{SM_ERROR_DEVICE_LOST, SM_ERROR_PEER_FATAL, SM_ERROR_STICKY};
use stepmesh_plugin::{Error, Host, Invalidation, LogLevel, Result};

use crate::compute::Lanes;
use crate::memory::Table;
use crate::words::Words;
use crate::{Answer, Driver, Facts, Failure, Kind, host_funcs};

/// What all parts of an instance share.
#[derive(Debug)]
pub(crate) struct Shared<D: Driver> {
    pub(crate) host: Host,
    pub(crate) driver: D,
    pub(crate) devices: Vec<Device<D>>,
    pub(crate) table: Table,
    pub(crate) invalidation: Invalidation,
    pub(crate) words: Words,
    /// Streams of this instance, and whose they are.
    pub(crate) streams: RwLock<BTreeMap<u64, u32>>,
    /// Names the instance among those of the process.
    pub(crate) serial: u64,
}

/// A device of an instance.
#[derive(Debug)]
pub(crate) struct Device<D: Driver> {
    pub(crate) facts: Facts,
    context: OnceLock<D::Context>,
    /// Held while the context is made.
    making: Mutex<()>,
    /// Why it is lost, once it is.
    lost: OnceLock<Error>,
    /// Peers whose memory it may map.
    peers: Mutex<BTreeSet<u32>>,
    /// A stream for copies that the caller waits for; 0 until it is needed.
    pub(crate) copies: Mutex<u64>,
    /// What executions of graphs share, by stream.
    pub(crate) lanes: Lanes<D>,
}

impl<D: Driver> Device<D> {
    pub(crate) fn new(facts: Facts) -> Self {
        Self {
            facts,
            context: OnceLock::new(),
            making: Mutex::new(()),
            lost: OnceLock::new(),
            peers: Mutex::default(),
            copies: Mutex::new(0),
            lanes: Lanes::default(),
        }
    }

    /// Whether a fault broke it.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Refuses a lost device.
    fn check(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// The context, if one was made.
    pub(crate) fn made_context(&self) -> Option<D::Context> {
        self.context.get().copied()
    }
}

impl<D: Driver> Shared<D> {
    pub(crate) fn device(&self, device: u32) -> Result<&Device<D>> {
        let found = usize::try_from(device)
            .ok()
            .and_then(|idx| self.devices.get(idx));
        found.ok_or_else(|| Error::invalid_argument(format!("device {device} does not exist")))
    }

    /// Does work on an entered device, and leaves it again in any case. `what` names the work in the
    /// error, such as `allocate 10 bytes on device 0`.
    pub(crate) fn on<T>(
        &self,
        device: u32,
        what: impl Fn() -> String,
        work: impl FnOnce(&D) -> Answer<T>,
    ) -> Result<T> {
        self.enter(device, &what, Capturing::AsIs, work)
    }

    /// The same for work that does not concern a stream that is captured, and that the driver would
    /// else refuse while any is.
    pub(crate) fn on_relaxed<T>(
        &self,
        device: u32,
        what: impl Fn() -> String,
        work: impl FnOnce(&D) -> Answer<T>,
    ) -> Result<T> {
        self.enter(device, &what, Capturing::Relaxed, work)
    }

    /// The same for giving back and destroying: on a lost device, or when the driver ended before us,
    /// there is nothing left to give back.
    pub(crate) fn on_ending(
        &self,
        device: u32,
        what: impl Fn() -> String,
        work: impl FnOnce(&D) -> Answer<()>,
    ) -> Result<()> {
        if self.device(device)?.is_lost() || self.host.is_process_exiting() {
            return Ok(());
        }
        self.enter(device, &what, Capturing::Relaxed, |driver| {
            match work(driver) {
                Err(failure) if matches!(failure.kind::<D>(), Kind::Ended | Kind::Lost) => Ok(()),
                answer => answer,
            }
        })
    }

    fn enter<T>(
        &self,
        device: u32,
        what: &impl Fn() -> String,
        capturing: Capturing,
        work: impl FnOnce(&D) -> Answer<T>,
    ) -> Result<T> {
        self.device(device)?.check()?;
        let answer = self
            .context(device)
            .and_then(|context| Entered::new(self, device, context, capturing))
            .and_then(|_entered| work(&self.driver));
        answer.map_err(|failure| self.explain(device, &what(), failure))
    }

    /// The context of a device, made when it is first needed.
    pub(crate) fn context(&self, device: u32) -> Answer<D::Context> {
        let Ok(state) = self.device(device) else {
            // Ordinals are checked before any method runs.
            return self.driver.retain(device);
        };
        if let Some(context) = state.context.get() {
            return Ok(*context);
        }
        let _one_at_a_time = lock(&state.making);
        if let Some(context) = state.context.get() {
            return Ok(*context);
        }
        let context = self.driver.retain(device)?;
        Ok(*state.context.get_or_init(|| context))
    }

    /// The error of a failure on a device, which is lost from here on if that is what it means.
    #[cold]
    pub(crate) fn explain(&self, device: u32, what: &str, failure: Failure) -> Error {
        let error = failure.error(&self.driver, what);
        if failure.kind::<D>() == Kind::Lost {
            self.lose(device, &failure.text(&self.driver), failure.native_code());
        }
        error
    }

    fn lose(&self, device: u32, why: &str, native_code: i64) {
        let Ok(state) = self.device(device) else {
            return;
        };
        let title = D::TITLE;
        let error = Error::new(
            stepmesh_plugin::abi::Code::Unavailable,
            format!(
                "{title} device {device} is lost: {why}; the process must be started anew to use it \
                 again"
            ),
        )
        .with_flags(SM_ERROR_DEVICE_LOST | SM_ERROR_STICKY | SM_ERROR_PEER_FATAL)
        .with_native_code(native_code);
        if state.lost.set(error.clone()).is_ok() {
            self.log(LogLevel::Error, format_args!("{error}"));
            self.host.report_async_error(device, &error);
            // Work that failed calls no function of the host's; each must be called once all the same.
            host_funcs::run_all_of(self.serial, Some(device));
        }
    }

    /// Lets two devices reach each other's memory directly where they can. A copy works without it,
    /// by a detour, so that a refusal is only logged.
    pub(crate) fn connect(&self, device: u32, peer: u32) -> Result<()> {
        let state = self.device(device)?;
        if device == peer || lock(&state.peers).contains(&peer) {
            return Ok(());
        }
        let peer_context = self
            .context(peer)
            .map_err(|failure| self.explain(peer, &format!("get device {peer} ready"), failure))?;
        let enabled = self.enter(
            device,
            &|| format!("let device {device} reach the memory of device {peer}"),
            Capturing::Relaxed,
            |driver| {
                if !driver.can_access_peer(device, peer)? {
                    return Ok(());
                }
                match driver.enable_peer(peer, peer_context) {
                    Err(failure) if failure.kind::<D>() == Kind::AlreadyEnabled => Ok(()),
                    answer => answer,
                }
            },
        );
        if let Err(error) = enabled {
            self.log(LogLevel::Warn, format_args!("{error}"));
        }
        lock(&state.peers).insert(peer);
        Ok(())
    }

    /// A device that was used and is not lost.
    pub(crate) fn ready_device(&self) -> Option<u32> {
        let ready = |state: &Device<D>| state.made_context().is_some() && !state.is_lost();
        let idx = self.devices.iter().position(ready)?;
        u32::try_from(idx).ok()
    }

    pub(crate) fn log(&self, level: LogLevel, message: std::fmt::Arguments<'_>) {
        self.host.log(level, "stepmesh::driver", message);
    }
}

/// What the driver thinks of calls while a stream is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capturing {
    /// What the thread has set.
    AsIs,
    /// That they do not concern the capture.
    Relaxed,
}

/// An entered device; dropping it leaves it.
struct Entered<'a, D: Driver> {
    shared: &'a Shared<D>,
    previous: Option<D::Previous>,
    capture: Option<u32>,
}

impl<'a, D: Driver> Entered<'a, D> {
    fn new(
        shared: &'a Shared<D>,
        device: u32,
        context: D::Context,
        capturing: Capturing,
    ) -> Answer<Self> {
        let previous = shared.driver.enter(device, context)?;
        let mut entered = Self {
            shared,
            previous: Some(previous),
            capture: None,
        };
        if capturing == Capturing::Relaxed {
            entered.capture = shared.driver.relax_capture()?;
        }
        Ok(entered)
    }
}

impl<D: Driver> Drop for Entered<'_, D> {
    fn drop(&mut self) {
        let driver = &self.shared.driver;
        let restored = self.capture.take().map(|mode| driver.restore_capture(mode));
        let left = self.previous.take().map(|previous| driver.leave(previous));
        for failure in [restored, left]
            .into_iter()
            .flatten()
            .filter_map(Answer::err)
        {
            self.shared.log(
                LogLevel::Error,
                format_args!(
                    "cannot give the caller its device back: {}",
                    failure.text(driver)
                ),
            );
        }
    }
}

/// Locks what is whole whatever panicked meanwhile: each change under these locks is one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
