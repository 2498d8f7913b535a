//! The typed configuration and where each of its values came from.
//!
//! Order: defaults < file < `DMLC_*` < `STEPMESH_*` < command line. The table of keys (names,
//! limits, meaning) is in `keys`, the layers are in `load`. Nothing here opens a device or a socket.
#![forbid(unsafe_code)]

mod keys;
mod load;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use keys::{Allowed, KEYS, Key};
pub use load::{Loaded, Origin, Sources};

/// Every setting of StepMesh. `Config::default()` is what a machine without any settings gets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name of the backend, without regard to case; empty: the alias `GPU` if usable, else `cpu`.
    pub backend: String,
    /// Where backends are looked for and which are taken.
    pub plugins: PluginsConfig,
    /// Who takes part in the mesh and where they meet.
    pub mesh: MeshConfig,
    /// How bytes travel.
    pub transport: TransportConfig,
    /// The bound of every wait.
    pub timeouts: TimeoutsConfig,
    /// The shared-memory fabric.
    pub shm: ShmConfig,
    /// The TCP fabric.
    pub tcp: TcpConfig,
    /// The verbs fabric.
    pub rdma: RdmaConfig,
    /// The limit of every table and queue.
    pub limits: LimitsConfig,
    /// Time stamps of each request.
    pub trace: TraceConfig,
    /// What is logged.
    pub log: LogConfig,
    /// What single backends are told, by backend and option: `options["sim"]["devices"]`. A plugin
    /// asks for it as `sim.devices`; which options there are only the plugin knows.
    pub options: BTreeMap<String, BTreeMap<String, String>>,
}

/// Where backends are looked for and which are taken.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PluginsConfig {
    /// Plugin files and directories of plugin files, first come first; absolute paths are best.
    pub path: Vec<PathBuf>,
    /// Whether every compatible plugin is opened at start-up or only the selected one.
    pub load: LoadPolicy,
    /// Two different files with the same backend name are an error.
    pub strict: bool,
    /// Globs (`*`, `?`) of file names or backend names that are never opened.
    pub disable: Vec<String>,
    /// Take plugin files that other users may write to. Refused in a set-user-id process.
    pub trust: bool,
}

/// Which compatible plugins are opened with dlopen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadPolicy {
    /// All of them, at start-up.
    #[default]
    All,
    /// Only the one that is selected, when it is.
    Selected,
}

/// Who takes part in the mesh and where they meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MeshConfig {
    /// What this process is.
    pub role: Role,
    /// Worker groups (nodes) in the mesh.
    pub workers: u32,
    /// Server groups (nodes) in the mesh.
    pub servers: u32,
    /// Processes (one accelerator each) in a group.
    pub group_size: u32,
    /// Rank of this process among those of its role; -1: the scheduler gives one.
    pub rank: i32,
    /// Host name or address where the scheduler listens.
    pub scheduler_host: String,
    /// Port where the scheduler listens; 0: the scheduler takes a free one and says which.
    pub scheduler_port: u16,
    /// Network interface to listen on; empty: the one that reaches the scheduler.
    pub interface: String,
    /// Address that peers use to reach this process; empty: the interface's own.
    pub node_host: String,
    /// Secret that all members share; empty: none is asked for.
    pub token: Secret,
}

/// What a process is in the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Not said; the program decides.
    #[default]
    #[serde(rename = "")]
    Unset,
    /// Brings the others together.
    Scheduler,
    /// Receives tensors and answers.
    Server,
    /// Sends tensors and waits for answers.
    Worker,
}

/// A value that is never printed.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

/// How bytes travel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransportConfig {
    /// Which fabric.
    pub kind: TransportKind,
    /// How a waiting thread waits.
    pub poll: PollMode,
    /// How long the adaptive mode spins before it sleeps, in microseconds.
    pub spin_us: u64,
    /// Wait for events of a device by polling memory, where its backend can do that.
    pub mem_sync: bool,
    /// Largest control message or batch header, in bytes.
    pub message_len_max_bytes: u32,
}

/// Which fabric carries the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportKind {
    /// Shared memory for peers on this host, else RDMA where there is a NIC, else TCP.
    #[default]
    Auto,
    /// Shared memory; peers on this host only.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA verbs.
    Rdma,
}

/// How a waiting thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PollMode {
    /// Spins briefly, then sleeps: fits hosts with more processes than cores.
    #[default]
    Adaptive,
    /// Spins for ever: lowest latency, a whole core for each waiting thread.
    Busy,
    /// Sleeps at once: least CPU.
    Event,
}

/// The bound of every wait, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimeoutsConfig {
    /// Connecting to a peer or to the scheduler, retries included.
    pub connect_ms: u64,
    /// Waiting for every member at start-up and at a barrier.
    pub barrier_ms: u64,
    /// One push, pull or batch, unless the call names its own.
    pub request_ms: u64,
    /// Between two signs of life.
    pub heartbeat_ms: u64,
    /// Silence after which a peer counts as dead.
    pub peer_dead_ms: u64,
    /// Within how long the end of a peer's process on this host is noticed.
    pub peer_dead_local_ms: u64,
    /// Draining and saying goodbye at the end.
    pub close_ms: u64,
}

/// The shared-memory fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShmConfig {
    /// Directory of the mapped files; empty: anonymous memory files, which leave nothing behind.
    pub dir: PathBuf,
    /// Length of the message ring of one direction of one connection, in bytes.
    pub ring_len_bytes: u32,
}

/// The TCP fabric.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TcpConfig {
    /// Port to listen on; 0: a free one.
    pub port: u16,
    /// Kernel send buffer, in bytes; 0: the kernel's choice.
    pub send_buffer_bytes: u32,
    /// Kernel receive buffer, in bytes; 0: the kernel's choice.
    pub recv_buffer_bytes: u32,
}

/// The verbs fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RdmaConfig {
    /// Adapters (`mlx5_0`) or ports (`mlx5_0:1`) that may be used, `*` for any text; empty: all.
    pub devices: Vec<String>,
    /// Those that may not.
    pub exclude: Vec<String>,
    /// Entry of the port's table of GIDs; -1: chosen by type and family.
    pub gid_index: i16,
    /// Queue pairs of each connection.
    pub queue_pairs: u32,
    /// Whether they take the ports of a bonded adapter in turn.
    pub spread_ports: bool,
    /// Work requests that each queue pair may have outstanding.
    pub send_depth: u32,
    /// Length of the ring in which messages of a peer arrive, in bytes.
    pub ring_len_bytes: u32,
    /// Largest packet in bytes; 0: what the ports of both sides have.
    pub mtu_len_bytes: u32,
    /// Traffic class of packets (`DSCP << 2`).
    pub traffic_class: u8,
    /// Service level, or priority.
    pub service_level: u8,
    /// How long an acknowledgement may take: 4.096 µs times two to the power of this.
    pub timeout: u8,
    /// How often to send again without one.
    pub retry_count: u8,
    /// How often to send again to a receiver that is not ready; 7 is for ever.
    pub rnr_retry: u8,
}

/// The limit of every table and queue. What a peer asks beyond them is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Peers of one process.
    pub peers_max: u32,
    /// Registered slots of one process.
    pub slots_max: u32,
    /// Batches in flight in one process.
    pub batches_max: u32,
    /// Length of one slot, in bytes.
    pub slot_len_max_bytes: u64,
}

/// Time stamps of each request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TraceConfig {
    /// Take them: a few clock reads for each request.
    pub enabled: bool,
}

/// What is logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// A level (`warn`) or a `tracing` filter (`info,stepmesh_core=debug`).
    pub level: String,
}

impl Secret {
    /// The value itself. Do not log it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether none was set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self(value.to_owned())
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "(none)" } else { "***" })
    }
}

impl Default for MeshConfig {
    fn default() -> Self {
        Self {
            role: Role::Unset,
            workers: 1,
            servers: 1,
            group_size: 1,
            rank: -1,
            scheduler_host: "127.0.0.1".into(),
            scheduler_port: 0,
            interface: String::new(),
            node_host: String::new(),
            token: Secret::default(),
        }
    }
}

impl Default for TransportConfig {
    fn default() -> Self {
        Self {
            kind: TransportKind::Auto,
            poll: PollMode::Adaptive,
            spin_us: 50,
            mem_sync: true,
            message_len_max_bytes: 16 << 10,
        }
    }
}

impl Default for TimeoutsConfig {
    fn default() -> Self {
        Self {
            connect_ms: 10_000,
            barrier_ms: 60_000,
            request_ms: 10_000,
            heartbeat_ms: 500,
            peer_dead_ms: 2_000,
            peer_dead_local_ms: 200,
            close_ms: 2_000,
        }
    }
}

impl Default for RdmaConfig {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            exclude: Vec::new(),
            gid_index: -1,
            queue_pairs: 1,
            spread_ports: false,
            send_depth: 512,
            ring_len_bytes: 128 << 10,
            mtu_len_bytes: 0,
            traffic_class: 0,
            service_level: 0,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 6,
        }
    }
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self {
            dir: PathBuf::new(),
            ring_len_bytes: 64 << 10,
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            peers_max: 1024,
            slots_max: 65_536,
            batches_max: 1024,
            slot_len_max_bytes: 1 << 34,
        }
    }
}

impl Default for TraceConfig {
    fn default() -> Self {
        Self { enabled: true }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            level: "info".into(),
        }
    }
}

#[cfg(test)]
mod tests;
