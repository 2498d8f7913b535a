//! An instance behind an `SmBackend*`: its state, its events, and the guard through which every slot
//! goes. What a slot then does lives in the slots modules.
#![expect(unsafe_code, reason = "turns handles of the ABI into references")]

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use stepmesh_abi::error::SM_OK;
use stepmesh_abi::{SmBackend, SmError, SmEvent};

use crate::boundary::{Out, fail};
use crate::fork::ForkGuard;
use crate::{Backend, Error, Host, Result};

/// What an `SmBackend*` points to.
pub(crate) struct Instance<B: Backend> {
    pub(crate) backend: B,
    pub(crate) device_count: u32,
    fork: ForkGuard,
    state: AtomicU8,
    panic: OnceLock<String>,
    // Addresses of live events, so that a stray destroy is refused and close releases the rest.
    events: Mutex<HashSet<usize>>,
    // The same for the objects of extensions, whose types this module does not know.
    objects: Mutex<HashMap<usize, Box<dyn Any + Send>>>,
}

/// What an `SmEvent*` points to.
pub(crate) struct EventBox<B: Backend> {
    owner: usize,
    event: B::Event,
}

/// Which states of the instance a slot works in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Only while it is open.
    Open,
    /// Also after `quiesce`: frees and destroys.
    Ending,
}

impl<B: Backend> Instance<B> {
    pub(crate) fn open(host: Host) -> Result<Box<Self>> {
        let backend = B::open(host)?;
        let device_count = backend.device_count();
        Ok(Box::new(Self {
            backend,
            device_count,
            fork: ForkGuard::new(),
            state: AtomicU8::new(STATE_OPEN),
            panic: OnceLock::new(),
            events: Mutex::new(HashSet::new()),
            objects: Mutex::new(HashMap::new()),
        }))
    }

    pub(crate) fn check_device(&self, device: u32) -> Result<u32> {
        if device < self.device_count {
            return Ok(device);
        }
        Err(Error::invalid_argument(format!(
            "device {device} does not exist; backend `{}` has {} device(s), counted from 0",
            B::NOTE.name,
            self.device_count
        )))
    }

    pub(crate) fn quiesce(&self) -> Result<()> {
        if self.state.load(Ordering::Acquire) == STATE_OPEN {
            self.state.store(STATE_QUIESCED, Ordering::Release);
            self.backend.quiesce()?;
        }
        Ok(())
    }

    pub(crate) fn add_event(&self, event: B::Event) -> *mut SmEvent {
        let raw = Box::into_raw(Box::new(EventBox::<B> {
            owner: self.address(),
            event,
        }));
        self.lock_events().insert(raw.expose_provenance());
        raw.cast()
    }

    /// Takes an event out of the live ones; an unknown address is refused without touching it.
    pub(crate) fn remove_event(&self, raw: *mut SmEvent) -> Result<Box<EventBox<B>>> {
        if !self.lock_events().remove(&raw.addr()) {
            return Err(Error::invalid_argument(format!(
                "{raw:p} is no live event of this instance; was it destroyed already?"
            )));
        }
        // SAFETY: the address was in the set, so it came from `add_event` of this instance and was
        // not taken out before; the lock made sure of one taker.
        Ok(unsafe { Box::from_raw(raw.cast::<EventBox<B>>()) })
    }

    /// Keeps an object of an extension until it is removed or the instance ends, and gives the
    /// address by which the host names it.
    pub(crate) fn add_object<T: Send + Sync + 'static>(&self, object: T) -> *mut T {
        // An `Arc` rather than a box: moving it says nothing of unique access to what is in it.
        let object = Arc::new(object);
        let at = Arc::as_ptr(&object).cast_mut();
        self.lock_objects().insert(at.addr(), Box::new(object));
        at
    }

    /// Drops an object; false if the address is not that of a live one of this type.
    pub(crate) fn remove_object<T: Send + Sync + 'static>(&self, at: usize) -> bool {
        let mut objects = self.lock_objects();
        let is_it = objects.get(&at).is_some_and(|object| object.is::<Arc<T>>());
        let removed = if is_it { objects.remove(&at) } else { None };
        // Its destructor is the backend's code: no lock is held.
        drop(objects);
        removed.is_some()
    }

    fn lock_objects(&self) -> MutexGuard<'_, HashMap<usize, Box<dyn Any + Send>>> {
        // Each change is one call on the map, so it is whole whatever panicked meanwhile.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn lock_events(&self) -> MutexGuard<'_, HashSet<usize>> {
        // A set of numbers is whole whatever panicked meanwhile.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a slot may go on. Every call asks, so the usual answer is two loads in place.
    #[inline]
    fn admit(&self, phase: Phase) -> Result<()> {
        if self.state.load(Ordering::Acquire) == STATE_OPEN && !self.fork.is_forked() {
            return Ok(());
        }
        self.admit_unusual(phase)
    }

    #[cold]
    fn admit_unusual(&self, phase: Phase) -> Result<()> {
        if self.fork.is_forked() {
            return Err(Error::failed_precondition(format!(
                "this instance of backend `{}` belongs to process {}; a forked child must open its \
                 own",
                B::NOTE.name,
                self.fork.pid()
            )));
        }
        match self.state.load(Ordering::Acquire) {
            STATE_OPEN => Ok(()),
            STATE_QUIESCED if phase == Phase::Ending => Ok(()),
            STATE_QUIESCED => Err(Error::failed_precondition(format!(
                "this instance of backend `{}` was quiesced",
                B::NOTE.name
            ))),
            _ => Err(Error::failed_precondition(format!(
                "this instance of backend `{}` is out of use: {}; close it and open another",
                B::NOTE.name,
                self.panic.get().map_or("a panic", String::as_str)
            ))),
        }
    }

    fn poison(&self, slot: &str, payload: &(dyn Any + Send)) -> Error {
        let message = format!("{slot} panicked: {}", panic_message(payload));
        let message = self.panic.get_or_init(|| message);
        self.state.store(STATE_POISONED, Ordering::Release);
        Error::internal(message.clone())
    }
}

impl<B: Backend> Drop for Instance<B> {
    fn drop(&mut self) {
        let left: Vec<usize> = self.lock_events().drain().collect();
        for raw in left {
            let raw = std::ptr::with_exposed_provenance_mut::<EventBox<B>>(raw);
            // SAFETY: an address in the set came from `add_event` and was not taken out; draining
            // took it out now.
            drop(unsafe { Box::from_raw(raw) });
        }
        let objects = std::mem::take(&mut *self.lock_objects());
        drop(objects);
    }
}

/// An event argument, to be resolved once the instance is known.
pub(crate) struct EventArg<'a, B: Backend>(Option<&'a EventBox<B>>);

impl<'a, B: Backend> EventArg<'a, B> {
    /// # Safety
    /// - `raw` is null or a live event made by an instance of `B`, and stays live for `'a`.
    pub(crate) unsafe fn new(raw: *mut SmEvent) -> Self {
        // SAFETY: this function's contract; a live event is an `EventBox<B>`, shared only.
        Self(unsafe { raw.cast::<EventBox<B>>().as_ref() })
    }

    pub(crate) fn of(&self, instance: &Instance<B>) -> Result<&'a B::Event> {
        let event = self
            .0
            .ok_or_else(|| Error::invalid_argument("the event is null"))?;
        if event.owner != instance.address() {
            return Err(Error::invalid_argument(
                "the event belongs to another instance",
            ));
        }
        Ok(&event.event)
    }
}

/// Runs the work of a slot: checks instance and out pointers, catches panics, reports failure.
///
/// # Safety
/// - `s` is null or an instance of `B` that `close` has not ended.
/// - `out` is null or valid as the slot's documentation says.
/// - `err` is null or valid for the `struct_size` bytes that it starts with saying.
pub(crate) unsafe fn slot<B: Backend, O: Out>(
    s: *mut SmBackend,
    err: *mut SmError,
    name: &'static str,
    phase: Phase,
    out: O,
    work: impl FnOnce(&Instance<B>) -> Result<O::Value>,
) -> i32 {
    // SAFETY: this function's contract; instances are only shared while they are open.
    let instance = unsafe { s.cast::<Instance<B>>().as_ref() };
    // SAFETY: this function's contract on `out`.
    let checked = unsafe { out.check() };
    let answer = match (instance, checked) {
        (None, _) => Err(Error::invalid_argument(format!(
            "{name}: the instance is null"
        ))),
        (_, Err(error)) => Err(error),
        (Some(instance), Ok(())) => guarded(instance, name, phase, work),
    };
    match answer {
        Ok(value) => {
            // SAFETY: checked above, and valid by this function's contract.
            unsafe { out.write(value) };
            SM_OK
        }
        // SAFETY: this function's contract on `err`.
        Err(error) => unsafe { fail(err, &error) },
    }
}

fn guarded<B: Backend, T>(
    instance: &Instance<B>,
    name: &'static str,
    phase: Phase,
    work: impl FnOnce(&Instance<B>) -> Result<T>,
) -> Result<T> {
    instance.admit(phase)?;
    match catch_unwind(AssertUnwindSafe(|| work(instance))) {
        Ok(answer) => answer,
        Err(payload) => {
            let error = instance.poison(name, &*payload);
            // Its destructor is the plugin's code and could panic again.
            std::mem::forget(payload);
            Err(error)
        }
    }
}

/// Runs work that has no instance yet.
pub(crate) fn guarded_free<T>(name: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(answer) => answer,
        Err(payload) => {
            let message = format!("{name} panicked: {}", panic_message(&*payload));
            // Its destructor is the plugin's code and could panic again.
            std::mem::forget(payload);
            Err(Error::internal(message))
        }
    }
}

/// Ends an instance. In a forked child it is left alone: its threads do not exist there.
///
/// # Safety
/// - `s` is null or an instance of `B` that `close` has not ended and that no other call uses.
pub(crate) unsafe fn close<B: Backend>(s: *mut SmBackend) -> Result<()> {
    // SAFETY: this function's contract.
    let Some(instance) = (unsafe { s.cast::<Instance<B>>().as_ref() }) else {
        return Err(Error::invalid_argument("close: the instance is null"));
    };
    if instance.fork.is_forked() {
        return instance.admit(Phase::Ending);
    }
    let quiesced = guarded_free("quiesce", || instance.quiesce());
    // SAFETY: an instance comes from `Box::into_raw` in `open`, and by contract this is its end.
    let instance = unsafe { Box::from_raw(s.cast::<Instance<B>>()) };
    guarded_free("close", || {
        drop(instance);
        Ok(())
    })?;
    quiesced
}

pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}

/// State: in use.
const STATE_OPEN: u8 = 0;
/// State: drained; only frees and destroys are left.
const STATE_QUIESCED: u8 = 1;
/// State: a method panicked, so nothing is known about its data.
const STATE_POISONED: u8 = 2;
