//! What C++ hears of failures and panics.

use std::ffi::{CStr, c_char};

use super::answer;

/// The answer, and the message in a buffer of `cap` bytes that ends with the C text.
fn heard<const CAP: usize>(work: impl FnOnce() -> Result<(), String>) -> (i32, String) {
    let mut message = [0x7f_u8; CAP];
    let status = answer(message.as_mut_ptr().cast::<c_char>(), CAP, work);
    let text = CStr::from_bytes_until_nul(&message).map(CStr::to_owned);
    (
        status,
        text.map_or_else(|_| String::new(), |text| text.to_str().unwrap().to_owned()),
    )
}

#[test]
fn success_leaves_the_message_alone() {
    assert_eq!(heard::<8>(|| Ok(())).0, 0);
}

#[test]
fn a_failure_is_told_and_cut_between_characters() {
    let fault = || Err("f\u{fc}nf".to_owned());
    assert_eq!(heard::<16>(fault), (1, "f\u{fc}nf".into()));
    assert_eq!(heard::<3>(fault), (1, "f".into()));
    assert_eq!(heard::<4>(fault), (1, "f\u{fc}".into()));
    assert_eq!(heard::<0>(fault), (1, String::new()));
    assert_eq!(heard::<16>(|| Err("a\0b".into())), (1, "a".into()));
}

#[test]
fn a_panic_ends_here_and_is_told() {
    let (status, text) = heard::<64>(|| panic!("of a test"));
    assert_eq!(status, 1);
    assert!(text.contains("panic"), "{text}");
    assert!(text.contains("of a test"), "{text}");
}
