//! Status codes and the message of an error.

use stepmesh_abi::error::{SM_ERROR_MSG_CAP, SM_ERROR_TRUNCATED};
use stepmesh_abi::{Code, SmError};

#[test]
fn codes_are_those_of_grpc_and_survive_a_round_trip() {
    for raw in -3..40 {
        assert_eq!(Code::from_raw(raw).raw(), raw);
    }
    assert_eq!(Code::InvalidArgument.raw(), 3);
    assert_eq!(Code::ResourceExhausted.raw(), 8);
    assert_eq!(Code::FailedPrecondition.raw(), 9);
    assert_eq!(Code::Unauthenticated.raw(), 16);
    assert_eq!(Code::from_raw(17), Code::Other(17));
}

#[test]
fn a_long_message_is_cut_at_a_character_boundary_and_says_so() {
    // 231 one-byte characters, then a two-byte one that does not fit in 232.
    let message = format!("{}éé", "x".repeat(SM_ERROR_MSG_CAP - 1));
    let error = SmError::with_message(13, &message);
    assert_eq!(error.message_len(), SM_ERROR_MSG_CAP - 1);
    assert_eq!(error.flags & SM_ERROR_TRUNCATED, SM_ERROR_TRUNCATED);
    let bytes = error.message_bytes();
    assert_eq!(
        core::str::from_utf8(&bytes[..error.message_len()]).unwrap(),
        "x".repeat(231)
    );
}

#[test]
fn a_length_beyond_the_array_reads_the_array_only() {
    let mut error = SmError::with_message(2, "short");
    error.msg_len = u32::MAX;
    assert_eq!(error.message_len(), SM_ERROR_MSG_CAP);
    assert!(format!("{error:?}").contains("short"));
}
