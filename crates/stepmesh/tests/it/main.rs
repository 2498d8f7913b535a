//! Tests of whole meshes, every member in a thread of its own, over the real fabrics.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may, as tests themselves do"
)]

mod adapter;
mod backends;
mod failures;
mod mesh;
mod requests;
mod staging;

/// Where [`mesh::Mesh::form`] takes its memory from. The same tests run on the simulated
/// accelerator, see `tests/on_sim`.
fn device() -> stepmesh_core::Device {
    backends::cpu()
}
