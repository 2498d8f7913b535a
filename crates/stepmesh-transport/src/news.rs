//! What every fabric of connections does alike around its handshakes: the hello, its deadline, and the
//! list of what the next poll has to report. For those who write a fabric; users have no need of it.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::Error;
use crate::fabric::{EventSink, FabricKind, HELLO_LEN_BYTES_MAX, PeerId};

/// Connections that came, were made or failed since the last poll.
#[derive(Debug, Default)]
pub struct News(VecDeque<(PeerId, Event)>);

#[derive(Debug)]
enum Event {
    Connected(Vec<u8>),
    Accepted(Vec<u8>),
    Closed(Error),
}

/// The bound on something that begins when nobody knows the time: only polls are told it.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    timeout: Duration,
    /// Set by the first look.
    at_ns: Option<u64>,
}

impl News {
    /// A connection that this side asked for is there; `hello` is the peer's.
    pub fn connected(&mut self, peer: PeerId, hello: Vec<u8>) {
        self.0.push_back((peer, Event::Connected(hello)));
    }

    /// A peer has connected, and said `hello`.
    pub fn accepted(&mut self, peer: PeerId, hello: Vec<u8>) {
        self.0.push_back((peer, Event::Accepted(hello)));
    }

    /// A connection is over, or came to nothing.
    pub fn closed(&mut self, peer: PeerId, reason: Error) {
        self.0.push_back((peer, Event::Closed(reason)));
    }

    /// Whether there is nothing to report.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells at most `events_max` to `sink`, oldest first, and says how many it were.
    pub fn report(&mut self, events_max: usize, sink: &mut dyn EventSink) -> usize {
        let count = self.0.len().min(events_max);
        for (peer, event) in self.0.drain(..count) {
            match event {
                Event::Connected(hello) => sink.connected(peer, &hello),
                Event::Accepted(hello) => sink.accepted(peer, &hello),
                Event::Closed(reason) => sink.closed(peer, reason),
            }
        }
        count
    }

    /// Drops what there is about a peer that this side has closed.
    pub fn forget(&mut self, peer: PeerId) {
        self.0.retain(|(about, _)| *about != peer);
    }
}

impl Deadline {
    /// One that is `timeout` after the first time that [`is_over`](Self::is_over) is asked.
    #[must_use]
    pub fn after(timeout: Duration) -> Self {
        Self {
            timeout,
            at_ns: None,
        }
    }

    /// Whether it has come.
    pub fn is_over(&mut self, now_ns: u64) -> bool {
        let timeout_ns = u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX);
        now_ns >= *(self.at_ns).get_or_insert_with(|| now_ns.saturating_add(timeout_ns))
    }

    /// The error of whatever did not end in time; `object` says with whom.
    #[must_use]
    pub fn error(&self, fabric: FabricKind, operation: &'static str, object: String) -> Error {
        Error::Timeout {
            fabric,
            operation,
            object,
            timeout_ms: u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// The bytes to connect with, if they are not too many.
///
/// # Errors
/// [`Error::Limit`] beyond [`HELLO_LEN_BYTES_MAX`].
pub fn check_hello(fabric: FabricKind, hello: &[u8]) -> Result<Vec<u8>, Error> {
    if hello.len() > HELLO_LEN_BYTES_MAX {
        return Err(Error::Limit {
            fabric,
            what: "bytes in a hello",
            limit: HELLO_LEN_BYTES_MAX as u64,
        });
    }
    Ok(hello.to_vec())
}

/// The bytes that those who connect are answered with: what is too long is cut, see
/// [`Fabric::set_hello`](crate::fabric::Fabric::set_hello).
#[must_use]
pub fn cut_hello(hello: &[u8]) -> Vec<u8> {
    hello[..hello.len().min(HELLO_LEN_BYTES_MAX)].to_vec()
}

#[cfg(test)]
mod tests;
