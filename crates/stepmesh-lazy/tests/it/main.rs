//! The engine from outside, on the cpu backend.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are no test functions to clippy"
)]

mod backend;
mod common;
mod engine;
mod failures;
mod fallback;
mod memory;
mod ops;
mod random_graphs;
mod reference_faults;
mod threads;
