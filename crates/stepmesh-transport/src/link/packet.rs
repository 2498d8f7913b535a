//! The header of every packet of a link, and how it is read from bytes that anyone may have sent.
//!
//! 64 bytes, little endian: magic, version, kind, two zero bytes, generation of the sender and of
//! the receiver, connection number of the sender and of the receiver, sequence number,
//! acknowledgement, bitmap of held units, length of the body. The body follows.

use crate::fabric::HELLO_LEN_BYTES_MAX;

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Asks for a connection; the body is the hello.
    Connect,
    /// Agrees to a connection; the body is the hello.
    Accept,
    /// Carries one unit.
    Data,
    /// Carries only the acknowledgement; also the keep-alive.
    Ack,
    /// There is no such connection, or no longer.
    Close,
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is for.
    pub kind: Kind,
    /// Generation of the node that sent it.
    pub generation_from: u64,
    /// Generation of the node that it is meant for.
    pub generation_to: u64,
    /// The sender's number of the connection; 0 when it has none.
    pub connection_from: u32,
    /// The receiver's number of the connection; 0 when the sender does not know it.
    pub connection_to: u32,
    /// Number of the unit, counted from 0; 0 in packets without one.
    pub sequence: u64,
    /// How many units of the other direction were delivered.
    pub acknowledged: u64,
    /// Bit `i`: unit `acknowledged + i` arrived and waits for its turn.
    pub held: u64,
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer bytes than a header.
    #[error("{len_bytes} bytes are shorter than the header")]
    Short {
        /// How many there were.
        len_bytes: usize,
    },
    /// Not of this protocol.
    #[error("the first bytes are not those of this protocol")]
    Magic,
    /// Of a version that this side does not speak.
    #[error("version {0} is unknown")]
    Version(u8),
    /// Of a kind that this side does not know.
    #[error("kind {0} is unknown")]
    Kind(u8),
    /// The body is not as long as the header says.
    #[error("the header promises {promised} bytes of body, {present} follow")]
    BodyLen {
        /// What the header says, in bytes.
        promised: u64,
        /// What there is, in bytes.
        present: usize,
    },
    /// A field has a value that it never has in a packet of this kind.
    #[error("{0} is not valid in a packet of this kind")]
    Field(&'static str),
}

impl Header {
    /// The header as bytes, with room for the `body_len_bytes` that the caller appends.
    pub fn encode(&self, body_len_bytes: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_LEN_BYTES.saturating_add(body_len_bytes));
        bytes.extend_from_slice(&MAGIC);
        bytes.push(VERSION);
        bytes.push(self.kind.code());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&self.generation_from.to_le_bytes());
        bytes.extend_from_slice(&self.generation_to.to_le_bytes());
        bytes.extend_from_slice(&self.connection_from.to_le_bytes());
        bytes.extend_from_slice(&self.connection_to.to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.acknowledged.to_le_bytes());
        bytes.extend_from_slice(&self.held.to_le_bytes());
        bytes.extend_from_slice(&(body_len_bytes as u64).to_le_bytes());
        debug_assert_eq!(bytes.len(), HEADER_LEN_BYTES);
        bytes
    }

    /// Reads a packet: its header and its body.
    ///
    /// # Errors
    /// [`HeaderError`] for everything that [`encode`](Self::encode) never writes.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let Some((head, body)) = bytes.split_first_chunk::<HEADER_LEN_BYTES>() else {
            return Err(HeaderError::Short {
                len_bytes: bytes.len(),
            });
        };
        if head[..4] != MAGIC {
            return Err(HeaderError::Magic);
        }
        if head[4] != VERSION {
            return Err(HeaderError::Version(head[4]));
        }
        if head[6..8] != [0; 2] {
            return Err(HeaderError::Field("reserved"));
        }
        let header = Self {
            kind: Kind::from_code(head[5])?,
            generation_from: u64_at(head, 8),
            generation_to: u64_at(head, 16),
            connection_from: u32_at(head, 24),
            connection_to: u32_at(head, 28),
            sequence: u64_at(head, 32),
            acknowledged: u64_at(head, 40),
            held: u64_at(head, 48),
        };
        let promised = u64_at(head, 56);
        if promised != body.len() as u64 {
            return Err(HeaderError::BodyLen {
                promised,
                present: body.len(),
            });
        }
        header.check(body.len())?;
        Ok((header, body))
    }

    /// The answer to a packet of a connection that this side does not have.
    pub(super) fn refusal(&self) -> Self {
        Self {
            kind: Kind::Close,
            generation_from: self.generation_to,
            generation_to: self.generation_from,
            connection_from: self.connection_to,
            connection_to: self.connection_from,
            sequence: 0,
            acknowledged: 0,
            held: 0,
        }
    }

    fn check(&self, body_len_bytes: usize) -> Result<(), HeaderError> {
        let (opens, carries_unit, carries_ack, body_len_bytes_max) = match self.kind {
            Kind::Connect => (true, false, false, HELLO_LEN_BYTES_MAX),
            Kind::Accept => (false, false, false, HELLO_LEN_BYTES_MAX),
            Kind::Data => (false, true, true, usize::MAX),
            Kind::Ack => (false, false, true, 0),
            Kind::Close => (false, false, false, 0),
        };
        // A refusal of a `Connect` is the one packet whose sender has no number of its own.
        if self.connection_from == 0 && self.kind != Kind::Close {
            return Err(HeaderError::Field("connection of the sender"));
        }
        if opens != (self.connection_to == 0) {
            return Err(HeaderError::Field("connection of the receiver"));
        }
        if !carries_unit && self.sequence != 0 {
            return Err(HeaderError::Field("sequence"));
        }
        if !carries_ack && (self.acknowledged, self.held) != (0, 0) {
            return Err(HeaderError::Field("acknowledgement"));
        }
        if body_len_bytes > body_len_bytes_max {
            return Err(HeaderError::Field("body"));
        }
        Ok(())
    }
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Self::Connect => 1,
            Self::Accept => 2,
            Self::Data => 3,
            Self::Ack => 4,
            Self::Close => 5,
        }
    }

    fn from_code(code: u8) -> Result<Self, HeaderError> {
        Ok(match code {
            1 => Self::Connect,
            2 => Self::Accept,
            3 => Self::Data,
            4 => Self::Ack,
            5 => Self::Close,
            unknown => return Err(HeaderError::Kind(unknown)),
        })
    }
}

fn u64_at(bytes: &[u8; HEADER_LEN_BYTES], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

fn u32_at(bytes: &[u8; HEADER_LEN_BYTES], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

/// Length of a header, in bytes: one cache line.
pub const HEADER_LEN_BYTES: usize = 64;

/// "StepMesh link"; tells a stray packet of another program apart.
const MAGIC: [u8; 4] = *b"SMLK";

/// The one version so far. A change of the header or of a rule of the protocol changes it.
const VERSION: u8 = 1;
