//! The engine's own thread: the control plane, what is due by the clock, and the fabrics while no
//! caller drives them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use stepmesh_transport::doorbell::{DESCRIPTORS_MAX, SleepMode};

use super::{Background, Engine, Machine, State, with_fds};
use crate::error::Error;

/// What the background thread does beside the fabrics.
pub(crate) trait ControlPlane<M>: Send + 'static {
    /// Moves the control plane and passes its news to the machine.
    fn progress(&mut self, engine: &Engine<M>);
    /// A descriptor that becomes readable when there is something to do.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;
    /// Leaves the mesh.
    fn leave(&mut self);
}

impl<M: Machine> Engine<M> {
    /// Starts the background thread.
    pub(crate) fn start(self: &Arc<Self>, control: impl ControlPlane<M>) -> Result<(), Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let kick = rustix::event::eventfd(0, flags)
            .map_err(|error| Error::system("an engine", error.into()))?;
        let kick = Arc::new(kick);
        let engine = Arc::clone(self);
        let kicked = Arc::clone(&kick);
        let thread = std::thread::Builder::new()
            .name(format!("stepmesh-{}", self.what))
            .spawn(move || engine.run(control, &kicked))
            .map_err(|error| Error::system("an engine's thread", error))?;
        *self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Background { thread, kick });
        Ok(())
    }

    /// Wakes the background thread, whatever it does.
    pub(crate) fn kick(&self) {
        let background = self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(background) = &*background {
            // A full counter is a kick as well.
            rustix::io::write(&background.kick, &1u64.to_ne_bytes()).ok();
        }
    }

    /// Ends the background thread and waits for it, bounded.
    pub(crate) fn shut_down(&self) {
        self.close();
        let background = self
            .background
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(background) = background else { return };
        rustix::io::write(&background.kick, &1u64.to_ne_bytes()).ok();
        let deadline = Instant::now() + self.options.close;
        while !background.thread.is_finished() {
            if Instant::now() >= deadline {
                tracing::warn!(
                    what = self.what,
                    "its thread did not end in time (timeouts.close_ms)"
                );
                return;
            }
            std::thread::sleep(JOIN_POLL);
        }
        if background.thread.join().is_err() {
            tracing::error!(what = self.what, "its thread panicked");
        }
    }

    fn run(&self, mut control: impl ControlPlane<M>, kick: &OwnedFd) {
        let mut drivers_seen = self.drivers.load(Ordering::Relaxed);
        let mut tick_at = Instant::now();
        let tick_every = self.tick_every();
        while !self.closing.load(Ordering::Acquire) {
            control.progress(self);
            if Instant::now() >= tick_at {
                let mut state = self.lock();
                let State { machine, fabrics } = &mut *state;
                machine.tick(fabrics);
                self.tell_waiters(&mut state);
                tick_at = Instant::now() + tick_every;
            }
            let drivers = self.drivers.load(Ordering::Relaxed);
            let somebody_drives = drivers != drivers_seen || self.drivers_now() > 0;
            drivers_seen = drivers;
            if somebody_drives && self.futures.load(Ordering::Relaxed) == 0 {
                self.look_on(control.wait_fd(), kick, tick_every);
            } else {
                self.drive(control.wait_fd(), kick, tick_every);
            }
            empty(kick);
        }
        let mut state = self.lock();
        let State { machine, fabrics } = &mut *state;
        machine.goodbye(fabrics);
        machine.wake_all();
        drop(state);
        control.leave();
    }

    /// Polls the fabrics, and sleeps until they or the control plane have something.
    fn drive(&self, control: Option<BorrowedFd<'_>>, kick: &OwnedFd, longest: Duration) {
        let ticket = self.doorbell.prepare(SleepMode::Descriptors);
        let pending = {
            let mut state = self.lock();
            let State { machine, fabrics } = &mut *state;
            let may_sleep = fabrics.prepare_wait();
            let happened = machine.progress(fabrics);
            let pending = machine.has_pending();
            self.tell_waiters(&mut state);
            if happened || !may_sleep {
                return;
            }
            pending
        };
        let longest = if pending {
            longest.min(PENDING_SLEEP_MAX)
        } else {
            longest
        };
        let fds = self.wait_fds.iter().chain(&self.quiet_fds).map(AsFd::as_fd);
        let fds = fds.chain(control).chain([kick.as_fd()]);
        if let Err(error) = with_fds(fds, |fds| ticket.sleep(fds, longest)) {
            tracing::error!(%error, "the engine cannot sleep on its descriptors");
            std::thread::sleep(PENDING_SLEEP_MAX);
        }
    }

    /// Leaves the fabrics to those who drive, but for connections and deaths on this host, which
    /// a thread that sleeps on the doorbell does not hear of.
    fn look_on(&self, control: Option<BorrowedFd<'_>>, kick: &OwnedFd, longest: Duration) {
        let quiet = self.quiet_fds.iter().map(AsFd::as_fd);
        let fds = quiet.chain(control).chain([kick.as_fd()]);
        let quiet_is_readable = with_fds(fds, |fds| {
            let first = wait_readable(fds, longest);
            first.is_some_and(|first| first < self.quiet_fds.len())
        });
        if quiet_is_readable {
            let mut state = self.lock();
            let State { machine, fabrics } = &mut *state;
            machine.progress(fabrics);
            self.tell_waiters(&mut state);
        }
    }

    fn tell_waiters(&self, state: &mut State<M>) {
        if state.machine.take_news() && self.drivers_now() > 0 {
            self.ring();
        }
    }

    fn tick_every(&self) -> Duration {
        (self.options.heartbeat / 4).clamp(TICK_MIN, TICK_MAX)
    }
}

/// Sleeps until a descriptor is readable or the time is up. Returns the first that is readable.
fn wait_readable(fds: &[BorrowedFd<'_>], longest: Duration) -> Option<usize> {
    let first = *fds.first()?;
    let mut list: [PollFd<'_>; DESCRIPTORS_MAX] = std::array::from_fn(|index| {
        let fd = fds.get(index).copied().unwrap_or(first);
        PollFd::from_borrowed_fd(fd, PollFlags::IN)
    });
    let poll = list.get_mut(..fds.len())?;
    let timeout = Timespec::try_from(longest).ok();
    match rustix::event::poll(poll, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => {
            tracing::error!(%error, "the engine cannot poll its descriptors");
            std::thread::sleep(longest);
        }
    }
    poll.iter().position(|fd| !fd.revents().is_empty())
}

fn empty(kick: &OwnedFd) {
    let mut count = [0u8; 8];
    // Nothing to read is the usual case.
    rustix::io::read(kick, &mut count).ok();
}

/// Bounds of how often the clock is looked at: often enough to notice a dead process on this host
/// within its bound, rarely enough not to be seen in a profile.
const TICK_MIN: Duration = Duration::from_millis(2);
const TICK_MAX: Duration = Duration::from_millis(20);

/// Longest sleep while something waits that nobody announces.
const PENDING_SLEEP_MAX: Duration = Duration::from_millis(1);

/// How often the end of the thread is looked for.
const JOIN_POLL: Duration = Duration::from_millis(1);
