//! The ring that carries records from one process to another: cache lines in a shared segment,
//! made by the consumer. What the records mean is not known here.
//!
//! A record is a head line {stamp, kind and length, 56 bytes} and further lines of 64 bytes. The
//! producer stores the stamp last; the consumer waits for the stamp of the lap it is in, and copies
//! the record out before anyone looks at it, so that nothing can change under a check. A stamp is
//! odd and differs from lap to lap; the first word of a line that is not a head may look like any
//! stamp, so the consumer clears it before it gives the line back. Hence the invariant: a line
//! outside of unread records never shows the stamp that is awaited there.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::segment::{self, LINE_LEN_BYTES, LINE_WORDS, Line, Segment};

/// The reading end. It made the segment, and trusts nothing in it.
#[derive(Debug)]
pub(super) struct Consumer {
    segment: Segment,
    fd: OwnedFd,
    shape: Shape,
    /// Lines read since the beginning.
    position: u64,
    /// Lines given back to the producer; behind `position` by less than an eighth of the ring.
    published: u64,
}

/// The writing end, in a segment that the consumer can change at any time.
#[derive(Debug)]
pub(super) struct Producer {
    segment: Segment,
    shape: Shape,
    /// Lines written since the beginning.
    position: u64,
    /// What the consumer had given back when we last looked.
    head: u64,
}

/// A record that was copied out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: u8,
    pub(super) len_bytes: usize,
    /// Whether lines were given back: the producer may be waiting for them.
    pub(super) returned_lines: bool,
}

/// The other end wrote what no honest one writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BrokenRing(pub(super) &'static str);

impl Consumer {
    /// Makes a ring of `lines` lines, a power of two, in `dir` or in anonymous memory.
    pub(super) fn create(dir: Option<&Path>, lines: u64) -> io::Result<Self> {
        let shape = Shape::new(lines)?;
        let fd = segment::create("stepmesh-ring", dir, shape.segment_len_bytes())?;
        let segment = Segment::map(&fd, true)?;
        Ok(Self {
            segment,
            fd,
            shape,
            position: 0,
            published: 0,
        })
    }

    /// The descriptor that the producer maps.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Copies the next record, if there is one, to the front of `out`.
    ///
    /// # Errors
    /// When the record is longer than `out` or than half of the ring.
    #[inline]
    pub(super) fn next(&mut self, out: &mut [u8]) -> Result<Option<Record>, BrokenRing> {
        let line = self.shape.line(&self.segment, self.position);
        let head = line.0[0].load(Ordering::Acquire);
        if head & STAMP_MASK != self.shape.stamp(self.position) {
            return Ok(None);
        }
        self.copy_out(head, out).map(Some)
    }

    /// Whether a record waits.
    pub(super) fn is_ready(&self) -> bool {
        let line = self.shape.line(&self.segment, self.position);
        line.0[0].load(Ordering::Acquire) & STAMP_MASK == self.shape.stamp(self.position)
    }

    /// Lines read since the beginning.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// How many lines the ring has.
    pub(super) fn lines(&self) -> u64 {
        self.shape.lines
    }

    /// Gives all lines that were read back to the producer.
    pub(super) fn publish(&mut self) {
        self.published = self.position;
        let head = &self.segment.lines()[LINE_HEAD].0[0];
        head.store(self.position, Ordering::Release);
    }

    fn copy_out(&mut self, head: u64, out: &mut [u8]) -> Result<Record, BrokenRing> {
        let (kind, len_bytes) = split_head(head);
        let lines = lines_for(len_bytes);
        if len_bytes > out.len() || lines > self.shape.lines / 2 {
            return Err(BrokenRing("a record is too long"));
        }
        let (first, rest) = out[..len_bytes].split_at_mut(len_bytes.min(HEAD_PAYLOAD_LEN_BYTES));
        let line = self.shape.line(&self.segment, self.position);
        load_words(&line.0[1..], first);
        for (position, bytes) in (self.position + 1..).zip(rest.chunks_mut(LINE_LEN_BYTES)) {
            let line = self.shape.line(&self.segment, position);
            load_words(&line.0, bytes);
            line.0[0].store(0, Ordering::Relaxed);
        }
        self.position += lines;
        let returned_lines = self.position - self.published >= self.shape.lines / 8;
        if returned_lines {
            self.publish();
        }
        Ok(Record {
            kind,
            len_bytes,
            returned_lines,
        })
    }
}

impl Producer {
    /// Maps a ring that a peer made and says to have `lines` lines.
    pub(super) fn map(fd: &OwnedFd, lines: u64) -> io::Result<Self> {
        let shape = Shape::new(lines)?;
        let segment = Segment::map(fd, true)?;
        if (segment.len_bytes() as u64) < shape.segment_len_bytes() {
            return Err(segment::invalid("the ring is shorter than it says"));
        }
        Ok(Self {
            segment,
            shape,
            position: 0,
            head: 0,
        })
    }

    /// Lines written since the beginning.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The longest record that the ring takes.
    pub(super) fn record_len_bytes_max(&self) -> usize {
        record_len_bytes_max(self.shape.lines)
    }

    /// Whether a record of `len_bytes` fits now.
    ///
    /// # Errors
    /// When the consumer says to have read what was not written.
    #[inline]
    pub(super) fn has_room(&mut self, len_bytes: usize) -> Result<bool, BrokenRing> {
        let end = self.position + lines_for(len_bytes);
        if end - self.head <= self.shape.lines {
            return Ok(true);
        }
        Ok(end - self.consumed()? <= self.shape.lines)
    }

    /// How many lines the consumer has given back.
    pub(super) fn consumed(&mut self) -> Result<u64, BrokenRing> {
        let head = self.segment.lines()[LINE_HEAD].0[0].load(Ordering::Acquire);
        if head < self.head || head > self.position {
            return Err(BrokenRing("a ring's count of read lines is impossible"));
        }
        self.head = head;
        Ok(head)
    }

    /// Writes a record, for which there is room.
    #[inline]
    pub(super) fn push(&mut self, kind: u8, payload: &[u8]) {
        debug_assert!(self.position + lines_for(payload.len()) - self.head <= self.shape.lines);
        let (first, rest) = payload.split_at(payload.len().min(HEAD_PAYLOAD_LEN_BYTES));
        let line = self.shape.line(&self.segment, self.position);
        store_words(&line.0[1..], first);
        for (position, bytes) in (self.position + 1..).zip(rest.chunks(LINE_LEN_BYTES)) {
            store_words(&self.shape.line(&self.segment, position).0, bytes);
        }
        let head = self.shape.stamp(self.position) | join_head(kind, payload.len());
        line.0[0].store(head, Ordering::Release);
        self.position += lines_for(payload.len());
    }
}

/// How many lines a ring has, and where a position lies in it.
#[derive(Clone, Copy, Debug)]
struct Shape {
    lines: u64,
    shift: u32,
}

impl Shape {
    fn new(lines: u64) -> io::Result<Self> {
        if !lines.is_power_of_two() || !(LINES_MIN..=LINES_MAX).contains(&lines) {
            return Err(segment::invalid(
                "the length of a ring is no power of two, or out of bounds",
            ));
        }
        let shift = lines.trailing_zeros();
        Ok(Self { lines, shift })
    }

    fn segment_len_bytes(self) -> u64 {
        let len = (LINES_BEFORE as u64 + self.lines) * LINE_LEN_BYTES as u64;
        len.next_multiple_of(segment::PAGE_LEN_BYTES)
    }

    #[inline]
    fn line(self, segment: &Segment, position: u64) -> &Line {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "less than `lines`, which counts lines in memory"
        )]
        let index = (position & (self.lines - 1)) as usize;
        &segment.lines()[LINES_BEFORE + index]
    }

    /// The stamp of a head at this position: the lap, made odd so that it is never zero.
    #[inline]
    fn stamp(self, position: u64) -> u64 {
        ((position >> self.shift) << 1 | 1) & STAMP_MASK
    }
}

/// The longest record that a ring of so many lines takes: half of it, so that a record always fits
/// once the consumer has read everything but the eighth that it may hold back.
pub(super) fn record_len_bytes_max(lines: u64) -> usize {
    let lines = usize::try_from(lines / 2).unwrap_or(usize::MAX);
    (lines.saturating_mul(LINE_LEN_BYTES) - STAMP_LEN_BYTES).min(LEN_MASK)
}

#[inline]
fn lines_for(len_bytes: usize) -> u64 {
    (len_bytes + STAMP_LEN_BYTES).div_ceil(LINE_LEN_BYTES) as u64
}

#[inline]
fn join_head(kind: u8, len_bytes: usize) -> u64 {
    debug_assert!(len_bytes <= LEN_MASK);
    u64::from(kind) << 56 | (len_bytes as u64) << 32
}

#[inline]
fn split_head(head: u64) -> (u8, usize) {
    let [.., kind] = head.to_le_bytes();
    let len_bytes = (head >> 32) as usize & LEN_MASK;
    (kind, len_bytes)
}

#[inline]
fn store_words(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, chunk) in words.iter().zip(whole) {
        word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    }
    if let (false, Some(word)) = (rest.is_empty(), words.get(whole.len())) {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        word.store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

#[inline]
fn load_words(words: &[AtomicU64], bytes: &mut [u8]) {
    let (whole, rest) = bytes.as_chunks_mut::<8>();
    for (word, chunk) in words.iter().zip(whole.iter_mut()) {
        *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    if let (false, Some(word)) = (rest.is_empty(), words.get(whole.len())) {
        let last = word.load(Ordering::Relaxed).to_ne_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// What fits beside the stamp into the one line of a short record.
pub(super) const HEAD_PAYLOAD_LEN_BYTES: usize = LINE_LEN_BYTES - STAMP_LEN_BYTES;

/// Stamp, kind and length: one word, so that one store publishes them together.
const STAMP_LEN_BYTES: usize = size_of::<u64>();

const STAMP_MASK: u64 = u32::MAX as u64;

/// Lengths have 24 bits.
const LEN_MASK: usize = 0xff_ffff;

/// The consumer's count of read lines.
const LINE_HEAD: usize = 0;

/// Two, so that the processor's fetching of lines in pairs keeps the count apart from the records.
const LINES_BEFORE: usize = 2;

/// One page.
const LINES_MIN: u64 = 64;

/// A gigabyte: more is a mistake.
const LINES_MAX: u64 = 1 << 24;

const _: () = assert!(LINE_WORDS == 8, "a head is one word and seven of payload");

#[cfg(test)]
mod tests;
