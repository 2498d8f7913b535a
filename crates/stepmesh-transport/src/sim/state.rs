//! The state behind the network's lock: nodes, datagrams under way, faults, the clock.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::options::{Faults, SimOptions, Statistics};
use super::trace::{Datagram, Trace};
use crate::link::endpoint::NodeId;

/// Everything that the nodes share.
#[derive(Debug)]
pub(super) struct State {
    pub(super) options: SimOptions,
    pub(super) now_ns: u64,
    pub(super) faults: Faults,
    pub(super) statistics: Statistics,
    pub(super) trace: Trace,
    nodes: Vec<Node>,
    faults_between: BTreeMap<Direction, Faults>,
    cut: BTreeSet<Direction>,
    directions: BTreeMap<Direction, Wire>,
    /// By arrival time, then by the order of sending.
    in_flight: BTreeMap<(u64, u64), Flight>,
    next_flight: u64,
    random: ChaCha8Rng,
}

/// Which life of which node a fabric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) node: NodeId,
    pub(super) generation: u64,
}

/// Whether a node lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// It has no fabric, or its fabric was dropped.
    Absent,
    Running,
    Paused,
    Dead,
}

#[derive(Debug)]
struct Node {
    name: String,
    generation: u64,
    condition: Condition,
    inbox: VecDeque<(NodeId, Vec<u8>)>,
    /// When its fabric wants to be polled, whatever arrives.
    timer_ns: Option<u64>,
}

/// One direction between two nodes.
type Direction = (NodeId, NodeId);

#[derive(Debug, Default)]
struct Wire {
    last_arrival_ns: u64,
    free_ns: u64,
}

#[derive(Debug)]
struct Flight {
    direction: Direction,
    bytes: Vec<u8>,
}

/// What chance decides on one datagram. Always drawn in full, so that a change of one probability
/// does not shift all later draws of a seed.
struct Draws {
    loss: f64,
    duplication: f64,
    reorder: f64,
    delays: [u64; 2],
}

impl State {
    pub(super) fn new(seed: u64, options: SimOptions) -> Self {
        Self {
            now_ns: 0,
            faults: options.faults,
            statistics: Statistics::default(),
            trace: Trace::new(options.trace_lines_max),
            nodes: Vec::new(),
            faults_between: BTreeMap::new(),
            cut: BTreeSet::new(),
            directions: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            next_flight: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
            options,
        }
    }

    pub(super) fn random_u64(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// The node of that name; made, without a fabric, when it is new.
    pub(super) fn node(&mut self, name: &str) -> NodeId {
        if let Some(node) = self.find(name) {
            return node;
        }
        let node = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(Node {
            name: name.to_owned(),
            generation: 0,
            condition: Condition::Absent,
            inbox: VecDeque::new(),
            timer_ns: None,
        });
        node
    }

    pub(super) fn find(&self, name: &str) -> Option<NodeId> {
        (0..)
            .map(NodeId)
            .zip(&self.nodes)
            .find_map(|(id, node)| (node.name == name).then_some(id))
    }

    pub(super) fn start(&mut self, name: &str) -> Life {
        let id = self.node(name);
        let node = &mut self.nodes[id.0 as usize];
        node.generation += 1;
        node.condition = Condition::Running;
        node.inbox.clear();
        node.timer_ns = None;
        let generation = node.generation;
        self.note(format_args!("{name}: starts as generation {generation}"));
        Life {
            node: id,
            generation,
        }
    }

    pub(super) fn set_condition(&mut self, node: NodeId, condition: Condition) {
        let now = &mut self.nodes[node.0 as usize];
        let is_possible = match condition {
            Condition::Paused => now.condition == Condition::Running,
            Condition::Running => now.condition == Condition::Paused,
            Condition::Dead => now.condition != Condition::Absent,
            Condition::Absent => true,
        };
        if !is_possible {
            return;
        }
        now.condition = condition;
        if matches!(condition, Condition::Dead | Condition::Absent) {
            now.inbox.clear();
            now.timer_ns = None;
        }
        let name = now.name.clone();
        self.note(format_args!("{name}: {condition:?}"));
    }

    /// Whether that life of the node still goes on, and is not paused.
    pub(super) fn is_running(&self, life: Life) -> bool {
        self.is_current(life) && self.nodes[life.node.0 as usize].condition == Condition::Running
    }

    /// Whether no later life of the node has begun.
    pub(super) fn is_current(&self, life: Life) -> bool {
        self.nodes[life.node.0 as usize].generation == life.generation
    }

    pub(super) fn name(&self, node: NodeId) -> &str {
        let found = self.nodes.get(node.0 as usize);
        found.map_or("?", |node| node.name.as_str())
    }

    pub(super) fn set_faults_between(&mut self, from: NodeId, to: NodeId, faults: Option<Faults>) {
        match faults {
            Some(faults) => self.faults_between.insert((from, to), faults),
            None => self.faults_between.remove(&(from, to)),
        };
    }

    pub(super) fn set_cut(&mut self, from: NodeId, to: NodeId, is_cut: bool) {
        if is_cut {
            self.cut.insert((from, to));
        } else {
            self.cut.remove(&(from, to));
        }
    }

    pub(super) fn set_timer(&mut self, life: Life, timer_ns: Option<u64>) {
        if self.is_current(life) {
            self.nodes[life.node.0 as usize].timer_ns = timer_ns;
        }
    }

    /// Takes a datagram that is to leave now.
    pub(super) fn send(&mut self, from: NodeId, to: NodeId, bytes: Vec<u8>) {
        let direction = (from, to);
        let faults = *self.faults_between.get(&direction).unwrap_or(&self.faults);
        let draws = self.draw(&faults);
        self.statistics.sent += 1;
        self.note_datagram("sends", direction, &bytes);
        if self.cut.contains(&direction) {
            return self.lose("partition", direction, &bytes);
        }
        if draws.loss < faults.loss {
            return self.lose("chance", direction, &bytes);
        }
        if self.in_flight.len() >= self.options.in_flight_packets_max {
            return self.lose("full network", direction, &bytes);
        }
        let may_overtake = draws.reorder < faults.reorder;
        let departure_ns = self.departure_ns(direction, &faults, bytes.len());
        if draws.duplication < faults.duplication {
            self.statistics.duplicated += 1;
            self.note_datagram("is copied", direction, &bytes);
            let arrival_ns = departure_ns.saturating_add(draws.delays[1]);
            self.fly(arrival_ns, direction, bytes.clone());
        }
        let mut arrival_ns = departure_ns.saturating_add(draws.delays[0]);
        if !may_overtake {
            let wire = self.directions.entry(direction).or_default();
            arrival_ns = arrival_ns.max(wire.last_arrival_ns);
            wire.last_arrival_ns = arrival_ns;
        }
        self.fly(arrival_ns, direction, bytes);
    }

    /// The next datagram for that life, and who sent it.
    pub(super) fn receive(&mut self, life: Life) -> Option<(NodeId, Vec<u8>)> {
        if !self.is_running(life) {
            return None;
        }
        self.nodes[life.node.0 as usize].inbox.pop_front()
    }

    pub(super) fn advance_to(&mut self, time_ns: u64) {
        while let Some(entry) = self.in_flight.first_entry() {
            let arrival_ns = entry.key().0;
            if arrival_ns > time_ns {
                break;
            }
            let flight = entry.remove();
            self.now_ns = self.now_ns.max(arrival_ns);
            self.arrive(flight);
        }
        self.now_ns = self.now_ns.max(time_ns);
    }

    pub(super) fn next_event_ns(&self) -> Option<u64> {
        let running = |node: &&Node| node.condition == Condition::Running;
        let nodes = self.nodes.iter().filter(running).filter_map(|node| {
            if node.inbox.is_empty() {
                node.timer_ns
            } else {
                Some(0)
            }
        });
        let arrival = self
            .in_flight
            .keys()
            .next()
            .map(|&(arrival_ns, _)| arrival_ns);
        let next_ns = nodes.chain(arrival).min()?;
        Some(next_ns.max(self.now_ns))
    }

    pub(super) fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.note(self.now_ns, what);
    }

    fn arrive(&mut self, flight: Flight) {
        let Flight { direction, bytes } = flight;
        if self.cut.contains(&direction) {
            return self.lose("partition", direction, &bytes);
        }
        let inbox_packets_max = self.options.inbox_packets_max;
        let node = &mut self.nodes[direction.1.0 as usize];
        if matches!(node.condition, Condition::Absent | Condition::Dead) {
            return self.lose("death", direction, &bytes);
        }
        if node.inbox.len() >= inbox_packets_max {
            return self.lose("full inbox", direction, &bytes);
        }
        node.inbox.push_back((direction.0, bytes));
        self.statistics.arrived += 1;
    }

    fn lose(&mut self, why: &str, direction: Direction, bytes: &[u8]) {
        self.statistics.lost += 1;
        self.note_datagram(&format!("is lost ({why})"), direction, bytes);
    }

    fn note_datagram(&mut self, what: &str, (from, to): Direction, bytes: &[u8]) {
        let (from, to) = (self.name(from), self.name(to));
        let line = format!("{from} -> {to} {what}: {}", Datagram(bytes));
        self.note(format_args!("{line}"));
    }

    fn fly(&mut self, arrival_ns: u64, direction: Direction, bytes: Vec<u8>) {
        let key = (arrival_ns, self.next_flight);
        self.next_flight += 1;
        self.in_flight.insert(key, Flight { direction, bytes });
    }

    fn departure_ns(&mut self, direction: Direction, faults: &Faults, len_bytes: usize) -> u64 {
        let Some(bandwidth) = faults.bandwidth_bytes_per_s else {
            return self.now_ns;
        };
        let transfer_ns = (len_bytes as u128) * NS_PER_S / u128::from(bandwidth.max(1));
        let wire = self.directions.entry(direction).or_default();
        let start_ns = wire.free_ns.max(self.now_ns);
        wire.free_ns = start_ns.saturating_add(u64::try_from(transfer_ns).unwrap_or(u64::MAX));
        wire.free_ns
    }

    fn draw(&mut self, faults: &Faults) -> Draws {
        Draws {
            loss: self.draw_unit(),
            duplication: self.draw_unit(),
            reorder: self.draw_unit(),
            delays: [self.draw_delay_ns(faults), self.draw_delay_ns(faults)],
        }
    }

    /// Even in `0 .. 1`: the upper 53 bits are as many as the fraction of an `f64` holds.
    fn draw_unit(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn draw_delay_ns(&mut self, faults: &Faults) -> u64 {
        let range_ns = faults.delay_max_ns.saturating_sub(faults.delay_min_ns);
        let drawn = self.random.next_u64();
        let extra_ns = range_ns
            .checked_add(1)
            .map_or(drawn, |values| drawn % values);
        faults.delay_min_ns.saturating_add(extra_ns)
    }
}

const NS_PER_S: u128 = 1_000_000_000;
