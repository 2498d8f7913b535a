//! Every queue is bounded, says so, and recovers.

use std::collections::BTreeMap;
use std::time::Duration;

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{Chain, EventSink, Fabric, POLL_EVENTS_MAX, PeerId, PostError};
use stepmesh_transport::link::options::LinkOptions;
use stepmesh_transport::sim::network::SimNetwork;
use stepmesh_transport::sim::options::SimOptions;

use crate::harness::{MILLISECOND, SECOND, World};

#[test]
fn a_full_window_refuses_and_takes_again_once_the_peer_goes_on() {
    let options = SimOptions {
        link: LinkOptions {
            window_units: 5,
            ..LinkOptions::default()
        },
        ..SimOptions::default()
    };
    let network = SimNetwork::new(1, options);
    let mut world = World::connected(&network).unwrap();
    network.pause("b");
    for _ in 0..5 {
        world.a.post_next().unwrap();
    }
    assert!(matches!(world.a.post_next(), Err(PostError::Full)));
    world.run(100 * MILLISECOND, |_| false);
    assert!(matches!(world.a.post_next(), Err(PostError::Full)));
    network.resume("b");
    world.count = 100;
    let all_sent = world.run(10 * SECOND, World::is_all_sent);
    world.assert(all_sent, "stuck");
    assert!(world.a.refusals > 0);
}

#[test]
fn the_window_counts_bytes_but_lets_one_long_chain_through() {
    let options = SimOptions {
        link: LinkOptions {
            window_len_bytes: 1,
            ..LinkOptions::default()
        },
        ..SimOptions::default()
    };
    let network = SimNetwork::new(2, options);
    let mut world = World::connected(&network).unwrap();
    world.a.post_next().unwrap();
    assert!(matches!(world.a.post_next(), Err(PostError::Full)));
    world.count = 50;
    let all_sent = world.run(10 * SECOND, World::is_all_sent);
    world.assert(all_sent, "stuck");
}

#[test]
fn one_poll_reports_no_more_events_than_allowed_and_the_next_the_rest() {
    let network = SimNetwork::new(3, SimOptions::default());
    let mut world = World::connected(&network).unwrap();
    network.pause("a");
    world.count = 60;
    world.run(MILLISECOND / 2, |_| false);
    network.resume("a");
    world.a.post_up_to(60);
    network.pause("a");
    world.run(MILLISECOND / 2, |_| false);
    network.resume("a");
    // 60 messages and 60 acknowledgements wait.
    assert_eq!(world.a.poll(0), POLL_EVENTS_MAX);
    assert_eq!(network.next_event_ns(), Some(network.now_ns()));
    assert_eq!(world.a.poll(0), 120 - POLL_EVENTS_MAX);
    assert_eq!(world.a.poll(0), 0);
    assert!(world.run(SECOND, World::is_all_sent));
}

#[test]
fn an_inbox_that_overflows_loses_packets_that_come_again() {
    let options = SimOptions {
        inbox_packets_max: 8,
        ..SimOptions::default()
    };
    let network = SimNetwork::new(4, options);
    let mut world = World::connected(&network).unwrap();
    network.pause("b");
    world.count = 60;
    world.run(100 * MILLISECOND, |_| false);
    assert!(network.statistics().lost > 50);
    network.resume("b");
    let all_sent = world.run(10 * SECOND, World::is_all_sent);
    world.assert(all_sent, "stuck");
}

/// Counts messages by peer.
#[derive(Default)]
struct Counts(BTreeMap<PeerId, usize>);

impl EventSink for Counts {
    fn connected(&mut self, _peer: PeerId, _hello: &[u8]) {}
    fn accepted(&mut self, peer: PeerId, _hello: &[u8]) {
        self.0.insert(peer, 0);
    }
    fn message(&mut self, peer: PeerId, _message: &[u8]) {
        *self.0.entry(peer).or_default() += 1;
    }
    fn sent(&mut self, _peer: PeerId, _token: u64) {}
    fn closed(&mut self, peer: PeerId, reason: Error) {
        panic!("{peer:?} is gone: {reason}");
    }
}

#[test]
fn connections_take_turns_so_that_none_waits_for_a_busy_one() {
    let network = SimNetwork::new(5, SimOptions::default());
    let mut hub = network.fabric("hub");
    let mut spokes = ["x", "y", "z"].map(|name| network.fabric(name));
    let timeout = Duration::from_secs(1);
    let to_hub = spokes
        .each_mut()
        .map(|spoke| spoke.connect(&hub.address(), b"", timeout).unwrap());
    let mut counts = Counts::default();
    for _ in 0..100 {
        hub.poll(network.now_ns(), &mut counts);
        for spoke in &mut spokes {
            spoke.poll(network.now_ns(), &mut Counts::default());
        }
        network.step(MILLISECOND);
    }
    for (spoke, &peer) in spokes.iter_mut().zip(&to_hub) {
        for token in 0..60 {
            let chain = Chain {
                writes: &[],
                message: b"turn",
                token,
            };
            spoke.post(peer, &chain).unwrap();
        }
    }
    network.advance_ns(MILLISECOND);
    hub.poll(network.now_ns(), &mut counts);
    let mut shares: Vec<usize> = counts.0.into_values().collect();
    shares.sort_unstable();
    assert_eq!(shares, [21, 21, 22]);
}
