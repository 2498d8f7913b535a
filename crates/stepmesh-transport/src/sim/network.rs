//! The simulated network: a handle that tests hold, to make nodes, to let time pass, and to break
//! things.

#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fabric::SimFabric;
use super::options::{Faults, SimOptions, Statistics};
use super::state::{Condition, State};

/// A simulated network. Clones are the same network; it can be used from any thread, but only one
/// that is driven from a single thread repeats itself exactly.
///
/// Nodes are known by name. A name that was not used before is a node without a fabric, so faults
/// can be set before a node starts.
#[derive(Clone, Debug)]
pub struct SimNetwork {
    state: Arc<Mutex<State>>,
}

impl SimNetwork {
    /// A network at time 0 with no nodes, all of whose chance comes from `seed`.
    pub fn new(seed: u64, options: SimOptions) -> Self {
        Self {
            state: Arc::new(Mutex::new(State::new(seed, options))),
        }
    }

    /// Starts a node and returns its fabric. A node of that name which lives already is thereby
    /// killed and restarted: its earlier fabric is silent for ever, and what was sent to it or by
    /// it is refused by the new one.
    pub fn fabric(&self, name: &str) -> SimFabric {
        let mut state = self.lock();
        let life = state.start(name);
        SimFabric::new(self.clone(), life, name, &state.options)
    }

    /// The virtual time, in nanoseconds since the network was made.
    pub fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    /// Lets time pass. What arrives waits for its node's fabric to be polled.
    pub fn advance_ns(&self, duration_ns: u64) {
        let mut state = self.lock();
        let time_ns = state.now_ns.saturating_add(duration_ns);
        state.advance_to(time_ns);
    }

    /// When something happens next: a datagram arrives, or the fabric of a running node wants to
    /// be polled. It is the present as long as there is a fabric that has something to do and was
    /// not polled. `None`: nothing will ever happen by itself.
    pub fn next_event_ns(&self) -> Option<u64> {
        self.lock().next_event_ns()
    }

    /// Lets time pass to the next event, but no longer than `duration_max_ns`, and returns how
    /// long that was. The usual loop of a test polls every fabric, then steps.
    pub fn step(&self, duration_max_ns: u64) -> u64 {
        let mut state = self.lock();
        let start_ns = state.now_ns;
        let latest_ns = start_ns.saturating_add(duration_max_ns);
        let time_ns = state
            .next_event_ns()
            .map_or(latest_ns, |next| next.min(latest_ns));
        state.advance_to(time_ns);
        time_ns - start_ns
    }

    /// What the network does to datagrams from now on, where nothing else is set for a direction.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.lock();
        state.faults = faults;
        state.note(format_args!("all: {faults:?}"));
    }

    /// What the network does to datagrams from one node to another, in this direction only.
    pub fn set_faults_between(&self, from: &str, to: &str, faults: Faults) {
        self.change_faults(from, to, Some(faults));
    }

    /// Lets the general faults apply to that direction again.
    pub fn clear_faults_between(&self, from: &str, to: &str) {
        self.change_faults(from, to, None);
    }

    /// Cuts two nodes off from each other, in both directions. What is under way between them is
    /// lost, too.
    pub fn partition(&self, a: &str, b: &str) {
        self.change_cut(a, b, true);
    }

    /// Ends a partition.
    pub fn heal(&self, a: &str, b: &str) {
        self.change_cut(a, b, false);
    }

    /// Kills a node, as `SIGKILL` and a reset of its host do: its fabric is silent from now on. It
    /// takes nothing, posts nothing and reports nothing, and peers notice by its silence.
    pub fn kill(&self, name: &str) {
        self.change_condition(name, Condition::Dead);
    }

    /// Stops a running node, as `SIGSTOP` does: nothing is processed, what arrives waits in its
    /// bounded inbox, and its fabric takes no chain.
    pub fn pause(&self, name: &str) {
        self.change_condition(name, Condition::Paused);
    }

    /// Lets a paused node go on.
    pub fn resume(&self, name: &str) {
        self.change_condition(name, Condition::Running);
    }

    /// Sends bytes as if node `from` had sent them, through the faults of that direction.
    pub fn inject(&self, from: &str, to: &str, bytes: &[u8]) {
        let mut state = self.lock();
        let (from, to) = (state.node(from), state.node(to));
        state.send(from, to, bytes.to_vec());
    }

    /// What was counted so far.
    pub fn statistics(&self) -> Statistics {
        self.lock().statistics
    }

    /// The last lines of what happened: virtual time in nanoseconds, then the event. A datagram is
    /// shown as `kind generation.connection>generation.connection`, sender first.
    pub fn trace(&self) -> Vec<String> {
        self.lock().trace.lines()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A test that failed elsewhere may still want to print the trace.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_faults(&self, from: &str, to: &str, faults: Option<Faults>) {
        let mut state = self.lock();
        let direction = (state.node(from), state.node(to));
        state.set_faults_between(direction.0, direction.1, faults);
        state.note(format_args!("{from} -> {to}: {faults:?}"));
    }

    fn change_cut(&self, a: &str, b: &str, is_cut: bool) {
        let mut state = self.lock();
        let (node_a, node_b) = (state.node(a), state.node(b));
        state.set_cut(node_a, node_b, is_cut);
        state.set_cut(node_b, node_a, is_cut);
        let what = if is_cut { "partitioned" } else { "healed" };
        state.note(format_args!("{a} <-> {b}: {what}"));
    }

    fn change_condition(&self, name: &str, condition: Condition) {
        let mut state = self.lock();
        let node = state.node(name);
        state.set_condition(node, condition);
    }
}
