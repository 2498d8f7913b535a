//! How the writes of a chain are spread over the queue pairs of a peer. Pure planning.

#![forbid(unsafe_code)]

/// A part of a write for one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) queue_pair: usize,
    /// Which write of the chain.
    pub(super) write: usize,
    /// Where in that write it starts, in bytes.
    pub(super) offset: u64,
    pub(super) len_bytes: u32,
}

/// How a chain is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// How many queue pairs carry it; the first carries the message as well.
    pub(super) stripes: usize,
    /// What each of them carries, in bytes; the last less.
    share: u64,
    /// The longest write that the device takes.
    piece_len_bytes_max: u32,
}

impl Plan {
    /// The plan for `bytes_total` over at most `queue_pairs`.
    #[inline]
    pub(super) fn new(bytes_total: u64, queue_pairs: usize, piece_len_bytes_max: u32) -> Self {
        let worthwhile = usize::try_from(bytes_total / STRIPE_LEN_BYTES_MIN).unwrap_or(usize::MAX);
        let stripes = queue_pairs.min(worthwhile).max(1);
        let share = bytes_total.div_ceil(stripes as u64);
        Self {
            stripes,
            share: share.next_multiple_of(SHARE_ALIGN_BYTES),
            piece_len_bytes_max,
        }
    }

    /// Cuts writes of these lengths into pieces, in order of their queue pairs. Ends early when
    /// `emit` fails.
    #[inline]
    pub(super) fn cut<E>(
        &self,
        lengths: impl Iterator<Item = u64>,
        mut emit: impl FnMut(Piece) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut queue_pair, mut left) = (0, self.share);
        for (write, len_bytes) in lengths.enumerate() {
            let mut offset = 0;
            while offset < len_bytes {
                if left == 0 {
                    queue_pair += 1;
                    left = self.share;
                }
                let len = (len_bytes - offset).min(left);
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                let len = len.min(self.piece_len_bytes_max);
                emit(Piece {
                    queue_pair,
                    write,
                    offset,
                    len_bytes: len,
                })?;
                offset += u64::from(len);
                left -= u64::from(len);
            }
        }
        Ok(())
    }
}

/// Below this a further queue pair costs more, for its own request and completion, than it brings.
pub(super) const STRIPE_LEN_BYTES_MIN: u64 = 256 << 10;

/// Shares are whole pages, so that two adapters' ports do not write to one.
const SHARE_ALIGN_BYTES: u64 = 4096;

#[cfg(test)]
mod tests;
