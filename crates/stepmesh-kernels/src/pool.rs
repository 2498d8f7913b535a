//! Threads for the tasks of a step. How a step is cut into tasks does not depend on how many threads
//! there are, so neither do results.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::Error;

/// The threads of a backend instance. The thread that executes a plan is one of them.
#[derive(Debug)]
pub struct Pool {
    helpers: Option<ThreadPool>,
    threads: usize,
}

/// Threads that are started when they are first asked for.
#[derive(Debug)]
pub struct LazyPool {
    threads: usize,
    pool: Mutex<Option<Arc<Pool>>>,
}

impl LazyPool {
    /// As [`Pool::new`], later.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self {
            threads,
            pool: Mutex::default(),
        }
    }

    /// The threads.
    ///
    /// # Errors
    /// If they cannot be started; the next call tries again.
    pub fn get(&self) -> Result<Arc<Pool>, Error> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*pool {
            return Ok(Arc::clone(pool));
        }
        let made = Arc::new(Pool::new(self.threads)?);
        *pool = Some(Arc::clone(&made));
        Ok(made)
    }
}

impl Pool {
    /// So many threads at most; 0: as many as the process may run on.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn new(threads: usize) -> Result<Self, Error> {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads == 0 { available() } else { threads };
        let threads = threads.min(THREADS_MAX);
        let helpers = if threads == 1 {
            None
        } else {
            let builder = ThreadPoolBuilder::new()
                .num_threads(threads - 1)
                .thread_name(|idx| format!("sm-compute-{idx}"));
            Some(builder.build().map_err(Error::Threads)?)
        };
        Ok(Self { helpers, threads })
    }

    /// How many tasks run at one time.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs tasks 0 to `tasks`, each once. `work` makes what a thread needs and hands it on to `task`.
    pub(crate) fn run<S>(
        &self,
        tasks: usize,
        threads_max: usize,
        prepare: impl Fn() -> S + Sync,
        task: impl Fn(&mut S, usize) + Sync,
    ) {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut first = next.fetch_add(1, Ordering::Relaxed);
            if first >= tasks {
                return;
            }
            let mut state = prepare();
            while first < tasks {
                task(&mut state, first);
                first = next.fetch_add(1, Ordering::Relaxed);
            }
        };
        let threads = self.threads.min(threads_max).min(tasks);
        match &self.helpers {
            Some(helpers) if threads > 1 => helpers.in_place_scope(|scope| {
                for _ in 1..threads {
                    scope.spawn(|_| work());
                }
                work();
            }),
            _ => work(),
        }
    }
}

/// More threads than any host's cores are a mistake in the configuration.
const THREADS_MAX: usize = 1024;
