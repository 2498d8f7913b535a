//! A node that comes back under its name is another: nothing of the earlier life reaches it or
//! leaves it.

use std::time::Duration;

use stepmesh_transport::fabric::Fabric;
use stepmesh_transport::link::packet::{Header, Kind};
use stepmesh_transport::sim::network::SimNetwork;
use stepmesh_transport::sim::options::{Faults, SimOptions};

use crate::harness::{MILLISECOND, SECOND, Seen, World};

#[test]
fn late_packets_of_an_earlier_life_are_refused() {
    for seed in 0..20 {
        let network = SimNetwork::new(seed, SimOptions::default());
        let mut world = World::connected(&network).unwrap();
        let slow = Faults {
            delay_min_ns: 20 * MILLISECOND,
            delay_max_ns: 60 * MILLISECOND,
            reorder: 1.0,
            ..Faults::default()
        };
        network.set_faults(slow);
        world.count = 64;
        world.turn();
        network.set_faults(Faults {
            reorder: 1.0,
            ..Faults::default()
        });
        world.restart_a();
        let refused_before = network.statistics().refused;
        assert!(world.connect(), "seed {seed}");
        let ended = matches!(
            world.b.sink.seen[..],
            [Seen::Accepted(first, _), Seen::Closed(closed, _), Seen::Accepted(second, _)]
                if first == closed && second != first
        );
        world.assert(
            ended,
            "the earlier connection ends before the later is accepted",
        );
        world.count = 100;
        let all_sent = world.run(60 * SECOND, World::is_all_sent);
        world.assert(all_sent, "stuck");
        world.run(SECOND, |_| false);
        // 64 chains of each side's earlier life were under way.
        assert!(network.statistics().refused >= refused_before + 128);
    }
}

#[test]
fn a_restarted_acceptor_refuses_its_earlier_connections_at_once() {
    let network = SimNetwork::new(1, SimOptions::default());
    let mut world = World::connected(&network).unwrap();
    let restarted = World::new(&network).b;
    let earlier_address = world.b.fabric.address();
    world.b = restarted;
    // `World::new` started both names again, so this "a" is dead; a fresh one asks.
    world.restart_a();
    let timeout = Duration::from_secs(10);
    world.a.peer = world
        .a
        .fabric
        .connect(&earlier_address, b"", timeout)
        .unwrap();
    assert!(world.run(MILLISECOND, |world| world.a.is_closed()));
    assert_eq!(
        world.a.closing(),
        Some("sim: peer PeerId(1) closed the connection")
    );
    assert_eq!(world.b.sink.seen, []);
    assert!(world.connect());
}

#[test]
fn traffic_to_a_restarted_node_ends_the_connection_long_before_silence_would() {
    let network = SimNetwork::new(2, SimOptions::default());
    let mut world = World::connected(&network).unwrap();
    let mut reborn = network.fabric("b");
    world.a.post_next().unwrap();
    let mut nothing = World::new(&SimNetwork::new(0, SimOptions::default()))
        .b
        .sink;
    let mut turns = 0;
    while !world.a.is_closed() && turns < 10 {
        reborn.poll(network.now_ns(), &mut nothing);
        world.a.poll(network.now_ns());
        network.step(MILLISECOND);
        turns += 1;
    }
    assert!(world.a.is_closed());
    assert!(network.now_ns() < 5 * MILLISECOND);
    assert_eq!(nothing.seen, []);
}

#[test]
fn a_late_copy_of_a_request_to_connect_opens_nothing() {
    let network = SimNetwork::new(3, SimOptions::default());
    let mut world = World::connected(&network).unwrap();
    let copy = connect_of(1, world.a.peer.0);
    let seen = world.b.sink.seen.len();
    network.inject("a", "b", &copy);
    world.run(MILLISECOND, |_| false);
    assert_eq!(
        world.b.sink.seen.len(),
        seen,
        "a copy while the connection is up"
    );
    let peer = world.b.peer;
    world.b.fabric.close(peer);
    world.run(MILLISECOND, |_| false);
    network.inject("a", "b", &copy);
    world.run(SECOND, |_| false);
    assert_eq!(
        world.b.sink.seen.len(),
        seen,
        "a copy after the connection has ended"
    );
}

#[test]
fn a_late_request_of_an_earlier_life_to_connect_opens_nothing() {
    let network = SimNetwork::new(4, SimOptions::default());
    let mut world = World::connected(&network).unwrap();
    world.restart_a();
    assert!(world.connect());
    let seen = world.b.sink.seen.clone();
    // The earlier life had got as far as a second connection.
    network.inject("a", "b", &connect_of(1, 2));
    world.count = 100;
    assert!(world.run(SECOND, World::is_all_sent));
    assert_eq!(world.b.sink.seen, seen);
}

/// What a node sends to ask the first life of "b" for a connection.
fn connect_of(generation: u64, connection: u32) -> Vec<u8> {
    let header = Header {
        kind: Kind::Connect,
        generation_from: generation,
        generation_to: 1,
        connection_from: connection,
        connection_to: 0,
        sequence: 0,
        acknowledged: 0,
        held: 0,
    };
    header.encode(0)
}
