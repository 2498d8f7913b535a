//! What goes over a connection: one hello from each side, then chains. Pure encoding and decoding of
//! untrusted bytes; whether a write may go where it says is decided in `receive`.

#![forbid(unsafe_code)]

use std::fmt;

use crate::fabric::HELLO_LEN_BYTES_MAX;
use crate::wire::Reader;

/// The first frame of either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Longest message that the sender takes, in bytes.
    pub(super) message_len_bytes_max: u32,
    /// The mesh's own hello.
    pub(super) hello: Vec<u8>,
}

/// What the first frame may be.
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
    /// What came first was no hello of ours.
    Hello,
    /// A reason that this version does not know.
    Unknown(u32),
}

/// The front of a chain; descriptors, payload and message follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChainHead {
    pub(super) write_count: usize,
    pub(super) message_len_bytes: usize,
}

/// Where one write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteHead {
    pub(super) region: u32,
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let len = u32::try_from(self.hello.len()).unwrap_or(u32::MAX);
        first(KIND_HELLO, self.message_len_bytes_max, len, &self.hello)
    }
}

impl Refusal {
    pub(super) fn encode(self) -> Vec<u8> {
        let code = match self {
            Self::Version => 1,
            Self::Hello => 2,
            Self::Unknown(code) => code,
        };
        first(KIND_REFUSED, code, 0, &[])
    }

    fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Version,
            2 => Self::Hello,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version => f.write_str("it speaks another version of the tcp protocol"),
            Self::Hello => f.write_str("it did not understand the hello"),
            Self::Unknown(code) => write!(f, "reason {code}, unknown to this version"),
        }
    }
}

impl First {
    /// Decodes the first frame and says how long it is; `None` while it is incomplete. What cannot
    /// become a hello is refused as early as possible.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Refusal> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(Refusal::Hello);
        }
        let mut reader = Reader(&bytes[known..]);
        let Some(version) = reader.u32() else {
            return Ok(None);
        };
        if version != VERSION {
            return Err(Refusal::Version);
        }
        let (Some(kind), Some(value), Some(len)) = (reader.u32(), reader.u32(), reader.u32())
        else {
            return Ok(None);
        };
        let len = usize::try_from(len).map_err(|_| Refusal::Hello)?;
        if len > HELLO_LEN_BYTES_MAX {
            return Err(Refusal::Hello);
        }
        let Some(hello) = reader.bytes(len) else {
            return Ok(None);
        };
        let first = match kind {
            KIND_HELLO => Self::Hello(Hello {
                message_len_bytes_max: value,
                hello: hello.to_vec(),
            }),
            KIND_REFUSED => Self::Refused(Refusal::from_code(value)),
            _ => return Err(Refusal::Hello),
        };
        Ok(Some((first, FIRST_HEAD_LEN_BYTES + len)))
    }
}

impl ChainHead {
    pub(super) fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&CHAIN_MAGIC);
        for number in [self.write_count, self.message_len_bytes] {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// Decodes the front of a chain; `None` while it is incomplete.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, &'static str> {
        let known = bytes.len().min(CHAIN_MAGIC.len());
        if bytes[..known] != CHAIN_MAGIC[..known] {
            return Err("a frame does not begin like one");
        }
        let mut reader = Reader(&bytes[known..]);
        let (Some(writes), Some(message)) = (reader.u32(), reader.u32()) else {
            return Ok(None);
        };
        let (Ok(write_count), Ok(message_len_bytes)) = (writes.try_into(), message.try_into())
        else {
            return Err("a frame is too long");
        };
        Ok(Some(Self {
            write_count,
            message_len_bytes,
        }))
    }
}

impl WriteHead {
    pub(super) fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.len_bytes.to_le_bytes());
        out.extend_from_slice(&self.region.to_le_bytes());
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let write = Self {
            offset: reader.u64()?,
            len_bytes: reader.u64()?,
            region: reader.u32()?,
        };
        reader.end()?;
        Some(write)
    }
}

fn first(kind: u32, value: u32, len: u32, hello: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for number in [VERSION, kind, value, len] {
        out.extend(number.to_le_bytes());
    }
    out.extend(hello);
    out
}

/// Longest first frame.
pub(super) const FIRST_LEN_BYTES_MAX: usize = FIRST_HEAD_LEN_BYTES + HELLO_LEN_BYTES_MAX;

/// Length of the front of a chain.
pub(super) const CHAIN_HEAD_LEN_BYTES: usize = 12;

/// Length of the description of a write.
pub(super) const WRITE_HEAD_LEN_BYTES: usize = 20;

const FIRST_HEAD_LEN_BYTES: usize = 24;

/// So that a stray client is told apart at its first byte.
const MAGIC: [u8; 8] = *b"SMtcpfab";

/// So that a stream that went astray is noticed at the next chain.
const CHAIN_MAGIC: [u8; 4] = *b"SMch";

/// Counted up with every change of the frames.
const VERSION: u32 = 1;

const KIND_HELLO: u32 = 1;

const KIND_REFUSED: u32 = 2;

#[cfg(any(test, fuzzing))]
pub(crate) mod judge;
#[cfg(test)]
mod tests;
