//! What must hold for hostile bytes, for the targets below `fuzz/` and for the replay of their corpora
//! as a test. Each function says whether the bytes were understood. Compiled for these two only.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use crate::link::chain::{body_len_bytes, decode, encode_head};
use crate::link::packet::Header;
use crate::{shm, tcp};

/// A packet of the link, and the chain that it may carry.
///
/// # Panics
/// When something understood is not what it would be encoded to.
#[must_use]
pub fn link(bytes: &[u8]) -> bool {
    let Ok((header, body)) = Header::decode(bytes) else {
        return false;
    };
    assert_eq!([&header.encode(body.len()), body].concat(), bytes);
    if let Ok(chain) = decode(body, WRITES_MAX, MESSAGE_LEN_BYTES_MAX) {
        assert!(chain.targets.len() <= WRITES_MAX);
        assert!(chain.message.len() <= MESSAGE_LEN_BYTES_MAX);
        assert_eq!(
            body_len_bytes(&chain.targets, chain.message),
            Some(body.len())
        );
        let mut again = Vec::new();
        encode_head(&chain.targets, chain.message, &mut again);
        again.extend_from_slice(chain.bytes);
        assert_eq!(again, body);
    }
    true
}

/// A frame or an address of tcp.
///
/// # Panics
/// As [`link`].
#[must_use]
pub fn tcp(bytes: &[u8]) -> bool {
    tcp::frame::judge::judge(bytes)
}

/// A packet, a record or an address of shm.
///
/// # Panics
/// As [`link`].
#[must_use]
pub fn shm(bytes: &[u8]) -> bool {
    shm::control::judge::judge(bytes)
}

/// Limits as a connection sets them.
const WRITES_MAX: usize = 64;
const MESSAGE_LEN_BYTES_MAX: usize = 1 << 10;
