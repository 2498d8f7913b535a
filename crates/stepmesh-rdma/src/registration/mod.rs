//! How an adapter comes to reach memory of a backend: the ways in their order, what each refusal was,
//! and a cache of what was registered. The verbs themselves are in `verbs`.
//!
//! - `plan`: host memory is registered as it is. Device memory is tried as a dma-buf, then as a
//!   dma-buf of its PCIe window, then by the driver's peer memory, and else refused: the mesh then
//!   stages it in pinned memory. Each refusal is kept with verb, error, range, kind, adapter and
//!   remedy. A device's address is never handed to the host's page tables.
//! - `machine`: what of the machine decides: kernel, peer-memory modules, IOMMU, the limit of
//!   locked memory, what is mapped at an address.
//! - `cache`: what is only sent from is registered once for each allocation and kept; what peers
//!   may write to is registered for exactly its range and never kept beyond its use.

pub use cache::{Cache, CacheLimits, CacheStatistics, Held};
pub use machine::{Machine, RangeUse};
pub use plan::{Refusal, Refused, Registered, Registrar, Target, Way, register};

mod cache;
#[cfg(feature = "rdma")]
mod domain;
mod machine;
mod plan;

#[cfg(test)]
mod tests;
