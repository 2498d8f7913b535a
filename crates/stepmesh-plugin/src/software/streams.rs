//! The streams of an instance, by handle: those that were created, the legacy default one of each
//! device and the default one of each thread.
#![forbid(unsafe_code)]

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use stepmesh_abi::Code;
use stepmesh_abi::stream::{SM_STREAM_LEGACY, SM_STREAM_PER_THREAD};

use super::queue::{deadline, time_left};
use super::stream::{End, Engine, OrderedStream};
use crate::{Error, Result, Stream};

/// The streams of an instance.
#[derive(Debug)]
pub struct Streams<E: Engine> {
    instance: u64,
    engine: Arc<E>,
    by_handle: RwLock<HashMap<u64, Arc<OrderedStream<E>>>>,
    legacy: Vec<Arc<OrderedStream<E>>>,
    // Every stream whose thread may still run, destroyed ones too.
    running: Mutex<Vec<Arc<OrderedStream<E>>>>,
}

/// A thread's default stream; it takes no more work when the thread ends.
///
/// A thread has streams of several backends, so what they work on is behind the trait.
struct PerThread {
    instance: u64,
    stream: Arc<dyn DefaultStream>,
}

trait DefaultStream: Any + Send + Sync {
    fn device(&self) -> u32;
    fn close(&self);
    fn is_ended(&self) -> bool;
}

impl<E: Engine> DefaultStream for OrderedStream<E> {
    fn device(&self) -> u32 {
        Self::device(self)
    }

    fn close(&self) {
        Self::close(self);
    }

    fn is_ended(&self) -> bool {
        Self::is_ended(self)
    }
}

impl Drop for PerThread {
    fn drop(&mut self) {
        self.stream.close();
    }
}

impl<E: Engine> Streams<E> {
    /// The default streams of so many devices.
    #[must_use]
    pub fn new(device_count: u32, engine: Arc<E>) -> Self {
        let legacy: Vec<_> = (0..device_count)
            .map(|device| Arc::new(OrderedStream::new(device, &engine)))
            .collect();
        Self {
            instance: INSTANCE.fetch_add(1, Ordering::Relaxed),
            engine,
            by_handle: RwLock::default(),
            running: Mutex::new(legacy.clone()),
            legacy,
        }
    }

    /// Makes a stream and gives its handle.
    ///
    /// # Errors
    /// If there are too many.
    pub fn create(&self, device: u32) -> Result<u64> {
        let stream = self.start(device)?;
        let handle = HANDLE.fetch_add(1, Ordering::Relaxed);
        let mut by_handle = self
            .by_handle
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        by_handle.insert(handle, stream);
        Ok(handle)
    }

    /// Ends a stream; its work is still done.
    ///
    /// # Errors
    /// If it is unknown or a default one.
    pub fn destroy(&self, stream: Stream) -> Result<()> {
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

    /// The stream of an argument.
    ///
    /// # Errors
    /// If it is unknown or of another device.
    pub fn find(&self, stream: Stream) -> Result<Arc<OrderedStream<E>>> {
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

    /// Waits for all work submitted to a device so far, whatever part of it fails.
    ///
    /// # Errors
    /// `SM_DEADLINE_EXCEEDED` when time ran out; the first failure of work.
    pub fn synchronize_device(&self, device: u32, timeout: Duration) -> Result<()> {
        let until = deadline(timeout);
        let streams: Vec<_> = self
            .lock_running()
            .iter()
            .filter(|s| s.device() == device)
            .cloned()
            .collect();
        let wait = |s: &Arc<OrderedStream<E>>| s.synchronize(time_left(until).unwrap_or_default());
        streams.iter().map(wait).fold(Ok(()), Result::and)
    }

    /// Ends every stream: work is done within the bound, then dropped.
    ///
    /// # Errors
    /// `SM_DEADLINE_EXCEEDED` if work was dropped, or if a thread hangs in it all the same.
    pub fn quiesce(&self, timeout: Duration) -> Result<()> {
        let streams = std::mem::take(&mut *self.lock_running());
        for stream in &streams {
            stream.close();
        }
        let until = deadline(timeout);
        let ends: Vec<End> = streams.iter().map(|stream| stream.end(until)).collect();
        let count = |end| ends.iter().filter(|other| **other == end).count();
        let (dropped, hanging) = (count(End::Dropped), count(End::Hanging));
        if dropped + hanging == 0 {
            return Ok(());
        }
        Err(Error::deadline_exceeded(format!(
            "{} stream(s) did not end within {} ms and lost their work; the threads of {hanging} \
             hang in it, perhaps in a function of the host's that does not return",
            dropped + hanging,
            timeout.as_millis()
        )))
    }

    fn of_this_thread(&self, device: u32) -> Result<Arc<OrderedStream<E>>> {
        let find = |list: &RefCell<Vec<PerThread>>| {
            let mut list = list.borrow_mut();
            // Those of instances that were closed go with the first look after that.
            list.retain(|own| !own.stream.is_ended());
            let is_it =
                |own: &&PerThread| own.instance == self.instance && own.stream.device() == device;
            if let Some(own) = list.iter().find(is_it) {
                let stream: Arc<dyn Any + Send + Sync> =
                    Arc::<dyn DefaultStream>::clone(&own.stream);
                // The instance's number is the engine's type too.
                return stream
                    .downcast()
                    .map_err(|_| Error::internal("two instances have one number"));
            }
            let stream = self.start(device)?;
            list.push(PerThread {
                instance: self.instance,
                stream: Arc::<OrderedStream<E>>::clone(&stream),
            });
            Ok(stream)
        };
        PER_THREAD.try_with(find).unwrap_or_else(|_| {
            Err(Error::failed_precondition(
                "the thread is ending and has no default stream",
            ))
        })
    }

    fn start(&self, device: u32) -> Result<Arc<OrderedStream<E>>> {
        let mut running = self.lock_running();
        running.retain(|stream| !stream.is_ended());
        if running.len() >= STREAMS_MAX {
            let message = format!("an instance has at most {STREAMS_MAX} streams; destroy some");
            return Err(Error::new(Code::ResourceExhausted, message));
        }
        let stream = Arc::new(OrderedStream::new(device, &self.engine));
        running.push(Arc::clone(&stream));
        Ok(stream)
    }

    fn lock_running(&self) -> MutexGuard<'_, Vec<Arc<OrderedStream<E>>>> {
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
