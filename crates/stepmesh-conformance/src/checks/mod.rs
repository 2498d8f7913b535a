//! The checks, a file for each group, and the list of all of them.
#![forbid(unsafe_code)]

mod compute;
mod compute_hostile;
mod concurrency;
mod device;
mod errors;
mod every_slot;
mod extension;
mod ipc;
mod lifecycle;
mod load;
mod mem_event;
mod memory;
mod program;
mod rdma;
mod setting;
mod stream;

use crate::check::Check;

/// Every check, in the order in which they run.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    let groups: [&'static [Check]; 11] = [
        load::CHECKS,
        errors::CHECKS,
        device::CHECKS,
        memory::CHECKS,
        stream::CHECKS,
        rdma::CHECKS,
        mem_event::CHECKS,
        ipc::CHECKS,
        concurrency::CHECKS,
        lifecycle::CHECKS,
        compute::CHECKS,
    ];
    groups.into_iter().flatten()
}
