//! The streams of an instance, by handle: those that were created, the legacy default one of each
//! device and the default one of each thread.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use stepmesh_plugin::abi::Code;
use stepmesh_plugin::abi::stream::{SM_STREAM_LEGACY, SM_STREAM_PER_THREAD};
use stepmesh_plugin::{Error, Result, Stream};

use crate::buffer::Memory;
use crate::queue::{deadline, time_left};
use crate::stream::StreamState;

/// The streams of an instance.
#[derive(Debug)]
pub(crate) struct Streams {
    instance: u64,
    memory: Arc<Memory>,
    by_handle: RwLock<HashMap<u64, Arc<StreamState>>>,
    legacy: Vec<Arc<StreamState>>,
    // Every stream whose thread may still run, destroyed ones too.
    running: Mutex<Vec<Arc<StreamState>>>,
}

/// A thread's default stream; it takes no more work when the thread ends.
struct PerThread {
    instance: u64,
    stream: Arc<StreamState>,
}

impl Drop for PerThread {
    fn drop(&mut self) {
        self.stream.close();
    }
}

impl Streams {
    pub(crate) fn new(device_count: u32, memory: Arc<Memory>) -> Self {
        let legacy: Vec<_> = (0..device_count)
            .map(|device| Arc::new(StreamState::new(device, &memory)))
            .collect();
        Self {
            instance: INSTANCE.fetch_add(1, Ordering::Relaxed),
            memory,
            by_handle: RwLock::default(),
            running: Mutex::new(legacy.clone()),
            legacy,
        }
    }

    pub(crate) fn create(&self, device: u32) -> Result<u64> {
        let stream = self.start(device)?;
        let handle = HANDLE.fetch_add(1, Ordering::Relaxed);
        let mut by_handle = self
            .by_handle
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        by_handle.insert(handle, stream);
        Ok(handle)
    }

    pub(crate) fn destroy(&self, stream: Stream) -> Result<()> {
        if matches!(stream.raw, SM_STREAM_LEGACY | SM_STREAM_PER_THREAD) {
            return Err(Error::invalid_argument(
                "a default stream cannot be destroyed",
            ));
        }
        let found = self.find(stream)?;
        let mut by_handle = self
            .by_handle
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        by_handle.remove(&stream.raw);
        drop(by_handle);
        found.close();
        Ok(())
    }

    pub(crate) fn find(&self, stream: Stream) -> Result<Arc<StreamState>> {
        match stream.raw {
            SM_STREAM_LEGACY => {
                let idx = usize::try_from(stream.device).unwrap_or(usize::MAX);
                self.legacy.get(idx).cloned().ok_or_else(|| unknown(stream))
            }
            SM_STREAM_PER_THREAD => self.of_this_thread(stream.device),
            handle => {
                let by_handle = self
                    .by_handle
                    .read()
                    .unwrap_or_else(PoisonError::into_inner);
                let found = by_handle.get(&handle).ok_or_else(|| unknown(stream))?;
                if found.device() != stream.device {
                    return Err(Error::invalid_argument(format!(
                        "stream {handle:#x} is of device {}, not of device {}",
                        found.device(),
                        stream.device
                    )));
                }
                Ok(Arc::clone(found))
            }
        }
    }

    /// Waits for all work submitted to a device so far.
    pub(crate) fn synchronize_device(&self, device: u32, timeout: Duration) -> Result<()> {
        let until = deadline(timeout);
        let streams: Vec<_> = self
            .lock_running()
            .iter()
            .filter(|s| s.device() == device)
            .cloned()
            .collect();
        streams
            .iter()
            .try_for_each(|s| s.synchronize(time_left(until).unwrap_or_default()))
    }

    /// Ends every stream: work is done within the bound, then dropped.
    pub(crate) fn quiesce(&self, timeout: Duration) -> Result<()> {
        let streams = std::mem::take(&mut *self.lock_running());
        for stream in &streams {
            stream.close();
        }
        let until = deadline(timeout);
        let hanging = streams.iter().filter(|stream| !stream.end(until)).count();
        if hanging == 0 {
            return Ok(());
        }
        Err(Error::deadline_exceeded(format!(
            "{hanging} stream(s) did not end within {} ms: a function of the host's does not return",
            timeout.as_millis()
        )))
    }

    fn of_this_thread(&self, device: u32) -> Result<Arc<StreamState>> {
        let find = |list: &RefCell<Vec<PerThread>>| {
            let mut list = list.borrow_mut();
            // Those of instances that were closed go with the first look after that.
            list.retain(|own| !own.stream.is_ended());
            let is_it =
                |own: &&PerThread| own.instance == self.instance && own.stream.device() == device;
            if let Some(own) = list.iter().find(is_it) {
                return Ok(Arc::clone(&own.stream));
            }
            let stream = self.start(device)?;
            list.push(PerThread {
                instance: self.instance,
                stream: Arc::clone(&stream),
            });
            Ok(stream)
        };
        PER_THREAD.try_with(find).unwrap_or_else(|_| {
            Err(Error::failed_precondition(
                "the thread is ending and has no default stream",
            ))
        })
    }

    fn start(&self, device: u32) -> Result<Arc<StreamState>> {
        let mut running = self.lock_running();
        running.retain(|stream| !stream.is_ended());
        if running.len() >= STREAMS_MAX {
            let message = format!("an instance has at most {STREAMS_MAX} streams; destroy some");
            return Err(Error::new(Code::ResourceExhausted, message));
        }
        let stream = Arc::new(StreamState::new(device, &self.memory));
        running.push(Arc::clone(&stream));
        Ok(stream)
    }

    fn lock_running(&self) -> MutexGuard<'_, Vec<Arc<StreamState>>> {
        // Each change is one push or a retain, so the list is whole after a panic.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(stream: Stream) -> Error {
    Error::invalid_argument(format!(
        "stream {:#x} of device {} does not exist; was it destroyed?",
        stream.raw, stream.device
    ))
}

thread_local! {
    static PER_THREAD: RefCell<Vec<PerThread>> = const { RefCell::new(Vec::new()) };
}

/// Tells instances apart in the lists of threads.
static INSTANCE: AtomicU64 = AtomicU64::new(0);
/// Next handle. Starts beyond the numbers that mean default streams.
static HANDLE: AtomicU64 = AtomicU64::new(0x100);
/// Streams of an instance at most: each is a thread.
const STREAMS_MAX: usize = 4096;
