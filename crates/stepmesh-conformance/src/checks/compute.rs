//! Z: computing (`stepmesh.compute.v1`). The extension is to come; these keep their places.
#![forbid(unsafe_code)]

use stepmesh_abi::extension::SM_EXTENSION_COMPUTE_V1;

use super::extension::needs_extension;
use crate::check::{Check, Group, Tier, Verdict};
use crate::context::Context;

const fn check(id: &'static str, name: &'static str, proves: &'static str) -> Check {
    Check {
        id,
        name,
        tier: Tier::Capability,
        group: Group::Compute,
        proves,
        run: needs_compute,
    }
}

fn needs_compute(context: &Context<'_>) -> Verdict {
    needs_extension(context, SM_EXTENSION_COMPUTE_V1, None)
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "Z1",
        "devices and default type",
        "type and ordinal come back as they were set",
    ),
    check(
        "Z2",
        "data there and back",
        "every type, stride and empty shape is bit-exact",
    ),
    check(
        "Z3",
        "a placeholder is filled later",
        "assigning makes it an ordinary value",
    ),
    check(
        "Z4",
        "compile and run an addition",
        "the result is that of the host",
    ),
    check(
        "Z5",
        "execution is asynchronous",
        "the event orders what follows",
    ),
    check(
        "Z6",
        "borrowed data is given back once",
        "the deleter runs exactly once, on any thread",
    ),
    check(
        "Z7",
        "an unknown operation is named",
        "the caller can fall back",
    ),
    check(
        "Z8",
        "an unknown format is refused",
        "no bytes are guessed at",
    ),
    check(
        "Z9",
        "programs are told apart",
        "fingerprints are stable, corrupt blobs are refused",
    ),
    check(
        "Z10",
        "random numbers repeat",
        "a seed gives the same numbers",
    ),
    check("Z11", "metrics and texts", "the callbacks get valid text"),
    check(
        "Z12",
        "a failed compilation leaks nothing",
        "memory is as before",
    ),
];
