//! What goes over the control connection: an offer from the side that connects, an answer or a
//! refusal, and a word that the offering side is ready. Pure encoding and decoding of untrusted
//! bytes; the connection itself is in `handshake`.

#![forbid(unsafe_code)]

use stepmesh_transport::fabric::HELLO_LEN_BYTES_MAX;
use stepmesh_transport::wire::Reader;

use super::ring::{LINE_LEN_BYTES, LINES_MAX, LINES_MIN};

/// A frame of the control connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// What the connecting side has, and what it would like.
    Offer(Side),
    /// What the accepting side has, with as many queue pairs as both want.
    Answer(Side),
    /// The offering side has connected its queue pairs.
    Ready,
    /// There will be no connection, for this reason.
    Refused(String),
}

/// One side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Side {
    /// Longest message that it takes, in bytes.
    pub(super) message_len_bytes_max: u32,
    /// The largest packet of its port, in bytes.
    pub(super) mtu_len_bytes: u32,
    /// Its address in an InfiniBand subnet; 0 on Ethernet.
    pub(super) lid: u16,
    /// The address of its port.
    pub(super) gid: [u8; 16],
    /// Where the other side writes its messages.
    pub(super) ring: Ring,
    /// Where the other side writes its credit.
    pub(super) credit: RemoteWord,
    /// Its queue pairs: number and first packet, both of 24 bits.
    pub(super) queue_pairs: Vec<(u32, u32)>,
    /// The mesh's own hello.
    pub(super) hello: Vec<u8>,
}

/// A message ring in the memory of the side that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ring {
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) lines: u32,
}

/// A word of eight bytes in the other side's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteWord {
    pub(super) address: u64,
    pub(super) key: u32,
}

impl Frame {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FRAME_LEN_BYTES_MAX / 2);
        match self {
            Self::Offer(side) => {
                out.push(KIND_OFFER);
                side.encode(&mut out);
            }
            Self::Answer(side) => {
                out.push(KIND_ANSWER);
                side.encode(&mut out);
            }
            Self::Ready => out.push(KIND_READY),
            Self::Refused(reason) => {
                out.push(KIND_REFUSED);
                let mut end = reason.len().min(REASON_LEN_BYTES_MAX);
                while !reason.is_char_boundary(end) {
                    end -= 1;
                }
                out.extend_from_slice(&reason.as_bytes()[..end]);
            }
        }
        out
    }

    /// Decodes a frame; the error says what is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let (kind, rest) = bytes.split_first().ok_or("an empty frame")?;
        match *kind {
            KIND_OFFER => Side::decode(rest).map(Self::Offer),
            KIND_ANSWER => Side::decode(rest).map(Self::Answer),
            KIND_READY if rest.is_empty() => Ok(Self::Ready),
            KIND_REFUSED if rest.len() <= REASON_LEN_BYTES_MAX => {
                Ok(Self::Refused(String::from_utf8_lossy(rest).into_owned()))
            }
            _ => Err("an unknown frame"),
        }
    }
}

impl Side {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.message_len_bytes_max.to_le_bytes());
        out.extend(self.mtu_len_bytes.to_le_bytes());
        out.extend(self.lid.to_le_bytes());
        out.extend(self.gid);
        out.extend(self.ring.address.to_le_bytes());
        out.extend(self.ring.key.to_le_bytes());
        out.extend(self.ring.lines.to_le_bytes());
        out.extend(self.credit.address.to_le_bytes());
        out.extend(self.credit.key.to_le_bytes());
        out.extend(
            u32::try_from(self.queue_pairs.len())
                .unwrap_or(u32::MAX)
                .to_le_bytes(),
        );
        for (number, psn) in &self.queue_pairs {
            out.extend(number.to_le_bytes());
            out.extend(psn.to_le_bytes());
        }
        out.extend_from_slice(&self.hello);
    }

    fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut reader = Reader(bytes);
        let mut side = Self::decode_front(&mut reader).ok_or("a side is incomplete")?;
        let count = reader.u32().ok_or("a side is incomplete")? as usize;
        if !(1..=QUEUE_PAIRS_MAX).contains(&count) {
            return Err("an impossible number of queue pairs");
        }
        for _ in 0..count {
            let (Some(number), Some(psn)) = (reader.u32(), reader.u32()) else {
                return Err("a side is incomplete");
            };
            if number > MASK_24 || psn > MASK_24 {
                return Err("an impossible queue pair");
            }
            side.queue_pairs.push((number, psn));
        }
        if reader.0.len() > HELLO_LEN_BYTES_MAX {
            return Err("a hello is too long");
        }
        side.hello = reader.0.to_vec();
        side.check()?;
        Ok(side)
    }

    fn decode_front(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            message_len_bytes_max: reader.u32()?,
            mtu_len_bytes: reader.u32()?,
            lid: u16::from_le_bytes(reader.array()?),
            gid: reader.array()?,
            ring: Ring {
                address: reader.u64()?,
                key: reader.u32()?,
                lines: reader.u32()?,
            },
            credit: RemoteWord {
                address: reader.u64()?,
                key: reader.u32()?,
            },
            queue_pairs: Vec::new(),
            hello: Vec::new(),
        })
    }

    fn check(&self) -> Result<(), &'static str> {
        let lines = self.ring.lines;
        if !lines.is_power_of_two() || !(LINES_MIN..=LINES_MAX).contains(&lines) {
            return Err("a message ring of an impossible length");
        }
        let len_bytes = u64::from(lines) * LINE_LEN_BYTES as u64;
        if self.ring.address.checked_add(len_bytes).is_none()
            || self.credit.address.checked_add(8).is_none()
        {
            return Err("memory that wraps around");
        }
        Ok(())
    }
}

/// Longest frame, in bytes.
pub(super) const FRAME_LEN_BYTES_MAX: usize = 1024;

/// Most queue pairs of one connection: more than a port has lanes or a bond has members, and few
/// enough to poll.
pub(crate) const QUEUE_PAIRS_MAX: usize = 16;

/// What both sides say in the hello of the control connection, with the version of this protocol.
/// A fabric of another kind or version is turned away there.
pub(super) const CONTROL_HELLO: [u8; 8] = *b"SMrdma01";

const REASON_LEN_BYTES_MAX: usize = 512;

/// Numbers of queue pairs and packets.
const MASK_24: u32 = 0x00ff_ffff;

const KIND_OFFER: u8 = 1;
const KIND_ANSWER: u8 = 2;
const KIND_READY: u8 = 3;
const KIND_REFUSED: u8 = 4;

const _: () = assert!(
    1 + 64 + QUEUE_PAIRS_MAX * 8 + HELLO_LEN_BYTES_MAX <= FRAME_LEN_BYTES_MAX,
    "the longest side fits into a frame"
);

#[cfg(test)]
mod tests;
