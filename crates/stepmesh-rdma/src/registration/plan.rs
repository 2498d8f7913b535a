//! The ways in which memory can be registered, tried in their order. The calls are made by a
//! `Registrar`: a protection domain, or a pretence in tests.

#![forbid(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use stepmesh_transport::memory::{Dmabuf, DmabufMapping, Memory, MemoryKind};

use super::machine::{Machine, RangeUse};
use crate::{Access, VerbsError};

/// What registers memory with an adapter.
pub trait Registrar {
    /// A registration; dropping it ends it.
    type Region;

    /// The adapter, for messages.
    fn adapter(&self) -> &str;

    /// Whether it can register a dma-buf of a PCIe window (mlx5 direct verbs).
    fn has_direct_dmabuf(&self) -> bool;

    /// Registers memory at its address: the host's, or a device's by peer memory.
    ///
    /// # Errors
    /// The verb failed.
    fn register(&self, target: &Target) -> Result<Self::Region, VerbsError>;

    /// Registers a dma-buf of the memory, whose pages must be reached through the device's PCIe
    /// window if `mapping` says so.
    ///
    /// # Errors
    /// The verb failed.
    fn register_dmabuf(
        &self,
        dmabuf: &Dmabuf,
        mapping: DmabufMapping,
        target: &Target,
    ) -> Result<Self::Region, VerbsError>;
}

/// A range of memory that an adapter shall reach.
#[derive(Clone)]
pub struct Target {
    /// The first address, in the backend's terms.
    pub address: u64,
    /// The length in bytes, not 0.
    pub len_bytes: u64,
    /// What the adapter may do.
    pub access: Access,
    /// What keeps the memory allocated; a registration for sending only may be without.
    pub keep_alive: Arc<dyn Any + Send + Sync>,
}

/// A way to register memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Way {
    /// As host memory, by its pages.
    Host,
    /// As a dma-buf, which the driver lays out as it likes.
    Dmabuf,
    /// As a dma-buf of the device's PCIe window.
    DmabufPcie,
    /// As device memory at its address, by a module that knows it.
    PeerMemory,
}

/// A way that was not taken, and what would help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The way.
    pub way: Way,
    /// The verb that failed, or the step before it.
    pub verb: &'static str,
    /// The number of the system's error; none where nothing was called.
    pub errno: Option<i32>,
    /// The first address.
    pub address: u64,
    /// The length in bytes.
    pub len_bytes: u64,
    /// The kind of memory, in words.
    pub memory: &'static str,
    /// The adapter.
    pub adapter: String,
    /// What was the matter.
    pub reason: String,
    /// What helps; may be empty.
    pub remedy: String,
}

/// A registration, how it was made, and what did not work before it.
#[derive(Debug)]
pub struct Registered<R> {
    /// The registration.
    pub region: R,
    /// How it was made.
    pub way: Way,
    /// The ways before it, in their order.
    pub refusals: Vec<Refusal>,
}

/// No way worked; the memory must be staged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", list(.refusals))]
pub struct Refused {
    /// Each way, in their order; never empty.
    pub refusals: Vec<Refusal>,
}

impl Way {
    /// In words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host memory",
            Self::Dmabuf => "dma-buf",
            Self::DmabufPcie => "dma-buf by PCIe",
            Self::PeerMemory => "peer memory",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (way, verb, adapter) = (self.way.as_str(), self.verb, &self.adapter);
        let (len_bytes, memory, address) = (self.len_bytes, self.memory, self.address);
        write!(
            f,
            "{way}: {verb} on {adapter} for {len_bytes} bytes of {memory} at {address:#x}: {}",
            self.reason
        )?;
        if let Some(errno) = self.errno {
            write!(f, " (os error {errno})")?;
        }
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len_bytes", &self.len_bytes)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// Registers a range of `memory`, which lies in it or in its allocation, by the first way that works.
///
/// # Errors
/// No way worked: each with its reason.
pub fn register<R: Registrar>(
    registrar: &R,
    machine: &Machine,
    memory: &Memory,
    target: &Target,
) -> Result<Registered<R::Region>, Refused> {
    let mut attempt = Attempt {
        registrar,
        machine,
        memory,
        target,
        refusals: Vec::new(),
    };
    let taken = attempt.run();
    let refusals = attempt.refusals;
    match taken {
        Some((way, region)) => {
            for refusal in &refusals {
                tracing::debug!(%refusal, taken = way.as_str(), "a way to register memory is not open");
            }
            Ok(Registered {
                region,
                way,
                refusals,
            })
        }
        None => Err(Refused { refusals }),
    }
}

struct Attempt<'a, R> {
    registrar: &'a R,
    machine: &'a Machine,
    memory: &'a Memory,
    target: &'a Target,
    refusals: Vec<Refusal>,
}

impl<R: Registrar> Attempt<'_, R> {
    fn run(&mut self) -> Option<(Way, R::Region)> {
        let kind = self.memory.allocation().map(|allocation| allocation.kind);
        match kind {
            Some(MemoryKind::Host) => self.host(),
            Some(MemoryKind::Device) => self.device(),
            Some(MemoryKind::Managed) => {
                let reason =
                    "it migrates between host and device, and an adapter holds on to pages";
                self.refuse(
                    Way::Host,
                    "ibv_reg_mr",
                    reason,
                    "allocate plain device memory",
                );
                None
            }
            // Nobody said more than whether the processor reaches it.
            None if self.memory.is_host_accessible() => self.host(),
            Some(_) | None => {
                let reason = "nobody says what memory this is, and the processor cannot reach it";
                self.refuse(Way::Host, "ibv_reg_mr", reason, "");
                None
            }
        }
    }

    fn host(&mut self) -> Option<(Way, R::Region)> {
        if let Some(reason) = self.machine.memlock_refusal(self.target.len_bytes) {
            self.refuse(Way::Host, "ibv_reg_mr", &reason, MEMLOCK);
            return None;
        }
        match self.registrar.register(self.target) {
            Ok(region) => Some((Way::Host, region)),
            Err(error) => {
                self.failed(Way::Host, &error, "");
                None
            }
        }
    }

    fn device(&mut self) -> Option<(Way, R::Region)> {
        if let Some(region) = self.dmabuf(Way::Dmabuf, DmabufMapping::Default) {
            return Some((Way::Dmabuf, region));
        }
        if self.registrar.has_direct_dmabuf() {
            if let Some(region) = self.dmabuf(Way::DmabufPcie, DmabufMapping::Pcie) {
                return Some((Way::DmabufPcie, region));
            }
        } else {
            let reason = "the adapter or its library has no direct verbs for it";
            self.refuse(Way::DmabufPcie, "mlx5dv_reg_dmabuf_mr", reason, "");
        }
        if self.memory.is_host_accessible() {
            // The backend vouches that the processor reaches it: then its pages are the host's.
            return self.host();
        }
        self.peer_memory().map(|region| (Way::PeerMemory, region))
    }

    fn dmabuf(&mut self, way: Way, mapping: DmabufMapping) -> Option<R::Region> {
        let verb = match way {
            Way::DmabufPcie => "mlx5dv_reg_dmabuf_mr",
            _ => "ibv_reg_dmabuf_mr",
        };
        if self.machine.is_too_old_for_dmabuf() {
            let reason = "the kernel is too old to register dma-bufs";
            self.refuse(way, verb, reason, "upgrade it to 5.12 or newer");
            return None;
        }
        let allocation = self.memory.allocation()?;
        let Some(exporter) = allocation.dmabuf.as_deref() else {
            let reason = "the backend exports none of this memory";
            self.refuse(way, "export", reason, "");
            return None;
        };
        let Target {
            address, len_bytes, ..
        } = *self.target;
        let offset = address.wrapping_sub(allocation.base);
        let dmabuf = match exporter.export(offset, len_bytes, mapping) {
            Ok(dmabuf) => dmabuf,
            Err(reason) => {
                self.refuse(way, "export", &reason, "");
                return None;
            }
        };
        if dmabuf.len_bytes < len_bytes {
            let reason = format!("the dma-buf has {} bytes only", dmabuf.len_bytes);
            self.refuse(way, "export", &reason, "");
            return None;
        }
        if (dmabuf.offset ^ address) & (PAGE_LEN_BYTES_MIN - 1) != 0 {
            let reason = format!(
                "its offset in the dma-buf, {}, is another in a page",
                dmabuf.offset
            );
            self.refuse(way, "export", &reason, "");
            return None;
        }
        // Backends want it open for as long as the registration lasts.
        let dmabuf = Arc::new(dmabuf);
        let keep_alive = (Arc::clone(&dmabuf), Arc::clone(&self.target.keep_alive));
        let target = Target {
            keep_alive: Arc::new(keep_alive),
            ..self.target.clone()
        };
        match self.registrar.register_dmabuf(&dmabuf, mapping, &target) {
            Ok(region) => Some(region),
            Err(error) => {
                self.failed(way, &error, self.device_remedy(&error));
                None
            }
        }
    }

    fn peer_memory(&mut self) -> Option<R::Region> {
        let (way, verb) = (Way::PeerMemory, "ibv_reg_mr");
        if self.machine.peer_memory().is_none() {
            let reason = "no module offers device memory to adapters";
            self.refuse(way, verb, reason, "modprobe nvidia-peermem (NVIDIA)");
            return None;
        }
        let Target {
            address, len_bytes, ..
        } = *self.target;
        if let RangeUse::Mapped(what) = self.machine.range_use(address, len_bytes) {
            let reason = format!("the processor has {what} there, which would be taken instead");
            self.refuse(way, verb, &reason, "");
            return None;
        }
        match self.registrar.register(self.target) {
            Ok(region) => Some(region),
            Err(error) => {
                self.failed(way, &error, self.device_remedy(&error));
                None
            }
        }
    }

    /// What helps an adapter that does not come at a device's memory.
    fn device_remedy(&self, error: &VerbsError) -> &'static str {
        match error.errno {
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY | libc::EPROTONOSUPPORT => {
                "this adapter's driver takes no dma-bufs: load the peer-memory module, or update it"
            }
            libc::ENOMEM | libc::ENOSPC => {
                "the device's PCIe window must cover the memory: enable resizable BAR and Above 4G \
                 Decoding (nvidia-smi -q shows BAR1)"
            }
            libc::EINVAL | libc::EIO | libc::EREMOTEIO | libc::EFAULT
                if self.machine.has_iommu() =>
            {
                "transfers between devices must pass the IOMMU: boot with iommu=pt, and turn ACS off"
            }
            libc::EFAULT => "the peer-memory module does not know this address: is it loaded?",
            _ => "",
        }
    }

    fn failed(&mut self, way: Way, error: &VerbsError, remedy: &str) {
        let remedy = if remedy.is_empty() {
            error.remedy()
        } else {
            remedy
        };
        let reason = std::io::Error::from_raw_os_error(error.errno).to_string();
        // The number is told apart.
        let reason = reason
            .split(" (os error")
            .next()
            .unwrap_or_default()
            .to_owned();
        let refusal = Refusal {
            verb: error.verb,
            errno: Some(error.errno),
            ..self.refusal(way, "", &reason, remedy)
        };
        self.refusals.push(refusal);
    }

    fn refuse(&mut self, way: Way, verb: &'static str, reason: &str, remedy: &str) {
        let refusal = self.refusal(way, verb, reason, remedy);
        self.refusals.push(refusal);
    }

    fn refusal(&self, way: Way, verb: &'static str, reason: &str, remedy: &str) -> Refusal {
        Refusal {
            way,
            verb,
            errno: None,
            address: self.target.address,
            len_bytes: self.target.len_bytes,
            memory: kind_of(self.memory),
            adapter: self.registrar.adapter().to_owned(),
            reason: reason.to_owned(),
            remedy: remedy.to_owned(),
        }
    }
}

fn kind_of(memory: &Memory) -> &'static str {
    match memory.allocation().map(|allocation| allocation.kind) {
        Some(MemoryKind::Device) => "device memory",
        Some(MemoryKind::Managed) => "managed memory",
        Some(MemoryKind::Host) => "host memory",
        _ if memory.is_host_accessible() => "host memory",
        _ => "unknown memory",
    }
}

fn list(refusals: &[Refusal]) -> String {
    let each: Vec<String> = refusals.iter().map(ToString::to_string).collect();
    each.join("; ")
}

/// An adapter maps whole pages: the offset in a page is the same in the dma-buf and in the address.
/// No supported kernel has smaller pages; one with larger ones refuses the rest itself.
const PAGE_LEN_BYTES_MIN: u64 = 4096;

const MEMLOCK: &str = "ulimit -l unlimited; LimitMEMLOCK=infinity in a unit; --ulimit memlock=-1 in a \
                       container";
