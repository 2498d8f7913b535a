//! Which parts of a device's memory are free. First fit: devices of tests are small.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// Free ranges by start.
#[derive(Debug)]
pub(crate) struct Ranges {
    free: BTreeMap<u64, u64>,
    left: u64,
}

impl Ranges {
    pub(crate) fn new(len: u64) -> Self {
        Self {
            free: BTreeMap::from([(0, len)]),
            left: len,
        }
    }

    /// Bytes that are free.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    pub(crate) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let fits = |(start, free): (&u64, &u64)| {
            let at = start.checked_next_multiple_of(align)?;
            let needed = (at - start).checked_add(len)?;
            (needed <= *free).then_some((*start, *free, at))
        };
        let (start, free, at) = self.free.iter().find_map(fits)?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let (end, free_end) = (at + len, start + free);
        if free_end > end {
            self.free.insert(end, free_end - end);
        }
        self.left -= len;
        Some(at)
    }

    pub(crate) fn give(&mut self, start: u64, len: u64) {
        self.left += len;
        let (mut start, mut end) = (start, start + len);
        if let Some((&before, &before_len)) = self.free.range(..start).next_back()
            && before + before_len == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(after_len) = self.free.remove(&end) {
            end += after_len;
        }
        self.free.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    //! What is given back joins its neighbours.

    use super::Ranges;

    #[test]
    fn neighbours_join_whatever_the_order() {
        let mut ranges = Ranges::new(4096);
        let [a, b, c] = [1024, 1024, 2048].map(|len| ranges.take(len, 512));
        assert_eq!([a, b, c], [Some(0), Some(1024), Some(2048)]);
        assert_eq!(ranges.take(512, 512), None);
        ranges.give(0, 1024);
        ranges.give(2048, 2048);
        ranges.give(1024, 1024);
        assert_eq!(ranges.left(), 4096);
        assert_eq!(ranges.take(4096, 512), Some(0));
    }

    #[test]
    fn alignment_leaves_the_gap_free() {
        let mut ranges = Ranges::new(8192);
        assert_eq!(ranges.take(512, 512), Some(0));
        assert_eq!(ranges.take(512, 4096), Some(4096));
        assert_eq!(ranges.take(512, 512), Some(512));
    }
}
