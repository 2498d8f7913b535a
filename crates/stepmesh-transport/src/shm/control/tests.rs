//! Tests of the packets: all come back, and hostile bytes do not pass.

use super::{
    CONTROL_LEN_BYTES, ChunkHeader, Control, FILE_ID_MAX, FIRST_LEN_BYTES_MAX, First, Hello, Place,
    Refusal,
};
use crate::fabric::HELLO_LEN_BYTES_MAX;

fn hello(len: usize) -> Hello {
    Hello {
        ring_lines: 1024,
        message_len_bytes_max: 16384,
        probe_address: 0x7fff_1234_5678,
        probe_nonce: u64::MAX,
        hello: vec![9; len],
    }
}

#[test]
fn first_packets_come_back() {
    for len in [0, 1, HELLO_LEN_BYTES_MAX] {
        let bytes = hello(len).encode();
        assert!(bytes.len() <= FIRST_LEN_BYTES_MAX);
        assert_eq!(First::decode(&bytes), Ok(First::Hello(hello(len))));
    }
    for refusal in [
        Refusal::Version,
        Refusal::Hello,
        Refusal::NoSpace,
        Refusal::Unknown(99),
    ] {
        assert_eq!(
            First::decode(&refusal.encode()),
            Ok(First::Refused(refusal))
        );
    }
}

#[test]
fn hostile_first_packets_are_refused() {
    let good = hello(0).encode();
    for len in 0..8 {
        assert_eq!(First::decode(&good[..len]), Err(Refusal::Hello), "{len}");
    }
    for len in 8..12 {
        assert_eq!(First::decode(&good[..len]), Err(Refusal::Version), "{len}");
    }
    for len in 12..good.len() {
        assert_eq!(First::decode(&good[..len]), Err(Refusal::Hello), "{len}");
    }
    let long = hello(HELLO_LEN_BYTES_MAX + 1).encode();
    assert_eq!(First::decode(&long), Err(Refusal::Hello));
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x40;
        First::decode(&bytes)
    };
    assert_eq!(changed(0), Err(Refusal::Hello));
    assert_eq!(changed(8), Err(Refusal::Version));
    assert_eq!(changed(12), Err(Refusal::Hello));
    let trailing = [&Refusal::Hello.encode()[..], &[0]].concat();
    assert_eq!(First::decode(&trailing), Err(Refusal::Hello));
}

#[test]
fn control_packets_come_back_and_others_do_not_pass() {
    for control in [
        Control::File { file: 3 },
        Control::Forget { file: u32::MAX },
        Control::Revoke { region: 0 },
        Control::Revoked { region: 7 },
    ] {
        let bytes = control.encode();
        assert_eq!(Control::decode(&bytes), Some(control));
        for len in 0..CONTROL_LEN_BYTES {
            assert_eq!(Control::decode(&bytes[..len]), None);
        }
        assert_eq!(Control::decode(&[&bytes[..], &[0]].concat()), None);
    }
    for kind in [0_u8, 5, 255] {
        assert_eq!(Control::decode(&[kind, 0, 0, 0, 1, 0, 0, 0]), None);
    }
}

#[test]
fn places_come_back_or_do_not_fit() {
    for place in [
        Place::File { file: 0, offset: 0 },
        Place::File {
            file: FILE_ID_MAX,
            offset: (1 << 40) - 1,
        },
        Place::Address(0),
        Place::Address(0x7fff_ffff_ffff_ffff),
    ] {
        assert_eq!(Place::decode(place.encode().unwrap()), place);
    }
    for place in [
        Place::File {
            file: FILE_ID_MAX + 1,
            offset: 0,
        },
        Place::File {
            file: 0,
            offset: 1 << 40,
        },
        Place::Address(1 << 63),
    ] {
        assert_eq!(place.encode(), None);
    }
}

#[test]
fn chunks_come_back_and_short_ones_do_not_pass() {
    let header = ChunkHeader {
        region: 12,
        offset: u64::MAX,
    };
    let record = [&header.encode()[..], b"data"].concat();
    assert_eq!(ChunkHeader::decode(&record), Some((header, &b"data"[..])));
    for len in 0..12 {
        assert_eq!(ChunkHeader::decode(&record[..len]), None);
    }
}
