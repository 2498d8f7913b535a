//! What worker and server say to each other over a fabric: the messages and their bytes.
//!
//! The two that every push_pull sends have a fixed layout and are read in place; the rest, which
//! set things up, are postcard. Everything that comes in is hostile until it was decoded here.

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::Error;
use crate::shape::Shape;

/// A message of the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// Worker to server: the pushes of a request are in their slots.
    Launch(Launch<'a>),
    /// Server to worker: the answer is in the pull tensors.
    Response(Response<'a>),
    /// Server to worker: the batch was let go; `answered` is false when pulls were waiting.
    Release { request: u64 },
    /// Either way: I am alive.
    Heartbeat,
    /// A part of a staged tensor is in place; the request's own message follows.
    Chunk(Chunk),
    /// Everything that sets up or takes down; see [`Setup`].
    Setup(&'a [u8]),
}

/// The pushes of one request, in the terms of a plan that was set up before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch<'a> {
    /// The worker's number of the plan.
    pub(crate) plan: u32,
    /// The worker's number of the request; echoed in the answer.
    pub(crate) request: u64,
    /// What the server matches batches by.
    pub(crate) tag: Tag,
    /// Rows of each pushed tensor.
    pub(crate) rows: Rows<'a>,
}

/// The answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Response<'a> {
    /// The request that it answers.
    pub(crate) request: u64,
    /// What the server staged: bit 0 the pushed tensors, bit 1 the answers.
    pub(crate) staged: u8,
    /// The server's four times, in nanoseconds of its own clock: request received, batch taken,
    /// respond called, answer posted.
    pub(crate) times_ns: [u64; 4],
    /// Rows written into each pull tensor.
    pub(crate) rows: Rows<'a>,
}

/// Which part of which tensor is in place already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// The plan of a push, the request of an answer.
    pub(crate) of: u64,
    /// The tensor's place in the plan.
    pub(crate) part: u32,
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
}

impl Chunk {
    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let short = WireError("a short chunk");
        Ok(Self {
            of: u64_at(bytes, 8).ok_or(short)?,
            part: u32_at(bytes, 4).ok_or(short)?,
            offset: u64_at(bytes, 16).ok_or(short)?,
            len_bytes: u64_at(bytes, 24).ok_or(short)?,
        })
    }
}

/// What a server matches the workers' batches by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// The layer of the model.
    pub layer: u32,
    /// The pipeline stage (micro-batch).
    pub stage: u32,
}

/// Row counts as they lie in a message: little-endian u32 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows<'a>(&'a [u8]);

impl<'a> Rows<'a> {
    pub(crate) fn len(self) -> usize {
        self.0.len() / ROW_LEN_BYTES
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = u64> + 'a {
        let (rows, _) = self.0.as_chunks::<ROW_LEN_BYTES>();
        rows.iter().map(|row| u64::from(u32::from_le_bytes(*row)))
    }
}

impl<'a> Message<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// What is wrong with it; the peer that sent it is not to be trusted any further.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (kind, body) = bytes.split_first().ok_or(WireError("an empty message"))?;
        match *kind {
            KIND_LAUNCH => Ok(Self::Launch(Launch::decode(bytes)?)),
            KIND_RESPONSE => Ok(Self::Response(Response::decode(bytes)?)),
            KIND_RELEASE => Ok(Self::Release {
                request: u64_at(bytes, 8).ok_or(WireError("a short release"))?,
            }),
            KIND_HEARTBEAT => Ok(Self::Heartbeat),
            KIND_CHUNK => Ok(Self::Chunk(Chunk::decode(bytes)?)),
            KIND_SETUP => Ok(Self::Setup(body)),
            _ => Err(WireError("an unknown kind of message")),
        }
    }
}

impl<'a> Launch<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let short = WireError("a short launch");
        Ok(Self {
            plan: u32_at(bytes, 4).ok_or(short)?,
            request: u64_at(bytes, 8).ok_or(short)?,
            tag: Tag {
                layer: u32_at(bytes, 16).ok_or(short)?,
                stage: u32_at(bytes, 20).ok_or(short)?,
            },
            rows: rows_at(bytes, LAUNCH_HEAD_LEN_BYTES).ok_or(short)?,
        })
    }
}

impl<'a> Response<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let short = WireError("a short response");
        let mut times_ns = [0; 4];
        for (index, time) in times_ns.iter_mut().enumerate() {
            *time = u64_at(bytes, 16 + index * 8).ok_or(short)?;
        }
        Ok(Self {
            request: u64_at(bytes, 8).ok_or(short)?,
            staged: bytes.get(1).copied().ok_or(short)?,
            times_ns,
            rows: rows_at(bytes, RESPONSE_HEAD_LEN_BYTES).ok_or(short)?,
        })
    }
}

/// A message under construction, in a buffer that is used again and again.
#[derive(Debug, Default)]
pub(crate) struct MessageBuf(Vec<u8>);

impl MessageBuf {
    /// Writes a launch.
    pub(crate) fn launch(
        &mut self,
        plan: u32,
        request: u64,
        tag: Tag,
        rows: impl Iterator<Item = u32>,
    ) -> &[u8] {
        self.head(KIND_LAUNCH);
        self.0.extend_from_slice(&plan.to_le_bytes());
        self.0.extend_from_slice(&request.to_le_bytes());
        self.0.extend_from_slice(&tag.layer.to_le_bytes());
        self.0.extend_from_slice(&tag.stage.to_le_bytes());
        self.rows(rows)
    }

    /// Writes a response.
    pub(crate) fn response(
        &mut self,
        request: u64,
        staged: u8,
        times_ns: [u64; 4],
        rows: impl Iterator<Item = u32>,
    ) -> &[u8] {
        self.head(KIND_RESPONSE);
        if let Some(place) = self.0.get_mut(1) {
            *place = staged;
        }
        self.0.extend_from_slice(&[0; 4]);
        self.0.extend_from_slice(&request.to_le_bytes());
        for time in times_ns {
            self.0.extend_from_slice(&time.to_le_bytes());
        }
        self.rows(rows)
    }

    /// Writes a release.
    pub(crate) fn release(&mut self, request: u64) -> &[u8] {
        self.head(KIND_RELEASE);
        self.0.extend_from_slice(&[0; 4]);
        self.0.extend_from_slice(&request.to_le_bytes());
        &self.0
    }

    /// Writes a heartbeat.
    pub(crate) fn heartbeat(&mut self) -> &[u8] {
        self.0.clear();
        self.0.push(KIND_HEARTBEAT);
        &self.0
    }

    /// Writes a chunk's message.
    pub(crate) fn chunk(&mut self, chunk: &Chunk) -> &[u8] {
        self.head(KIND_CHUNK);
        self.0.extend_from_slice(&chunk.part.to_le_bytes());
        self.0.extend_from_slice(&chunk.of.to_le_bytes());
        self.0.extend_from_slice(&chunk.offset.to_le_bytes());
        self.0.extend_from_slice(&chunk.len_bytes.to_le_bytes());
        &self.0
    }

    /// Writes a set-up message.
    pub(crate) fn setup(&mut self, setup: &Setup) -> Result<&[u8], WireError> {
        self.0.clear();
        self.0.push(KIND_SETUP);
        let body = postcard::to_stdvec(setup).map_err(|_| WireError("a message without a form"))?;
        self.0.extend_from_slice(&body);
        Ok(&self.0)
    }

    fn head(&mut self, kind: u8) {
        self.0.clear();
        self.0.extend_from_slice(&[kind, 0, 0, 0]);
    }

    fn rows(&mut self, rows: impl Iterator<Item = u32>) -> &[u8] {
        for row in rows {
            self.0.extend_from_slice(&row.to_le_bytes());
        }
        &self.0
    }
}

/// The messages that set up and take down. Rare, so they may allocate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Setup {
    /// Worker to server: from now on `plan` means these tensors.
    Define(Define),
    /// Server to worker: where the plan's pushes go.
    Granted { plan: u32, slots: Vec<Grant> },
    /// Server to worker: the plan cannot be.
    Refused { plan: u32, reason: String },
    /// Worker to server: the plan is no longer used.
    Forget { plan: u32 },
    /// Either way: I am leaving on purpose.
    Goodbye,
}

/// A plan: which tensors are pushed and pulled together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Define {
    pub(crate) plan: u32,
    pub(crate) push: Vec<PushSpec>,
    pub(crate) pull: Vec<PullSpec>,
}

/// One tensor that will be pushed; its rows are the most there will be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PushSpec {
    pub(crate) key: u64,
    pub(crate) tensor: TensorSpec,
}

/// One tensor that will be pulled, and where the server writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PullSpec {
    pub(crate) key: u64,
    pub(crate) tensor: TensorSpec,
    pub(crate) target: Grant,
}

/// Memory that the peer may write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) region: u32,
    pub(crate) region_len_bytes: u64,
    pub(crate) key: u64,
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
}

/// Dtype and shape as they travel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TensorSpec {
    dtype: u8,
    dims: Vec<u64>,
}

impl TensorSpec {
    pub(crate) fn new(dtype: DType, shape: &Shape) -> Self {
        Self {
            dtype: dtype.code(),
            dims: shape.dims().to_vec(),
        }
    }

    /// Dtype, shape and length, checked.
    pub(crate) fn checked(&self) -> Result<(DType, Shape, u64), WireError> {
        let dtype = DType::from_code(self.dtype).ok_or(WireError("an unknown dtype"))?;
        let shape = Shape::new(&self.dims).map_err(|_: Error| WireError("too many dimensions"))?;
        let len_bytes = shape
            .len_bytes(dtype)
            .ok_or(WireError("a tensor larger than any memory"))?;
        Ok((dtype, shape, len_bytes))
    }
}

impl Setup {
    /// Reads a set-up message.
    pub(crate) fn decode(body: &[u8]) -> Result<Self, WireError> {
        let setup: Self =
            postcard::from_bytes(body).map_err(|_| WireError("a malformed set-up message"))?;
        let too_many = match &setup {
            Self::Define(define) => {
                define.push.len() > TENSORS_MAX || define.pull.len() > TENSORS_MAX
            }
            Self::Granted { slots, .. } => slots.len() > TENSORS_MAX,
            _ => false,
        };
        if too_many {
            return Err(WireError("more tensors than a plan may have"));
        }
        Ok(setup)
    }
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WireError(pub(crate) &'static str);

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let field = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_le_bytes(*field))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let field = bytes.get(offset..)?.first_chunk()?;
    Some(u64::from_le_bytes(*field))
}

fn rows_at(bytes: &[u8], offset: usize) -> Option<Rows<'_>> {
    let rows = bytes.get(offset..)?;
    (rows.len() % ROW_LEN_BYTES == 0 && rows.len() / ROW_LEN_BYTES <= TENSORS_MAX)
        .then_some(Rows(rows))
}

/// Most tensors pushed, and most pulled, by one request: an FFN layer needs three or four, and a
/// bound keeps a hostile plan small.
pub(crate) const TENSORS_MAX: usize = 64;

const ROW_LEN_BYTES: usize = 4;
const LAUNCH_HEAD_LEN_BYTES: usize = 24;
const RESPONSE_HEAD_LEN_BYTES: usize = 48;

// Kinds of message. Never reused.
const KIND_LAUNCH: u8 = 1;
const KIND_RESPONSE: u8 = 2;
const KIND_RELEASE: u8 = 3;
const KIND_HEARTBEAT: u8 = 4;
const KIND_CHUNK: u8 = 5;
const KIND_SETUP: u8 = 6;

#[cfg(test)]
mod tests;
