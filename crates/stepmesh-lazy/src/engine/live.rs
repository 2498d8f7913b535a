//! The tensors of a device that are alive.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::tensor::TensorInner;

/// Tensors register when they are made and leave when they are dropped.
#[derive(Debug, Default)]
pub(crate) struct LiveTensors {
    state: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    slots: Vec<Option<Weak<TensorInner>>>,
    free: Vec<usize>,
}

impl LiveTensors {
    /// A place for a tensor that is being made.
    pub(crate) fn enter(&self, tensor: &Weak<TensorInner>) -> usize {
        let mut state = self.lock();
        let tensor = Some(tensor.clone());
        if let Some(slot) = state.free.pop() {
            state.slots[slot] = tensor;
            return slot;
        }
        state.slots.push(tensor);
        state.slots.len() - 1
    }

    pub(crate) fn leave(&self, slot: usize) {
        let mut state = self.lock();
        state.slots[slot] = None;
        state.free.push(slot);
    }

    /// All of them, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<TensorInner>> {
        let mut all: Vec<Arc<TensorInner>> = {
            let state = self.lock();
            let slots = state.slots.iter().flatten();
            slots.filter_map(Weak::upgrade).collect()
        };
        // Outside of the lock: one of them may be the last handle by now, and leave.
        all.sort_unstable_by_key(|tensor| tensor.id());
        all
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
