//! Which parts of one piece of memory are free: first fit with joining. Knows offsets only, no
//! memory.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// The free ranges of a piece of memory, by offset in bytes.
#[derive(Debug)]
pub struct FreeRanges {
    free: BTreeMap<usize, usize>,
    len_bytes: usize,
}

impl FreeRanges {
    /// All of it is free.
    #[must_use]
    pub fn new(len_bytes: usize) -> Self {
        Self {
            free: BTreeMap::from([(0, len_bytes)]),
            len_bytes,
        }
    }

    /// Takes a range at an aligned offset, if there is one. `len_bytes` is not 0, `align_bytes` a
    /// power of two.
    pub fn take(&mut self, len_bytes: usize, align_bytes: usize) -> Option<usize> {
        let (&start, &free_len, at) = self.free.iter().find_map(|(start, free_len)| {
            let at = start.checked_next_multiple_of(align_bytes)?;
            let end = at.checked_add(len_bytes)?;
            (end <= start + free_len).then_some((start, free_len, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let (end, free_end) = (at + len_bytes, start + free_len);
        if free_end > end {
            self.free.insert(end, free_end - end);
        }
        Some(at)
    }

    /// Gives a taken range back.
    pub fn give(&mut self, at: usize, len_bytes: usize) {
        let (mut start, mut end) = (at, at + len_bytes);
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

    /// Whether nothing is taken.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.free.get(&0) == Some(&self.len_bytes)
    }
}

#[cfg(test)]
mod tests;
