//! How a waiting thread passes its time: spin, yield, sleep, give up.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use stepmesh_core::config::PollMode;

/// How long spinning has been worth its while, shared by all waits of an engine.
///
/// Spinning pays when what is waited for comes soon. A spin that ends in a sleep halves the next
/// one; a spin that brings something, or a sleep that a spin would have outlasted, restores it.
/// Where there are fewer cores than processes of the mesh there is none: whoever is waited for may
/// need this very core.
#[derive(Debug)]
pub(super) struct SpinBudget {
    cores: usize,
    /// Peers on this host.
    peers: AtomicUsize,
    longest_ns: u64,
    now_ns: AtomicU64,
}

impl SpinBudget {
    pub(super) fn new(longest: Duration, cores: usize) -> Self {
        let longest_ns = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        Self {
            cores,
            peers: AtomicUsize::new(0),
            longest_ns,
            now_ns: AtomicU64::new(longest_ns),
        }
    }

    /// How many peers there are on this host.
    pub(super) fn peers_are(&self, peers: usize) {
        self.peers.store(peers, Ordering::Relaxed);
    }

    /// How long to spin now.
    pub(super) fn spin(&self) -> Duration {
        if self.peers.load(Ordering::Relaxed) >= self.cores {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.now_ns.load(Ordering::Relaxed))
    }

    pub(super) fn missed(&self) {
        let half = self.now_ns.load(Ordering::Relaxed) / 2;
        self.now_ns.store(half, Ordering::Relaxed);
    }

    pub(super) fn slept(&self, slept: Duration) {
        if slept.as_nanos() < u128::from(self.longest_ns) {
            self.hit();
        }
    }

    pub(super) fn hit(&self) {
        // Written only when it changes, so that the line stays in every cache.
        if self.now_ns.load(Ordering::Relaxed) != self.longest_ns {
            self.now_ns.store(self.longest_ns, Ordering::Relaxed);
        }
    }
}

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
    /// How often others were let run in the place of spinning.
    yields: u32,
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
            yields: 0,
        }
    }

    /// Something arrived: more may follow soon, so spinning starts over.
    pub(super) fn something_happened(&mut self) {
        self.spin_start = None;
        self.yields = 0;
    }

    /// Whether this wait spun, as the adaptive mode does, since it last slept.
    pub(super) fn has_spun(&self) -> bool {
        self.poll == PollMode::Adaptive && !self.spin.is_zero() && self.spin_start.is_some()
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
            PollMode::Adaptive if self.spin.is_zero() && self.yields < YIELDS_MAX => {
                self.yields += 1;
                Step::Yield
            }
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

/// How often a thread that does not spin lets others run before it sleeps. With more processes than cores
/// what it waits for is often done by then, at half of what it costs to sleep and to be woken.
const YIELDS_MAX: u32 = 2;

/// Longest single sleep: a wake-up that was lost costs no more.
const SLEEP_MAX: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::{BUSY_STEPS_PER_CLOCK, Pace, SpinBudget, Step};
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
        while pace.step() == Step::Yield {}
        assert!(matches!(pace.step(), Step::Sleep(_)));
        pace.spin = forever;
        pace.something_happened();
        assert_eq!(pace.step(), Step::Spin);
    }

    #[test]
    fn without_spinning_others_run_first_a_few_times_and_again_after_something_happened() {
        let forever = Duration::from_secs(60);
        let mut pace = Pace::new(PollMode::Adaptive, Duration::ZERO, forever);
        for _ in 0..2 {
            assert_eq!(pace.step(), Step::Yield);
            assert_eq!(pace.step(), Step::Yield);
            assert!(matches!(pace.step(), Step::Sleep(_)));
            assert!(
                matches!(pace.step(), Step::Sleep(_)),
                "and goes on sleeping"
            );
            pace.something_happened();
        }
    }

    #[test]
    fn a_wait_without_time_ends_at_its_first_look_at_the_clock() {
        for poll in [PollMode::Adaptive, PollMode::Event] {
            let mut pace = Pace::new(poll, Duration::ZERO, Duration::ZERO);
            assert_eq!(pace.step(), Step::TimedOut);
        }
    }

    #[test]
    fn spinning_is_given_up_where_it_brings_nothing_and_taken_up_again_where_it_would() {
        let longest = Duration::from_micros(50);
        let budget = SpinBudget::new(longest, 2);
        budget.peers_are(1);
        assert_eq!(budget.spin(), longest);
        budget.peers_are(2);
        assert_eq!(budget.spin(), Duration::ZERO, "more processes than cores");
        budget.peers_are(1);
        for _ in 0..20 {
            budget.missed();
        }
        assert_eq!(budget.spin(), Duration::ZERO);
        budget.slept(Duration::from_millis(1));
        assert_eq!(budget.spin(), Duration::ZERO);
        budget.slept(Duration::from_micros(10));
        assert_eq!(budget.spin(), longest);
    }
}
