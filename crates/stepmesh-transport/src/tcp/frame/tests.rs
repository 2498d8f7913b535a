//! Tests of the frames: all come back, and hostile bytes do not pass.

use super::{
    CHAIN_HEAD_LEN_BYTES, ChainHead, FIRST_LEN_BYTES_MAX, First, Hello, Refusal,
    WRITE_HEAD_LEN_BYTES, WriteHead,
};
use crate::fabric::HELLO_LEN_BYTES_MAX;

fn hello(len: usize) -> Hello {
    Hello {
        message_len_bytes_max: 16384,
        hello: vec![9; len],
    }
}

#[test]
fn first_frames_come_back_and_short_ones_wait() {
    for len in [0, 1, HELLO_LEN_BYTES_MAX] {
        let mut bytes = hello(len).encode();
        let total = bytes.len();
        assert!(total <= FIRST_LEN_BYTES_MAX);
        for len in 0..total {
            assert_eq!(First::decode(&bytes[..len]), Ok(None), "{len}");
        }
        bytes.extend(b"the next frame");
        assert_eq!(
            First::decode(&bytes),
            Ok(Some((First::Hello(hello(len)), total)))
        );
    }
    for refusal in [Refusal::Version, Refusal::Hello, Refusal::Unknown(99)] {
        let bytes = refusal.encode();
        assert_eq!(
            First::decode(&bytes),
            Ok(Some((First::Refused(refusal), bytes.len())))
        );
    }
}

#[test]
fn hostile_first_frames_are_refused_early() {
    let good = hello(3).encode();
    let changed = |at: usize, len: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x40;
        First::decode(&bytes[..len])
    };
    assert_eq!(changed(0, 1), Err(Refusal::Hello));
    assert_eq!(changed(7, 8), Err(Refusal::Hello));
    assert_eq!(changed(8, 12), Err(Refusal::Version));
    assert_eq!(changed(12, good.len()), Err(Refusal::Hello));
    assert_eq!(changed(23, 24), Err(Refusal::Hello));
    assert_eq!(First::decode(b"GET / HTTP/1.1\r\n"), Err(Refusal::Hello));
    let long = hello(HELLO_LEN_BYTES_MAX + 1).encode();
    assert_eq!(First::decode(&long), Err(Refusal::Hello));
}

#[test]
fn chain_heads_come_back_and_garbage_does_not_pass() {
    for (write_count, message_len_bytes) in [(0, 0), (1, 40), (256, 16384), (usize::MAX, 1)] {
        let head = ChainHead {
            write_count,
            message_len_bytes,
        };
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        assert_eq!(bytes.len(), CHAIN_HEAD_LEN_BYTES);
        for len in 0..bytes.len() {
            assert_eq!(ChainHead::decode(&bytes[..len]), Ok(None), "{len}");
        }
        let back = ChainHead::decode(&bytes).unwrap().unwrap();
        assert_eq!(back.message_len_bytes, message_len_bytes);
        assert_eq!(back.write_count, write_count.min(u32::MAX as usize));
    }
    for garbage in [&b"x"[..], b"SMcx", b"GET / HTTP/1.1\r\n", &[0; 64]] {
        assert!(ChainHead::decode(garbage).is_err(), "{garbage:?}");
    }
}

#[test]
fn write_heads_come_back_whole_or_not_at_all() {
    let write = WriteHead {
        region: 7,
        offset: u64::MAX,
        len_bytes: 3,
    };
    let mut bytes = Vec::new();
    write.encode(&mut bytes);
    assert_eq!(bytes.len(), WRITE_HEAD_LEN_BYTES);
    assert_eq!(WriteHead::decode(&bytes), Some(write));
    for len in 0..bytes.len() {
        assert_eq!(WriteHead::decode(&bytes[..len]), None);
    }
    bytes.push(0);
    assert_eq!(WriteHead::decode(&bytes), None);
}
