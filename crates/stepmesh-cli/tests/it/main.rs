//! The `stepmesh` program as users run it: processes, what they print, and how they end.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may, as tests themselves do"
)]

mod bad_input;
mod bench;
mod death;
mod meshes;
mod plugin;
mod shown;
mod signals;
mod soak;
mod support;
