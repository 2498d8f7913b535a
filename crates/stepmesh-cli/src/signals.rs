//! SIGINT and SIGTERM: the first one closes the role, which then ends cleanly; the second one ends
//! the program at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use stepmesh::Closer;

use crate::exit::Exit;

/// What a thread that waits for signals shares with the rest of the program.
#[derive(Clone, Debug)]
pub(crate) struct Watch(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    caught: Option<i32>,
    closer: Option<Closer>,
}

impl Watch {
    /// Watches from now on. Until there is something to [`close`](Self::will_close), a signal ends
    /// the program at once.
    pub(crate) fn start() -> Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for signals")?;
        let watch = Self(Arc::default());
        let watching = watch.clone();
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    watching.caught_one(signal);
                }
            })
            .context("cannot watch for signals")?;
        Ok(watch)
    }

    /// Has the first signal close `closer`.
    pub(crate) fn will_close(&self, closer: Closer) {
        self.lock().closer = Some(closer);
    }

    /// Whether a failure of the mesh is what a signal asked for: this end was closed, and peers
    /// may have seen that and gone before whoever waited for them was told.
    pub(crate) fn explains(&self, error: &anyhow::Error) -> bool {
        self.lock().caught.is_some() && error.is::<stepmesh::Error>()
    }

    /// How a role that ended well has ended.
    pub(crate) fn exit(&self) -> Exit {
        self.lock().caught.map_or(Exit::Done, Exit::Signal)
    }

    fn caught_one(&self, signal: i32) {
        let mut state = self.lock();
        let closer = match (&state.closer, state.caught) {
            (Some(closer), None) => closer.clone(),
            // Nothing to close yet, or asked a second time.
            _ => signal_hook::low_level::exit(128 + signal),
        };
        state.caught = Some(signal);
        drop(state);
        tracing::info!(signal, "ending");
        closer.close();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
