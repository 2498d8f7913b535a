//! Failures of destructors: they can be neither returned nor hidden, so they are logged and counted.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many handles of this process could not be given back to their backend. Each failure was
/// logged when it happened.
#[must_use]
pub fn cleanup_failures() -> u64 {
    FAILURES.load(Ordering::Relaxed)
}

pub(crate) fn failed(operation: &str, error: &dyn Display) {
    FAILURES.fetch_add(1, Ordering::Relaxed);
    tracing::error!(operation, "cleaning up failed: {error}");
}

static FAILURES: AtomicU64 = AtomicU64::new(0);
