//! Streams: queues of a device's work, in order and asynchronous to the host.
#![expect(unsafe_code, reason = "submits copies of raw addresses and callbacks")]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stepmesh_abi::memory::SM_COPY_AUTO;
use stepmesh_abi::stream::{SM_STREAM_LEGACY, SM_STREAM_NON_BLOCKING};

use crate::instance::Copy;
use crate::table::EMULATION_TIMEOUT;
use crate::{Buffer, Device, Error, Event, EventOptions, WaitMode, cleanup};

/// A queue of a device's work. Buffers of copies and fills stay alive until the work is done.
///
/// Dropping it waits for its own work, at most a minute. Any thread may use it.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    handle: u64,
    /// Created here, so to be destroyed here.
    is_owned: bool,
    in_flight: Mutex<InFlight>,
}

/// Buffers that work in flight uses.
#[derive(Debug, Default)]
struct InFlight {
    /// Since the last mark.
    recent: Vec<Arc<Buffer>>,
    /// Each with the mark after its work, oldest first.
    marked: VecDeque<(Event, Vec<Arc<Buffer>>)>,
}

/// A callback on its way through the plugin.
struct Callback(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Stream {
    pub(crate) fn new(device: Device) -> Result<Self, Error> {
        let instance = device.backend().instance();
        let handle = instance.stream_create(device.ordinal(), 0, SM_STREAM_NON_BLOCKING)?;
        Ok(Self {
            device,
            handle,
            is_owned: true,
            in_flight: Mutex::default(),
        })
    }

    pub(crate) fn default_of(device: Device) -> Self {
        Self {
            device,
            handle: SM_STREAM_LEGACY,
            is_owned: false,
            in_flight: Mutex::default(),
        }
    }

    /// A stream that somebody else made (a framework's) and will end.
    ///
    /// # Safety
    /// - `handle` is a stream of the device, in the terms of its vendor's library.
    /// - It lives longer than the returned value.
    #[must_use]
    pub unsafe fn from_raw(device: Device, handle: u64) -> Self {
        Self {
            device,
            handle,
            is_owned: false,
            in_flight: Mutex::default(),
        }
    }

    /// The device it belongs to.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The stream in the terms of the vendor's library.
    #[must_use]
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Copies `len_bytes` bytes between two buffers of the backend, in stream order.
    ///
    /// # Errors
    /// `OutOfRange`, `InvalidArgument` when the ranges overlap, `ForeignHandle`, `Backend`;
    /// `Timeout` when far too much work is in flight already.
    pub fn copy(
        &self,
        dst: &Arc<Buffer>,
        dst_offset: u64,
        src: &Arc<Buffer>,
        src_offset: u64,
        len_bytes: u64,
    ) -> Result<(), Error> {
        let operation = "copy";
        self.check_same(dst.device(), operation)?;
        self.check_same(src.device(), operation)?;
        let to = dst.range(operation, dst_offset, len_bytes)?;
        let from = src.range(operation, src_offset, len_bytes)?;
        if Arc::ptr_eq(dst, src) && to.abs_diff(from) < len_bytes {
            let fault = "the ranges of one buffer overlap".into();
            return Err(Error::InvalidArgument { operation, fault });
        }
        let copy = Copy {
            dst: to,
            src: from,
            len_bytes,
            direction: SM_COPY_AUTO,
            dst_device: dst.device().ordinal(),
            src_device: src.device().ordinal(),
        };
        let (instance, dev) = (self.device.backend().instance(), self.device.ordinal());
        self.submit([dst, src], || {
            // SAFETY: both ranges lie within live buffers of this backend (checked above), which
            // `submit` holds until the work is done, and do not overlap: different buffers never
            // do, the same one was checked.
            unsafe { instance.memcpy_async(copy, dev, self.handle) }
        })
    }

    /// Fills `len_bytes` bytes with one byte, in stream order.
    ///
    /// # Errors
    /// `OutOfRange`, `ForeignHandle`, `Unsupported`, `Backend`.
    pub fn fill(
        &self,
        dst: &Arc<Buffer>,
        offset: u64,
        len_bytes: u64,
        byte: u8,
    ) -> Result<(), Error> {
        self.check_same(dst.device(), "fill")?;
        let to = dst.range("fill", offset, len_bytes)?;
        let (instance, dev) = (self.device.backend().instance(), self.device.ordinal());
        self.submit([dst], || {
            // SAFETY: the range lies within a live buffer of this backend (checked above), which
            // `submit` holds until the work is done.
            unsafe { instance.memset_async(to, byte.into(), 1, len_bytes, dev, self.handle) }
        })
    }

    /// Later work waits for the event's last record. Returns at once.
    ///
    /// # Errors
    /// `ForeignHandle`, `Backend`.
    pub fn wait_event(&self, event: &Event) -> Result<(), Error> {
        self.check_same(event.device(), "stream_wait_event")?;
        let instance = self.device.backend().instance();
        instance.stream_wait_event(self.device.ordinal(), self.handle, event.raw())
    }

    /// Calls a function when the stream gets there, once, also when earlier work failed. It runs in
    /// a thread of the backend's, so it must not take long, nor call into this crate, nor hold the
    /// last handle of anything of this crate (dropping that is a call). A panic is caught and
    /// logged.
    ///
    /// # Errors
    /// `Backend`; the function is then dropped without being called.
    pub fn launch_host_func(&self, func: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let callback = Arc::new(Callback(Mutex::new(Some(Box::new(func)))));
        let arg = Arc::into_raw(Arc::clone(&callback)).cast_mut().cast();
        let (instance, dev) = (self.device.backend().instance(), self.device.ordinal());
        // SAFETY: `run_callback` takes over the count that `into_raw` gave to `arg`, in whatever
        // thread, and the closure is `Send`.
        let launched = unsafe { instance.launch_host_func(dev, self.handle, run_callback, arg) };
        if launched.is_err() {
            // Should the plugin call nevertheless, it finds nothing to run: `arg` keeps its count.
            drop(lock(&callback.0).take());
        }
        launched
    }

    /// Whether all work submitted so far is done.
    ///
    /// # Errors
    /// `Backend`, also for earlier work that failed.
    pub fn is_done(&self) -> Result<bool, Error> {
        let instance = self.device.backend().instance();
        let mut is_done = false;
        self.let_go_if(|| {
            is_done = instance.stream_query(self.device.ordinal(), self.handle)?;
            Ok(is_done)
        })?;
        Ok(is_done)
    }

    /// Waits until the work submitted so far is done.
    ///
    /// # Errors
    /// `Timeout`, `Backend` also for earlier work that failed.
    pub fn synchronize(&self, timeout: Duration) -> Result<(), Error> {
        let instance = self.device.backend().instance();
        self.let_go_if(|| {
            instance.stream_sync(self.device.ordinal(), self.handle, timeout)?;
            Ok(true)
        })
    }

    /// Waits for the work and ends the stream; dropping only logs.
    ///
    /// # Errors
    /// `Timeout`, `Backend`.
    pub fn release(mut self) -> Result<(), Error> {
        self.end()
    }

    fn check_same(&self, other: &Device, operation: &'static str) -> Result<(), Error> {
        self.device.backend().check_same(other.backend(), operation)
    }

    /// Submits work and holds its buffers until it is done, in one turn: a mark that another thread
    /// made in between would stand before the work. Marks the stream now and then, so that one that
    /// is never idle lets go of what it has done.
    pub(crate) fn submit<'a>(
        &self,
        buffers: impl IntoIterator<Item = &'a Arc<Buffer>>,
        work: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut in_flight = lock(&self.in_flight);
        if in_flight.recent.len() >= BUFFERS_PER_MARK {
            let event = self.device.create_event(EventOptions::default())?;
            event.record(self)?;
            let buffers = std::mem::take(&mut in_flight.recent);
            in_flight.marked.push_back((event, buffers));
            in_flight.let_go_of_done()?;
        }
        in_flight.recent.extend(buffers.into_iter().map(Arc::clone));
        work()
    }

    /// Lets go of the buffers in flight if what is asked afterwards says that all work is done.
    /// What others submit meanwhile is not among them.
    fn let_go_if(&self, is_done: impl FnOnce() -> Result<bool, Error>) -> Result<(), Error> {
        let now = std::mem::take(&mut *lock(&self.in_flight));
        match is_done() {
            Ok(true) => Ok(()),
            other => {
                lock(&self.in_flight).put_back(now);
                other.map(drop)
            }
        }
    }

    fn end(&mut self) -> Result<(), Error> {
        let mut in_flight = std::mem::take(&mut *lock(&self.in_flight));
        let (instance, dev) = (self.device.backend().instance(), self.device.ordinal());
        let mut ended = Ok(());
        if !in_flight.is_empty() {
            ended = instance.stream_sync(dev, self.handle, EMULATION_TIMEOUT);
            if ended.is_err() {
                // The work may still run: its memory is left to it for ever.
                in_flight.forget_buffers();
            }
        }
        if std::mem::take(&mut self.is_owned) {
            let destroyed = instance.stream_destroy(dev, self.handle);
            ended = ended.and(destroyed);
        }
        ended
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            cleanup::failed("stream_destroy", &error);
        }
    }
}

impl InFlight {
    fn is_empty(&self) -> bool {
        self.recent.is_empty() && self.marked.is_empty()
    }

    /// Lets go of the buffers before the marks that are done; waits when there are too many marks.
    fn let_go_of_done(&mut self) -> Result<(), Error> {
        if self.marked.len() > MARKS_MAX
            && let Some((oldest, _)) = self.marked.front()
        {
            oldest.synchronize(EMULATION_TIMEOUT, WaitMode::Block)?;
        }
        while let Some((oldest, _)) = self.marked.front() {
            if !oldest.is_done()? {
                break;
            }
            self.marked.pop_front();
        }
        Ok(())
    }

    /// Undoes a `take`: the older ones come first again.
    fn put_back(&mut self, mut older: Self) {
        older.recent.append(&mut self.recent);
        self.recent = older.recent;
        older.marked.append(&mut self.marked);
        self.marked = older.marked;
    }

    fn forget_buffers(&mut self) {
        for buffer in self.recent.drain(..) {
            std::mem::forget(buffer);
        }
        for (_, buffers) in self.marked.drain(..) {
            buffers.into_iter().for_each(std::mem::forget);
        }
    }
}

/// What the plugin calls; `arg` is the count of a [`Callback`].
unsafe extern "C" fn run_callback(arg: *mut c_void) {
    // SAFETY: `launch_host_func` made `arg` by `Arc::into_raw`, and by the ABI this runs once.
    let callback = unsafe { Arc::from_raw(arg.cast::<Callback>()) };
    let func = lock(&callback.0).take();
    if let Some(func) = func
        && catch_unwind(AssertUnwindSafe(func)).is_err()
    {
        cleanup::failed("launch_host_func", &"the function panicked");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mark costs an event; one for this many buffers is lost in the copies' own cost.
const BUFFERS_PER_MARK: usize = 64;
/// Together 4096 buffers: whoever is further ahead of the device waits for it.
const MARKS_MAX: usize = 64;
