//! What happened in the simulated network, line by line. The lines are for people; only their
//! equality for equal seeds is promised.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;

use crate::link::packet::{Header, Kind};

/// The last lines of what happened.
#[derive(Debug)]
pub(super) struct Trace {
    lines: VecDeque<String>,
    lines_max: usize,
}

impl Trace {
    pub(super) fn new(lines_max: usize) -> Self {
        Self {
            lines: VecDeque::new(),
            lines_max,
        }
    }

    pub(super) fn note(&mut self, now_ns: u64, what: fmt::Arguments<'_>) {
        if self.lines_max == 0 {
            return;
        }
        if self.lines.len() >= self.lines_max {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{now_ns:>12} {what}"));
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}

/// Prints a datagram in a few words.
#[derive(Debug)]
pub(super) struct Datagram<'a>(pub(super) &'a [u8]);

impl fmt::Display for Datagram<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok((header, body)) = Header::decode(self.0) else {
            return write!(f, "{} bytes of no packet", self.0.len());
        };
        let Header {
            generation_from,
            generation_to,
            connection_from,
            connection_to,
            sequence,
            acknowledged,
            held,
            ..
        } = header;
        let kind = match header.kind {
            Kind::Connect => "connect",
            Kind::Accept => "accept",
            Kind::Data => "data",
            Kind::Ack => "ack",
            Kind::Close => "close",
        };
        write!(
            f,
            "{kind} {generation_from}.{connection_from}>{generation_to}.{connection_to}"
        )?;
        if header.kind == Kind::Data {
            write!(f, " #{sequence} of {} bytes", body.len())?;
        }
        if matches!(header.kind, Kind::Data | Kind::Ack) {
            write!(f, " ack {acknowledged} held {held:#x}")?;
        }
        Ok(())
    }
}
