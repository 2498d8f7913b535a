//! What the library stands on, without the library: a cache line (and a copy) between two
//! processes, and a bare TCP connection.

pub(crate) mod page;
pub(crate) mod tcp;

use std::sync::atomic::Ordering;

use anyhow::Result;

use crate::bench::duel::{Bare, Side};
use crate::bench::spin::spin_until;
use page::Page;

/// One end of a ping-pong over shared memory. Up to [`LINE_PAYLOAD_BYTES`] the payload is the word
/// that says whose turn it is; more is copied once each way, straight into its place.
#[derive(Debug)]
pub(crate) struct SharedMemory<'a> {
    page: &'a Page,
    end: End,
    /// How many bytes are copied each way.
    len_bytes: usize,
    turn: u64,
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Begins each round trip.
    Caller,
    /// Sends back what it got.
    Echo,
}

impl<'a> SharedMemory<'a> {
    pub(crate) fn new(page: &'a Page, end: End, len_bytes: usize) -> Self {
        let len_bytes = if len_bytes <= LINE_PAYLOAD_BYTES {
            0
        } else {
            len_bytes
        };
        Self {
            page,
            end,
            len_bytes,
            turn: 0,
        }
    }

    /// Puts what the caller sends in its place.
    pub(crate) fn fill(&self, payload: &[u8]) {
        self.page.write(SOURCE, payload);
    }

    fn send(&self, from: usize, to: usize, word: usize) {
        if self.len_bytes > 0 {
            self.page.copy(from, to, self.len_bytes);
        }
        self.page.word(word).store(self.turn, Ordering::Release);
    }

    fn wait(&self, word: usize) -> Result<()> {
        let (word, turn) = (self.page.word(word), self.turn);
        spin_until("the other end of the floor", || {
            word.load(Ordering::Acquire) == turn
        })
    }
}

impl Side for SharedMemory<'_> {
    #[inline]
    fn round(&mut self) -> Result<()> {
        self.turn += 1;
        match self.end {
            End::Caller => {
                self.send(SOURCE, THERE, PING);
                self.wait(PONG)
            }
            End::Echo => {
                self.wait(PING)?;
                self.send(THERE, BACK, PONG);
                Ok(())
            }
        }
    }
}

impl Bare for SharedMemory<'_> {
    fn is_echoed(&self) -> bool {
        // Without a copy the word was all there was, and `wait` saw it.
        self.page.read(SOURCE, self.len_bytes) == self.page.read(BACK, self.len_bytes)
    }
}

/// What fits beside the turn in its cache line, and so costs nothing more.
const LINE_PAYLOAD_BYTES: usize = 56;

// Words of the page. `duel` has the others.
const PING: usize = 0;
const PONG: usize = 1;

// Areas of the page.
const SOURCE: usize = 0;
const THERE: usize = 1;
const BACK: usize = 2;
