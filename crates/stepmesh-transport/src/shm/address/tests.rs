//! Tests of addresses.

use super::{ShmAddress, parse_boot_id};

#[test]
fn an_address_comes_back_and_no_other_bytes_pass() {
    let address = ShmAddress::random().unwrap();
    let bytes = address.encode().0;
    assert_eq!(ShmAddress::decode(&bytes), Some(address));
    for len in 0..bytes.len() {
        assert_eq!(ShmAddress::decode(&bytes[..len]), None, "{len}");
    }
    assert_eq!(ShmAddress::decode(&[&bytes[..], b"x"].concat()), None);
    assert_eq!(ShmAddress::decode(&[b"tcp1", &bytes[4..]].concat()), None);
}

#[test]
fn names_differ_on_one_boot() {
    let (one, two) = (ShmAddress::random().unwrap(), ShmAddress::random().unwrap());
    assert_ne!(one.name, two.name);
    assert_eq!(one.boot, two.boot);
}

#[test]
fn only_a_uuid_is_a_boot_id() {
    for (text, valid) in [
        ("0f0e0d0c-0b0a-0908-0706-050403020100\n", true),
        ("", false),
        ("0f0e0d0c-0b0a-0908-0706-0504030201", false),
        ("zf0e0d0c-0b0a-0908-0706-050403020100", false),
        ("+f0e0d0c-0b0a-0908-0706-050403020100", false),
    ] {
        assert_eq!(parse_boot_id(text).is_some(), valid, "{text:?}");
    }
}
