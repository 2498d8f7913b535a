//! What every fabric promises. Which fabrics it is run on is told in `contract`.

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{
    Address, Chain, HELLO_LEN_BYTES_MAX, PeerId, PostError, Posted, RegionId, RemoteId, Write,
};

use crate::node::{Event, LONG, MESSAGE_LEN_MAX, Node, Pair, SHORT, pattern};
use crate::support::Setup;

macro_rules! suite {
    ($($module:ident: $setup:expr;)*) => {$(
        mod $module {
            use crate::support::Setup;

            crate::suite::suite!(@tests $setup;
                writes_of_every_size_arrive_byte_for_byte
                large_writes_arrive_byte_for_byte
                chains_arrive_in_order_with_their_writes
                messages_up_to_the_limit_arrive
                a_full_queue_says_so_and_recovers
                writes_outside_are_refused_where_they_are_posted
                unknown_ids_are_refused
                a_deregistered_region_is_refused_and_let_go
                many_regions_of_one_memory_are_told_apart
                a_released_import_is_refused
                nobody_listening_ends_in_closed
                an_address_of_another_kind_is_refused
                a_closed_peer_is_reported_once_after_its_last_message
                both_directions_at_once
                a_source_is_held_until_it_was_sent
                limits_are_kept
            );
        }
    )*};
    (@tests $setup:expr; $($name:ident)*) => {$(
        #[test]
        fn $name() {
            let Some(_turn) = $setup.take_turn(stringify!($name)) else {
                return;
            };
            crate::suite::$name($setup);
        }
    )*};
}

pub(crate) use suite;

fn write(local: RegionId, remote: RemoteId, offsets: [u64; 2], len_bytes: u64) -> Write {
    Write {
        local,
        local_offset: offsets[0],
        remote,
        remote_offset: offsets[1],
        len_bytes,
    }
}

pub(crate) fn writes_of_every_size_arrive_byte_for_byte(setup: Setup) {
    const LEN: usize = 20_000;
    let mut pair = Pair::new(setup);
    let (source, target) = (setup.memory(LEN), setup.memory(LEN));
    let local = pair.a.fabric.register(source.memory()).unwrap();
    let (_, remote) = pair.share_b(target.memory());
    let sizes = (0..=130).chain([255, 256, 257, 4095, 4096, 4097, 8191, 16384, 19_000]);
    for (round, len) in sizes.enumerate() {
        source.fill(pattern(round));
        target.fill(std::iter::repeat(0xee));
        let (from, to) = (round % 61, (round * 7 + 3) % 97);
        pair.post(
            &[write(local, remote, [from as u64, to as u64], len as u64)],
            b"m",
        );
        assert_eq!(pair.b.wait_message(), b"m");
        let mut expected = vec![0xee; LEN];
        expected[to..to + len].copy_from_slice(&source.to_vec()[from..from + len]);
        assert!(
            target.to_vec() == expected,
            "{len} bytes from {from} to {to}"
        );
    }
}

pub(crate) fn large_writes_arrive_byte_for_byte(setup: Setup) {
    const LEN: usize = 5 << 20;
    let mut pair = Pair::new(setup);
    let (source, target) = (setup.memory(LEN), setup.memory(LEN));
    source.fill(pattern(3));
    let local = pair.a.fabric.register(source.memory()).unwrap();
    let (_, remote) = pair.share_b(target.memory());
    let half = LEN as u64 / 2;
    let writes = [
        write(local, remote, [1, 3], half),
        write(local, remote, [0, 0], 0),
        write(local, remote, [half + 1, half + 3], half - 3),
    ];
    pair.post(&writes, b"two halves");
    assert_eq!(pair.b.wait_message(), b"two halves");
    assert!(target.to_vec()[3..] == source.to_vec()[1..LEN - 2]);
    assert_eq!(target.to_vec()[..3], [0; 3]);
}

pub(crate) fn chains_arrive_in_order_with_their_writes(setup: Setup) {
    const COUNT: usize = 3000;
    let mut pair = Pair::new(setup);
    let (source, target) = (setup.memory(COUNT * 8), setup.memory(COUNT * 8));
    source.fill((0..COUNT as u64).flat_map(|number| (number + 1).to_le_bytes()));
    let local = pair.a.fabric.register(source.memory()).unwrap();
    let (_, remote) = pair.share_b(target.memory());
    let (mut posted, mut received) = (0, 0);
    while received < COUNT {
        while posted < COUNT {
            let at = posted as u64 * 8;
            let number = (posted as u64).to_le_bytes();
            let writes = [write(local, remote, [at, at], 8)];
            let chain = Chain {
                writes: &writes,
                message: &number,
                token: posted as u64,
            };
            match pair.a.fabric.post(pair.b_of_a, &chain) {
                Ok(_) => posted += 1,
                Err(PostError::Full) => break,
                Err(PostError::Failed(error)) => panic!("{error}"),
            }
        }
        pair.poll();
        while let Some(message) = pair.b.take(|event| match event {
            Event::Message(_, message) => Some(message.clone()),
            _ => None,
        }) {
            assert_eq!(message, (received as u64).to_le_bytes());
            let at = received * 8;
            assert_eq!(
                target.to_vec()[at..at + 8],
                (received as u64 + 1).to_le_bytes()
            );
            received += 1;
        }
    }
    let tokens: Vec<u64> = std::iter::from_fn(|| {
        pair.poll();
        pair.a.take(|event| match event {
            Event::Sent(token) => Some(*token),
            _ => None,
        })
    })
    .collect();
    assert!(tokens.is_sorted());
}

pub(crate) fn messages_up_to_the_limit_arrive(setup: Setup) {
    let mut pair = Pair::new(setup);
    let max = pair.a.fabric.limits().message_len_bytes_max;
    assert_eq!(max, MESSAGE_LEN_MAX);
    for len in (0..300).chain([1000, 4096, max - 1, max]) {
        let message: Vec<u8> = pattern(len).take(len).collect();
        pair.post(&[], &message);
        assert!(pair.b.wait_message() == message, "{len}");
    }
    let long = vec![0; max + 1];
    let chain = Chain {
        writes: &[],
        message: &long,
        token: 0,
    };
    let refused = pair.a.fabric.post(pair.b_of_a, &chain);
    assert!(matches!(
        refused,
        Err(PostError::Failed(Error::Limit { .. }))
    ));
    pair.assert_alive();
}

pub(crate) fn a_full_queue_says_so_and_recovers(setup: Setup) {
    let mut pair = Pair::new(setup);
    let message = vec![5; MESSAGE_LEN_MAX];
    let mut posted = 0;
    loop {
        let chain = Chain {
            writes: &[],
            message: &message,
            token: posted,
        };
        match pair.a.fabric.post(pair.b_of_a, &chain) {
            Ok(_) => posted += 1,
            Err(PostError::Full) => break,
            Err(PostError::Failed(error)) => panic!("{error}"),
        }
        assert!(posted < 100_000, "nothing bounds the queue");
        pair.a.poll();
    }
    for _ in 0..posted {
        pair.a.poll();
        assert_eq!(pair.b.wait_message_with(&mut pair.a), message);
    }
    pair.assert_alive();
}

pub(crate) fn writes_outside_are_refused_where_they_are_posted(setup: Setup) {
    let mut pair = Pair::new(setup);
    let (source, target) = (setup.memory(100), setup.memory(100));
    let local = pair.a.fabric.register(source.memory()).unwrap();
    let (_, remote) = pair.share_b(target.memory_range(10, 50));
    source.fill(std::iter::repeat(1));
    for ([from, to], len, what) in [
        ([0, 0], 51, "remote region"),
        ([0, 50], 1, "remote region"),
        ([0, 51], 0, "remote region"),
        ([0, u64::MAX], 2, "remote region"),
        ([0, 1], u64::MAX, "local region"),
        ([100, 0], 1, "local region"),
        ([u64::MAX, 0], 1, "local region"),
    ] {
        // The first write is good: nothing of it may be done either.
        let writes = [
            write(local, remote, [0, 0], 1),
            write(local, remote, [from, to], len),
        ];
        let chain = Chain {
            writes: &writes,
            message: b"m",
            token: 0,
        };
        match pair.a.fabric.post(pair.b_of_a, &chain) {
            Err(PostError::Failed(Error::OutOfBounds { what: found, .. })) => {
                assert_eq!(found, what, "{from} {to} {len}");
            }
            other => panic!("{from} {to} {len}: {other:?}"),
        }
    }
    pair.assert_alive();
    assert_eq!(target.to_vec(), [0; 100]);
}

pub(crate) fn unknown_ids_are_refused(setup: Setup) {
    let mut pair = Pair::new(setup);
    let memory = setup.memory(64);
    let local = pair.a.fabric.register(memory.memory()).unwrap();
    let (_, remote) = pair.share_b(memory.memory());
    let (nobody, no_region, no_remote) = (PeerId(99), RegionId(99), RemoteId(99));
    let mut post = |peer, local, remote| {
        let writes = [write(local, remote, [0, 0], 1)];
        let chain = Chain {
            writes: &writes,
            message: b"",
            token: 0,
        };
        match pair.a.fabric.post(peer, &chain) {
            Err(PostError::Failed(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(
        post(nobody, local, remote),
        Error::UnknownPeer { .. }
    ));
    assert!(matches!(
        post(pair.b_of_a, no_region, remote),
        Error::UnknownRegion { .. }
    ));
    assert!(matches!(
        post(pair.b_of_a, local, no_remote),
        Error::UnknownRemote { .. }
    ));
    let fabric = &mut pair.a.fabric;
    assert!(matches!(
        fabric.deregister(no_region),
        Err(Error::UnknownRegion { .. })
    ));
    assert!(matches!(
        fabric.share(no_region, pair.b_of_a),
        Err(Error::UnknownRegion { .. })
    ));
    assert!(matches!(
        fabric.share(local, nobody),
        Err(Error::UnknownPeer { .. })
    ));
    fabric.release(nobody, no_remote);
    fabric.release(pair.b_of_a, no_remote);
    fabric.close(nobody);
    pair.assert_alive();
}

pub(crate) fn a_deregistered_region_is_refused_and_let_go(setup: Setup) {
    let mut pair = Pair::new(setup);
    let (source, target) = (setup.memory(64), setup.memory(64));
    let local = pair.a.fabric.register(source.memory()).unwrap();
    let (region, remote) = pair.share_b(target.memory());
    assert!(target.owners() > 1, "a registered region is held");
    pair.b.fabric.deregister(region).unwrap();
    assert!(pair.b.fabric.deregister(region).is_err());
    let deadline = std::time::Instant::now() + LONG;
    while target.owners() > 1 {
        pair.poll();
        assert!(
            std::time::Instant::now() < deadline,
            "the memory is still held"
        );
    }
    // The writer learns of it at once (shm), or is cut off when it writes (tcp).
    let writes = [write(local, remote, [0, 0], 8)];
    source.fill(std::iter::repeat(7));
    let chain = Chain {
        writes: &writes,
        message: b"late",
        token: 0,
    };
    match pair.a.fabric.post(pair.b_of_a, &chain) {
        Err(PostError::Failed(Error::UnknownRemote { .. })) => pair.assert_alive(),
        Ok(_) => assert!(pair.b.wait_closed().contains("InvalidWire")),
        other => panic!("{other:?}"),
    }
    assert_eq!(target.to_vec(), [0; 64]);
}

pub(crate) fn many_regions_of_one_memory_are_told_apart(setup: Setup) {
    const COUNT: usize = 500;
    let mut pair = Pair::new(setup);
    let (source, target) = (setup.memory(COUNT * 3), setup.memory(COUNT * 3));
    source.fill(pattern(1));
    let local = pair.a.fabric.register(source.memory()).unwrap();
    let regions: Vec<_> = (0..COUNT)
        .map(|idx| pair.share_b(target.memory_range(idx * 3, 3)))
        .collect();
    for (idx, (_, remote)) in regions.iter().enumerate() {
        pair.post(&[write(local, *remote, [idx as u64 * 3, 0], 3)], b"x");
        assert_eq!(pair.b.wait_message(), b"x");
    }
    assert_eq!(target.to_vec(), source.to_vec());
    for (region, remote) in regions {
        pair.b.fabric.deregister(region).unwrap();
        pair.a.fabric.release(pair.b_of_a, remote);
        pair.poll();
    }
    pair.assert_alive();
    // And the same memory can be shared again.
    let (_, remote) = pair.share_b(target.memory());
    target.fill(std::iter::repeat(0));
    pair.post(&[write(local, remote, [0, 0], COUNT as u64 * 3)], b"x");
    assert_eq!(pair.b.wait_message(), b"x");
    assert_eq!(target.to_vec(), source.to_vec());
}

pub(crate) fn a_released_import_is_refused(setup: Setup) {
    let mut pair = Pair::new(setup);
    let memory = setup.memory(64);
    let local = pair.a.fabric.register(memory.memory()).unwrap();
    let (_, remote) = pair.share_b(setup.memory(64).memory());
    pair.a.fabric.release(pair.b_of_a, remote);
    let writes = [write(local, remote, [0, 0], 8)];
    let chain = Chain {
        writes: &writes,
        message: b"",
        token: 0,
    };
    let refused = pair.a.fabric.post(pair.b_of_a, &chain);
    assert!(matches!(
        refused,
        Err(PostError::Failed(Error::UnknownRemote { .. }))
    ));
    pair.assert_alive();
}

pub(crate) fn nobody_listening_ends_in_closed(setup: Setup) {
    let address = setup.fabric().address();
    let mut node = Node::new(setup.fabric());
    let peer = node.fabric.connect(&address, b"", SHORT).unwrap();
    node.wait(|event| match event {
        Event::Closed(closed, _) => (*closed == peer).then_some(()),
        _ => None,
    });
    let chain = Chain {
        writes: &[],
        message: b"",
        token: 0,
    };
    let refused = node.fabric.post(peer, &chain);
    assert!(matches!(
        refused,
        Err(PostError::Failed(Error::UnknownPeer { .. }))
    ));
}

pub(crate) fn an_address_of_another_kind_is_refused(setup: Setup) {
    let mut fabric = setup.fabric();
    let mut wrong = fabric.address().0;
    wrong[0] ^= 1;
    for bytes in [vec![], b"nonsense".to_vec(), wrong, vec![0; 4096]] {
        let refused = fabric.connect(&Address(bytes.clone()), b"", SHORT);
        assert!(
            matches!(refused, Err(Error::InvalidAddress { .. })),
            "{bytes:?}"
        );
    }
    let long = [0; HELLO_LEN_BYTES_MAX + 1];
    let address = fabric.address();
    let refused = fabric.connect(&address, &long, SHORT);
    assert!(matches!(refused, Err(Error::Limit { .. })));
}

pub(crate) fn a_closed_peer_is_reported_once_after_its_last_message(setup: Setup) {
    let mut pair = Pair::new(setup);
    for _ in 0..3 {
        pair.post(&[], b"last words");
    }
    pair.a.fabric.close(pair.b_of_a);
    for _ in 0..3 {
        assert_eq!(pair.b.wait_message(), b"last words");
    }
    assert!(pair.b.wait_closed().contains("PeerClosed"));
    for _ in 0..100 {
        pair.poll();
    }
    assert!(pair.a.events.0.is_empty(), "{:?}", pair.a.events.0);
    assert!(pair.b.events.0.is_empty(), "{:?}", pair.b.events.0);
    let chain = Chain {
        writes: &[],
        message: b"",
        token: 0,
    };
    let refused = pair.b.fabric.post(pair.a_of_b, &chain);
    assert!(matches!(
        refused,
        Err(PostError::Failed(Error::UnknownPeer { .. }))
    ));
}

pub(crate) fn both_directions_at_once(setup: Setup) {
    const ROUNDS: u64 = 300;
    let mut pair = Pair::new(setup);
    let message = |round: u64| vec![round.to_le_bytes()[0]; 2000];
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    while received != [ROUNDS; 2] {
        let (a, b) = (pair.b_of_a, pair.a_of_b);
        for (side, node, peer) in [(0, &mut pair.a, a), (1, &mut pair.b, b)] {
            let message = message(sent[side]);
            let chain = Chain {
                writes: &[],
                message: &message,
                token: 0,
            };
            if sent[side] < ROUNDS && node.fabric.post(peer, &chain).is_ok() {
                sent[side] += 1;
            }
        }
        pair.poll();
        for (side, node) in [(0, &mut pair.a), (1, &mut pair.b)] {
            while let Some(event) = (!node.events.0.is_empty()).then(|| node.events.0.remove(0)) {
                match event {
                    Event::Message(_, found) => {
                        assert!(found == message(received[side]));
                        received[side] += 1;
                    }
                    Event::Sent(..) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

pub(crate) fn a_source_is_held_until_it_was_sent(setup: Setup) {
    const LEN: usize = 3 << 20;
    let mut pair = Pair::new(setup);
    let (source, target) = (setup.memory(LEN), setup.memory(LEN));
    source.fill(pattern(9));
    let local = pair.a.fabric.register(source.memory()).unwrap();
    let (_, remote) = pair.share_b(target.memory());
    let writes = [write(local, remote, [0, 0], LEN as u64)];
    let chain = Chain {
        writes: &writes,
        message: b"whole",
        token: 5,
    };
    let posted = pair.a.fabric.post(pair.b_of_a, &chain).unwrap();
    pair.a.fabric.deregister(local).unwrap();
    if posted == Posted::Pending {
        assert!(source.owners() > 1, "what is being sent is held");
    }
    assert_eq!(pair.b.wait_message_with(&mut pair.a), b"whole");
    assert!(target.to_vec() == source.to_vec());
    pair.assert_alive();
    assert_eq!(source.owners(), 1);
}

pub(crate) fn limits_are_kept(setup: Setup) {
    let mut pair = Pair::new(setup);
    let limits = pair.a.fabric.limits();
    let memory = setup.memory(8);
    let local = pair.a.fabric.register(memory.memory()).unwrap();
    let (_, remote) = pair.share_b(setup.memory(8).memory());
    let mut writes = vec![write(local, remote, [0, 0], 8); limits.writes_max];
    pair.post(&writes, b"many");
    assert_eq!(pair.b.wait_message(), b"many");
    writes.push(writes[0]);
    let chain = Chain {
        writes: &writes,
        message: b"",
        token: 0,
    };
    let refused = pair.a.fabric.post(pair.b_of_a, &chain);
    assert!(matches!(
        refused,
        Err(PostError::Failed(Error::Limit { .. }))
    ));
    assert!(limits.message_inline_len_bytes <= limits.message_len_bytes_max);
    pair.assert_alive();
}
