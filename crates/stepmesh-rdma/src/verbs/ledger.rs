//! Counts of live verbs objects of this process. They are raised and lowered by the types of the safe
//! ring; the descriptors are counted by asking the kernel, which cannot be fooled.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many objects of each kind are alive in this process. An object that the library refused to
/// destroy stays counted.
///
/// # Threads
/// Counts of objects that other threads make or drop meanwhile may be of different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Open devices.
    pub contexts: usize,
    /// Protection domains.
    pub protection_domains: usize,
    /// Memory regions.
    pub memory_regions: usize,
    /// Completion channels.
    pub completion_channels: usize,
    /// Completion queues.
    pub completion_queues: usize,
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Open descriptors of verbs devices and their event queues, whoever in this process opened
    /// them.
    pub descriptors: usize,
}

impl Ledger {
    /// What is alive now. Reads /proc: not for the data path.
    #[must_use]
    pub fn now() -> Self {
        let [
            contexts,
            protection_domains,
            memory_regions,
            channels,
            queues,
            queue_pairs,
        ] = COUNTS.each_ref().map(|count| count.load(Ordering::Acquire));
        Self {
            contexts,
            protection_domains,
            memory_regions,
            completion_channels: channels,
            completion_queues: queues,
            queue_pairs,
            descriptors: descriptors(),
        }
    }

    /// Whether nothing is alive.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// For the end of a test.
    ///
    /// # Panics
    /// Something is alive; the message has the counts.
    #[track_caller]
    pub fn assert_empty() {
        let now = Self::now();
        assert!(now.is_empty(), "verbs objects are still alive: {now:?}");
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Context,
    ProtectionDomain,
    MemoryRegion,
    CompletionChannel,
    CompletionQueue,
    QueuePair,
}

impl Kind {
    pub(super) fn made(self) {
        COUNTS[self as usize].fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn destroyed(self) {
        COUNTS[self as usize].fetch_sub(1, Ordering::AcqRel);
    }
}

fn descriptors() -> usize {
    let entries = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|target| {
            let target = target.to_string_lossy();
            target.starts_with("/dev/infiniband/uverbs") || target.contains("[infinibandevent]")
        })
        .count()
}

/// In the order of `Kind`.
static COUNTS: [AtomicUsize; 6] = [const { AtomicUsize::new(0) }; 6];
