//! What must hold for the packets of shm whatever the bytes are. For the fuzzer and its replay.

use super::{ChunkHeader, Control, First, Place};
use crate::shm::address::ShmAddress;
use crate::wire::Reader;

/// Decodes the bytes as everything that they could be, and checks what was understood. True if
/// anything was.
///
/// # Panics
/// When something understood does not come back from its own encoding.
pub(crate) fn judge(bytes: &[u8]) -> bool {
    let mut is_understood = false;
    if let Ok(first) = First::decode(bytes) {
        let again = match &first {
            First::Hello(hello) => hello.encode(),
            First::Refused(refusal) => refusal.encode(),
        };
        assert_eq!(again, bytes);
        is_understood = true;
    }
    if let Some(control) = Control::decode(bytes) {
        assert_eq!(control.encode(), bytes);
        is_understood = true;
    }
    if let Some((header, rest)) = ChunkHeader::decode(bytes) {
        assert_eq!([&header.encode(), rest].concat(), bytes);
    }
    if let Some(key) = Reader(bytes).u64() {
        assert_eq!(Place::decode(key).encode(), Some(key));
    }
    if let Some(address) = ShmAddress::decode(bytes) {
        assert_eq!(address.encode().0, bytes);
        is_understood = true;
    }
    is_understood
}
