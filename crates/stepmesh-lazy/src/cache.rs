//! A cache that drops what was used longest ago, with a limit of entries and one of bytes. What is
//! kept in it is decided in `engine`.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Least recently used entries go first. Keys are compared, not only hashed.
#[derive(Debug)]
pub(crate) struct Lru<K, V> {
    entries: FxHashMap<K, Entry<V>>,
    tick: u64,
    len_bytes: usize,
    entries_max: usize,
    len_bytes_max: usize,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    len_bytes: usize,
    used: u64,
}

impl<K: Hash + Eq + Clone, V> Lru<K, V> {
    pub(crate) fn new(entries_max: usize, len_bytes_max: usize) -> Self {
        Self {
            entries: FxHashMap::default(),
            tick: 0,
            len_bytes: 0,
            entries_max,
            len_bytes_max,
        }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<&V> {
        self.tick += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.tick;
        Some(&entry.value)
    }

    /// Adds an entry, which is kept whatever its size, and returns how many others went.
    pub(crate) fn insert(&mut self, key: K, value: V, len_bytes: usize) -> usize {
        self.tick += 1;
        let entry = Entry {
            value,
            len_bytes,
            used: self.tick,
        };
        self.len_bytes += len_bytes;
        if let Some(old) = self.entries.insert(key, entry) {
            self.len_bytes -= old.len_bytes;
        }
        let before = self.entries.len();
        while self.entries.len() > 1
            && (self.entries.len() > self.entries_max || self.len_bytes > self.len_bytes_max)
        {
            // A walk over all of them, beside a compilation.
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            if let Some(gone) = self.entries.remove(&key) {
                self.len_bytes -= gone.len_bytes;
            }
        }
        before - self.entries.len()
    }

    pub(crate) fn clear(&mut self) -> usize {
        let count = self.entries.len();
        self.entries.clear();
        self.len_bytes = 0;
        count
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.values().map(|entry| &entry.value)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Lru;

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let mut cache = Lru::new(2, usize::MAX);
        assert_eq!(cache.insert("a", 1, 1), 0);
        assert_eq!(cache.insert("b", 2, 1), 0);
        assert_eq!(cache.get(&"a"), Some(&1));
        assert_eq!(cache.insert("c", 3, 1), 1);
        assert_eq!(cache.get(&"b"), None);
        assert_eq!(cache.get(&"a"), Some(&1));
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn bytes_are_bounded_but_the_newest_stays() {
        let mut cache = Lru::new(100, 10);
        cache.insert(1, "small", 4);
        cache.insert(2, "small", 4);
        assert_eq!(cache.insert(3, "medium", 6), 1);
        assert_eq!((cache.len(), cache.len_bytes()), (2, 10));
        assert_eq!(cache.insert(4, "huge", 50), 2);
        assert_eq!((cache.len(), cache.len_bytes()), (1, 50));
        assert_eq!(cache.clear(), 1);
        assert_eq!(cache.len_bytes(), 0);
    }

    #[test]
    fn an_entry_that_is_replaced_counts_once() {
        let mut cache = Lru::new(4, 100);
        cache.insert("a", 1, 30);
        cache.insert("a", 2, 20);
        assert_eq!((cache.len(), cache.len_bytes()), (1, 20));
    }
}
