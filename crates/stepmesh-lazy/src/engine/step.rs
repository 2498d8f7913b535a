//! Steps: what is traced within one is launched when it ends, and its errors are the step's.

use crate::{BackendDataPtr, Error, LazyDevice};

/// A step that is being traced.
#[derive(Debug)]
pub struct Step<'a> {
    device: &'a LazyDevice,
    number: u64,
}

/// What a step launched. Waiting for it gives its errors; if it is dropped instead, they go to
/// whoever uses the values, and to the next step.
#[derive(Debug)]
#[must_use = "errors of a step are seen when it is waited for"]
pub struct PendingStep {
    /// One of the results: all are of one launch.
    result: Option<BackendDataPtr>,
}

impl Step<'_> {
    /// The device.
    #[must_use]
    pub fn device(&self) -> &LazyDevice {
        self.device
    }

    /// How many steps the device ended before, counted over all threads.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl PendingStep {
    pub(crate) fn new(result: Option<BackendDataPtr>) -> Self {
        Self { result }
    }

    /// Waits for the step's graph.
    ///
    /// # Errors
    /// `Execution`, `Poisoned`, `Timeout`.
    pub fn wait(&self) -> Result<(), Error> {
        self.result.as_ref().map_or(Ok(()), |result| result.wait())
    }
}

impl LazyDevice {
    /// Runs a step and waits for it: what `body` traces is launched when it returns, together with
    /// all else that is traced and alive on the device. An error of the body launches nothing.
    ///
    /// # Errors
    /// Those of the body; of compiling and launching the graph; of the device's work; and a failure
    /// of earlier work that nobody was told.
    pub fn step<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&Step<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let (value, pending) = self.start_step(body)?;
        pending.wait()?;
        Ok(value)
    }

    /// As [`LazyDevice::step`], but does not wait for the device, so that the next step can be
    /// traced while this one is computed.
    ///
    /// # Errors
    /// As for [`LazyDevice::step`], but those of the device's work come from [`PendingStep::wait`].
    pub fn start_step<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&Step<'_>) -> Result<T, E>,
    ) -> Result<(T, PendingStep), E> {
        let context = self.context();
        if let Some(failure) = context.backend().take_failure(&context.device()) {
            return Err(failure.into());
        }
        let number = context.steps();
        let value = body(&Step {
            device: self,
            number,
        })?;
        let pending = context.mark_step()?;
        Ok((value, pending))
    }
}
