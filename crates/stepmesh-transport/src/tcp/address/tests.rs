//! Tests of addresses.

use super::{decode, encode};

#[test]
fn an_address_comes_back_and_no_other_bytes_pass() {
    for text in [
        "127.0.0.1:1",
        "10.1.2.3:65535",
        "[::1]:80",
        "[fe80::1]:4242",
    ] {
        let bytes = encode(text.parse().unwrap()).0;
        assert_eq!(decode(&bytes), Some(text.parse().unwrap()));
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None, "{text} {len}");
        }
        assert_eq!(decode(&[&bytes[..], b"x"].concat()), None);
        assert_eq!(decode(&[b"shm1", &bytes[4..]].concat()), None);
    }
    assert_eq!(decode(&encode("127.0.0.1:0".parse().unwrap()).0), None);
}
