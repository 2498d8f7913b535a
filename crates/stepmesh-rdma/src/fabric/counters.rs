//! What the fabrics of this process have posted, for those who measure.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the process began, over all fabrics. One call into the provider posts a whole list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Chains that were taken.
    pub chains: u64,
    /// Lists of work requests posted: one for each queue pair that carries a chain, and one for each
    /// write of credit.
    pub posts: u64,
    /// The requests of these that report a completion.
    pub signalled: u64,
    /// Writes of credit, which no message took along.
    pub credits: u64,
}

impl Counters {
    /// What was counted until now.
    #[must_use]
    pub fn now() -> Self {
        Self {
            chains: CHAINS.load(Ordering::Relaxed),
            posts: POSTS.load(Ordering::Relaxed),
            signalled: SIGNALLED.load(Ordering::Relaxed),
            credits: CREDITS.load(Ordering::Relaxed),
        }
    }

    #[inline]
    pub(super) fn chain() {
        CHAINS.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn post(signalled: usize) {
        POSTS.fetch_add(1, Ordering::Relaxed);
        SIGNALLED.fetch_add(signalled as u64, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn credit() {
        CREDITS.fetch_add(1, Ordering::Relaxed);
    }
}

static CHAINS: AtomicU64 = AtomicU64::new(0);
static POSTS: AtomicU64 = AtomicU64::new(0);
static SIGNALLED: AtomicU64 = AtomicU64::new(0);
static CREDITS: AtomicU64 = AtomicU64::new(0);
