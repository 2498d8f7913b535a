//! The scheduler: brings the members together, keeps barriers, tells of deaths.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use stepmesh_core::config::Config;
use stepmesh_transport::fabric::Fabric;
use stepmesh_transport::tcp::TcpFabric;

use crate::clock::Clock;
use crate::control::scheduler::{Census, SchedulerMachine, SchedulerOptions};
use crate::error::Error;
use crate::protocol::hello::{Hello, digest};
use crate::role::{Member, Role};
use crate::start::scheduler_fabric;
use crate::worker::{Close, Closer};

/// The scheduler of a mesh. It does its work in [`run`](Self::run).
///
/// Tensors do not pass through it: a mesh that has formed goes on without it, but for barriers
/// and for members that come back.
#[derive(Debug)]
pub struct Scheduler {
    machine: SchedulerMachine,
    fabric: TcpFabric,
    address: SocketAddr,
    clock: Clock,
    closing: Arc<Closing>,
    close: Duration,
}

#[derive(Debug)]
struct Closing {
    flag: AtomicBool,
    kick: OwnedFd,
}

impl Scheduler {
    /// Listens where `config` says: at `mesh.scheduler_host`, or on `mesh.interface` if that is
    /// set, port `mesh.scheduler_port`.
    ///
    /// # Errors
    /// [`Error::Fabric`] when the port is in use or the address is not this host's.
    pub fn start(config: &Config) -> Result<Self, Error> {
        let group_size = config.mesh.group_size.max(1);
        let instances = |groups: u32, what| {
            groups.checked_mul(group_size).ok_or_else(|| {
                Error::invalid(
                    "scheduler",
                    format!("{groups} groups of {group_size} {what}"),
                )
            })
        };
        let token = digest(config.mesh.token.expose());
        let (mut fabric, address) = scheduler_fabric(config)?;
        // Distinguishes meshes that used the same port one after the other.
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let nanos = started.map_or(0, |elapsed| elapsed.as_nanos() & u128::from(u64::MAX));
        let mesh = u64::try_from(nanos).unwrap_or_default() ^ u64::from(std::process::id()) << 48;
        let me = Member {
            role: Role::Scheduler,
            rank: 0,
            generation: 0,
        };
        fabric.set_hello(&Hello::new(me, 0, token).encode());
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        let machine = SchedulerMachine::new(SchedulerOptions {
            workers: instances(config.mesh.workers, "workers")?,
            servers: instances(config.mesh.servers, "servers")?,
            group_size,
            mesh: mesh.max(1),
            token,
            join_timeout_ns: ns(config.timeouts.barrier_ms),
            heartbeat_ns: ns(config.timeouts.heartbeat_ms),
            peer_dead_ns: ns(config.timeouts.peer_dead_ms),
        });
        let kick = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let kick = kick.map_err(|error| Error::system("a scheduler", error.into()))?;
        Ok(Self {
            machine,
            fabric,
            address,
            clock: Clock::monotonic(),
            closing: Arc::new(Closing {
                flag: AtomicBool::new(false),
                kick,
            }),
            close: Duration::from_millis(config.timeouts.close_ms),
        })
    }

    /// Where it listens; the port is the real one when 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the mesh is over: formed, and every member gone again. Ends early when a
    /// [`closer`](Self::closer) says so.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] when members gave up waiting for the others, [`Error::System`] when
    /// it cannot wait.
    pub fn run(&mut self) -> Result<(), Error> {
        loop {
            self.machine.progress(&mut self.fabric, self.clock.now_ns());
            if self.closing.flag.load(Ordering::Acquire) {
                self.machine
                    .shut_down(&mut self.fabric, "it was told to end");
                self.drain();
                return Ok(());
            }
            if let Some(reason) = self.machine.gave_up() {
                let reason = reason.into();
                self.drain();
                return Err(Error::Rendezvous { reason });
            }
            let Census {
                formed,
                workers,
                servers,
            } = self.machine.census();
            if formed && workers == 0 && servers == 0 {
                return Ok(());
            }
            self.sleep(TICK)?;
        }
    }

    /// Ends [`run`](Self::run) from another thread.
    pub fn closer(&self) -> Closer {
        let closing: Arc<dyn Close> = Arc::clone(&self.closing) as Arc<dyn Close>;
        Closer(closing)
    }

    /// Gives what was said last a moment to leave.
    fn drain(&mut self) {
        let deadline = Instant::now() + self.close.min(DRAIN_MAX);
        while Instant::now() < deadline {
            self.machine.progress(&mut self.fabric, self.clock.now_ns());
            std::thread::sleep(DRAIN_POLL);
        }
    }

    fn sleep(&self, longest: Duration) -> Result<(), Error> {
        let mut fds = vec![PollFd::new(&self.closing.kick, PollFlags::IN)];
        let wait_fd = self.fabric.wait_fd();
        fds.extend(wait_fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let timeout = Timespec::try_from(longest).ok();
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::system("waiting as the scheduler", error.into())),
        }
    }
}

impl Close for Closing {
    fn close(&self) {
        self.flag.store(true, Ordering::Release);
        // A full counter wakes as well.
        rustix::io::write(self.kick.as_fd(), &1u64.to_ne_bytes()).ok();
    }
}

/// How often the clock is looked at.
const TICK: Duration = Duration::from_millis(20);

/// How long the last messages may take: they are in the kernel's hands within microseconds.
const DRAIN_MAX: Duration = Duration::from_millis(200);

const DRAIN_POLL: Duration = Duration::from_millis(5);
