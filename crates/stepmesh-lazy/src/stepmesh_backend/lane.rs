//! The work of one device: launches in order on one stream, how they end, and who is told.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use stepmesh_core::compute::{Argument, Compute};
use stepmesh_core::{AllocOptions, Buffer, Device, Event, EventOptions, Stream, WaitMode};

use super::BackendOptions;
use super::memory::{Memory, Pool};
use crate::Error;
use crate::element::ElementBytes;

/// A device's stream, its memory, and what is in flight on it.
#[derive(Debug)]
pub(crate) struct Lane {
    device: Device,
    compute: Option<Compute>,
    stream: Stream,
    pool: Arc<Pool>,
    timeout: Duration,
    in_flight_max: usize,
    /// The last launch that is known to be over.
    settled: AtomicU64,
    state: Mutex<LaneState>,
}

/// How a launch ended, for those who hold its results.
#[derive(Debug)]
pub(crate) struct Completion {
    launch: u64,
    outcome: OnceLock<Result<(), Error>>,
}

/// Where an argument of a launch is.
#[derive(Debug)]
pub(crate) enum Source {
    Memory(Arc<Memory>, Option<Arc<Completion>>),
    Immediate(ElementBytes),
}

#[derive(Debug, Default)]
struct LaneState {
    launched: u64,
    in_flight: VecDeque<InFlight>,
    /// Events and buffers of numbers that are free.
    events: Vec<Event>,
    numbers: Vec<Arc<Buffer>>,
    /// A failure that nobody was told.
    untold: Option<Error>,
}

#[derive(Debug)]
struct InFlight {
    completion: Arc<Completion>,
    graph: Arc<str>,
    event: Arc<Event>,
    numbers: Option<Arc<Buffer>>,
}

impl Lane {
    pub(crate) fn new(device: &Device, options: &BackendOptions) -> Result<Self, Error> {
        let stream = device
            .create_stream()
            .map_err(Error::backend("creating a stream"))?;
        Ok(Self {
            device: device.clone(),
            compute: device.compute(),
            stream,
            pool: Arc::new(Pool::new(device.clone(), options.pool_len_bytes_max)),
            timeout: options.timeout,
            in_flight_max: options.in_flight_max.max(1),
            settled: AtomicU64::new(0),
            state: Mutex::default(),
        })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn compute(&self) -> Option<&Compute> {
        self.compute.as_ref()
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Memory that the host may write to.
    pub(crate) fn idle_memory(&self, len_bytes: usize) -> Result<Memory, Error> {
        self.with_room(|| {
            let settled = self.settled.load(Ordering::Acquire);
            self.pool.take_idle(len_bytes, settled)
        })
    }

    /// Memory for a result of a launch.
    pub(crate) fn memory(&self, len_bytes: usize) -> Result<Memory, Error> {
        self.with_room(|| self.pool.take(len_bytes))
    }

    /// Takes memory. Where there is none, once more when nothing is in flight: a stream holds what
    /// its launches use, until it is seen that they are over.
    fn with_room(&self, take: impl Fn() -> Result<Memory, Error>) -> Result<Memory, Error> {
        match take() {
            Err(Error::Backend { source, .. })
                if matches!(*source, stepmesh_core::Error::OutOfMemory { .. }) =>
            {
                self.wait_until_idle()?;
                // How the launches ended is known; their stream lets go of what they used.
                let _ = self.stream.synchronize(self.timeout);
                take()
            }
            other => other,
        }
    }

    /// Launches work after all that was launched before; `work` is told where arguments and results
    /// are.
    pub(crate) fn launch(
        &self,
        graph: &Arc<str>,
        sources: &[Source],
        results: &[Arc<Memory>],
        work: impl FnOnce(&[Argument<'_>], &[Argument<'_>], &Stream) -> Result<(), stepmesh_core::Error>,
    ) -> Result<Arc<Completion>, Error> {
        let mut state = self.lock();
        self.settle(&mut state);
        while state.in_flight.len() >= self.in_flight_max {
            let oldest = state
                .in_flight
                .front()
                .map(|first| first.completion.clone());
            drop(state);
            if let Some(oldest) = oldest {
                // Its failure is told by its results, and by `untold`.
                let _ = self.wait_until_over(&oldest)?;
            }
            state = self.lock();
        }
        check_sources(graph, sources)?;
        let launch = state.launched + 1;
        let numbers = self.write_numbers(&mut state, sources)?;
        let mut number = 0;
        let arguments: Vec<Argument<'_>> = sources
            .iter()
            .map(|source| match (source, &numbers) {
                (Source::Immediate(_), Some(buffer)) => {
                    let offset = number;
                    number += NUMBER_LEN_BYTES;
                    Argument { buffer, offset }
                }
                (Source::Memory(memory, _), _) => {
                    memory.used_by(launch);
                    memory.argument()
                }
                (Source::Immediate(_), None) => {
                    unreachable!("invariant: numbers have a buffer")
                }
            })
            .collect();
        for memory in results {
            memory.used_by(launch);
        }
        let outs: Vec<Argument<'_>> = results.iter().map(|memory| memory.argument()).collect();
        work(&arguments, &outs, &self.stream).map_err(Error::backend("launching a graph"))?;
        let event = self.mark(&mut state)?;
        state.launched = launch;
        let completion = Arc::new(Completion {
            launch,
            outcome: OnceLock::new(),
        });
        state.in_flight.push_back(InFlight {
            completion: Arc::clone(&completion),
            graph: Arc::clone(graph),
            event: Arc::new(event),
            numbers,
        });
        Ok(completion)
    }

    /// Waits for a launch and says how it ended.
    pub(crate) fn wait(&self, completion: &Arc<Completion>) -> Result<(), Error> {
        let outcome = self.wait_until_over(completion)?;
        if outcome.is_err() {
            // The caller is told now.
            self.lock().untold = None;
        }
        outcome
    }

    /// The outer error is that of the wait.
    fn wait_until_over(&self, completion: &Arc<Completion>) -> Result<Result<(), Error>, Error> {
        let deadline = Instant::now() + self.timeout;
        loop {
            if let Some(outcome) = completion.outcome.get() {
                return Ok(outcome.clone());
            }
            let event = {
                let mut state = self.lock();
                self.settle(&mut state);
                let mut in_flight = state.in_flight.iter();
                in_flight
                    .find(|other| other.completion.launch == completion.launch)
                    .map(|found| Arc::clone(&found.event))
            };
            let Some(event) = event else { continue };
            let left = deadline.saturating_duration_since(Instant::now());
            // How it ended is read by `settle`, for everybody.
            let waited = event.synchronize(left, WaitMode::Block);
            if let Err(stepmesh_core::Error::Timeout { .. }) = waited {
                let waited_ms = self.timeout.as_millis();
                let waited_ms = u64::try_from(waited_ms).unwrap_or(u64::MAX);
                return Err(Error::Timeout { waited_ms });
            }
        }
    }

    /// Waits for all that was launched.
    pub(crate) fn wait_all(&self) -> Result<(), Error> {
        self.wait_until_idle()?;
        self.take_failure().map_or(Ok(()), Err)
    }

    /// Waits for all that was launched, however it ends.
    fn wait_until_idle(&self) -> Result<(), Error> {
        let newest = self
            .lock()
            .in_flight
            .back()
            .map(|last| last.completion.clone());
        if let Some(newest) = newest {
            let _ = self.wait_until_over(&newest)?;
        }
        Ok(())
    }

    pub(crate) fn take_failure(&self) -> Option<Error> {
        let mut state = self.lock();
        self.settle(&mut state);
        state.untold.take()
    }

    /// Takes note of the launches that are over.
    fn settle(&self, state: &mut LaneState) {
        while let Some(first) = state.in_flight.front() {
            match first.event.is_done() {
                Ok(false) => return,
                Ok(true) => self.end_first(state, Ok(())),
                Err(error) => {
                    let graph = Arc::clone(&first.graph);
                    let source = Arc::new(error);
                    self.fail(state, Error::Execution { graph, source });
                }
            }
        }
    }

    /// Ends everything in flight: a stream that failed does nothing more until it was synchronised.
    fn fail(&self, state: &mut LaneState, failure: Error) {
        // It says once more what failed; that is known.
        let _ = self.stream.synchronize(self.timeout);
        if state.untold.is_none() {
            state.untold = Some(failure.clone());
        }
        let cause = Arc::new(failure.clone());
        self.end_first(state, Err(failure));
        while let Some(next) = state.in_flight.front() {
            let poisoned = Error::Poisoned {
                graph: Arc::clone(&next.graph),
                source: Arc::clone(&cause),
            };
            self.end_first(state, Err(poisoned));
        }
    }

    fn end_first(&self, state: &mut LaneState, outcome: Result<(), Error>) {
        let Some(over) = state.in_flight.pop_front() else {
            return;
        };
        let launch = over.completion.launch;
        // Nobody else sets it: the lane is locked.
        let _ = over.completion.outcome.set(outcome);
        self.settled.store(launch, Ordering::Release);
        // An event that somebody still waits for is not recorded again under their eyes.
        if let Some(event) = Arc::into_inner(over.event)
            && state.events.len() < SPARES_MAX
        {
            state.events.push(event);
        }
        if let Some(numbers) = over.numbers
            && state.numbers.len() < SPARES_MAX
            && numbers.len_bytes() == NUMBERS_LEN_BYTES
        {
            state.numbers.push(numbers);
        }
    }

    fn mark(&self, state: &mut LaneState) -> Result<Event, Error> {
        let event = match state.events.pop() {
            Some(event) => Ok(event),
            None => self.device.create_event(EventOptions::default()),
        };
        let event = event.map_err(Error::backend("creating an event"))?;
        event
            .record(&self.stream)
            .map_err(Error::backend("recording an event"))?;
        Ok(event)
    }

    /// Numbers travel together in one buffer, which no launch in flight uses.
    fn write_numbers(
        &self,
        state: &mut LaneState,
        sources: &[Source],
    ) -> Result<Option<Arc<Buffer>>, Error> {
        let mut bytes = Vec::new();
        for source in sources {
            if let Source::Immediate(element) = source {
                let start = bytes.len();
                bytes.extend_from_slice(element.as_slice());
                bytes.resize(start + NUMBER_LEN, 0);
            }
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        let len_bytes = (bytes.len() as u64).max(NUMBERS_LEN_BYTES);
        let spare = match state.numbers.pop() {
            Some(spare) if spare.len_bytes() >= len_bytes => Some(spare),
            _ => None,
        };
        let buffer = match spare {
            Some(spare) => spare,
            None => Arc::new(
                self.device
                    .alloc_with(len_bytes, AllocOptions::default())
                    .map_err(Error::backend("allocating memory for numbers"))?,
            ),
        };
        buffer
            .write_bytes(0, &bytes)
            .map_err(Error::backend("writing numbers"))?;
        Ok(Some(buffer))
    }

    fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Err(error) = self.wait_all() {
            tracing::warn!(%error, "work of a lazy device failed and nobody asked for it");
        }
    }
}

impl Completion {
    /// How the launch ended; `None` while it is in flight.
    pub(crate) fn outcome(&self) -> Option<&Result<(), Error>> {
        self.outcome.get()
    }
}

/// An argument whose launch failed meanwhile is none. With the lane locked it cannot fail later
/// without failing what is launched now.
fn check_sources(graph: &Arc<str>, sources: &[Source]) -> Result<(), Error> {
    for source in sources {
        if let Source::Memory(_, Some(completion)) = source
            && let Some(Err(failure)) = completion.outcome()
        {
            return Err(Error::Poisoned {
                graph: Arc::clone(graph),
                source: Arc::new(failure.clone()),
            });
        }
    }
    Ok(())
}

/// A number of any type, aligned for all of them.
const NUMBER_LEN: usize = 8;
/// The same for offsets.
const NUMBER_LEN_BYTES: u64 = NUMBER_LEN as u64;
/// Numbers of a launch that fit in a buffer that is used again: 512, more than most graphs have.
const NUMBERS_LEN_BYTES: u64 = 512 * NUMBER_LEN_BYTES;
/// Events, and buffers of numbers, that are kept: as many as launches are in flight by default.
const SPARES_MAX: usize = 64;
