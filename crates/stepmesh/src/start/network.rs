//! The network of this process: which addresses to listen on, which fabrics there are.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use stepmesh_core::Device;
use stepmesh_core::config::{Config, TransportKind};
#[cfg(feature = "rdma")]
use stepmesh_rdma::select::{self, GidRules, Location, System};
#[cfg(feature = "rdma")]
use stepmesh_rdma::{RdmaFabric, RdmaOptions};
use stepmesh_transport::doorbell::Doorbell;
use stepmesh_transport::error::Error as FabricError;
#[cfg(not(feature = "rdma"))]
use stepmesh_transport::fabric::FabricKind;
use stepmesh_transport::fabric::{Address, Fabric};
use stepmesh_transport::shm::{ShmFabric, ShmOptions};
use stepmesh_transport::tcp::{self, TcpFabric, TcpOptions};

use crate::error::Error;

/// Where this process is on the network.
#[derive(Debug)]
pub(super) struct Network {
    scheduler: SocketAddr,
    options: TcpOptions,
}

impl Network {
    pub(super) fn new(config: &Config) -> Result<Self, Error> {
        let mesh = &config.mesh;
        if mesh.scheduler_port == 0 {
            return Err(Error::Rendezvous {
                reason: "the scheduler's port is not known; set mesh.scheduler_port \
                         (STEPMESH_MESH_SCHEDULER_PORT) to the one that it printed"
                    .into(),
            });
        }
        let scheduler = resolve(
            "mesh.scheduler_host",
            &mesh.scheduler_host,
            mesh.scheduler_port,
        )?;
        let local = match &*mesh.interface {
            "" => local_address_towards(scheduler)?,
            interface => interface_address(interface, scheduler.is_ipv4())?,
        };
        let options = tcp_options(config, local, config.tcp.port)?;
        Ok(Self { scheduler, options })
    }

    pub(super) fn scheduler_address(&self) -> Address {
        tcp::address_of(self.scheduler)
    }

    pub(super) fn scheduler_name(&self) -> String {
        self.scheduler.to_string()
    }

    /// The fabrics that carry tensors, the fastest first.
    pub(super) fn data_fabrics(
        &self,
        config: &Config,
        device: Option<&Device>,
        doorbell: &Doorbell,
    ) -> Result<Vec<Box<dyn Fabric>>, Error> {
        let mut fabrics: Vec<Box<dyn Fabric>> = Vec::new();
        let kind = config.transport.kind;
        if matches!(kind, TransportKind::Auto | TransportKind::Shm) {
            let options = ShmOptions {
                dir: Some(config.shm.dir.clone()).filter(|dir| !dir.as_os_str().is_empty()),
                ring_len_bytes: config.shm.ring_len_bytes as usize,
                message_len_bytes_max: config.transport.message_len_max_bytes as usize,
                peers_max: config.limits.peers_max as usize,
                regions_max: config.limits.slots_max as usize,
                ..ShmOptions::default()
            };
            let fabric = ShmFabric::new(options, doorbell.clone());
            fabrics.push(Box::new(
                fabric.map_err(Error::fabric("starting the shm fabric"))?,
            ));
        }
        if matches!(kind, TransportKind::Auto | TransportKind::Rdma) {
            match self.rdma_fabric(config, device) {
                Ok(fabric) => fabrics.push(fabric),
                Err(error) if kind == TransportKind::Rdma => {
                    return Err(Error::fabric("starting the rdma fabric")(error));
                }
                Err(error) => tracing::info!(%error, "no rdma"),
            }
        }
        if matches!(kind, TransportKind::Auto | TransportKind::Tcp) {
            let fabric = TcpFabric::new(self.options.clone());
            fabrics.push(Box::new(
                fabric.map_err(Error::fabric("starting the tcp fabric"))?,
            ));
        }
        Ok(fabrics)
    }

    /// The fabric over verbs, on the adapter that is nearest to the device.
    #[cfg(feature = "rdma")]
    fn rdma_fabric(
        &self,
        config: &Config,
        device: Option<&Device>,
    ) -> Result<Box<dyn Fabric>, FabricError> {
        let address = device.and_then(|device| device.info().pci_bdf.clone());
        let near = address.map(|address| Location::of_pci(&System::this(), &address));
        let rdma = &config.rdma;
        let gid = GidRules {
            index: u8::try_from(rdma.gid_index).ok(),
            interface: Some(config.mesh.interface.clone()).filter(|name| !name.is_empty()),
            ..GidRules::default()
        };
        let options = RdmaOptions {
            select: select::Options {
                include: rdma.devices.clone(),
                exclude: rdma.exclude.clone(),
                gid,
            },
            near: near.unwrap_or_default(),
            ordinal: device.map_or(0, Device::ordinal),
            queue_pairs: rdma.queue_pairs as usize,
            spread_ports: rdma.spread_ports,
            send_depth: rdma.send_depth as usize,
            ring_len_bytes: rdma.ring_len_bytes as usize,
            mtu_len_bytes: rdma.mtu_len_bytes,
            traffic_class: rdma.traffic_class,
            service_level: rdma.service_level,
            timeout: rdma.timeout,
            retry_count: rdma.retry_count,
            rnr_retry: rdma.rnr_retry,
            message_len_bytes_max: config.transport.message_len_max_bytes as usize,
            regions_max: config.limits.slots_max as usize,
            // The tensors' own port is for TCP.
            control: TcpOptions {
                port: 0,
                ..self.options.clone()
            },
        };
        Ok(Box::new(RdmaFabric::new(options)?))
    }

    /// Verbs are left out of this build.
    #[cfg(not(feature = "rdma"))]
    #[expect(clippy::unused_self, reason = "the other build needs it")]
    fn rdma_fabric(
        &self,
        _config: &Config,
        _device: Option<&Device>,
    ) -> Result<Box<dyn Fabric>, FabricError> {
        Err(FabricError::Unsupported {
            fabric: FabricKind::Rdma,
            operation: "starting",
            reason: "this build has no verbs; build it with the cargo feature `rdma`".into(),
        })
    }

    /// The fabric for talking to the scheduler.
    pub(super) fn control_fabric(&self) -> Result<Box<dyn Fabric>, Error> {
        let options = TcpOptions {
            port: 0,
            message_len_bytes_max: CONTROL_MESSAGE_LEN_BYTES_MAX,
            ..self.options.clone()
        };
        let fabric =
            TcpFabric::new(options).map_err(Error::fabric("starting the control plane"))?;
        Ok(Box::new(fabric))
    }
}

/// The fabric that a scheduler listens with.
pub(crate) fn scheduler_fabric(config: &Config) -> Result<(TcpFabric, SocketAddr), Error> {
    let mesh = &config.mesh;
    let host = resolve(
        "mesh.scheduler_host",
        &mesh.scheduler_host,
        mesh.scheduler_port,
    )?;
    let ip = match &*mesh.interface {
        "" => host.ip(),
        interface => interface_address(interface, host.is_ipv4())?,
    };
    let options = TcpOptions {
        message_len_bytes_max: CONTROL_MESSAGE_LEN_BYTES_MAX,
        ..tcp_options(config, ip, mesh.scheduler_port)?
    };
    let fabric = TcpFabric::new(options).map_err(Error::fabric(
        "listening as the scheduler (mesh.scheduler_host, mesh.scheduler_port)",
    ))?;
    let address = fabric.socket_address();
    Ok((fabric, address))
}

/// The name of this host, for messages.
pub(super) fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

fn tcp_options(config: &Config, bind: IpAddr, port: u16) -> Result<TcpOptions, Error> {
    let advertise = match &*config.mesh.node_host {
        "" => None,
        host => Some(resolve("mesh.node_host", host, port)?.ip()),
    };
    Ok(TcpOptions {
        bind,
        port,
        advertise,
        dead_after: Some(Duration::from_millis(config.timeouts.peer_dead_ms)),
        send_buffer_bytes: config.tcp.send_buffer_bytes as usize,
        recv_buffer_bytes: config.tcp.recv_buffer_bytes as usize,
        message_len_bytes_max: config.transport.message_len_max_bytes as usize,
        peers_max: config.limits.peers_max as usize,
        regions_max: config.limits.slots_max as usize,
        ..TcpOptions::default()
    })
}

fn resolve(key: &str, host: &str, port: u16) -> Result<SocketAddr, Error> {
    let unknown = |reason: String| Error::Rendezvous {
        reason: format!("{key} {host:?}: {reason}").into(),
    };
    let mut addresses = (host, port)
        .to_socket_addrs()
        .map_err(|e| unknown(e.to_string()))?;
    addresses.next().ok_or_else(|| unknown("no address".into()))
}

/// The address of the interface that leads to `target`. Sends nothing.
fn local_address_towards(target: SocketAddr) -> Result<IpAddr, Error> {
    let any: SocketAddr = if target.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    let route = || {
        let socket = UdpSocket::bind(any)?;
        socket.connect(target)?;
        socket.local_addr()
    };
    let address = route().map_err(|error| Error::Rendezvous {
        reason: format!("no way to the scheduler at {target}: {error} (mesh.interface)").into(),
    })?;
    Ok(address.ip())
}

/// The address of a named interface.
fn interface_address(name: &str, ipv4: bool) -> Result<IpAddr, Error> {
    let all = nix::ifaddrs::getifaddrs()
        .map_err(|error| Error::system("the list of interfaces", error.into()))?;
    let mut names = Vec::new();
    for interface in all {
        let Some(storage) = interface.address else {
            continue;
        };
        let v4 = storage
            .as_sockaddr_in()
            .map(|address| IpAddr::from(address.ip()));
        let v6 = storage
            .as_sockaddr_in6()
            .map(|address| IpAddr::from(address.ip()));
        let Some(address) = v4.or(v6) else { continue };
        if interface.interface_name == name && address.is_ipv4() == ipv4 {
            return Ok(address);
        }
        names.push(interface.interface_name);
    }
    names.dedup();
    let family = if ipv4 { "IPv4" } else { "IPv6" };
    Err(Error::invalid(
        "mesh.interface",
        format!(
            "no {family} address on {name:?}; interfaces here: {}",
            names.join(", ")
        ),
    ))
}

/// Longest control message: the list of a rail's servers, some hundred bytes each, in a mesh of
/// hundreds of nodes.
const CONTROL_MESSAGE_LEN_BYTES_MAX: usize = 1 << 20;
