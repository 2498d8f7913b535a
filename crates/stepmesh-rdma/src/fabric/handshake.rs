//! How two verbs fabrics get to know each other, over the control connection, and how they notice that
//! the other is gone: the connection stays open, and its end is the peer's.
//!
//! The side that connects offers, the other answers with its queue pairs connected, and the first says
//! that its own are: only then does the accepting side send, so that nothing has to be sent twice.

#![forbid(unsafe_code)]

use std::time::Duration;

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{Address, Chain, EventSink, Fabric, FabricKind, PeerId};
use stepmesh_transport::news::{Deadline, check_hello};

use super::adapter::Seat;
use super::address;
use super::half::Half;
use super::peer::Peer;
use super::rdma::RdmaFabric;
use super::wire::{CONTROL_HELLO, Frame, Side};

/// A connection on its way.
#[derive(Debug)]
pub(super) struct Handshake {
    pub(super) id: PeerId,
    stage: Stage,
    deadline: Deadline,
}

#[derive(Debug)]
enum Stage {
    /// The control connection is being made; the hello goes with the offer.
    Connecting { hello: Vec<u8> },
    /// The offer was sent; this half waits for the other.
    Offered { half: Box<Half> },
    /// Whoever connected has said nothing yet.
    Accepted,
}

/// What the control connections report.
#[derive(Debug, Default)]
pub(super) struct ControlEvents(pub(super) Vec<ControlEvent>);

#[derive(Debug)]
pub(super) enum ControlEvent {
    Connected(PeerId, bool),
    Accepted(PeerId, bool),
    Frame(PeerId, Result<Frame, &'static str>),
    Closed(PeerId, Error),
}

impl EventSink for ControlEvents {
    fn connected(&mut self, peer: PeerId, hello: &[u8]) {
        self.0
            .push(ControlEvent::Connected(peer, hello == CONTROL_HELLO));
    }
    fn accepted(&mut self, peer: PeerId, hello: &[u8]) {
        self.0
            .push(ControlEvent::Accepted(peer, hello == CONTROL_HELLO));
    }
    fn message(&mut self, peer: PeerId, message: &[u8]) {
        self.0
            .push(ControlEvent::Frame(peer, Frame::decode(message)));
    }
    fn sent(&mut self, _: PeerId, _: u64) {}
    fn closed(&mut self, peer: PeerId, reason: Error) {
        self.0.push(ControlEvent::Closed(peer, reason));
    }
}

impl Handshake {
    /// Its place in a completion queue, if it has one.
    pub(super) fn seat(&self) -> Option<Seat> {
        match &self.stage {
            Stage::Offered { half } => Some(half.seat),
            Stage::Connecting { .. } | Stage::Accepted => None,
        }
    }
}

impl RdmaFabric {
    /// Starts a connection.
    pub(super) fn start_connecting(
        &mut self,
        address: &Address,
        hello: &[u8],
        timeout: Duration,
    ) -> Result<PeerId, Error> {
        let invalid = || Error::InvalidAddress {
            fabric: FabricKind::Rdma,
            reason: "these are no such bytes".to_owned(),
        };
        let control = address::decode(address).ok_or_else(invalid)?;
        let hello = check_hello(FabricKind::Rdma, hello)?;
        let id = self.control.connect(&control, &CONTROL_HELLO, timeout);
        let id = id.map_err(|error| match error {
            Error::InvalidAddress { .. } => invalid(),
            error => of_rdma(error),
        })?;
        self.handshakes.push(Handshake {
            id,
            stage: Stage::Connecting { hello },
            deadline: Deadline::after(timeout),
        });
        self.look = true;
        Ok(id)
    }

    /// Takes in what the control connections reported.
    pub(super) fn obey(&mut self, event: ControlEvent) {
        match event {
            ControlEvent::Connected(id, true) => self.offer(id),
            ControlEvent::Accepted(id, true) => self.handshakes.push(Handshake {
                id,
                stage: Stage::Accepted,
                deadline: Deadline::after(self.options.handshake_timeout()),
            }),
            ControlEvent::Connected(id, false) => self.fail(id, foreign(id)),
            ControlEvent::Accepted(id, false) => self.control.close(id),
            ControlEvent::Frame(id, frame) => match frame {
                Ok(Frame::Offer(theirs)) => self.answer(id, &theirs),
                Ok(Frame::Answer(theirs)) => self.answered(id, &theirs),
                Ok(Frame::Ready) => self.ready(id),
                Ok(Frame::Refused(reason)) => self.fail(
                    id,
                    Error::Refused {
                        fabric: FabricKind::Rdma,
                        peer: id,
                        reason,
                    },
                ),
                Err(reason) => self.fail(id, broke(id, reason)),
            },
            ControlEvent::Closed(id, reason) => self.fail(id, of_rdma(reason)),
        }
    }

    /// Ends what took too long.
    pub(super) fn check_handshakes(&mut self, now_ns: u64) {
        for index in (0..self.handshakes.len()).rev() {
            let handshake = &mut self.handshakes[index];
            if handshake.deadline.is_over(now_ns) {
                let (id, deadline) = (handshake.id, handshake.deadline);
                self.fail(id, took_too_long(id, deadline));
            }
        }
        let late = self.peers.values_mut().filter_map(|peer| {
            let deadline = peer.ready_by.as_mut()?;
            deadline.is_over(now_ns).then_some((peer.id, *deadline))
        });
        for (id, deadline) in late.collect::<Vec<_>>() {
            self.fail(id, took_too_long(id, deadline));
        }
    }

    /// The control connection is up: makes this half, and offers it.
    fn offer(&mut self, id: PeerId) {
        let Some(index) = self.handshakes.iter().position(|other| other.id == id) else {
            return;
        };
        let made = Half::new(
            &mut self.adapter,
            &self.options,
            id,
            self.options.queue_pairs,
        );
        let half = match made {
            Ok(half) => Box::new(half),
            Err(error) => return self.fail(id, error),
        };
        let handshake = &mut self.handshakes[index];
        let Stage::Connecting { hello } = &handshake.stage else {
            return;
        };
        let offer = Frame::Offer(half.side(&self.adapter, &self.options, hello));
        handshake.stage = Stage::Offered { half };
        self.send(id, &offer);
    }

    /// An offer came: makes and connects this half, and answers.
    fn answer(&mut self, id: PeerId, theirs: &Side) {
        let index = self.handshakes.iter().position(|other| other.id == id);
        let waiting =
            index.filter(|index| matches!(self.handshakes[*index].stage, Stage::Accepted));
        let Some(index) = waiting else {
            return self.fail(id, broke(id, "an offer that was not waited for"));
        };
        let count = self.options.queue_pairs.min(theirs.queue_pairs.len());
        let made = Half::new(&mut self.adapter, &self.options, id, count).and_then(|mut half| {
            let mut theirs = theirs.clone();
            theirs.queue_pairs.truncate(count);
            match half.connect(&mut self.adapter, &self.options, &theirs) {
                Ok(()) => Ok(half),
                Err(error) => {
                    self.adapter.leave(half.seat);
                    Err(error)
                }
            }
        });
        let half = match made {
            Ok(half) => half,
            Err(error) => {
                self.send(id, &Frame::Refused(error_chain(&error)));
                return self.fail(id, error);
            }
        };
        self.handshakes.swap_remove(index);
        let answer = Frame::Answer(half.side(&self.adapter, &self.options, &self.hello));
        let mut peer = Peer::new(half, theirs, &self.options);
        peer.unannounced = Some(theirs.hello.clone());
        peer.ready_by = Some(Deadline::after(self.options.handshake_timeout()));
        self.peers.insert(id.0, Box::new(peer));
        self.send(id, &answer);
    }

    /// The answer to an offer came: connects this half, and says so.
    fn answered(&mut self, id: PeerId, theirs: &Side) {
        let offered =
            |other: &Handshake| other.id == id && matches!(other.stage, Stage::Offered { .. });
        let Some(index) = self.handshakes.iter().position(offered) else {
            return self.fail(id, broke(id, "an answer to no offer"));
        };
        let Stage::Offered { half } = &mut self.handshakes[index].stage else {
            return;
        };
        if let Err(error) = half.connect(&mut self.adapter, &self.options, theirs) {
            return self.fail(id, error);
        }
        let handshake = self.handshakes.swap_remove(index);
        if let Stage::Offered { half } = handshake.stage {
            let peer = Peer::new(*half, theirs, &self.options);
            self.peers.insert(id.0, Box::new(peer));
            self.news.connected(id, theirs.hello.clone());
            self.send(id, &Frame::Ready);
        }
    }

    /// The other side is ready.
    fn ready(&mut self, id: PeerId) {
        match self.peers.get_mut(&id.0) {
            Some(peer) => {
                peer.ready_by = None;
                // It may have been announced already by a message that was faster.
                if let Some(hello) = peer.unannounced.take() {
                    self.news.accepted(id, hello);
                }
            }
            None => self.fail(id, broke(id, "it is ready for nothing")),
        }
    }

    /// Ends a connection or the way to it. Who connected to us is not known before it is announced,
    /// so only others are reported.
    pub(super) fn fail(&mut self, id: PeerId, error: Error) {
        if let Some(peer) = self.peers.get_mut(&id.0) {
            // What has come is still delivered; see `RdmaFabric::end_peers`.
            peer.end(error);
            peer.ready_by = None;
            self.ending.push(id.0);
            return;
        }
        self.control.close(id);
        let Some(index) = self.handshakes.iter().position(|other| other.id == id) else {
            return;
        };
        match self.handshakes.swap_remove(index).stage {
            Stage::Accepted => {
                let error = error_chain(&error);
                tracing::warn!(error, "rdma: a connection came to nothing");
            }
            Stage::Connecting { .. } => self.news.closed(id, error),
            Stage::Offered { half } => {
                self.adapter.leave(half.seat);
                self.news.closed(id, error);
            }
        }
    }

    fn send(&mut self, id: PeerId, frame: &Frame) {
        let message = frame.encode();
        let chain = Chain {
            writes: &[],
            message: &message,
            token: 0,
        };
        // A connection sends some frames in all, which its buffers always take; when it is broken,
        // its end is reported.
        if let Err(error) = self.control.post(id, &chain) {
            tracing::debug!(%error, peer = id.0, "rdma: a control frame could not be sent");
        }
    }
}

/// An error of the control connection, as one of this fabric.
fn of_rdma(error: Error) -> Error {
    let fabric = FabricKind::Rdma;
    match error {
        Error::PeerClosed { peer, .. } => Error::PeerClosed { fabric, peer },
        Error::InvalidWire { peer, reason, .. } => Error::InvalidWire {
            fabric,
            peer,
            reason,
        },
        Error::Refused { peer, reason, .. } => Error::Refused {
            fabric,
            peer,
            reason,
        },
        Error::Timeout {
            operation,
            object,
            timeout_ms,
            ..
        } => Error::Timeout {
            fabric,
            operation,
            object,
            timeout_ms,
        },
        Error::Io {
            operation,
            object,
            source,
            ..
        } => Error::Io {
            fabric,
            operation,
            object,
            source,
        },
        Error::Limit { what, limit, .. } => Error::Limit {
            fabric,
            what,
            limit,
        },
        other => other,
    }
}

fn foreign(peer: PeerId) -> Error {
    Error::Refused {
        fabric: FabricKind::Rdma,
        peer,
        reason: "it is no verbs fabric of this version".to_owned(),
    }
}

fn broke(peer: PeerId, reason: &str) -> Error {
    Error::InvalidWire {
        fabric: FabricKind::Rdma,
        peer,
        reason: reason.to_owned(),
    }
}

fn took_too_long(peer: PeerId, deadline: Deadline) -> Error {
    deadline.error(FabricKind::Rdma, "the handshake", format!("peer {peer:?}"))
}

/// An error with what it comes from, for the other side and for logs.
fn error_chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
