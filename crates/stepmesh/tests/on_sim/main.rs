//! The tests of `tests/it`, with every tensor in memory that kills whoever touches it from the host.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may, as tests themselves do"
)]

#[path = "../it/backends.rs"]
mod backends;
#[path = "../it/failures.rs"]
mod failures;
#[path = "../it/mesh.rs"]
mod mesh;
#[path = "../it/requests.rs"]
mod requests;

/// Where [`mesh::Mesh::form`] takes its memory from.
fn device() -> stepmesh_core::Device {
    backends::sim(&[("stream_delay_us", "20")])
}
