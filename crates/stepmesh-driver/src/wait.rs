//! Waiting with a bound for something that can only be asked. Drivers have waits without one.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use stepmesh_plugin::WaitMode;

/// Asks until the answer is yes or time ran out, and says which.
///
/// # Errors
/// What asking answers.
pub(crate) fn until<E>(
    timeout_ns: u64,
    mode: WaitMode,
    mut is_done: impl FnMut() -> Result<bool, E>,
) -> Result<bool, E> {
    let start = Instant::now();
    let timeout = Duration::from_nanos(timeout_ns);
    let mut pause = SLEEP_MIN;
    loop {
        if is_done()? {
            return Ok(true);
        }
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Ok(false);
        }
        match mode {
            WaitMode::Spin => std::hint::spin_loop(),
            WaitMode::Yield => std::thread::yield_now(),
            // What is short is waited for awake; what is long costs the processor little.
            WaitMode::Block if start.elapsed() < AWAKE => std::thread::yield_now(),
            WaitMode::Block => {
                std::thread::sleep(pause.min(left));
                pause = (pause * 2).min(SLEEP_MAX);
            }
        }
    }
}

/// How long a wait that may sleep stays awake: about what waking up costs.
const AWAKE: Duration = Duration::from_micros(50);
/// The first sleep: timers are no finer than this.
const SLEEP_MIN: Duration = Duration::from_micros(50);
/// The longest sleep, and so the most by which a wait may be late.
const SLEEP_MAX: Duration = Duration::from_millis(1);
