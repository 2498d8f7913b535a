//! Memory of our own that an adapter reads and writes while we do: words behind atomics, in whole
//! pages. What is kept in it is the business of `peer`.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// Pages of zeros; they share no page with other memory, which matters where forks are guarded.
#[derive(Debug)]
pub(super) struct Pages(Box<[Page]>);

#[repr(C, align(4096))]
#[derive(Debug)]
struct Page([AtomicU64; PAGE_WORDS]);

impl Pages {
    /// Memory for at least `len_bytes`.
    pub(super) fn new(len_bytes: usize) -> Self {
        let page = || Page([const { AtomicU64::new(0) }; PAGE_WORDS]);
        let count = len_bytes.div_ceil(PAGE_LEN_BYTES).max(1);
        Self((0..count).map(|_| page()).collect())
    }

    pub(super) fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.0.len() * PAGE_LEN_BYTES
    }

    /// The word at a place that is a multiple of eight bytes; `None` outside.
    #[inline]
    pub(super) fn load(&self, offset_bytes: usize) -> Option<u64> {
        Some(self.word(offset_bytes / 8)?.load(Ordering::Acquire))
    }

    /// Writes such a word; nothing happens outside.
    #[inline]
    pub(super) fn store(&self, offset_bytes: usize, value: u64) {
        if let Some(word) = self.word(offset_bytes / 8) {
            word.store(value, Ordering::Release);
        }
    }

    /// Copies out what begins at such a place; false when not all of it is inside.
    #[inline]
    pub(super) fn read(&self, offset_bytes: usize, out: &mut [u8]) -> bool {
        for (index, chunk) in (offset_bytes / 8..).zip(out.chunks_mut(8)) {
            let Some(word) = self.word(index) else {
                return false;
            };
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        true
    }

    /// Copies in what begins at such a place, and zeros up to the next; false when not all of it fits.
    #[inline]
    pub(super) fn write(&self, offset_bytes: usize, bytes: &[u8]) -> bool {
        for (index, chunk) in (offset_bytes / 8..).zip(bytes.chunks(8)) {
            let Some(word) = self.word(index) else {
                return false;
            };
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
        true
    }

    #[inline]
    fn word(&self, index: usize) -> Option<&AtomicU64> {
        self.0.get(index / PAGE_WORDS)?.0.get(index % PAGE_WORDS)
    }
}

const PAGE_LEN_BYTES: usize = 4096;

const PAGE_WORDS: usize = PAGE_LEN_BYTES / 8;

#[cfg(test)]
mod tests {
    //! Places and bounds.

    use super::Pages;

    #[test]
    fn bytes_come_back_across_pages_and_not_from_outside() {
        let pages = Pages::new(5000);
        assert_eq!(pages.len_bytes(), 8192);
        assert_eq!(pages.address() % 4096, 0);
        let bytes: Vec<u8> = (0..=255).cycle().take(4099).collect();
        assert!(pages.write(4080, &bytes));
        let mut out = vec![0; bytes.len()];
        assert!(pages.read(4080, &mut out));
        assert_eq!(out, bytes);
        assert!(!pages.write(8184, &[0; 9]));
        assert!(!pages.read(8184, &mut [0; 9]));
        pages.store(8184, 5);
        assert_eq!(pages.load(8184), Some(5));
        assert_eq!(pages.load(8192), None);
    }
}
