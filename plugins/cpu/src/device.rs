//! The devices of this machine: NUMA nodes with memory, what the kernel says about them, and how much
//! memory is left.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use stepmesh_plugin::abi::device::{
    SM_CAP_CONCURRENT_CONTEXTS, SM_CAP_FLUSH_RDMA, SM_CAP_FORK_SAFE_PROBE, SM_CAP_HOST_FUNC,
    SM_CAP_IPC, SM_CAP_MAPPED_HOST, SM_CAP_MEMEVENT, SM_CAP_PEER_ACCESS, SM_CAP_PEERMEM,
    SM_CAP_PINNED_HOST, SM_CAP_SYNC_MEMOPS, SM_CAP_TIMING, SM_CAP_UVA, SM_DLPACK_CPU,
    SM_RDMA_ORDERING_ALL_DEVICES,
};
use stepmesh_plugin::abi::extension::{SM_RDMA_FLUSH_ALL_DEVICES, SM_RDMA_FLUSH_OWNER};
use stepmesh_plugin::abi::{SmDeviceInfo, SmRdmaCaps};
use stepmesh_plugin::software::{page_len, to_u64};
use stepmesh_plugin::text_field;

/// The NUMA nodes with memory, each of them a device.
#[derive(Debug)]
pub(crate) struct Topology {
    root: PathBuf,
    nodes: Vec<Option<u32>>,
}

impl Topology {
    /// Reads the nodes below a root: `/` but in tests. A machine that tells nothing has one device
    /// of an unknown node.
    pub(crate) fn read(root: &Path) -> Self {
        let node_dir = root.join("sys/devices/system/node");
        let nodes = ["has_memory", "has_normal_memory", "online"]
            .iter()
            .filter_map(|file| std::fs::read_to_string(node_dir.join(file)).ok())
            .map(|text| parse_list(&text))
            .find(|nodes| !nodes.is_empty())
            .map_or_else(|| vec![None], |nodes| nodes.into_iter().map(Some).collect());
        Self {
            root: root.to_owned(),
            nodes,
        }
    }

    /// Number of devices, 1 at least.
    pub(crate) fn device_count(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    /// NUMA node of a device, if the kernel told.
    pub(crate) fn node(&self, device: u32) -> Option<u32> {
        usize::try_from(device)
            .ok()
            .and_then(|idx| self.nodes.get(idx))
            .copied()
            .flatten()
    }

    /// Node to bind a device's memory to: none when there is no choice.
    pub(crate) fn node_to_bind(&self, device: u32) -> Option<u32> {
        if self.nodes.len() > 1 {
            self.node(device)
        } else {
            None
        }
    }

    /// Facts about a device.
    pub(crate) fn info(&self, device: u32) -> SmDeviceInfo {
        let node = self.node(device);
        let signed = |number: u32| i32::try_from(number).unwrap_or(-1);
        let (_, total_mem) = self.memory(device);
        SmDeviceInfo {
            ordinal: signed(device),
            physical_ordinal: node.map_or(-1, signed),
            name: text_field(&self.model_name()),
            arch: text_field(std::env::consts::ARCH),
            torch_device_type: text_field("cpu"),
            uuid: self.uuid(device),
            numa_node: node.map_or(-1, signed),
            dlpack_type: SM_DLPACK_CPU,
            total_mem,
            page_granularity: to_u64(page_len()),
            integrated: 1,
            rdma_write_ordering: SM_RDMA_ORDERING_ALL_DEVICES,
            ..SmDeviceInfo::new()
        }
    }

    /// Free and total bytes of a device's memory, within the limit of the process's group.
    pub(crate) fn memory(&self, device: u32) -> (u64, u64) {
        let (mut free, mut total) = self.node_to_bind(device).map_or_else(
            || self.machine_memory(),
            |node| {
                let file = format!("sys/devices/system/node/node{node}/meminfo");
                let text = self.text(&file);
                // Page cache gives way to allocations, so it counts as free.
                let free = kib(&text, "MemFree:") + kib(&text, "FilePages:") - kib(&text, "Shmem:");
                (free, kib(&text, "MemTotal:"))
            },
        );
        if let Some((limit, used)) = self.group_limit() {
            total = total.min(limit);
            free = free.min(limit.saturating_sub(used));
        }
        (free.min(total), total)
    }

    fn machine_memory(&self) -> (u64, u64) {
        let text = self.text("proc/meminfo");
        (kib(&text, "MemAvailable:"), kib(&text, "MemTotal:"))
    }

    /// Limit and use of the process's memory group; file pages that are not shared memory are
    /// given back under pressure and do not count.
    fn group_limit(&self) -> Option<(u64, u64)> {
        let number = |file: &str| self.text(file).trim().parse::<u64>().ok();
        let limit = number("sys/fs/cgroup/memory.max")?;
        let used = number("sys/fs/cgroup/memory.current")?;
        let stat = self.text("sys/fs/cgroup/memory.stat");
        let field = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse::<u64>().ok())
                .unwrap_or(0)
        };
        let cache = field("file ").saturating_sub(field("shmem "));
        Some((limit, used.saturating_sub(cache)))
    }

    fn model_name(&self) -> String {
        let text = self.text("proc/cpuinfo");
        let name = text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == "model name").then(|| value.trim().to_owned())
        });
        name.unwrap_or_else(|| format!("{} host memory", std::env::consts::ARCH))
    }

    /// Identity of a device: the machine's, mixed with the node, so that the machine's own is not
    /// given away. Zero if the machine has none.
    fn uuid(&self, device: u32) -> [u8; 16] {
        let machine = self.text("etc/machine-id");
        let mut uuid = [0; 16];
        if machine.trim().is_empty() {
            return uuid;
        }
        let salted = format!("stepmesh cpu {device} {}", machine.trim());
        uuid[..8].copy_from_slice(&fnv1a(salted.bytes()).to_le_bytes());
        uuid[8..].copy_from_slice(&fnv1a(salted.bytes().rev()).to_le_bytes());
        uuid
    }

    fn text(&self, file: &str) -> String {
        std::fs::read_to_string(self.root.join(file)).unwrap_or_default()
    }
}

/// What every device of this backend offers to network adapters beyond plain registration.
pub(crate) const RDMA_CAPS: SmRdmaCaps = SmRdmaCaps {
    flush_scopes: 1 << SM_RDMA_FLUSH_OWNER | 1 << SM_RDMA_FLUSH_ALL_DEVICES,
    write_ordering: SM_RDMA_ORDERING_ALL_DEVICES,
    ..SmRdmaCaps::new()
};

/// What every device of this backend can do.
pub(crate) const CAPABILITIES: u64 = SM_CAP_PINNED_HOST
    | SM_CAP_MAPPED_HOST
    | SM_CAP_UVA
    | SM_CAP_PEER_ACCESS
    | SM_CAP_IPC
    | SM_CAP_TIMING
    | SM_CAP_HOST_FUNC
    | SM_CAP_MEMEVENT
    // Device addresses are the host's own, which any NIC registers as they are.
    | SM_CAP_PEERMEM
    | SM_CAP_SYNC_MEMOPS
    | SM_CAP_FLUSH_RDMA
    | SM_CAP_CONCURRENT_CONTEXTS
    | SM_CAP_FORK_SAFE_PROBE;

/// Reads the kernel's lists of numbers, `0-1,3`; what is not one is left out.
fn parse_list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.trim().parse().ok()?;
        let last: u32 = last.trim().parse().ok()?;
        (last < NODES_MAX).then_some(first..=last)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// The number in a line such as `Node 0 MemTotal:  8047392 kB`, in bytes; 0 if there is none.
fn kib(text: &str, key: &str) -> u64 {
    let value = text.lines().find_map(|line| {
        let (_, rest) = line.split_once(key)?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    });
    value.unwrap_or(0).saturating_mul(1024)
}

fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Most nodes that Linux is built for; a larger number is no node.
const NODES_MAX: u32 = 1024;

#[cfg(test)]
mod tests;
