//! ME: events as a number in memory (`stepmesh.memevent.v1`). The table is not part of ABI 1.0, so
//! these keep their places.
#![forbid(unsafe_code)]

use stepmesh_abi::device::SM_CAP_MEMEVENT;
use stepmesh_abi::extension::SM_EXTENSION_MEMEVENT_V1;

use super::extension::needs_extension;
use crate::check::{Check, Group, Tier, Verdict};
use crate::context::Context;

const fn check(id: &'static str, name: &'static str, proves: &'static str) -> Check {
    Check {
        id,
        name,
        tier: Tier::Capability,
        group: Group::MemEvent,
        proves,
        run: needs_mem_event,
    }
}

fn needs_mem_event(context: &Context<'_>) -> Verdict {
    needs_extension(context, SM_EXTENSION_MEMEVENT_V1, Some(SM_CAP_MEMEVENT))
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "ME1",
        "numbers only grow",
        "a later arm is never seen before an earlier one",
    ),
    check(
        "ME2",
        "no wake is lost",
        "a million arms are all seen, on weakly ordered hosts too",
    ),
    check(
        "ME3",
        "a fault ends the wait",
        "a waiting host learns of a lost device",
    ),
];
