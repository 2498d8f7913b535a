//! R: memory for network adapters (`stepmesh.rdma.v1`). The table is not part of ABI 1.0, so these
//! keep their places.
#![forbid(unsafe_code)]

use stepmesh_abi::device::{SM_CAP_DMABUF_DEFAULT, SM_CAP_DMABUF_PCIE, SM_CAP_FLUSH_RDMA};
use stepmesh_abi::extension::SM_EXTENSION_RDMA_V1;

use super::extension::needs_extension;
use crate::check::{Check, Group, Tier, Verdict};
use crate::context::Context;

const fn check(id: &'static str, name: &'static str, proves: &'static str) -> Check {
    Check {
        id,
        name,
        tier: Tier::Capability,
        group: Group::Rdma,
        proves,
        run: needs_rdma,
    }
}

fn needs_rdma(context: &Context<'_>) -> Verdict {
    let bits = SM_CAP_DMABUF_DEFAULT | SM_CAP_DMABUF_PCIE | SM_CAP_FLUSH_RDMA;
    needs_extension(context, SM_EXTENSION_RDMA_V1, Some(bits))
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "R1",
        "export of an unaligned part",
        "descriptor, offset and length cover the range",
    ),
    check(
        "R2",
        "a real dma-buf, closed on exec",
        "the descriptor is what it should be",
    ),
    check(
        "R3",
        "dmabuf_close leaks nothing",
        "10 000 exports leave no descriptor",
    ),
    check(
        "R4",
        "a descriptor outlives free",
        "no memory of others is reached through it",
    ),
    check(
        "R5",
        "the PCIe mapping is refused honestly",
        "the default mapping still works",
    ),
    check(
        "R6",
        "export of other kinds of memory",
        "they are exported or refused as the bits say",
    ),
    check(
        "R7",
        "a loopback write is seen",
        "a network adapter's write is there after a flush",
    ),
    check(
        "R8",
        "flush scopes are checked",
        "unknown scopes are refused",
    ),
    check(
        "R9",
        "invalidation comes before reuse",
        "a cache of registrations is told in time",
    ),
    check(
        "R10",
        "ranges of several segments",
        "covered whole or refused, never short",
    ),
];
