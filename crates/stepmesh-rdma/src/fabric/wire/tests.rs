//! Frames there and back, and what a hostile peer may send.

use super::{Frame, QUEUE_PAIRS_MAX, RemoteWord, Ring, Side};

fn side() -> Side {
    Side {
        message_len_bytes_max: 16384,
        mtu_len_bytes: 4096,
        lid: 7,
        gid: [3; 16],
        ring: Ring {
            address: 0x7000_0000_0000,
            key: 11,
            lines: 512,
        },
        credit: RemoteWord {
            address: 0x7000_0000_1000,
            key: 12,
        },
        queue_pairs: vec![(17, 0x00ab_cdef), (18, 0)],
        hello: b"hello".to_vec(),
    }
}

#[test]
fn every_frame_comes_back() {
    let longest = Side {
        queue_pairs: vec![(0x00ff_ffff, 0x00ff_ffff); QUEUE_PAIRS_MAX],
        hello: vec![9; 256],
        ..side()
    };
    for frame in [
        Frame::Offer(side()),
        Frame::Answer(longest),
        Frame::Ready,
        Frame::Refused("no room".to_owned()),
    ] {
        assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    }
}

#[test]
fn a_reason_is_cut_at_a_character() {
    let frame = Frame::Refused("é".repeat(400));
    let Ok(Frame::Refused(reason)) = Frame::decode(&frame.encode()) else {
        panic!("no refusal");
    };
    assert_eq!(reason, "é".repeat(256));
}

#[test]
fn every_cut_of_an_offer_is_refused() {
    let hello_len = side().hello.len();
    let bytes = Frame::Offer(side()).encode();
    for len in 0..bytes.len() - hello_len {
        assert!(Frame::decode(&bytes[..len]).is_err(), "{len}");
    }
}

#[test]
fn impossible_sides_are_refused() {
    let refuse = |what: &str, change: fn(&mut Side)| {
        let mut side = side();
        change(&mut side);
        let refused = Frame::decode(&Frame::Offer(side).encode());
        assert!(refused.is_err_and(|reason| reason.contains(what)), "{what}");
    };
    refuse("impossible number", |side| side.queue_pairs.clear());
    refuse("impossible number", |side| {
        side.queue_pairs = vec![(1, 1); 17]
    });
    refuse("impossible queue pair", |side| {
        side.queue_pairs = vec![(1 << 24, 1)]
    });
    refuse("impossible queue pair", |side| {
        side.queue_pairs = vec![(1, 1 << 24)]
    });
    refuse("ring of an impossible length", |side| side.ring.lines = 0);
    refuse("ring of an impossible length", |side| side.ring.lines = 500);
    refuse("ring of an impossible length", |side| {
        side.ring.lines = 1 << 31
    });
    refuse("wraps around", |side| side.ring.address = u64::MAX - 5);
    refuse("hello is too long", |side| side.hello = vec![0; 257]);
}

#[test]
fn unknown_frames_are_refused() {
    for bytes in [&[][..], &[0], &[5], &[3, 0], &[4; 600]] {
        assert!(Frame::decode(bytes).is_err(), "{bytes:?}");
    }
}
