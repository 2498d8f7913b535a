//! Death, partitions, pauses and closing: who notices, how soon, and that nothing follows.

use std::time::Duration;

use stepmesh_transport::fabric::{Fabric, PostError};
use stepmesh_transport::link::options::LinkOptions;
use stepmesh_transport::sim::network::SimNetwork;
use stepmesh_transport::sim::options::{Faults, SimOptions};

use crate::harness::{MILLISECOND, SECOND, Seen, World};

/// What an idle connection needs to notice: the silence, counted from the last packet, which may
/// have been under way for the longest delay.
fn bound_ns() -> u64 {
    LinkOptions::default().silence_ns + Faults::default().delay_max_ns
}

fn world(seed: u64) -> World {
    let network = SimNetwork::new(seed, SimOptions::default());
    World::connected(&network).unwrap()
}

#[test]
fn the_death_of_an_idle_peer_is_noticed_within_the_bound() {
    let mut world = world(1);
    // Long enough that only keep-alives hold the connection.
    world.run(30 * SECOND, |_| false);
    assert_eq!((world.a.closing(), world.b.closing()), (None, None));
    world.network.kill("b");
    assert!(world.run(bound_ns(), |world| world.a.is_closed()));
    let reason = world.a.closing().unwrap();
    assert!(
        reason.contains("keep-alive with peer 1 took longer than 2000 ms"),
        "{reason}"
    );
}

#[test]
fn the_death_of_a_busy_peer_is_noticed_within_the_bound() {
    for seed in 0..50 {
        let mut world = world(seed);
        world.count = u64::MAX;
        world.run(seed * 7_000, |_| false);
        world.network.kill("b");
        let noticed = world.run(bound_ns(), |world| world.a.is_closed());
        world.assert(noticed, "not noticed");
        assert!(world.a.sink.sent <= world.b.received());
    }
}

#[test]
fn a_killed_fabric_is_silent_for_ever() {
    let mut world = world(2);
    world.network.kill("b");
    world.network.resume("b");
    let sent = world.network.statistics().sent;
    assert!(matches!(world.b.post_next(), Err(PostError::Full)));
    for _ in 0..100 {
        assert_eq!(world.b.poll(0), 0);
        world.network.advance_ns(100 * MILLISECOND);
    }
    assert_eq!(world.network.statistics().sent, sent);
    assert_eq!(world.b.closing(), None);
}

#[test]
fn units_that_do_not_get_through_end_the_connection_though_the_peer_is_heard() {
    let options = SimOptions {
        link: LinkOptions {
            silence_ns: 1000 * SECOND,
            ..LinkOptions::default()
        },
        ..SimOptions::default()
    };
    let network = SimNetwork::new(3, options);
    let mut world = World::connected(&network).unwrap();
    let deaf = Faults {
        loss: 1.0,
        ..Faults::default()
    };
    network.set_faults_between("a", "b", deaf);
    world.a.post_next().unwrap();
    // Each wait may be as long as the longest, at most.
    let link = LinkOptions::default();
    let bound_ns = u64::from(link.retries_max + 1) * link.retransmit_max_ns;
    assert!(world.run(bound_ns, |world| world.a.is_closed()));
    let reason = world.a.closing().unwrap();
    assert!(reason.contains("acknowledgement with peer 1"), "{reason}");
    assert_eq!(
        network.statistics().retransmitted,
        u64::from(link.retries_max)
    );
}

#[test]
fn a_partition_longer_than_the_bound_closes_both_sides_for_good() {
    let mut world = world(4);
    world.count = 1000;
    world.run(MILLISECOND, |_| false);
    world.network.partition("a", "b");
    let both = |world: &World| world.a.is_closed() && world.b.is_closed();
    assert!(world.run(bound_ns(), both));
    let received = (world.a.received(), world.b.received());
    world.network.heal("a", "b");
    world.run(10 * SECOND, |_| false);
    assert_eq!((world.a.received(), world.b.received()), received);
    assert!(matches!(world.a.post_next(), Err(PostError::Failed(_))));
}

#[test]
fn a_partition_shorter_than_the_bound_loses_nothing() {
    for seed in 0..20 {
        let mut world = world(seed);
        world.count = 300;
        world.run(MILLISECOND, |_| false);
        world.network.partition("a", "b");
        world.run(SECOND, |_| false);
        world.network.heal("a", "b");
        let all_sent = world.run(10 * SECOND, World::is_all_sent);
        world.assert(all_sent, "stuck after the partition");
        assert_eq!((world.a.closing(), world.b.closing()), (None, None));
    }
}

#[test]
fn a_pause_shorter_than_the_bound_only_delays() {
    let mut world = world(5);
    world.network.pause("b");
    world.count = 40;
    world.run(SECOND, |_| false);
    assert_eq!((world.a.sink.sent, world.b.received()), (0, 0));
    world.network.resume("b");
    assert!(world.run(10 * SECOND, World::is_all_sent));
}

#[test]
fn a_peer_paused_for_longer_than_the_bound_is_given_up_and_learns_it() {
    let mut world = world(6);
    world.network.pause("b");
    world.count = 40;
    assert!(world.run(bound_ns(), |world| world.a.is_closed()));
    world.run(10 * SECOND, |_| false);
    assert_eq!(world.b.closing(), None);
    world.network.resume("b");
    assert!(world.run(SECOND, |world| world.b.is_closed()));
    // What was under way before "a" gave up was still of the connection; nothing came after.
    assert_eq!(world.b.sink.sent, 0);
}

#[test]
fn closing_tells_the_peer_and_only_the_peer() {
    let mut world = world(7);
    let peer = world.a.peer;
    world.a.fabric.close(peer);
    assert!(world.run(MILLISECOND, |world| world.b.is_closed()));
    assert_eq!(
        world.b.closing(),
        Some("sim: peer PeerId(1) closed the connection")
    );
    world.run(10 * SECOND, |_| false);
    assert_eq!(world.a.closing(), None);
}

#[test]
fn a_lost_closing_is_made_good_by_the_refusal_of_what_follows() {
    let mut world = world(8);
    world.network.partition("a", "b");
    let peer = world.a.peer;
    world.a.fabric.close(peer);
    world.network.heal("a", "b");
    let keep_alive_ns = LinkOptions::default().keep_alive_ns;
    assert!(world.run(keep_alive_ns + MILLISECOND, |world| world.b.is_closed()));
}

#[test]
fn a_dropped_fabric_closes_its_connections() {
    let mut world = world(9);
    let other = World::new(&SimNetwork::new(0, SimOptions::default())).a;
    world.a = other;
    let closed = |world: &World| matches!(world.b.sink.seen.last(), Some(Seen::Closed(..)));
    assert!(world.run(MILLISECOND, closed));
}

#[test]
fn an_attempt_to_reach_a_dead_node_times_out() {
    let network = SimNetwork::new(10, SimOptions::default());
    let mut world = World::new(&network);
    network.kill("b");
    let address = world.b.fabric.address();
    let timeout = Duration::from_millis(700);
    world.a.peer = world.a.fabric.connect(&address, b"", timeout).unwrap();
    assert!(!world.run(699 * MILLISECOND, |world| world.a.is_closed()));
    assert!(world.run(MILLISECOND, |world| world.a.is_closed()));
    let reason = world.a.closing().unwrap();
    assert_eq!(reason, "sim: connect with peer 1 took longer than 700 ms");
}

#[test]
fn an_attempt_outlives_a_partition_shorter_than_its_timeout() {
    let network = SimNetwork::new(11, SimOptions::default());
    let mut world = World::new(&network);
    network.partition("a", "b");
    let address = world.b.fabric.address();
    world.a.peer = world
        .a
        .fabric
        .connect(&address, b"hi", Duration::from_secs(10))
        .unwrap();
    assert!(!world.run(5 * SECOND, |world| !world.a.sink.seen.is_empty()));
    network.heal("a", "b");
    assert!(world.run(SECOND, |world| !world.a.sink.seen.is_empty()));
    assert!(matches!(world.a.sink.seen[..], [Seen::Connected(..)]));
}
