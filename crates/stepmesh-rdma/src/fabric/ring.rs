//! Places in a message ring, on both sides: where the next record goes, what has come, and credit.
//! Pure counting; the memory is in `pages`, and who writes to it in `peer`.
//!
//! A ring is a power of two of lines in the memory of the side that reads it. A record is a header of
//! two words and a message, contiguous, so that one write carries it; what does not fit before the end
//! of the ring begins at its front, and the lines that are left out count as used. Positions count
//! lines since the beginning and wrap around. The reader gives lines back by its position, in the
//! header of every message that it sends, or by a write to a word of ours when it sends none.

#![forbid(unsafe_code)]

/// The writing side's view.
#[derive(Debug)]
pub(super) struct Producer {
    lines: u32,
    /// Lines written since the beginning.
    position: u32,
    /// Lines that the reader gave back.
    consumed: u32,
    sequence: u16,
}

/// Where a record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: u32,
    pub(super) imm: u32,
    /// How far the position moves, lines that are left out included.
    advance: u32,
}

/// The reading side's view. It believes nothing.
#[derive(Debug)]
pub(super) struct Consumer {
    lines: u32,
    /// Where the next record is expected.
    expected: u32,
    sequence: u16,
    /// Lines whose messages were delivered.
    consumed: u32,
    /// What of these the writer was told.
    told: u32,
}

/// A record that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) line: u32,
    pub(super) len_bytes: usize,
    /// How many queue pairs carried its chain.
    pub(super) stripes: usize,
    advance: u32,
}

/// The front of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) len_bytes: u32,
    /// How many queue pairs carry the chain.
    pub(super) stripes: u16,
    /// Lines of the other direction that the sender has read.
    pub(super) credit: u32,
}

/// The other end did what no honest one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) &'static str);

impl Producer {
    pub(super) fn new(lines: u32) -> Self {
        Self {
            lines,
            position: 0,
            consumed: 0,
            sequence: 0,
        }
    }

    /// Where a record with a message of `len_bytes` would go now, if there is room for it. The
    /// message is not longer than [`message_len_bytes_max`] of the ring.
    #[inline]
    pub(super) fn place(&self, len_bytes: usize) -> Option<Place> {
        let line = self.position & (self.lines - 1);
        let needed = lines_for(len_bytes);
        let (line, left_out) = match line + needed > self.lines {
            true => (0, self.lines - line),
            false => (line, 0),
        };
        let advance = left_out + needed;
        let used = self.position.wrapping_sub(self.consumed);
        let imm = u32::from(self.sequence) << 16 | line;
        (used + advance <= self.lines).then_some(Place { line, imm, advance })
    }

    /// The record that [`place`](Self::place) found room for was written.
    #[inline]
    pub(super) fn push(&mut self, place: Place) {
        self.position = self.position.wrapping_add(place.advance);
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// Takes the reader's position. One that is older than what is known already is ignored, because
    /// it comes by two ways.
    #[inline]
    pub(super) fn credit(&mut self, consumed: u32) -> Result<(), Broken> {
        let gained = consumed.wrapping_sub(self.consumed);
        if gained.cast_signed() <= 0 {
            return Ok(());
        }
        if gained > self.position.wrapping_sub(self.consumed) {
            return Err(Broken("it gives back more of its ring than was written"));
        }
        self.consumed = consumed;
        Ok(())
    }
}

impl Consumer {
    pub(super) fn new(lines: u32) -> Self {
        Self {
            lines,
            expected: 0,
            sequence: 0,
            consumed: 0,
            told: 0,
        }
    }

    /// Checks the immediate of a record. Returns the line of its header.
    #[inline]
    pub(super) fn announced(&self, imm: u32) -> Result<u32, Broken> {
        if imm >> 16 != u32::from(self.sequence) {
            return Err(Broken("a message is out of sequence"));
        }
        let line = imm & 0xffff;
        if line != self.expected & (self.lines - 1) && line != 0 {
            return Err(Broken("a message is not where the next one belongs"));
        }
        Ok(line)
    }

    /// Checks the header of the record at `line`, which was announced.
    #[inline]
    pub(super) fn arrived(
        &mut self,
        line: u32,
        header: &Header,
        len_bytes_max: usize,
        queue_pairs: usize,
    ) -> Result<Arrival, Broken> {
        let len_bytes = header.len_bytes as usize;
        let stripes = usize::from(header.stripes);
        if len_bytes > len_bytes_max {
            return Err(Broken("a message is too long"));
        }
        if !(1..=queue_pairs).contains(&stripes) {
            return Err(Broken(
                "a message came by an impossible number of queue pairs",
            ));
        }
        let at = self.expected & (self.lines - 1);
        let needed = lines_for(len_bytes);
        let left_out = if line == at { 0 } else { self.lines - at };
        if line + needed > self.lines {
            return Err(Broken("a message reaches outside of its ring"));
        }
        let advance = left_out + needed;
        if self.expected.wrapping_sub(self.consumed) + advance > self.lines {
            return Err(Broken("a message overwrites one that was not read"));
        }
        self.expected = self.expected.wrapping_add(advance);
        self.sequence = self.sequence.wrapping_add(1);
        Ok(Arrival {
            line,
            len_bytes,
            stripes,
            advance,
        })
    }

    /// The message was copied out; its lines can be used again.
    #[inline]
    pub(super) fn delivered(&mut self, arrival: &Arrival) {
        self.consumed = self.consumed.wrapping_add(arrival.advance);
    }

    /// The position to tell the writer.
    #[inline]
    pub(super) fn position(&self) -> u32 {
        self.consumed
    }

    /// The position was told.
    #[inline]
    pub(super) fn told(&mut self) {
        self.told = self.consumed;
    }

    /// Whether so much is to be told that it should not wait for a message.
    #[inline]
    pub(super) fn owes(&self) -> bool {
        self.consumed.wrapping_sub(self.told) >= self.lines / 4
    }
}

impl Header {
    /// As the two words at the front of a record.
    #[inline]
    pub(super) fn words(&self) -> [u64; HEADER_WORDS] {
        let first = u64::from(self.len_bytes) | u64::from(self.stripes) << 32 | MAGIC << 48;
        [first, u64::from(self.credit)]
    }

    #[inline]
    pub(super) fn of_words([first, second]: [u64; HEADER_WORDS]) -> Result<Self, Broken> {
        let (Ok(credit), true) = (u32::try_from(second), first >> 48 == MAGIC) else {
            return Err(Broken("a message does not begin like one"));
        };
        Ok(Self {
            len_bytes: low_32(first),
            stripes: low_16(first >> 32),
            credit,
        })
    }
}

/// The longest message that a ring takes: with the lines that are left out at its end, a record needs
/// less than twice its own, so one of half the ring always fits once everything was read.
pub(super) fn message_len_bytes_max(lines: u32) -> usize {
    lines as usize / 2 * LINE_LEN_BYTES - HEADER_LEN_BYTES
}

/// The lines of a record.
#[inline]
pub(super) fn lines_for(len_bytes: usize) -> u32 {
    let lines = (HEADER_LEN_BYTES + len_bytes).div_ceil(LINE_LEN_BYTES);
    u32::try_from(lines).unwrap_or(u32::MAX)
}

/// The immediate of a queue pair that carries a part of a chain, but not its message.
#[inline]
pub(super) fn stripe_imm(queue_pair: usize) -> u32 {
    STRIPE | u32::try_from(queue_pair).unwrap_or(0)
}

#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the upper half is not asked for"
)]
fn low_32(word: u64) -> u32 {
    word as u32
}

#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the upper bits are not asked for"
)]
fn low_16(word: u64) -> u16 {
    word as u16
}

/// A batch header of the mesh and ours fit into one; each line costs a receive of 16 to 64 bytes.
pub(super) const LINE_LEN_BYTES: usize = 256;

/// Words of a header.
pub(super) const HEADER_WORDS: usize = 2;

/// Length of a header.
pub(super) const HEADER_LEN_BYTES: usize = HEADER_WORDS * 8;

/// A ring that is worth the name: a page.
pub(super) const LINES_MIN: u32 = 16;

/// Lines are numbered in half of an immediate.
pub(super) const LINES_MAX: u32 = 1 << 16;

/// So that a write that went astray is noticed.
const MAGIC: u64 = 0x534d;

/// Tells a stripe's immediate from that of a message in a log.
const STRIPE: u32 = 0xffff_0000;

#[cfg(test)]
mod tests;
