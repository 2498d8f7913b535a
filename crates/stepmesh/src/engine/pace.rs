//! How a waiting thread passes its time: spin, yield, sleep, give up.

use std::time::{Duration, Instant};

use stepmesh_core::config::PollMode;

/// The pace of one wait.
#[derive(Debug)]
pub(super) struct Pace {
    poll: PollMode,
    spin: Duration,
    timeout: Duration,
    /// The clock is read only every so many steps.
    steps: u32,
    start: Option<Instant>,
    /// When the spinning that is under way began.
    spin_start: Option<Instant>,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Poll again at once.
    Spin,
    /// Let another thread run, then poll again.
    Yield,
    /// Sleep for at most so long.
    Sleep(Duration),
    /// The bound is reached.
    TimedOut,
}

impl Pace {
    pub(super) fn new(poll: PollMode, spin: Duration, timeout: Duration) -> Self {
        Self {
            poll,
            spin,
            timeout,
            steps: 0,
            start: None,
            spin_start: None,
        }
    }

    /// Something arrived: more may follow soon, so spinning starts over.
    pub(super) fn something_happened(&mut self) {
        self.spin_start = None;
    }

    pub(super) fn step(&mut self) -> Step {
        self.steps = self.steps.wrapping_add(1);
        if self.poll == PollMode::Busy && !self.steps.is_multiple_of(BUSY_STEPS_PER_CLOCK) {
            return Step::Spin;
        }
        let now = Instant::now();
        let start = *self.start.get_or_insert(now);
        let waited = now.duration_since(start);
        if waited >= self.timeout {
            return Step::TimedOut;
        }
        let left = (self.timeout - waited).min(SLEEP_MAX);
        match self.poll {
            // Where there are more threads than cores, whoever is waited for needs this one.
            PollMode::Busy => Step::Yield,
            PollMode::Event => Step::Sleep(left),
            PollMode::Adaptive => {
                let spin_start = *self.spin_start.get_or_insert(now);
                if now.duration_since(spin_start) < self.spin {
                    Step::Spin
                } else {
                    Step::Sleep(left)
                }
            }
        }
    }
}

/// A busy wait reads the clock, and lets others run, once in so many bursts: some ten
/// microseconds.
const BUSY_STEPS_PER_CLOCK: u32 = 64;

/// Longest single sleep: a wake-up that was lost costs no more.
const SLEEP_MAX: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::{BUSY_STEPS_PER_CLOCK, Pace, Step};
    use std::time::Duration;
    use stepmesh_core::config::PollMode;

    #[test]
    fn busy_never_sleeps() {
        let mut pace = Pace::new(PollMode::Busy, Duration::ZERO, Duration::from_secs(60));
        let steps: Vec<Step> = (0..BUSY_STEPS_PER_CLOCK * 2).map(|_| pace.step()).collect();
        assert!(
            steps
                .iter()
                .all(|step| matches!(step, Step::Spin | Step::Yield))
        );
        assert!(steps.contains(&Step::Yield));
    }

    #[test]
    fn event_sleeps_at_once() {
        let mut pace = Pace::new(PollMode::Event, Duration::MAX, Duration::from_secs(60));
        assert!(matches!(pace.step(), Step::Sleep(_)));
    }

    #[test]
    fn adaptive_spins_first_and_again_after_something_happened() {
        let forever = Duration::from_secs(60);
        let mut pace = Pace::new(PollMode::Adaptive, forever, forever);
        assert_eq!(pace.step(), Step::Spin);
        let mut pace = Pace::new(PollMode::Adaptive, Duration::ZERO, forever);
        assert!(matches!(pace.step(), Step::Sleep(_)));
        pace.spin = forever;
        pace.something_happened();
        assert_eq!(pace.step(), Step::Spin);
    }

    #[test]
    fn a_wait_without_time_ends_at_its_first_look_at_the_clock() {
        for poll in [PollMode::Adaptive, PollMode::Event] {
            let mut pace = Pace::new(poll, Duration::ZERO, Duration::ZERO);
            assert_eq!(pace.step(), Step::TimedOut);
        }
    }
}
