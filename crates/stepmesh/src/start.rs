//! Starting: from a configuration to a member of a formed mesh with its connections up.

mod network;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stepmesh_core::Device;
use stepmesh_core::config::Config;
use stepmesh_transport::doorbell::Doorbell;
use stepmesh_transport::fabric::Fabric;

use crate::clock::Clock;
use crate::control::member::{MemberMachine, MemberOptions, News};
use crate::control::wire::{Entry, Formed, Join, Place, WireAddress};
use crate::engine::{ControlPlane, Engine, EngineOptions, Machine, State};
use crate::error::Error;
use crate::protocol::fabrics::Fabrics;
use crate::protocol::hello::{Hello, digest};
use crate::protocol::server::{ServerLimits, ServerMachine};
use crate::protocol::worker::{ServerAddress, WorkerLimits, WorkerMachine};
use crate::role::{Member, Role, Roles};
use crate::worker::{Close, Closer};

pub(crate) use network::scheduler_fabric;

/// A member that takes part: its engine, and its connection with the scheduler.
#[derive(Debug)]
pub(crate) struct Mesh<M: Machine> {
    member: Member,
    workers: u32,
    engine: Arc<Engine<M>>,
    control: Arc<Control>,
}

/// A state machine that wants to know what becomes of the others.
pub(crate) trait NewsFor: Machine {
    fn take(&mut self, fabrics: &mut Fabrics, news: News, routes: &Routes);
}

/// How to reach servers.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    group_size: u32,
    /// The fabrics of this process by their places.
    kinds: Vec<stepmesh_transport::fabric::FabricKind>,
    timeout: Duration,
}

/// The connection with the scheduler, shared by the background thread and by callers of
/// `barrier`.
#[derive(Debug)]
struct Control {
    state: Mutex<ControlState>,
    changed: Condvar,
    clock: Clock,
}

#[derive(Debug)]
struct ControlState {
    machine: MemberMachine,
    fabric: Box<dyn Fabric>,
    closed: bool,
}

/// What a member has before it knows who it is.
struct Joining {
    clock: Clock,
    doorbell: Doorbell,
    data: Vec<Box<dyn Fabric>>,
    control: Arc<Control>,
    formed: Formed,
}

/// Joins as a worker and connects to the servers.
pub(crate) fn worker(config: &Config) -> Result<Mesh<WorkerMachine>, Error> {
    let deadline = Instant::now() + Duration::from_millis(config.timeouts.barrier_ms);
    let joining = join(config, None, Role::Worker)?;
    let hello = Hello::new(joining.formed.you, joining.formed.mesh, token(config));
    let limits = WorkerLimits {
        requests_max: config.limits.batches_max as usize,
        peer_dead_ns: ns(config.timeouts.peer_dead_ms),
        heartbeat_ns: ns(config.timeouts.heartbeat_ms),
        trace: config.trace.enabled,
    };
    let mut machine = WorkerMachine::new(hello, limits, joining.clock.clone());
    let mut fabrics = Fabrics::new(joining.data);
    let formed = &joining.formed;
    let routes = Routes::new(config, &fabrics, formed);
    machine.expect_servers(routes.rail(formed));
    for (index, address) in formed.entries.iter().filter_map(|e| routes.server(e)) {
        machine.set_server(&mut fabrics, index, address);
    }
    let engine = Engine::new(
        State { machine, fabrics },
        joining.doorbell,
        options(config),
        "worker",
    )?;
    // From here on others hear of this member, and it of them, while it waits.
    let mesh = Mesh::start(formed, engine, joining.control, routes)?;
    let engine = mesh.engine();
    let left = deadline.saturating_duration_since(Instant::now());
    let connected = engine.wait(left, |state| match state.machine.is_connected() {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(error) => Some(Err(error)),
    });
    match connected {
        Ok(outcome) => outcome?,
        Err(_) => {
            let missing = engine.lock().machine.not_connected();
            return Err(Error::Timeout {
                operation: "connecting to the servers",
                waited_ms: config.timeouts.barrier_ms,
                missing,
            });
        }
    }
    Ok(mesh)
}

/// Joins as a server and waits for the workers.
pub(crate) fn server(config: &Config, device: &Device) -> Result<Mesh<ServerMachine>, Error> {
    let deadline = Instant::now() + Duration::from_millis(config.timeouts.barrier_ms);
    let mut joining = join(config, Some(device), Role::Server)?;
    let formed = &joining.formed;
    let hello = Hello::new(formed.you, formed.mesh, token(config));
    for fabric in &mut joining.data {
        fabric.set_hello(&hello.encode());
    }
    let limits = ServerLimits {
        batches_max: config.limits.batches_max as usize,
        plans_max: config.limits.batches_max as usize,
        slots_max: config.limits.slots_max as usize,
        slot_len_bytes_max: config.limits.slot_len_max_bytes,
        peer_dead_ns: ns(config.timeouts.peer_dead_ms),
        heartbeat_ns: ns(config.timeouts.heartbeat_ms),
        trace: config.trace.enabled,
    };
    let groups = formed.workers / formed.group_size.max(1);
    let mut machine = ServerMachine::new(
        hello,
        device.clone(),
        groups as usize,
        formed.group_size,
        limits,
        joining.clock.clone(),
    );
    machine.expect_workers(formed.entries.iter().map(|entry| entry.member));
    let fabrics = Fabrics::new(joining.data);
    let routes = Routes::new(config, &fabrics, formed);
    let engine = Engine::new(
        State { machine, fabrics },
        joining.doorbell,
        options(config),
        "server",
    )?;
    // As for a worker.
    let mesh = Mesh::start(formed, engine, joining.control, routes)?;
    let engine = mesh.engine();
    let left = deadline.saturating_duration_since(Instant::now());
    let connected = engine.wait(left, |state| match state.machine.not_connected() {
        None => Some(()),
        Some(_) => None,
    });
    if connected.is_err() {
        let missing = engine.lock().machine.not_connected();
        return Err(Error::Timeout {
            operation: "waiting for the workers to connect",
            waited_ms: config.timeouts.barrier_ms,
            missing: missing.unwrap_or_else(|| "nothing".into()),
        });
    }
    Ok(mesh)
}

/// Meets the others at the scheduler.
fn join(config: &Config, device: Option<&Device>, role: Role) -> Result<Joining, Error> {
    let clock = Clock::monotonic();
    let doorbell = Doorbell::new().map_err(Error::fabric("starting"))?;
    let network = network::Network::new(config)?;
    let data = network.data_fabrics(config, device, &doorbell)?;
    let addresses = data
        .iter()
        .map(|fabric| WireAddress::new(fabric.kind(), &fabric.address()));
    let join = Join {
        role,
        rank: u32::try_from(config.mesh.rank).ok(),
        place: Place {
            host: network::host_name(),
            process: std::process::id(),
            addresses: addresses.collect(),
        },
    };
    // Before it has joined, a member has no rank and does not know the mesh's number.
    let stranger = Member {
        role,
        rank: 0,
        generation: 0,
    };
    let now_ns = clock.now_ns();
    let options = MemberOptions {
        scheduler: network.scheduler_address(),
        scheduler_name: network.scheduler_name(),
        hello: Hello::new(stranger, 0, token(config)),
        join,
        connect_deadline_ns: now_ns + ns(config.timeouts.connect_ms),
        heartbeat_ns: ns(config.timeouts.heartbeat_ms),
        peer_dead_ns: ns(config.timeouts.peer_dead_ms),
    };
    let control = Arc::new(Control {
        state: Mutex::new(ControlState {
            machine: MemberMachine::new(options, now_ns),
            fabric: network.control_fabric()?,
            closed: false,
        }),
        changed: Condvar::new(),
        clock: clock.clone(),
    });
    let formed = control.wait_until_formed(config)?;
    Ok(Joining {
        clock,
        doorbell,
        data,
        control,
        formed,
    })
}

fn token(config: &Config) -> [u8; 32] {
    digest(config.mesh.token.expose())
}

fn ns(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

fn options(config: &Config) -> EngineOptions {
    EngineOptions {
        poll: config.transport.poll,
        spin: Duration::from_micros(config.transport.spin_us),
        heartbeat: Duration::from_millis(
            config
                .timeouts
                .heartbeat_ms
                .min(config.timeouts.peer_dead_local_ms),
        ),
        close: Duration::from_millis(config.timeouts.close_ms),
    }
}

impl<M: NewsFor> Mesh<M> {
    fn start(
        formed: &Formed,
        engine: Arc<Engine<M>>,
        control: Arc<Control>,
        routes: Routes,
    ) -> Result<Self, Error> {
        engine.start(Background {
            control: Arc::clone(&control),
            wait_fd: control.wait_fd()?,
            routes,
        })?;
        Ok(Self {
            member: formed.you,
            workers: formed.workers,
            engine,
            control,
        })
    }
}

impl<M: Machine> Mesh<M> {
    pub(crate) fn member(&self) -> Member {
        self.member
    }

    /// How many workers the mesh was formed with.
    pub(crate) fn workers(&self) -> u32 {
        self.workers
    }

    pub(crate) fn engine(&self) -> &Arc<Engine<M>> {
        &self.engine
    }

    pub(crate) fn barrier(&self, roles: Roles, timeout: Duration) -> Result<(), Error> {
        self.engine.check_open("barrier")?;
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let number = {
            let mut state = self.control.lock();
            state.machine.barrier(roles, timeout_ms)?
        };
        self.engine.kick();
        self.control.wait_for_barrier(number, timeout)
    }

    pub(crate) fn closer(&self) -> Closer {
        let closing: Arc<dyn Close> = Arc::new(Closing {
            engine: Arc::clone(&self.engine),
            control: Arc::clone(&self.control),
        });
        Closer(closing)
    }
}

impl<M: Machine> Drop for Mesh<M> {
    fn drop(&mut self) {
        self.control.close();
        self.engine.shut_down();
    }
}

#[derive(Debug)]
struct Closing<M> {
    engine: Arc<Engine<M>>,
    control: Arc<Control>,
}

impl<M: Machine> Close for Closing<M> {
    fn close(&self) {
        self.control.close();
        self.engine.close();
    }
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, ControlState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn wait_fd(&self) -> Result<Option<std::os::fd::OwnedFd>, Error> {
        let state = self.lock();
        let clone = state.fabric.wait_fd().map(|fd| fd.try_clone_to_owned());
        clone
            .transpose()
            .map_err(|error| Error::system("a descriptor", error))
    }

    /// Drives the control plane from this thread until the mesh is formed.
    fn wait_until_formed(&self, config: &Config) -> Result<Formed, Error> {
        // The scheduler gives up first, and says who is missing.
        let patience = config.timeouts.connect_ms + config.timeouts.barrier_ms + PATIENCE_MS;
        let deadline = Instant::now() + Duration::from_millis(patience);
        loop {
            let mut state = self.lock();
            let ControlState {
                machine, fabric, ..
            } = &mut *state;
            machine.progress(&mut **fabric, self.clock.now_ns());
            match machine.next_news() {
                Some(News::Formed(formed)) => return Ok(formed),
                Some(other) => tracing::debug!(?other, "news before the mesh was formed"),
                None => {}
            }
            if let Some(error) = machine.lost() {
                return Err(error);
            }
            drop(state);
            if Instant::now() >= deadline {
                return Err(Error::Rendezvous {
                    reason: format!(
                        "members are missing after {patience} ms; the scheduler still waits, longer than \
                         timeouts.barrier_ms of this member, and will say who"
                    )
                    .into(),
                });
            }
            std::thread::sleep(JOIN_POLL);
        }
    }

    fn wait_for_barrier(&self, number: u64, timeout: Duration) -> Result<(), Error> {
        // The scheduler times the barrier and knows who is missing; this bound is for a scheduler
        // that says nothing.
        let deadline = Instant::now() + timeout + Duration::from_millis(PATIENCE_MS);
        let mut state = self.lock();
        loop {
            if let Some(outcome) = state.machine.barrier_outcome(number) {
                return outcome.map_err(|reason| Error::Barrier {
                    reason: reason.into(),
                });
            }
            if let Some(error) = state.machine.lost() {
                return Err(error);
            }
            if state.closed {
                return Err(Error::Closed {
                    operation: "barrier",
                    what: "member",
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Timeout {
                    operation: "barrier",
                    waited_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
                    missing: "the scheduler's answer".into(),
                });
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The control plane on the engine's thread.
struct Background {
    control: Arc<Control>,
    wait_fd: Option<std::os::fd::OwnedFd>,
    routes: Routes,
}

impl<M: NewsFor> ControlPlane<M> for Background {
    fn progress(&mut self, engine: &Engine<M>) {
        let mut control = self.control.lock();
        let ControlState {
            machine, fabric, ..
        } = &mut *control;
        let events = machine.progress(&mut **fabric, self.control.clock.now_ns());
        let mut news = Vec::new();
        while let Some(item) = machine.next_news() {
            news.push(item);
        }
        let lost = machine.lost().is_some();
        drop(control);
        if events > 0 || lost {
            self.control.changed.notify_all();
        }
        if !news.is_empty() {
            let mut state = engine.lock();
            let State { machine, fabrics } = &mut *state;
            for item in news {
                machine.take(fabrics, item, &self.routes);
            }
            drop(state);
            engine.ring();
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        self.wait_fd.as_ref().map(AsFd::as_fd)
    }

    fn leave(&mut self) {
        let mut control = self.control.lock();
        let ControlState {
            machine, fabric, ..
        } = &mut *control;
        machine.leave(&mut **fabric, self.control.clock.now_ns());
    }
}

impl Routes {
    fn new(config: &Config, fabrics: &Fabrics, formed: &Formed) -> Self {
        Self {
            group_size: formed.group_size.max(1),
            kinds: fabrics.iter().map(Fabric::kind).collect(),
            timeout: Duration::from_millis(config.timeouts.connect_ms),
        }
    }

    /// The servers of this worker's rail, there or not.
    fn rail(&self, formed: &Formed) -> impl Iterator<Item = Member> + use<> {
        let (group_size, instance) = (self.group_size, formed.you.rank % self.group_size);
        (0..formed.servers / group_size).map(move |place| Member {
            role: Role::Server,
            rank: place * group_size + instance,
            generation: 0,
        })
    }

    /// The place of a server in the rail, and the ways to it in the order of our own fabrics:
    /// the fastest first.
    pub(crate) fn server(&self, entry: &Entry) -> Option<(usize, ServerAddress)> {
        if entry.member.role != Role::Server {
            return None;
        }
        let theirs: Vec<_> = entry
            .place
            .addresses
            .iter()
            .filter_map(WireAddress::known)
            .collect();
        let mut routes = Vec::new();
        for (index, kind) in self.kinds.iter().enumerate() {
            let of_kind = theirs.iter().filter(|(theirs, _)| theirs == kind);
            routes.extend(of_kind.map(|(_, address)| (index, address.clone())));
        }
        let address = ServerAddress {
            member: entry.member,
            routes,
            timeout: self.timeout,
        };
        Some(((entry.member.rank / self.group_size) as usize, address))
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background").finish_non_exhaustive()
    }
}

/// How often the scheduler's answer is looked for while joining: nothing else goes on then.
const JOIN_POLL: Duration = Duration::from_millis(2);

/// How much longer than the scheduler a member waits, so that the scheduler's better message wins.
const PATIENCE_MS: u64 = 2_000;
