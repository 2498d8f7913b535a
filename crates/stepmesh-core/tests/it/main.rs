//! Tests of the loader and the registry with plugin files: made by the system's C compiler as the
//! tests run, and the real ones that `cargo xtask test` built.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may, as tests themselves do"
)]

mod compute;
mod crashes;
mod examples;
mod mem_event;
mod plugins;
mod real;
mod selection;
mod trust;
mod zoo;
