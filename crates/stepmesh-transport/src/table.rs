//! A bounded table whose ids are not used again: regions, peers and imports of every fabric live in
//! such tables.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// Values under ids that are an index in their low bits and a generation above. An id of a removed
/// value finds nothing; a slot whose generations are used up is retired, so that no id returns.
#[derive(Debug)]
pub struct Table<T> {
    slots: Vec<Slot<T>>,
    /// Oldest first, so that the generations of all slots grow alike.
    free: VecDeque<u32>,
    len: usize,
    len_max: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Table<T> {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// An empty table for at most `len_max` values (and never more than an index can name).
    #[must_use]
    pub fn new(len_max: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            len: 0,
            len_max: len_max.min(SLOTS_MAX),
        }
    }

    /// How many values are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Puts in what `value` makes of its id, or returns `None` when the table is full.
    pub fn insert_with(&mut self, value: impl FnOnce(u32) -> T) -> Option<u32> {
        if self.len >= self.len_max {
            return None;
        }
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.slots.len() < SLOTS_MAX => {
                self.slots.push(Slot {
                    generation: 0,
                    value: None,
                });
                u32::try_from(self.slots.len() - 1).ok()?
            }
            None => return None,
        };
        let slot = self.slots.get_mut(index as usize)?;
        let id = slot.generation << INDEX_BITS | index;
        slot.value = Some(value(id));
        self.len += 1;
        Some(id)
    }

    /// The value, if its id was not removed.
    #[inline]
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&T> {
        let slot = self.slots.get(index_of(id))?;
        if slot.generation != id >> INDEX_BITS {
            return None;
        }
        slot.value.as_ref()
    }

    /// The same, to be changed.
    #[inline]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut(index_of(id))?;
        if slot.generation != id >> INDEX_BITS {
            return None;
        }
        slot.value.as_mut()
    }

    /// Takes a value out; its id finds nothing from then on.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        let slot = self.slots.get_mut(index_of(id))?;
        if slot.generation != id >> INDEX_BITS {
            return None;
        }
        let value = slot.value.take()?;
        self.len -= 1;
        if slot.generation < GENERATION_MAX {
            slot.generation += 1;
            self.free.push_back(id & INDEX_MASK);
        }
        Some(value)
    }

    /// All values with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0_u32..).zip(&self.slots).filter_map(|(index, slot)| {
            let id = slot.generation << INDEX_BITS | index;
            slot.value.as_ref().map(|value| (id, value))
        })
    }

    /// The same, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0_u32..).zip(&mut self.slots).filter_map(|(index, slot)| {
            let id = slot.generation << INDEX_BITS | index;
            slot.value.as_mut().map(|value| (id, value))
        })
    }
}

fn index_of(id: u32) -> usize {
    (id & INDEX_MASK) as usize
}

/// A million regions: sixteen times the default bound of slots; the other bits are generations.
const INDEX_BITS: u32 = 20;

const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

const SLOTS_MAX: usize = 1 << INDEX_BITS;

const GENERATION_MAX: u32 = u32::MAX >> INDEX_BITS;

#[cfg(test)]
mod tests;
