//! What must hold for the frames of tcp whatever the bytes are. For the fuzzer and its replay.

use super::{ChainHead, First, WriteHead};
use crate::tcp::address;

/// Decodes the bytes as everything that they could be, and checks what was understood. True if
/// anything was.
///
/// # Panics
/// When something understood does not come back from its own encoding.
pub(crate) fn judge(bytes: &[u8]) -> bool {
    let mut is_understood = false;
    if let Ok(Some((first, len_bytes))) = First::decode(bytes) {
        assert!(len_bytes <= bytes.len());
        let again = match &first {
            First::Hello(hello) => hello.encode(),
            First::Refused(refusal) => refusal.encode(),
        };
        assert_eq!(First::decode(&again), Ok(Some((first, again.len()))));
        is_understood = true;
    }
    if let Ok(Some(head)) = ChainHead::decode(bytes) {
        let mut again = Vec::new();
        head.encode(&mut again);
        assert!(bytes.starts_with(&again));
        is_understood = true;
    }
    if let Some(head) = WriteHead::decode(bytes) {
        let mut again = Vec::new();
        head.encode(&mut again);
        assert_eq!(again, bytes);
        is_understood = true;
    }
    if let Some(socket) = address::decode(bytes) {
        assert_eq!(address::encode(socket).0, bytes);
        is_understood = true;
    }
    is_understood
}
