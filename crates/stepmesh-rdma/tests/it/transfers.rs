//! What the fabric moves, beyond the contract of all fabrics: every kind of size at odd places, and to
//! receivers that do not look.

use std::time::{Duration, Instant};

use stepmesh_transport::fabric::{Chain, PostError, SharedRegion, Write};

use crate::node::{Event, LONG, Node, Pair, pattern};
use crate::support::Setup;

#[test]
fn sizes_from_nothing_to_64_mib_arrive_byte_for_byte_at_odd_places() {
    every_size(Setup::One);
}

#[test]
fn sizes_from_nothing_to_64_mib_arrive_byte_for_byte_by_eight_queue_pairs() {
    every_size(Setup::Eight);
}

#[test]
fn messages_around_the_lines_of_a_ring_arrive_in_every_place_of_it() {
    for setup in [Setup::One, Setup::Short] {
        let Some(_turn) = setup.take_turn("messages around the lines of a ring") else {
            return;
        };
        let mut pair = Pair::new(setup);
        // Odd numbers of lines between them, so that each begins somewhere else in the next round.
        for round in 0..40 {
            for len in MESSAGES {
                let message: Vec<u8> = pattern(round + len).take(len).collect();
                pair.post(&[], &message);
                assert!(pair.b.wait_message() == message, "{len} in round {round}");
            }
        }
        pair.assert_alive();
    }
}

/// The receiver looks at nothing while everything that it has room for arrives, and for a while longer.
#[test]
fn a_receiver_that_does_not_look_for_a_while_loses_nothing() {
    for setup in [Setup::One, Setup::Eight, Setup::Short] {
        let Some(_turn) = setup.take_turn("a receiver that does not look") else {
            return;
        };
        a_receiver_that_does_not_look(setup);
    }
}

/// A peer that says of a region that it is longer than it is, and writes there.
#[test]
fn a_peer_that_writes_outside_of_its_region_is_dropped_alone() {
    let Some(_turn) = Setup::One.take_turn("writes outside of a region") else {
        return;
    };
    let setup = Setup::One;
    let mut pair = Pair::new(setup);
    let mut other = Node::new(setup.fabric());
    let address = pair.b.fabric.address();
    let b_of_other = other.fabric.connect(&address, b"other", LONG).unwrap();
    let deadline = Instant::now() + LONG;
    let is_there =
        |event: &Event| matches!(event, Event::Connected(..) | Event::Accepted(..)).then_some(());
    let mut seen = 0;
    while seen < 2 {
        assert!(
            Instant::now() < deadline,
            "only {seen} of two ends are there"
        );
        other.poll();
        pair.poll();
        seen += usize::from(other.take(is_there).is_some());
        seen += usize::from(pair.b.take(is_there).is_some());
    }

    let (source, target) = (setup.memory(4096), setup.memory(1 << 16));
    let local = pair.a.fabric.register(source.memory()).unwrap();
    let region = pair
        .b
        .fabric
        .register(target.memory_range(0, 4096))
        .unwrap();
    let shared = pair.b.fabric.share(region, pair.a_of_b).unwrap();
    let forged = SharedRegion {
        len_bytes: 1 << 16,
        ..shared
    };
    let remote = pair.a.fabric.import(pair.b_of_a, &forged).unwrap();
    source.fill(std::iter::repeat(7));
    let write = Write {
        local,
        local_offset: 0,
        remote,
        remote_offset: 1 << 15,
        len_bytes: 4096,
    };
    let chain = Chain {
        writes: &[write],
        message: b"astray",
        token: 0,
    };
    pair.a.fabric.post(pair.b_of_a, &chain).unwrap();
    let closed = |event: &Event| match event {
        Event::Closed(peer, reason) => Some((*peer, reason.to_string())),
        _ => None,
    };
    let (peer, reason) = loop {
        assert!(Instant::now() < deadline, "nobody was dropped");
        pair.poll();
        other.poll();
        if let Some(closed) = pair.b.take(closed) {
            break closed;
        }
    };
    assert_eq!(peer, pair.a_of_b, "{reason}");
    assert!(target.to_vec().iter().all(|byte| *byte == 0));
    // The other one is served as before.
    let chain = Chain {
        writes: &[],
        message: b"still there?",
        token: 0,
    };
    other.fabric.post(b_of_other, &chain).unwrap();
    assert_eq!(pair.b.wait_message_with(&mut other), b"still there?");
}

fn every_size(setup: Setup) {
    let Some(_turn) = setup.take_turn("sizes from nothing to 64 MiB") else {
        return;
    };
    let mut pair = Pair::new(setup);
    let room = LONGEST + 2 * MARGIN;
    let (source, target) = (setup.memory(room), setup.memory(room));
    let bytes = blocks(room);
    source.write(0, &bytes);
    let local = pair.a.fabric.register(source.memory()).unwrap();
    let (_, remote) = pair.share_b(target.memory());
    for (round, len) in SIZES.into_iter().enumerate() {
        let (from, to) = (1 + 2 * (round % 31), MARGIN - 1 - 2 * (round % 29));
        let window = to - GUARD..to + len + GUARD;
        target.write(window.start, &vec![0xee; window.len()]);
        let write = Write {
            local,
            local_offset: from as u64,
            remote,
            remote_offset: to as u64,
            len_bytes: len as u64,
        };
        pair.post(&[write], b"m");
        assert_eq!(pair.b.wait_message(), b"m");
        let found = target.read(window.start, window.len());
        let guards = [&found[..GUARD], &found[GUARD + len..]];
        assert!(
            guards == [&[0xee; GUARD]; 2],
            "{len} bytes wrote beside themselves"
        );
        assert!(
            found[GUARD..GUARD + len] == bytes[from..from + len],
            "{len} bytes from {from} to {to}"
        );
    }
    pair.assert_alive();
}

fn a_receiver_that_does_not_look(setup: Setup) {
    let mut pair = Pair::new(setup);
    let len = SLOTS * SLOT_LEN;
    let (source, target) = (setup.memory(len), setup.memory(len));
    source.fill(pattern(7));
    let local = pair.a.fabric.register(source.memory()).unwrap();
    let (_, remote) = pair.share_b(target.memory());
    let mut posted = 0;
    let mut full_since = None;
    // Longer than the retries to a receiver without receives would last.
    while full_since.is_none_or(|since: Instant| since.elapsed() < UNREADY) && posted < SLOTS {
        let at = (posted * SLOT_LEN) as u64;
        let write = Write {
            local,
            local_offset: at,
            remote,
            remote_offset: at,
            len_bytes: SLOT_LEN as u64,
        };
        let chain = Chain {
            writes: &[write],
            message: &(posted as u64).to_le_bytes(),
            token: posted as u64,
        };
        match pair.a.fabric.post(pair.b_of_a, &chain) {
            Ok(_) => {
                posted += 1;
                full_since = None;
            }
            Err(PostError::Full) => _ = full_since.get_or_insert_with(Instant::now),
            Err(PostError::Failed(error)) => panic!("{error}"),
        }
        pair.a.poll();
    }
    assert!(full_since.is_some(), "{setup:?}: nothing bounds what waits");
    let deadline = Instant::now() + LONG;
    for number in 0..posted {
        let message = pair.b.wait_message_with(&mut pair.a);
        assert_eq!(message, (number as u64).to_le_bytes(), "{setup:?}");
        let at = number * SLOT_LEN;
        assert!(target.read(at, SLOT_LEN) == source.read(at, SLOT_LEN));
    }
    let mut sent = 0;
    while sent < posted {
        pair.poll();
        let is_sent = |event: &Event| matches!(event, Event::Sent(_)).then_some(());
        sent += std::iter::from_fn(|| pair.a.take(is_sent)).count();
        assert!(Instant::now() < deadline, "{sent} of {posted} were sent");
    }
    pair.assert_alive();
}

/// Bytes of which no two blocks are alike, made quickly.
fn blocks(len: usize) -> Vec<u8> {
    let words = (0_u64..).map(|word| (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    let mut bytes = Vec::with_capacity(len + 8);
    for word in words.take(len.div_ceil(8)) {
        bytes.extend_from_slice(&word);
    }
    bytes.truncate(len);
    bytes
}

const LONGEST: usize = 64 << 20;

/// Around the odd places.
const MARGIN: usize = 128;

/// Bytes beside a write that must stay as they were.
const GUARD: usize = 64;

/// Around the ends of inline writes, of lines, of packets of every MTU, of pages, of the shares of queue
/// pairs (256 KiB, and whole pages), and large ones.
const SIZES: [usize; 47] = [
    0,
    1,
    2,
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    257,
    511,
    513,
    1023,
    1024,
    1025,
    2047,
    2048,
    2049,
    4095,
    4096,
    4097,
    8191,
    8193,
    12_289,
    65_535,
    65_537,
    262_143,
    262_144,
    262_145,
    524_287,
    524_288,
    524_289,
    786_433,
    917_504,
    1_048_575,
    1_048_577,
    2_097_151,
    2_097_152,
    2_097_153,
    2_101_247,
    2_101_249,
    4_194_305,
    8_388_609,
    16_777_213,
    LONGEST - 1,
    LONGEST,
];

/// Around the end of a line, which holds a header of 16 bytes.
const MESSAGES: [usize; 11] = [0, 1, 239, 240, 241, 495, 496, 497, 1007, 1009, 5000];

/// More than any ring has lines.
const SLOTS: usize = 2000;

const SLOT_LEN: usize = 1024;

/// Six retries, each after less than a millisecond by the default timer of receivers, and much more.
const UNREADY: Duration = Duration::from_millis(500);
