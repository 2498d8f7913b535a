//! The engine: drives a role's state machine and its fabrics, and makes threads wait for them.
//!
//! Whoever waits drives: a thread in `wait` or `get_batch` polls the fabrics itself, so that no
//! hand-over between threads lies on the path of a request. While nobody waits, a thread of the
//! engine's own drives, which also takes care of everything that is due by the clock.

mod background;
mod pace;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stepmesh_core::config::PollMode;
use stepmesh_transport::doorbell::{DESCRIPTORS_MAX, Doorbell, SleepMode};
use stepmesh_transport::fabric::FabricKind;

use crate::error::Error;
use crate::protocol::fabrics::Fabrics;

pub(crate) use background::ControlPlane;
use pace::{Pace, SpinBudget, Step};

/// A role's state machine, as the engine sees it.
pub(crate) trait Machine: fmt::Debug + Send + 'static {
    /// Polls once and does what has become possible. True if anything happened.
    fn progress(&mut self, fabrics: &mut Fabrics) -> bool;
    /// Does what is due by the clock.
    fn tick(&mut self, fabrics: &mut Fabrics);
    /// Whether something waits that no message announces.
    fn has_pending(&self) -> bool;
    /// Whether a thread other than the caller's may have been waiting for what happened.
    fn take_news(&mut self) -> bool;
    /// Tells the peers that this end leaves.
    fn goodbye(&mut self, fabrics: &mut Fabrics);
    /// Wakes every future: the engine was closed.
    fn wake_all(&mut self);
}

/// What is behind the engine's lock.
#[derive(Debug)]
pub(crate) struct State<M> {
    pub(crate) machine: M,
    pub(crate) fabrics: Fabrics,
}

/// The engine of one worker or server.
#[derive(Debug)]
pub(crate) struct Engine<M> {
    state: Mutex<State<M>>,
    doorbell: Doorbell,
    /// Descriptors of the fabrics that announce their messages by them.
    wait_fds: Vec<OwnedFd>,
    /// Descriptors of the fabrics that ring the doorbell for messages, and announce only
    /// connections and deaths by these.
    quiet_fds: Vec<OwnedFd>,
    options: EngineOptions,
    spin: SpinBudget,
    /// What this end is, for messages.
    what: &'static str,
    closing: AtomicBool,
    /// Threads in a wait right now (low half), and how often one began (high half), by which the
    /// background thread sees that somebody drives.
    drivers: AtomicU64,
    /// Futures that nobody but the background thread drives.
    futures: AtomicU32,
    background: Mutex<Option<Background>>,
}

#[derive(Debug)]
struct Background {
    thread: JoinHandle<()>,
    kick: Arc<OwnedFd>,
}

/// How an engine waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineOptions {
    pub(crate) poll: PollMode,
    pub(crate) spin: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) close: Duration,
}

/// Why a wait ended without what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The bound was reached.
    TimedOut,
    /// The engine was closed.
    Closed,
}

impl<M: Machine> Engine<M> {
    pub(crate) fn new(
        state: State<M>,
        doorbell: Doorbell,
        options: EngineOptions,
        what: &'static str,
    ) -> Result<Arc<Self>, Error> {
        let (mut wait_fds, mut quiet_fds) = (Vec::new(), Vec::new());
        for fabric in state.fabrics.iter() {
            let Some(fd) = fabric.wait_fd() else { continue };
            let fd = fd
                .try_clone_to_owned()
                .map_err(|error| Error::system("an engine", error))?;
            match fabric.kind() {
                FabricKind::Shm => quiet_fds.push(fd),
                _ => wait_fds.push(fd),
            }
        }
        Ok(Arc::new(Self {
            state: Mutex::new(state),
            doorbell,
            wait_fds,
            quiet_fds,
            options,
            spin: SpinBudget::new(options.spin, host_cores()),
            what,
            closing: AtomicBool::new(false),
            drivers: AtomicU64::new(0),
            futures: AtomicU32::new(0),
            background: Mutex::new(None),
        }))
    }

    /// The state, locked. A thread that panicked while it held the lock left the state between
    /// two calls of the machine at worst, never with a broken type, so the lock is taken anyway.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails once the engine was closed.
    pub(crate) fn check_open(&self, operation: &'static str) -> Result<(), Error> {
        if self.closing.load(Ordering::Acquire) {
            return Err(self.closed(operation));
        }
        Ok(())
    }

    pub(crate) fn closed(&self, operation: &'static str) -> Error {
        Error::Closed {
            operation,
            what: self.what,
        }
    }

    /// Drives until `check` gives a value, `timeout` has passed or the engine is closed.
    pub(crate) fn wait<T>(
        &self,
        timeout: Duration,
        mut check: impl FnMut(&mut State<M>) -> Option<T>,
    ) -> Result<T, Ended> {
        let mut pace = Pace::new(self.options.poll, self.spin.spin(), timeout);
        let _driver = Driver::new(&self.drivers);
        loop {
            if let Some(value) = self.burst(&mut pace, &mut check) {
                if pace.has_spun() {
                    self.spin.hit();
                }
                return Ok(value);
            }
            if self.closing.load(Ordering::Acquire) {
                return Err(Ended::Closed);
            }
            match pace.step() {
                Step::Spin => {}
                Step::Yield => std::thread::yield_now(),
                Step::TimedOut => return Err(Ended::TimedOut),
                Step::Sleep(longest) => {
                    if pace.has_spun() {
                        self.spin.missed();
                    }
                    let start = Instant::now();
                    let value = self.sleep(longest, &mut check);
                    self.spin.slept(start.elapsed());
                    if let Some(value) = value {
                        return Ok(value);
                    }
                }
            }
        }
    }

    /// A future was polled: from now on the background thread drives for it.
    pub(crate) fn add_future(&self) {
        self.futures.fetch_add(1, Ordering::Relaxed);
        self.kick();
    }

    /// A future is done or gone.
    pub(crate) fn remove_future(&self) {
        self.futures.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes every thread that sleeps in this engine.
    pub(crate) fn ring(&self) {
        self.doorbell.ring();
    }

    /// Makes every wait end, now and from here on. Returns at once; [`shut_down`](Self::shut_down)
    /// finishes.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.doorbell.ring();
        self.kick();
    }

    /// A few polls under one lock.
    fn burst<T>(
        &self,
        pace: &mut Pace,
        check: &mut impl FnMut(&mut State<M>) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.lock();
        for _ in 0..BURST_LEN {
            if let Some(value) = check(&mut state) {
                self.tell_others(&mut state);
                return Some(value);
            }
            let State { machine, fabrics } = &mut *state;
            if machine.progress(fabrics) {
                pace.something_happened();
            } else {
                std::hint::spin_loop();
            }
        }
        self.tell_others(&mut state);
        None
    }

    /// What this thread's poll brought may be what another thread sleeps for.
    fn tell_others(&self, state: &mut State<M>) {
        if state.machine.take_news() && self.drivers_now() > 1 {
            self.doorbell.ring();
        }
    }

    fn sleep<T>(
        &self,
        longest: Duration,
        check: &mut impl FnMut(&mut State<M>) -> Option<T>,
    ) -> Option<T> {
        let mode = self.sleep_mode(&self.lock());
        let ticket = self.doorbell.prepare(mode);
        let pending = {
            let mut state = self.lock();
            let State { machine, fabrics } = &mut *state;
            // Before the last look: what comes after it wakes the sleeper.
            let may_sleep = mode == SleepMode::Futex || fabrics.prepare_wait();
            let happened = machine.progress(fabrics);
            if let Some(value) = check(&mut state) {
                self.tell_others(&mut state);
                return Some(value);
            }
            if happened || !may_sleep {
                return None;
            }
            self.spin.peers_are(state.fabrics.local_peers());
            state.machine.has_pending()
        };
        let longest = if pending {
            longest.min(PENDING_SLEEP_MAX)
        } else {
            longest
        };
        let fds = self.wait_fds.iter().map(AsFd::as_fd);
        let slept = with_fds(fds, |fds| ticket.sleep(fds, longest));
        if let Err(error) = slept {
            tracing::error!(%error, "the engine cannot sleep; it goes on by yielding");
            std::thread::yield_now();
        }
        None
    }

    fn drivers_now(&self) -> u64 {
        self.drivers.load(Ordering::Relaxed) & u64::from(u32::MAX)
    }

    /// A thread whose peers are all on this host sleeps on the doorbell alone.
    fn sleep_mode(&self, state: &State<M>) -> SleepMode {
        if state.fabrics.only_doorbell() {
            SleepMode::Futex
        } else {
            SleepMode::Descriptors
        }
    }
}

/// The cores of this host, not those that this process is pinned to: its peers have theirs.
fn host_cores() -> usize {
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN);
    let online = online
        .ok()
        .flatten()
        .and_then(|count| usize::try_from(count).ok());
    online.unwrap_or(1)
}

/// Calls `with` with descriptors as a slice, without allocating.
fn with_fds<'a, R>(
    mut fds: impl Iterator<Item = BorrowedFd<'a>>,
    with: impl FnOnce(&[BorrowedFd<'a>]) -> R,
) -> R {
    let Some(first) = fds.next() else {
        return with(&[]);
    };
    let mut list = [first; DESCRIPTORS_MAX];
    let mut len = 1;
    for (place, fd) in list.iter_mut().skip(1).zip(fds) {
        *place = fd;
        len += 1;
    }
    with(list.get(..len).unwrap_or_default())
}

/// A thread in a wait.
struct Driver<'a>(&'a AtomicU64);

impl<'a> Driver<'a> {
    fn new(drivers: &'a AtomicU64) -> Self {
        drivers.fetch_add(1 + (1 << 32), Ordering::Relaxed);
        Self(drivers)
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Polls under one lock: enough that taking the lock does not count, few enough that another
/// thread gets in within a microsecond or two.
const BURST_LEN: u32 = 16;

/// Longest sleep while something waits that nobody announces, such as an event of the backend.
const PENDING_SLEEP_MAX: Duration = Duration::from_micros(50);
