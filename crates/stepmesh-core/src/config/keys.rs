//! The table of configuration keys: names in the environment, limits, meaning.
//!
//! The table is what `stepmesh config`, docs/configuration.md and the loader read; a test keeps it
//! equal to the fields of `Config`.
#![forbid(unsafe_code)]

use std::fmt;

use self::Allowed::{Bool, List, OneOf, PowerOfTwo, Range, Secret, Text};

/// One configuration key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Key {
    /// Section and field, `mesh.rank`.
    pub name: &'static str,
    /// The short environment name, where there is one besides `STEPMESH_<SECTION>_<KEY>`.
    pub env_short: Option<&'static str>,
    /// The original system's environment name, where it had one.
    pub dmlc: Option<&'static str>,
    /// What values are accepted.
    pub allowed: Allowed,
    /// One sentence.
    pub meaning: &'static str,
}

/// What values a key accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allowed {
    /// `true` or `false`.
    Bool,
    /// Any text.
    Text,
    /// Any text; never printed.
    Secret,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A whole number from the first to the last, both included.
    Range(i64, i64),
    /// A power of two from the first to the last, both included.
    PowerOfTwo(i64, i64),
    /// A list of texts; the separator is used in the environment and on the command line.
    List(char),
}

impl Key {
    /// The key of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// The full environment name, `STEPMESH_MESH_RANK`.
    #[must_use]
    pub fn env(&self) -> String {
        format!("STEPMESH_{}", self.name.replace('.', "_").to_uppercase())
    }

    /// Whether the value must not be printed.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.allowed == Secret
    }

    const fn new(name: &'static str, allowed: Allowed, meaning: &'static str) -> Self {
        Self {
            name,
            env_short: None,
            dmlc: None,
            allowed,
            meaning,
        }
    }

    const fn short(self, env_short: &'static str) -> Self {
        Self {
            env_short: Some(env_short),
            ..self
        }
    }

    const fn dmlc(self, dmlc: &'static str) -> Self {
        Self {
            dmlc: Some(dmlc),
            ..self
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("true or false"),
            Self::Text => f.write_str("text"),
            Self::Secret => f.write_str("text (secret)"),
            Self::OneOf(words) => {
                let quoted: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
                write!(f, "{}", quoted.join(", "))
            }
            Self::Range(first, last) => write!(f, "{first} to {last}"),
            Self::PowerOfTwo(first, last) => write!(f, "a power of two, {first} to {last}"),
            Self::List(separator) => write!(f, "a list (in text: separated by '{separator}')"),
        }
    }
}

/// Every key, in the order of config/stepmesh.toml.
pub const KEYS: &[Key] = &[
    Key::new(
        "backend",
        Text,
        "Backend name, any case; empty: `GPU` if usable, else `cpu`.",
    ),
    Key::new(
        "plugins.path",
        List(':'),
        "Plugin files and directories of plugin files.",
    )
    .short("STEPMESH_PLUGIN_PATH"),
    Key::new(
        "plugins.load",
        OneOf(&["all", "selected"]),
        "Which compatible plugins to open.",
    ),
    Key::new(
        "plugins.strict",
        Bool,
        "Two different files of one backend name are an error.",
    )
    .short("STEPMESH_PLUGIN_STRICT"),
    Key::new(
        "plugins.disable",
        List(','),
        "Globs of file or backend names never to open.",
    ),
    Key::new(
        "plugins.trust",
        Bool,
        "Take plugin files that other users may write to.",
    )
    .short("STEPMESH_PLUGIN_TRUST"),
    Key::new(
        "mesh.role",
        OneOf(&["", "scheduler", "server", "worker"]),
        "What this process is.",
    )
    .dmlc("DMLC_ROLE"),
    Key::new(
        "mesh.workers",
        Range(1, MEMBERS_MAX),
        "Worker groups (nodes).",
    )
    .dmlc("DMLC_NUM_WORKER"),
    Key::new(
        "mesh.servers",
        Range(1, MEMBERS_MAX),
        "Server groups (nodes).",
    )
    .dmlc("DMLC_NUM_SERVER"),
    Key::new(
        "mesh.group_size",
        Range(1, MEMBERS_MAX),
        "Processes in a group.",
    )
    .dmlc("DMLC_GROUP_SIZE"),
    Key::new(
        "mesh.rank",
        Range(-1, MEMBERS_MAX * MEMBERS_MAX - 1),
        "Rank; -1: scheduler's choice.",
    )
    .dmlc("DMLC_RANK"),
    Key::new("mesh.scheduler_host", Text, "Where the scheduler listens.").dmlc("DMLC_PS_ROOT_URI"),
    Key::new(
        "mesh.scheduler_port",
        Range(0, PORT_MAX),
        "Its port; 0: it takes a free one.",
    )
    .dmlc("DMLC_PS_ROOT_PORT"),
    Key::new(
        "mesh.interface",
        Text,
        "Network interface; empty: the one towards the scheduler.",
    )
    .dmlc("DMLC_INTERFACE"),
    Key::new(
        "mesh.node_host",
        Text,
        "Address for peers; empty: that of the interface.",
    )
    .dmlc("DMLC_NODE_HOST"),
    Key::new(
        "mesh.token",
        Secret,
        "Secret that members share; empty: none.",
    ),
    Key::new(
        "transport.kind",
        OneOf(&["auto", "shm", "tcp", "rdma"]),
        "Which fabric.",
    ),
    Key::new(
        "transport.poll",
        OneOf(&["adaptive", "busy", "event"]),
        "How to wait.",
    ),
    Key::new(
        "transport.spin_us",
        Range(0, 1_000_000),
        "Spinning before sleeping (adaptive), µs.",
    ),
    Key::new(
        "transport.mem_sync",
        Bool,
        "Poll memory for events of a device that can do that.",
    )
    .short("STEPMESH_MEM_SYNC"),
    Key::new(
        "transport.message_len_max_bytes",
        Range(1 << 10, 1 << 20),
        "Largest message, bytes.",
    ),
    Key::new(
        "timeouts.connect_ms",
        TIMEOUT_MS,
        "Connecting to a peer, ms.",
    ),
    Key::new(
        "timeouts.barrier_ms",
        TIMEOUT_MS,
        "Waiting for every member, ms.",
    ),
    Key::new(
        "timeouts.request_ms",
        TIMEOUT_MS,
        "One push, pull or batch, ms.",
    ),
    Key::new(
        "timeouts.heartbeat_ms",
        TIMEOUT_MS,
        "Between two signs of life, ms.",
    ),
    Key::new(
        "timeouts.peer_dead_ms",
        TIMEOUT_MS,
        "Silence of a dead peer, ms.",
    ),
    Key::new(
        "timeouts.peer_dead_local_ms",
        TIMEOUT_MS,
        "Within how long the end of a process on this host is noticed, ms.",
    ),
    Key::new("timeouts.close_ms", TIMEOUT_MS, "Draining at the end, ms."),
    Key::new(
        "shm.dir",
        Text,
        "Directory of mapped files; empty: anonymous memory.",
    ),
    Key::new(
        "shm.ring_len_bytes",
        PowerOfTwo(1 << 12, 1 << 30),
        "Message ring, bytes.",
    ),
    Key::new(
        "tcp.port",
        Range(0, PORT_MAX),
        "Port to listen on; 0: a free one.",
    )
    .dmlc("DMLC_PORT"),
    Key::new(
        "tcp.send_buffer_bytes",
        Range(0, 1 << 30),
        "Kernel send buffer; 0: its choice.",
    ),
    Key::new(
        "tcp.recv_buffer_bytes",
        Range(0, 1 << 30),
        "Kernel receive buffer; 0: its choice.",
    ),
    Key::new(
        "rdma.devices",
        List(','),
        "Adapters (mlx5_0) or ports (mlx5_0:1) that may be used; empty: all.",
    ),
    Key::new("rdma.exclude", List(','), "Those that may not."),
    Key::new(
        "rdma.gid_index",
        Range(-1, 255),
        "Entry of the port's table of GIDs; -1: chosen.",
    ),
    Key::new(
        "rdma.queue_pairs",
        Range(1, 16),
        "Queue pairs of a connection.",
    ),
    Key::new(
        "rdma.spread_ports",
        Bool,
        "Whether they take the ports of a bonded adapter in turn.",
    ),
    Key::new(
        "rdma.send_depth",
        Range(16, 16384),
        "Work requests outstanding on a queue pair.",
    ),
    Key::new(
        "rdma.ring_len_bytes",
        PowerOfTwo(1 << 12, 1 << 24),
        "Message ring, bytes.",
    ),
    Key::new(
        "rdma.mtu_len_bytes",
        Range(0, 4096),
        "Largest packet, bytes; 0: what both ports have.",
    ),
    Key::new(
        "rdma.traffic_class",
        Range(0, 255),
        "Traffic class of packets (DSCP << 2).",
    ),
    Key::new(
        "rdma.service_level",
        Range(0, 15),
        "Service level, or priority.",
    ),
    Key::new(
        "rdma.timeout",
        Range(1, 31),
        "Wait for an acknowledgement: 4.096 µs times two to the power of this.",
    ),
    Key::new(
        "rdma.retry_count",
        Range(0, 7),
        "How often to send again without one.",
    ),
    Key::new(
        "rdma.rnr_retry",
        Range(0, 7),
        "How often to send again to a receiver that is not ready; 7: for ever.",
    ),
    Key::new(
        "limits.peers_max",
        Range(1, 1 << 20),
        "Peers of one process.",
    ),
    Key::new(
        "limits.slots_max",
        Range(1, 1 << 24),
        "Registered slots of one process.",
    ),
    Key::new(
        "limits.batches_max",
        Range(1, 1 << 20),
        "Batches in flight.",
    ),
    Key::new(
        "limits.slot_len_max_bytes",
        Range(1 << 12, 1 << 46),
        "Longest slot, bytes.",
    ),
    Key::new("trace.enabled", Bool, "Time stamps of each request."),
    Key::new("log.level", Text, "Level or `tracing` filter.").short("STEPMESH_LOG"),
];

/// `STEPMESH_*` names that are read but are not keys.
pub(super) const ENV_OTHER: &[&str] = &[
    "STEPMESH_CONFIG",
    "STEPMESH_BAKCEND",
    "STEPMESH_PLUGIN_DIR",
    "STEPMESH_REQUIRE",
    "STEPMESH_SIMDRIVER_DIR",
    "STEPMESH_SIMDRIVER_DEVICES",
    "STEPMESH_SIMDRIVER_MEMORY_BYTES",
    "STEPMESH_SIMDRIVER_DMABUF",
    "STEPMESH_SIMDRIVER_FAULTS",
];

/// `STEPMESH_*` names of the original system that mean nothing here.
pub(super) const ENV_ORIGINAL: &[&str] = &[
    "STEPMESH_BIND_CPU_CORE",
    "STEPMESH_CPU_CORES_PER_GPU",
    "STEPMESH_CPU_CORES_PER_SOCKET",
    "STEPMESH_CPU_START_OFFSET",
    "STEPMESH_ENABLE_TRACE",
    "STEPMESH_GPU",
    "STEPMESH_SPLIT_QP_LAG",
];

/// A day: a longer wait is a mistyped unit.
const TIMEOUT_MS: Allowed = Range(1, 24 * 60 * 60 * 1000);
/// Groups of one role, and processes of one group: ranks stay within 32 bits.
const MEMBERS_MAX: i64 = 1 << 15;
/// The largest TCP port.
const PORT_MAX: i64 = 65_535;
