//! The doorbell of an engine: how peers on the same host, and other threads of this process, wake
//! a thread that sleeps because nothing was happening. It carries no data.
//!
//! A doorbell is a page that the peers on this host map, and an eventfd that they hold. Whoever
//! publishes something rings: one fence and one load of a line that stays in every cache while
//! nobody sleeps. Whoever wants to sleep announces it, looks once more, and then sleeps; the two
//! fences (between publish and load there, between announce and look here) make sure that one of
//! the two sees the other.
//!
//! A ring takes the announcement away and wakes everybody who made it, so that of many peers that
//! ring before the sleeper has run only the first pays for a system call. Whoever was woken looks
//! at everything, and announces anew before it sleeps again.

use std::array;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::futex;

use crate::error::Error;
use crate::segment::{self, Segment};

/// Wakes the threads of one engine. Clones are the same doorbell; all methods may be called from
/// any thread.
#[derive(Clone, Debug)]
pub struct Doorbell {
    inner: Arc<Inner>,
}

/// How a thread is going to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepMode {
    /// On the doorbell alone; the cheapest to wake.
    Futex,
    /// On the doorbell and on descriptors.
    Descriptors,
}

/// An announced sleeper. Look once more for something to do, then [`sleep`](Ticket::sleep);
/// dropping the ticket instead is harmless.
#[derive(Debug)]
#[must_use = "a ticket is there to sleep on"]
pub struct Ticket<'a> {
    inner: &'a Inner,
    mode: SleepMode,
    sequence: u32,
}

impl Doorbell {
    /// Makes a doorbell.
    ///
    /// # Errors
    /// [`Error::Doorbell`] when the system has no descriptor or page left for it.
    pub fn new() -> Result<Self, Error> {
        Self::create().map_err(|source| Error::Doorbell {
            operation: "creating it",
            source,
        })
    }

    /// Announces a sleeper. Whatever is published before the thread looks once more is seen by
    /// that look; whatever is published later rings.
    pub fn prepare(&self, mode: SleepMode) -> Ticket<'_> {
        let inner = &*self.inner;
        // Before the announcement: a ring that takes it away changes the sequence afterwards.
        let sequence = inner.page.sequence().load(Ordering::SeqCst);
        inner.sleepers.fetch_add(mode.unit(), Ordering::SeqCst);
        inner.page.sleepers().fetch_or(mode.bit(), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Ticket {
            inner,
            mode,
            sequence,
        }
    }

    /// Wakes every thread that sleeps on this doorbell. Without a sleeper it costs one fence and
    /// one load.
    pub fn ring(&self) {
        self.inner.page.ring(&self.inner.eventfd);
    }

    /// What a peer needs for its [`RemoteDoorbell`]: the page and the eventfd.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.inner.memfd.as_fd(), self.inner.eventfd.as_fd()]
    }

    fn create() -> io::Result<Self> {
        let memfd = segment::create("stepmesh-doorbell", None, segment::PAGE_LEN_BYTES)?;
        let page = Page::map(&memfd)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let eventfd = rustix::event::eventfd(0, flags)?;
        Ok(Self {
            inner: Arc::new(Inner {
                page,
                memfd,
                eventfd,
                sleepers: AtomicU64::new(0),
            }),
        })
    }
}

impl Ticket<'_> {
    /// Sleeps until the doorbell rings, a descriptor is readable, or `timeout` has passed. It may
    /// also return early for no reason. `descriptors` (at most [`DESCRIPTORS_MAX`]) are watched in
    /// [`SleepMode::Descriptors`] only.
    ///
    /// # Errors
    /// [`Error::Doorbell`] when the system refuses to wait; sleep a little by other means then.
    pub fn sleep(self, descriptors: &[BorrowedFd<'_>], timeout: Duration) -> Result<(), Error> {
        let slept = match self.mode {
            SleepMode::Futex => self.sleep_futex(timeout),
            SleepMode::Descriptors => self.sleep_descriptors(descriptors, timeout),
        };
        slept.map_err(|source| Error::Doorbell {
            operation: "sleeping",
            source,
        })
    }

    fn sleep_futex(self, timeout: Duration) -> io::Result<()> {
        let word = self.inner.page.sequence();
        let timeout = timespec(timeout);
        // Not the private kind: peers in other processes wake this word.
        match futex::wait(word, futex::Flags::empty(), self.sequence, Some(&timeout)) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn sleep_descriptors(
        self,
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> io::Result<()> {
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("more than {DESCRIPTORS_MAX} descriptors"),
            ));
        }
        let inner = self.inner;
        let mut watched: [PollFd<'_>; DESCRIPTORS_MAX + 1] = array::from_fn(|idx| {
            let other = idx.checked_sub(1).and_then(|idx| descriptors.get(idx));
            let fd = other.copied().unwrap_or_else(|| inner.eventfd.as_fd());
            PollFd::from_borrowed_fd(fd, PollFlags::IN)
        });
        let watched = &mut watched[..=descriptors.len()];
        let woken = rustix::event::poll(watched, Some(&timespec(timeout)));
        drop(self);
        match woken {
            Ok(_) if !watched[0].revents().is_empty() => inner.quiet(),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        // The announcement stays: it may be another thread's as well. At worst it costs one peer
        // one system call.
        let sleepers = &self.inner.sleepers;
        sleepers.fetch_sub(self.mode.unit(), Ordering::SeqCst);
    }
}

impl SleepMode {
    /// One sleeper of this mode in the word that counts those of this process.
    fn unit(self) -> u64 {
        match self {
            Self::Futex => 1,
            Self::Descriptors => 1 << 32,
        }
    }

    /// The bit that announces sleepers of this mode to peers.
    fn bit(self) -> u64 {
        match self {
            Self::Futex => 1,
            Self::Descriptors => 2,
        }
    }
}

/// The doorbell of another process, as its peers hold it.
#[derive(Debug)]
pub(crate) struct RemoteDoorbell {
    page: Page,
    eventfd: OwnedFd,
}

impl RemoteDoorbell {
    /// Takes a peer's doorbell after checking that neither part can harm us: the page cannot shrink
    /// under the mapping, and writing to the other cannot block or raise a signal.
    pub(crate) fn from_descriptors(memfd: OwnedFd, eventfd: OwnedFd) -> io::Result<Self> {
        if !segment::is_sealed(&memfd) {
            return Err(segment::invalid("the doorbell's page is not sealed"));
        }
        let link = fs::read_link(format!("/proc/self/fd/{}", eventfd.as_raw_fd()))?;
        if link.as_os_str() != "anon_inode:[eventfd]" {
            return Err(segment::invalid("the doorbell has no eventfd"));
        }
        if !rustix::fs::fcntl_getfl(&eventfd)?.contains(OFlags::NONBLOCK) {
            return Err(segment::invalid("the doorbell's eventfd may block"));
        }
        let page = Page::map(&memfd)?;
        Ok(Self { page, eventfd })
    }

    /// Wakes every thread that sleeps on the peer's doorbell.
    #[inline]
    pub(crate) fn ring(&self) {
        self.page.ring(&self.eventfd);
    }
}

#[derive(Debug)]
struct Inner {
    page: Page,
    memfd: OwnedFd,
    eventfd: OwnedFd,
    /// How many threads of this process sleep, or are about to: on the futex in the lower half, on
    /// descriptors in the upper one.
    sleepers: AtomicU64,
}

impl Inner {
    /// Empties the eventfd after it woke this thread, and fills it again for others: the first to
    /// wake must not take the ring away from those that have yet to look.
    fn quiet(&self) -> io::Result<()> {
        let mut count = [0; 8];
        match rustix::io::read(&self.eventfd, &mut count) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) >> 32 != 0 {
            write_eventfd(&self.eventfd);
        }
        Ok(())
    }
}

/// The shared page. Its contents are a hint: a peer that scribbles on it can cost us a wake-up,
/// which the timeout of the sleep bounds, and no more.
#[derive(Debug)]
struct Page(Segment);

impl Page {
    fn map(memfd: &OwnedFd) -> io::Result<Self> {
        let segment = Segment::map(memfd, true)?;
        if segment.len_bytes() as u64 != segment::PAGE_LEN_BYTES {
            return Err(segment::invalid("the doorbell's page has the wrong size"));
        }
        Ok(Self(segment))
    }

    /// Which kinds of sleepers have announced themselves; see [`SleepMode::bit`].
    fn sleepers(&self) -> &AtomicU64 {
        &self.0.lines()[LINE_SLEEPERS].0[0]
    }

    /// The word that sleepers wait on; every ring that finds a sleeper changes it.
    fn sequence(&self) -> &AtomicU32 {
        let word = self.0.word32(LINE_SEQUENCE);
        word.expect("invariant: a page has more lines than the doorbell uses")
    }

    #[inline]
    fn ring(&self, eventfd: &OwnedFd) {
        // Orders what the caller published before the load; pairs with the fence of `prepare`.
        fence(Ordering::SeqCst);
        if self.sleepers().load(Ordering::Relaxed) != 0 {
            self.wake(eventfd);
        }
    }

    #[cold]
    fn wake(&self, eventfd: &OwnedFd) {
        let sleepers = self.sleepers().swap(0, Ordering::SeqCst);
        if sleepers == 0 {
            // Another peer took the announcement, and wakes.
            return;
        }
        let sequence = self.sequence();
        sequence.fetch_add(1, Ordering::SeqCst);
        if sleepers & SleepMode::Futex.bit() != 0 {
            // It fails only for an address that is not mapped; there is nobody to tell.
            let _ = futex::wake(sequence, futex::Flags::empty(), FUTEX_WAKE_ALL);
        }
        if sleepers & SleepMode::Descriptors.bit() != 0 {
            write_eventfd(eventfd);
        }
    }
}

/// Makes an eventfd readable. A full counter is readable already, so there is nothing to report.
fn write_eventfd(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Most descriptors of one sleep: an engine has one per fabric and a few of its own, and a fixed
/// bound keeps the sleep free of allocation.
pub const DESCRIPTORS_MAX: usize = 15;

/// What FUTEX_WAKE takes for everybody (the kernel reads it as a signed number).
const FUTEX_WAKE_ALL: u32 = i32::MAX.cast_unsigned();

/// The line with the announcements of sleepers, shared in all caches while nobody sleeps.
const LINE_SLEEPERS: usize = 0;

/// The line with the futex; apart, so that waking does not disturb those who only look.
const LINE_SEQUENCE: usize = 1;

#[cfg(test)]
mod tests;
