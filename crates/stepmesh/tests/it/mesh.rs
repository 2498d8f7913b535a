//! A mesh for a test: a scheduler, servers and workers as threads of this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use stepmesh::{Error, Scheduler, Server, Worker};
use stepmesh_core::Device;
use stepmesh_core::config::{Config, TransportKind};

/// The members of a formed mesh.
pub(crate) struct Mesh {
    pub(crate) workers: Vec<Worker>,
    pub(crate) servers: Vec<Arc<Server>>,
    pub(crate) device: Device,
    /// What its members were started with.
    pub(crate) config: Config,
    scheduler: Option<JoinHandle<Result<(), Error>>>,
}

/// How long anything in a test may take before it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A configuration for a mesh of this size on this host.
pub(crate) fn config(kind: TransportKind, workers: u32, servers: u32) -> Config {
    let mut config = Config::default();
    config.transport.kind = forced().unwrap_or(kind);
    config.mesh.workers = workers;
    config.mesh.servers = servers;
    config
}

/// These ways of transport; or the one that STEPMESH_TRANSPORT_KIND names, by which the same tests run
/// over an adapter (`cargo xtask vm test`).
pub(crate) fn kinds(usual: &[TransportKind]) -> Vec<TransportKind> {
    forced().map_or_else(|| usual.to_vec(), |kind| vec![kind])
}

fn forced() -> Option<TransportKind> {
    match std::env::var("STEPMESH_TRANSPORT_KIND").ok()?.as_str() {
        "shm" => Some(TransportKind::Shm),
        "tcp" => Some(TransportKind::Tcp),
        "rdma" => Some(TransportKind::Rdma),
        other => panic!("STEPMESH_TRANSPORT_KIND is {other}; these tests know shm, tcp and rdma"),
    }
}

/// Starts a scheduler on a free port.
fn scheduler(config: &Config) -> (SocketAddr, JoinHandle<Result<(), Error>>) {
    let mut scheduler = Scheduler::start(config).unwrap();
    let address = scheduler.address();
    (address, std::thread::spawn(move || scheduler.run()))
}

impl Mesh {
    /// A mesh on the backend of this test program.
    pub(crate) fn form(config: Config) -> Self {
        Self::form_on(config, crate::device())
    }

    /// A mesh whose servers take their slots from `device`.
    pub(crate) fn form_on(mut config: Config, device: Device) -> Self {
        // The mesh before this one left nothing of the adapter; one test runs at a time there.
        #[cfg(feature = "rdma")]
        if forced() == Some(TransportKind::Rdma) {
            stepmesh_rdma::verbs::Ledger::assert_empty();
        }
        let (address, scheduler) = scheduler(&config);
        config.mesh.scheduler_port = address.port();
        let servers: Vec<_> = (0..config.mesh.servers * config.mesh.group_size)
            .map(|_| {
                let (config, device) = (config.clone(), device.clone());
                std::thread::spawn(move || Server::start(&config, &device).unwrap())
            })
            .collect();
        let workers: Vec<_> = (0..config.mesh.workers * config.mesh.group_size)
            .map(|_| {
                let config = config.clone();
                std::thread::spawn(move || Worker::start(&config).unwrap())
            })
            .collect();
        let mut servers: Vec<_> = servers.into_iter().map(|s| s.join().unwrap()).collect();
        let mut workers: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
        servers.sort_by_key(|server| server.member().rank);
        workers.sort_by_key(|worker| worker.member().rank);
        Self {
            workers,
            servers: servers.into_iter().map(Arc::new).collect(),
            device,
            config,
            scheduler: Some(scheduler),
        }
    }

    /// Lets every server echo the first pushed tensor into every pull until it is closed.
    pub(crate) fn echo(&self) -> Vec<JoinHandle<()>> {
        let echo = |server: &Arc<Server>| {
            let server = Arc::clone(server);
            std::thread::spawn(move || {
                loop {
                    let batches = match server.get_batch(PATIENCE) {
                        Ok(batches) => batches,
                        Err(Error::Closed { .. }) => return,
                        Err(error) => panic!("{error}"),
                    };
                    for mut batch in batches {
                        let answer = batch.tensors().first().cloned();
                        let answers: Vec<_> = batch
                            .pulls()
                            .iter()
                            .map(|_| answer.clone().unwrap())
                            .collect();
                        match batch.respond(&answers) {
                            Ok(_) | Err(Error::PeerLost { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            })
        };
        self.servers.iter().map(echo).collect()
    }

    /// Ends everything and checks that the scheduler saw a clean end.
    pub(crate) fn end(mut self, echoes: Vec<JoinHandle<()>>) {
        for server in &self.servers {
            server.closer().close();
        }
        for echo in echoes {
            echo.join().unwrap();
        }
        self.workers.clear();
        self.servers.clear();
        self.scheduler.take().unwrap().join().unwrap().unwrap();
    }
}
