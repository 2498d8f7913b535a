//! Tests of whole meshes, every member in a thread of its own, over the real fabrics.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may, as tests themselves do"
)]

mod backends;
mod failures;
mod mesh;
mod requests;
mod staging;
