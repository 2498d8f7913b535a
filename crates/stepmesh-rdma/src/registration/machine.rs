//! What of the machine decides which way memory can be registered, read from the kernel's files under
//! a root that tests replace.

#![forbid(unsafe_code)]

use crate::select::System;

/// A machine, as far as registration depends on it.
#[derive(Clone, Debug)]
pub struct Machine {
    system: System,
    /// Major and minor, (0, 0) when unknown.
    kernel: (u32, u32),
    /// The module by which device memory is registered like host memory.
    peer_memory: Option<String>,
    has_iommu: bool,
    /// Whether no limit of locked memory holds for this process.
    can_lock_all: bool,
}

/// What a range of addresses is to the processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeUse {
    /// Nothing that it could read.
    NotMapped,
    /// Memory that it can read, of this file or kind: a device's address that lies there would be
    /// taken for the host's.
    Mapped(String),
}

impl Machine {
    /// The one that this runs on.
    #[must_use]
    pub fn this() -> Self {
        Self::of(System::this())
    }

    /// One whose files are below the root of `system`.
    #[must_use]
    pub fn of(system: System) -> Self {
        let release = system
            .text("/proc/sys/kernel/osrelease")
            .unwrap_or_default();
        let status = system.text("/proc/self/status").unwrap_or_default();
        Self {
            can_lock_all: can_lock_all(&status),
            kernel: version(&release),
            peer_memory: peer_memory(&system),
            has_iommu: !system.names("/sys/kernel/iommu_groups").is_empty(),
            system,
        }
    }

    /// Whether the kernel is known to be too old to register dma-bufs.
    #[must_use]
    pub fn is_too_old_for_dmabuf(&self) -> bool {
        self.kernel != (0, 0) && self.kernel < DMABUF_SINCE
    }

    /// The module by which device memory is registered like host memory, if one is loaded.
    #[must_use]
    pub fn peer_memory(&self) -> Option<&str> {
        self.peer_memory.as_deref()
    }

    /// Whether transfers between devices pass an IOMMU, which must then let them.
    #[must_use]
    pub fn has_iommu(&self) -> bool {
        self.has_iommu
    }

    /// Why so much memory cannot be locked now; nothing if it can, or nobody knows. Reads files.
    #[must_use]
    pub fn memlock_refusal(&self, len_bytes: u64) -> Option<String> {
        if self.can_lock_all {
            return None;
        }
        let status = self.system.text("/proc/self/status")?;
        let limits = self.system.text("/proc/self/limits")?;
        let limit = soft_limit(&limits, "Max locked memory")?;
        let locked = kib(&status, "VmPin:").unwrap_or(0) * 1024;
        // The kernel compares what is pinned together with what is asked for.
        (locked.saturating_add(len_bytes) > limit).then(|| {
            format!("the limit of locked memory is {limit} bytes, of which {locked} are used")
        })
    }

    /// What a range of addresses is to the processor. Reads the list of mappings.
    #[must_use]
    pub fn range_use(&self, address: u64, len_bytes: u64) -> RangeUse {
        let maps = self.system.text("/proc/self/maps").unwrap_or_default();
        let end = address.saturating_add(len_bytes);
        let hit = maps.lines().filter_map(Mapping::parse).find(|mapping| {
            mapping.start < end && mapping.end > address && mapping.is_host_memory()
        });
        match hit {
            None => RangeUse::NotMapped,
            Some(mapping) if mapping.name.is_empty() => RangeUse::Mapped("anonymous memory".into()),
            Some(mapping) => RangeUse::Mapped(mapping.name.to_owned()),
        }
    }
}

/// A line of /proc/self/maps.
struct Mapping<'a> {
    start: u64,
    end: u64,
    is_readable: bool,
    name: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?;
        Some(Self {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            is_readable: permissions.starts_with('r'),
            // After offset, device and inode.
            name: words.nth(3).unwrap_or_default(),
        })
    }

    /// Drivers reserve addresses without access, or map their own files there: that is no memory of
    /// the host.
    fn is_host_memory(&self) -> bool {
        let is_drivers = ["/dev/nvidia", "/dev/kfd", "/dev/dri"]
            .iter()
            .any(|device| self.name.starts_with(device));
        self.is_readable && !is_drivers
    }
}

/// Of `6.1.0-57-amd64`.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|char: char| !char.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok());
    match (next(), next()) {
        (Some(major), Some(minor)) => (major, minor),
        _ => (0, 0),
    }
}

/// The kernel of MOFED lists who offers peer memory; others only have the module.
fn peer_memory(system: &System) -> Option<String> {
    let listed = system.names("/sys/kernel/mm/memory_peers");
    let modules = ["nvidia_peermem", "nv_peer_mem", "amdp2p"];
    let module = modules.iter().find(|module| {
        let is_live = system.text(&format!("/sys/module/{module}/initstate"));
        is_live.as_deref() == Some("live")
    });
    listed
        .into_iter()
        .next()
        .or_else(|| module.map(|module| (*module).to_owned()))
}

/// `CAP_IPC_LOCK`.
fn can_lock_all(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    set.is_some_and(|set| set & (1 << 14) != 0)
}

/// The number after a key in a file of lines `Key: number kB`.
fn kib(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Of /proc/self/limits; nothing for `unlimited`.
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The first kernel with `ibv_reg_dmabuf_mr`.
const DMABUF_SINCE: (u32, u32) = (5, 12);
