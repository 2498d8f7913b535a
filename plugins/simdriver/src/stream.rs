//! Streams: a queue and the thread that works it off.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::device::Device;
use crate::memory::Memory;
use crate::{Answer, Capture, Status, Work};

/// A stream.
#[derive(Debug)]
pub struct Stream {
    pub(crate) device: Arc<Device>,
    memory: Arc<Memory>,
    /// Whether it and the legacy default stream wait for each other.
    pub(crate) is_blocking: bool,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    work: VecDeque<Work>,
    submitted: u64,
    done: u64,
    is_ending: bool,
    thread: Option<JoinHandle<()>>,
    capture: Option<Arc<Capture>>,
}

impl Stream {
    pub(crate) fn new(device: Arc<Device>, memory: Arc<Memory>, is_blocking: bool) -> Self {
        Self {
            device,
            memory,
            is_blocking,
            queue: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The device's number.
    #[must_use]
    pub fn device(&self) -> u32 {
        self.device.ordinal
    }

    /// Puts work into the queue, and starts the thread if there is none.
    pub(crate) fn enqueue(self: &Arc<Self>, work: Work) -> Answer<()> {
        let mut queue = self.lock();
        while queue.work.len() >= QUEUE_LEN_MAX {
            self.device.check()?;
            let waited = self.changed.wait_timeout(queue, LOOK_UP_EVERY);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if queue.is_ending {
            return Err(Status::INVALID_HANDLE);
        }
        if queue.thread.is_none() {
            let stream = Arc::clone(self);
            let thread = thread::Builder::new().name("sm-simdriver".into());
            let thread = thread.spawn(move || stream.work_off());
            queue.thread = Some(thread.map_err(|_| Status::OUT_OF_MEMORY)?);
        }
        queue.work.push_back(work);
        queue.submitted += 1;
        self.changed.notify_all();
        Ok(())
    }

    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.lock();
        queue.done == queue.submitted
    }

    /// Waits for what was submitted so far.
    pub(crate) fn synchronize(&self) -> Answer<()> {
        let mut queue = self.lock();
        let target = queue.submitted;
        while queue.done < target {
            self.device.check()?;
            let waited = self.changed.wait_timeout(queue, LOOK_UP_EVERY);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(queue);
        self.device.check()
    }

    /// Lets the thread end after the work that is there. Joins it if that is done.
    pub(crate) fn end(&self, joins_always: bool) {
        let mut queue = self.lock();
        queue.is_ending = true;
        let is_idle = queue.done == queue.submitted;
        let thread = queue.thread.take();
        drop(queue);
        self.changed.notify_all();
        let Some(thread) = thread else { return };
        // A host function may destroy the stream that calls it.
        if thread.thread().id() != thread::current().id() && (is_idle || joins_always) {
            // A thread that panicked is at its end too.
            let _ = thread.join();
        }
    }

    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        self.lock().capture.clone()
    }

    pub(crate) fn set_capture(&self, capture: Option<Arc<Capture>>) {
        self.lock().capture = capture;
    }

    fn work_off(&self) {
        while let Some(work) = self.next() {
            if let Err(status) = work.run(&self.device, &self.memory) {
                self.device.break_with(status);
            }
            // What the work holds goes before anyone hears that it is done.
            drop(work);
            self.lock().done += 1;
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Work> {
        let mut queue = self.lock();
        loop {
            if let Some(work) = queue.work.pop_front() {
                return Some(work);
            }
            if queue.is_ending {
                return None;
            }
            let waited = self.changed.wait(queue);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Work that waits in a stream; who submits more waits, as with real drivers.
const QUEUE_LEN_MAX: usize = 1 << 16;
/// How often who waits looks whether the device is broken.
const LOOK_UP_EVERY: Duration = Duration::from_millis(2);
