//! The packets on the socket between two shm fabrics, and the headers inside of their rings: pure
//! encoding and decoding of untrusted bytes. Who sends which packet when is in `handshake` and
//! `peer`.

#![forbid(unsafe_code)]

use crate::fabric::HELLO_LEN_BYTES_MAX;
use crate::wire::Reader;

/// The first packet of either side. With it travel the descriptors of the sender's ring and
/// doorbell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Lines of the ring.
    pub(super) ring_lines: u64,
    /// Longest message that the sender takes, in bytes.
    pub(super) message_len_bytes_max: u32,
    /// Where in the sender's memory [`probe_nonce`](Self::probe_nonce) can be read.
    pub(super) probe_address: u64,
    /// A random number; to find it there proves that the sender's memory can be reached.
    pub(super) probe_nonce: u64,
    /// The mesh's own hello.
    pub(super) hello: Vec<u8>,
}

/// What the first packet may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// The peer goes on.
    Hello(Hello),
    /// The peer does not.
    Refused(Refusal),
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Another version of this protocol.
    Version,
    /// What came first was no hello of ours, or its descriptors were unusable.
    Hello,
    /// No room for a ring.
    NoSpace,
    /// A reason that this version does not know.
    Unknown(u32),
}

/// Packets after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// The descriptor that travels with this packet is the file with this id.
    File { file: u32 },
    /// No region lies in this file any more.
    Forget { file: u32 },
    /// The region is deregistered: write no more.
    Revoke { region: u32 },
    /// It will not be written any more.
    Revoked { region: u32 },
}

/// How a peer reaches a region: the key of a [`SharedRegion`](crate::fabric::SharedRegion).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a file that the owner sent.
    File { file: u32, offset: u64 },
    /// At an address of the owner's.
    Address(u64),
}

/// The front of a chunk: bytes that the receiver puts in place itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkHeader {
    pub(super) region: u32,
    pub(super) offset: u64,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = first(KIND_HELLO);
        out.extend(self.ring_lines.to_le_bytes());
        out.extend(self.message_len_bytes_max.to_le_bytes());
        out.extend(self.probe_address.to_le_bytes());
        out.extend(self.probe_nonce.to_le_bytes());
        out.extend(&self.hello);
        out
    }
}

impl Refusal {
    pub(super) fn encode(self) -> Vec<u8> {
        let code = match self {
            Self::Version => 1,
            Self::Hello => 2,
            Self::NoSpace => 3,
            Self::Unknown(code) => code,
        };
        let mut out = first(KIND_REFUSED);
        out.extend(u32::to_le_bytes(code));
        out
    }

    fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Version,
            2 => Self::Hello,
            3 => Self::NoSpace,
            other => Self::Unknown(other),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version => f.write_str("it speaks another version of the shm protocol"),
            Self::Hello => f.write_str("it could not use what this side offered"),
            Self::NoSpace => f.write_str("it has no room for another ring"),
            Self::Unknown(code) => write!(f, "reason {code}, unknown to this version"),
        }
    }
}

impl First {
    /// Decodes a first packet; on failure says how to answer.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let mut reader = Reader(bytes);
        if reader.u64() != Some(MAGIC) {
            return Err(Refusal::Hello);
        }
        if reader.u32() != Some(VERSION) {
            return Err(Refusal::Version);
        }
        Self::decode_body(reader).ok_or(Refusal::Hello)
    }

    fn decode_body(mut reader: Reader<'_>) -> Option<Self> {
        match reader.u32()? {
            KIND_HELLO => {
                let ring_lines = reader.u64()?;
                let message_len_bytes_max = reader.u32()?;
                let probe_address = reader.u64()?;
                let probe_nonce = reader.u64()?;
                let hello = reader.0.to_vec();
                (hello.len() <= HELLO_LEN_BYTES_MAX).then_some(Self::Hello(Hello {
                    ring_lines,
                    message_len_bytes_max,
                    probe_address,
                    probe_nonce,
                    hello,
                }))
            }
            KIND_REFUSED => {
                let code = reader.u32()?;
                reader.end()?;
                Some(Self::Refused(Refusal::from_code(code)))
            }
            _ => None,
        }
    }
}

impl Control {
    pub(super) fn encode(self) -> [u8; CONTROL_LEN_BYTES] {
        let (kind, id) = match self {
            Self::File { file } => (1_u32, file),
            Self::Forget { file } => (2, file),
            Self::Revoke { region } => (3, region),
            Self::Revoked { region } => (4, region),
        };
        let mut out = [0; CONTROL_LEN_BYTES];
        out[..4].copy_from_slice(&kind.to_le_bytes());
        out[4..].copy_from_slice(&id.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let (kind, id) = (reader.u32()?, reader.u32()?);
        reader.end()?;
        Some(match kind {
            1 => Self::File { file: id },
            2 => Self::Forget { file: id },
            3 => Self::Revoke { region: id },
            4 => Self::Revoked { region: id },
            _ => return None,
        })
    }
}

impl Place {
    /// The key, or `None` when an offset or id is too large for it.
    pub(super) fn encode(self) -> Option<u64> {
        match self {
            Self::File { file, offset } => (offset <= OFFSET_MAX && file <= FILE_ID_MAX)
                .then_some(u64::from(file) << OFFSET_BITS | offset),
            Self::Address(address) => (address & KEY_ADDRESS == 0).then_some(address | KEY_ADDRESS),
        }
    }

    pub(super) fn decode(key: u64) -> Self {
        if key & KEY_ADDRESS != 0 {
            return Self::Address(key & !KEY_ADDRESS);
        }
        let file = (key >> OFFSET_BITS) as u32;
        Self::File {
            file,
            offset: key & OFFSET_MAX,
        }
    }
}

impl ChunkHeader {
    pub(super) fn encode(self) -> [u8; CHUNK_HEADER_LEN_BYTES] {
        let mut out = [0; CHUNK_HEADER_LEN_BYTES];
        out[..8].copy_from_slice(&self.offset.to_le_bytes());
        out[8..].copy_from_slice(&self.region.to_le_bytes());
        out
    }

    /// Splits a chunk into its header and its bytes.
    pub(super) fn decode(record: &[u8]) -> Option<(Self, &[u8])> {
        let mut reader = Reader(record);
        let (offset, region) = (reader.u64()?, reader.u32()?);
        Some((Self { region, offset }, reader.0))
    }
}

fn first(kind: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(FIRST_LEN_BYTES_MAX);
    out.extend(MAGIC.to_le_bytes());
    out.extend(VERSION.to_le_bytes());
    out.extend(kind.to_le_bytes());
    out
}

/// Longest first packet.
pub(super) const FIRST_LEN_BYTES_MAX: usize = 16 + 28 + HELLO_LEN_BYTES_MAX;

/// Length of every later packet.
pub(super) const CONTROL_LEN_BYTES: usize = 8;

/// Length of the front of a chunk.
pub(super) const CHUNK_HEADER_LEN_BYTES: usize = 12;

/// The largest id of a file: what is left of a key beside an offset and one bit.
pub(super) const FILE_ID_MAX: u32 = (1 << (63 - OFFSET_BITS)) - 1;

/// "SMshmfab", so that a stray client is told apart at once.
const MAGIC: u64 = u64::from_le_bytes(*b"SMshmfab");

/// Counted up with every change of the packets or the ring.
const VERSION: u32 = 1;

const KIND_HELLO: u32 = 1;

const KIND_REFUSED: u32 = 2;

/// Marks a key that is an address; user addresses of all our systems leave the bit free.
const KEY_ADDRESS: u64 = 1 << 63;

/// A terabyte of file; what lies behind it is reached by address.
const OFFSET_BITS: u32 = 40;

const OFFSET_MAX: u64 = (1 << OFFSET_BITS) - 1;

#[cfg(any(test, fuzzing))]
pub(crate) mod judge;
#[cfg(test)]
mod tests;
