//! Bytes that no honest peer sends, and calls that can never succeed.

use std::sync::Arc;
use std::time::Duration;

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{
    Address, Chain, Fabric, HELLO_LEN_BYTES_MAX, PeerId, PostError, RegionId, Write,
};
use stepmesh_transport::link::chain::{self, Target};
use stepmesh_transport::link::packet::{Header, Kind};
use stepmesh_transport::memory::Memory;
use stepmesh_transport::sim::network::SimNetwork;
use stepmesh_transport::sim::options::SimOptions;

use crate::harness::{Cells, MILLISECOND, SECOND, World, message_of};

fn world() -> World {
    let network = SimNetwork::new(1, SimOptions::default());
    World::connected(&network).unwrap()
}

/// A packet as "a" would send it to "b" on their connection.
fn packet(kind: Kind, world: &World, body: &[u8]) -> Vec<u8> {
    let header = Header {
        kind,
        generation_from: 1,
        generation_to: 1,
        connection_from: world.a.peer.0,
        connection_to: world.b.peer.0,
        sequence: 0,
        acknowledged: 0,
        held: 0,
    };
    let mut bytes = header.encode(body.len());
    bytes.extend_from_slice(body);
    bytes
}

fn data(world: &World, targets: &[Target], message: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    chain::encode_head(targets, message, &mut body);
    body.extend_from_slice(bytes);
    packet(Kind::Data, world, &body)
}

/// Injects a packet from "a", and expects "b" to close that connection and to say why.
fn assert_closes(mut world: World, bytes: &[u8], why: &str) {
    world.network.inject("a", "b", bytes);
    world.run(10 * MILLISECOND, |_| false);
    let reason = world.b.closing().unwrap_or("it goes on");
    assert!(
        reason.contains("broke the protocol") && reason.contains(why),
        "{reason}"
    );
    assert_eq!(
        world.a.closing(),
        Some("sim: peer PeerId(1) closed the connection")
    );
    assert_eq!(world.b.received(), 0);
}

#[test]
fn garbage_is_refused_and_harms_nobody() {
    let mut world = world();
    let mut cut = packet(Kind::Ack, &world, b"");
    cut.pop();
    let strangers = Header {
        connection_to: 77,
        ..Header::decode(&packet(Kind::Ack, &world, b"")).unwrap().0
    };
    let packets = [
        b"".as_slice(),
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 64],
        &cut,
        &strangers.encode(0),
    ];
    for bytes in packets {
        world.network.inject("a", "b", bytes);
        world.network.inject("stranger", "b", bytes);
    }
    // A stranger that guesses the numbers of somebody else's connection.
    world
        .network
        .inject("stranger", "b", &packet(Kind::Close, &world, b""));
    world.run(MILLISECOND, |_| false);
    // Those 11, and the answer to the one of "a" that names a connection which is not there.
    assert_eq!(world.network.statistics().refused, 12);
    world.count = 100;
    assert!(world.run(SECOND, World::is_all_sent));
}

#[test]
fn a_write_that_is_not_allowed_closes_the_connection_and_touches_nothing() {
    let slot = Cells::new(64, 7);
    let outside = "a write outside of the region";
    let not_shared = "a write to a region that is not shared with it";
    type Change = fn(Target) -> Target;
    let cases: [(Change, &str); 6] = [
        (
            |good| Target {
                region: 999,
                ..good
            },
            not_shared,
        ),
        (
            |good| Target {
                key: good.key ^ 1,
                ..good
            },
            not_shared,
        ),
        (|good| Target { offset: 61, ..good }, outside),
        (
            |good| Target {
                offset: u64::MAX,
                ..good
            },
            outside,
        ),
        (
            |good| Target {
                len_bytes: 5,
                ..good
            },
            "not as many bytes",
        ),
        (
            |good| Target {
                len_bytes: u64::MAX,
                ..good
            },
            "too long together",
        ),
    ];
    for (change, why) in cases {
        let mut world = world();
        let region = world.b.fabric.register(slot.memory()).unwrap();
        let shared = world.b.fabric.share(region, world.b.peer).unwrap();
        let good = Target {
            region: shared.region,
            key: shared.key,
            offset: 0,
            len_bytes: 4,
        };
        let bytes = data(&world, &[good, change(good)], b"", &[1; 8]);
        assert_closes(world, &bytes, why);
        assert!(slot.is_filled(0, 64, 7));
    }
}

#[test]
fn a_region_takes_writes_only_while_it_is_registered_and_shared() {
    for is_shared in [false, true] {
        let slot = Cells::new(64, 7);
        let mut world = world();
        let region = world.b.fabric.register(slot.memory()).unwrap();
        // Shared with another connection, or no longer registered; the key is right.
        let own = world.b.fabric.address();
        let other = world
            .b
            .fabric
            .connect(&own, b"", Duration::from_secs(1))
            .unwrap();
        let peer = if is_shared { world.b.peer } else { other };
        let shared = world.b.fabric.share(region, peer).unwrap();
        if is_shared {
            world.b.fabric.deregister(region).unwrap();
        }
        let target = Target {
            region: shared.region,
            key: shared.key,
            offset: 0,
            len_bytes: 4,
        };
        let bytes = data(&world, &[target], b"", &[1; 4]);
        assert_closes(world, &bytes, "not shared with it");
        assert!(slot.is_filled(0, 64, 7));
    }
}

#[test]
fn a_chain_that_is_no_chain_closes_the_connection() {
    let world_of = world;
    let half = packet(Kind::Data, &world_of(), &[0; 10]);
    assert_closes(world_of(), &half, "half a chain");
    let target = Target {
        region: 1,
        key: 0,
        offset: 0,
        len_bytes: 0,
    };
    let many = data(&world_of(), &[target; 257], b"", b"");
    assert_closes(world_of(), &many, "more writes");
    let long = data(&world_of(), &[], &[0; 16385], b"");
    assert_closes(world_of(), &long, "a message longer");
}

#[test]
fn numbers_beyond_the_window_close_the_connection() {
    let with = |change: fn(&mut Header)| {
        let world = world();
        let mut body = Vec::new();
        chain::encode_head(&[], b"", &mut body);
        let bytes = packet(Kind::Data, &world, &body);
        let (mut header, body) = Header::decode(&bytes).unwrap();
        change(&mut header);
        let mut bytes = header.encode(body.len());
        bytes.extend_from_slice(body);
        bytes
    };
    let ahead = with(|header| header.sequence = 64);
    assert_closes(world(), &ahead, "more units ahead");
    let far = with(|header| header.sequence = u64::MAX);
    assert_closes(world(), &far, "more units ahead");
    let never_sent = "units that were never sent";
    let acknowledged = with(|header| header.acknowledged = 1);
    assert_closes(world(), &acknowledged, never_sent);
    let acknowledged = with(|header| header.acknowledged = u64::MAX);
    assert_closes(world(), &acknowledged, never_sent);
    let held = with(|header| header.held = 1 << 63);
    assert_closes(world(), &held, never_sent);
}

#[test]
fn a_chain_that_can_never_be_posted_says_why() {
    let mut world = world();
    let local = world.a.fabric.register(Cells::new(10, 0).memory()).unwrap();
    let shared = world.b.fabric.share(world.b.region, world.b.peer).unwrap();
    let remote = world.a.fabric.import(world.a.peer, &shared).unwrap();
    let good = Write {
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        len_bytes: 10,
    };
    let peer = world.a.peer;
    let mut post = |peer, writes: &[Write], message: &[u8]| {
        let chain = Chain {
            writes,
            message,
            token: 0,
        };
        match world.a.fabric.post(peer, &chain) {
            Err(PostError::Failed(error)) => error.to_string(),
            other => format!("{other:?}"),
        }
    };
    let with = |change: fn(&mut Write)| {
        let mut write = good;
        change(&mut write);
        [write]
    };
    let inside = "reach outside of a";
    let checks = [
        (post(PeerId(9), &[], b""), "peer PeerId(9) is not connected"),
        (
            post(peer, &with(|write| write.local_offset = 1), b""),
            inside,
        ),
        (
            post(peer, &with(|write| write.remote_offset = u64::MAX), b""),
            inside,
        ),
        (
            post(peer, &with(|write| write.local.0 = 9), b""),
            "RegionId(9) is not registered",
        ),
        (
            post(peer, &with(|write| write.remote.0 = 9), b""),
            "RemoteId(9) is not imported",
        ),
        (
            post(peer, &[good; 257], b""),
            "more than 256 writes in a chain",
        ),
        (
            post(peer, &[], &[0; 16385]),
            "more than 16384 bytes in a message",
        ),
    ];
    for (said, expected) in checks {
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(post(peer, &[good; 256], &[0; 16384]), "Ok(Pending)");
}

#[test]
fn regions_and_connections_that_cannot_be_made_say_why() {
    let mut world = world();
    let owner = Cells::new(8, 0);
    let address = owner.memory().address();
    // SAFETY: the memory is that of `owner`, kept by its keep-alive; nothing else is claimed.
    let device = unsafe { Memory::new(address, 8, false, None, Arc::new(owner)) };
    let fabric = &mut world.a.fabric;
    let shared = fabric.share(world.a.region, world.a.peer).unwrap();
    assert_eq!(fabric.share(world.a.region, world.a.peer).unwrap(), shared);
    assert!(matches!(
        fabric.register(device),
        Err(Error::Unsupported { .. })
    ));
    assert!(matches!(
        fabric.deregister(RegionId(9)),
        Err(Error::UnknownRegion { .. })
    ));
    assert!(matches!(
        fabric.share(RegionId(9), world.a.peer),
        Err(Error::UnknownRegion { .. })
    ));
    assert!(matches!(
        fabric.share(world.a.region, PeerId(9)),
        Err(Error::UnknownPeer { .. })
    ));
    assert!(matches!(
        fabric.import(PeerId(9), &shared),
        Err(Error::UnknownPeer { .. })
    ));
    let timeout = Duration::from_secs(1);
    for address in [b"short".as_slice(), b"12345678\xff", b"12345678nobody"] {
        let refused = fabric.connect(&Address(address.to_vec()), b"", timeout);
        assert!(
            matches!(refused, Err(Error::InvalidAddress { .. })),
            "{refused:?}"
        );
    }
    let long = [0; HELLO_LEN_BYTES_MAX + 1];
    let own = fabric.address();
    assert!(matches!(
        fabric.connect(&own, &long, timeout),
        Err(Error::Limit { .. })
    ));
}

#[test]
fn a_region_forgotten_with_a_chain_under_way_is_kept_until_the_chain_has_arrived() {
    let mut world = world();
    let source = Cells::new(4, 9);
    let keep_alive = source.memory();
    let count = || format!("{keep_alive:?}");
    let before = count();
    let region = world.a.fabric.register(keep_alive.clone()).unwrap();
    let slot = Cells::new(4, 0);
    let target = world.b.fabric.register(slot.memory()).unwrap();
    let shared = world.b.fabric.share(target, world.b.peer).unwrap();
    let remote = world.a.fabric.import(world.a.peer, &shared).unwrap();
    let write = Write {
        local: region,
        local_offset: 0,
        remote,
        remote_offset: 0,
        len_bytes: 4,
    };
    let chain = Chain {
        writes: &[write],
        message: &message_of(0),
        token: 0,
    };
    world.network.pause("b");
    world.a.fabric.post(world.a.peer, &chain).unwrap();
    world.a.fabric.deregister(region).unwrap();
    assert_ne!(count(), before, "the chain keeps its source");
    let again = world.a.fabric.post(world.a.peer, &chain);
    assert!(matches!(
        again,
        Err(PostError::Failed(Error::UnknownRegion { .. }))
    ));
    world.network.resume("b");
    assert!(world.run(SECOND, |world| world.a.sink.sent == 1));
    assert!(slot.is_filled(0, 4, 9));
    assert_eq!(count(), before);
}
