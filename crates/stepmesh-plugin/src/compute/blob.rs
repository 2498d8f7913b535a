//! The frame of a serialised executable: fingerprint, options, graph, and what the backend adds.
#![forbid(unsafe_code)]

use std::sync::Arc;

use stepmesh_abi::Code;
use stepmesh_graph::{CompileOptions, Graph};

use crate::{Error, Result};

/// What is in a frame.
pub(super) struct Blob {
    pub(super) fingerprint: [u8; FINGERPRINT_LEN],
    pub(super) options: CompileOptions,
    pub(super) graph: Arc<Graph>,
    pub(super) payload: Vec<u8>,
}

impl Blob {
    pub(super) fn write(&self) -> Vec<u8> {
        let graph = self.graph.encode();
        let mut out = MAGIC.to_vec();
        out.extend(self.fingerprint);
        out.extend(self.options.flags().to_le_bytes());
        out.extend(self.options.threads_max.to_le_bytes());
        out.extend((graph.len() as u64).to_le_bytes());
        out.extend(graph);
        out.extend(&self.payload);
        let sum = checksum(FNV_OFFSET, &out);
        out.extend(sum.to_le_bytes());
        out
    }

    /// # Errors
    /// `SM_FAILED_PRECONDITION` if the fingerprint is another, `SM_DATA_LOSS` if the bytes are no
    /// frame or have changed.
    pub(super) fn read(bytes: &[u8], fingerprint: [u8; FINGERPRINT_LEN]) -> Result<Self> {
        let damaged = || damaged("they are cut or changed");
        let (whole, sum) = bytes.split_last_chunk().ok_or_else(damaged)?;
        let rest = whole.strip_prefix(MAGIC).ok_or_else(damaged)?;
        if checksum(FNV_OFFSET, whole) != u64::from_le_bytes(*sum) {
            return Err(damaged());
        }
        let (found, rest) = rest.split_first_chunk().ok_or_else(damaged)?;
        if *found != fingerprint {
            return Err(Error::failed_precondition(
                "the serialised executable is of another build or another kind of device; compile \
                 the graph again",
            ));
        }
        let (flags, rest) = rest.split_first_chunk().ok_or_else(damaged)?;
        let (threads_max, rest) = rest.split_first_chunk().ok_or_else(damaged)?;
        let (graph_len, rest) = rest.split_first_chunk().ok_or_else(damaged)?;
        let (flags, threads_max) = (u32::from_le_bytes(*flags), u32::from_le_bytes(*threads_max));
        let graph_len = usize::try_from(u64::from_le_bytes(*graph_len)).unwrap_or(usize::MAX);
        let (graph, payload) = rest.split_at_checked(graph_len).ok_or_else(damaged)?;
        let graph = Graph::decode(graph).map_err(|error| self::damaged(&error.to_string()))?;
        Ok(Self {
            fingerprint,
            options: CompileOptions::from_flags(flags, threads_max).ok_or_else(damaged)?,
            graph: Arc::new(graph),
            payload: payload.to_vec(),
        })
    }
}

/// A fingerprint of texts: equal texts, equal bytes, in any process.
pub(super) fn fingerprint(texts: &[&str]) -> [u8; FINGERPRINT_LEN] {
    let mut out = [0; FINGERPRINT_LEN];
    for (seed, word) in (0_u64..).zip(out.as_chunks_mut::<8>().0) {
        let start = checksum(FNV_OFFSET, &seed.to_le_bytes());
        let sum = texts.iter().fold(start, |sum, text| {
            // A byte that no text has keeps "ab", "c" and "a", "bc" apart.
            checksum(checksum(sum, text.as_bytes()), &[0xff])
        });
        *word = sum.to_le_bytes();
    }
    out
}

fn damaged(fault: &str) -> Error {
    let message = format!("the bytes are no serialised executable: {fault}");
    Error::new(Code::DataLoss, message)
}

fn checksum(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(FNV_PRIME)
    })
}

/// Bytes of a fingerprint, as the ABI has them.
pub(super) const FINGERPRINT_LEN: usize = 32;
/// First bytes of a frame, with the version of its form.
const MAGIC: &[u8] = b"SMEXEC\0\x01";
/// FNV-1a with 64 bits: finds accidents, which is all that is asked of it here.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests;
