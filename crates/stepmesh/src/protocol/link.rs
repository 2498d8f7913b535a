//! A link: the connection with one peer of the data plane, with what both roles keep about it.

use std::sync::Arc;

use stepmesh_transport::error::Error as FabricError;
use stepmesh_transport::fabric::{Chain, PostError, Posted, Write};

use crate::error::Error;
use crate::protocol::fabrics::{Fabrics, PeerRef};
use crate::protocol::wire::{MessageBuf, Setup};
use crate::role::{LEFT, Member};

/// The connection with one peer.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) member: Member,
    peer: Option<PeerRef>,
    /// Why there is no connection, once there was one or should have been.
    lost: Option<Arc<str>>,
    last_heard_ns: u64,
    last_sent_ns: u64,
    /// Set-up messages that the fabric had no room for, oldest first.
    outbox: Vec<Setup>,
}

impl Link {
    /// A link that is not connected yet.
    pub(crate) fn new(member: Member) -> Self {
        Self {
            member,
            peer: None,
            lost: None,
            last_heard_ns: 0,
            last_sent_ns: 0,
            outbox: Vec::new(),
        }
    }

    /// A connection to `member` is up.
    pub(crate) fn up(&mut self, member: Member, peer: PeerRef, now_ns: u64) {
        self.member = member;
        self.peer = Some(peer);
        self.lost = None;
        self.last_heard_ns = now_ns;
        self.last_sent_ns = now_ns;
        self.outbox.clear();
    }

    /// The connection is gone. Returns the error that its requests end with.
    pub(crate) fn down(&mut self, reason: impl Into<Arc<str>>) -> Error {
        self.peer = None;
        self.outbox.clear();
        let reason = reason.into();
        self.lost = Some(Arc::clone(&reason));
        Error::PeerLost {
            peer: self.member,
            reason,
        }
    }

    /// Whether the peer left on purpose.
    pub(crate) fn has_left(&self) -> bool {
        self.lost.as_deref() == Some(LEFT)
    }

    pub(crate) fn peer(&self) -> Option<PeerRef> {
        self.peer
    }

    pub(crate) fn is_up(&self) -> bool {
        self.peer.is_some()
    }

    /// The error of a link that was lost.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.lost.as_ref().map(|reason| Error::PeerLost {
            peer: self.member,
            reason: Arc::clone(reason),
        })
    }

    pub(crate) fn heard(&mut self, now_ns: u64) {
        self.last_heard_ns = now_ns;
    }

    /// Does what is due by the clock: says that this side is alive. Returns why the peer counts as
    /// dead, if it has been silent for too long.
    pub(crate) fn keep_alive(
        &mut self,
        fabrics: &mut Fabrics,
        message: &mut MessageBuf,
        heartbeat_ns: u64,
        peer_dead_ns: u64,
        now_ns: u64,
    ) -> Option<String> {
        self.peer?;
        if now_ns.saturating_sub(self.last_heard_ns) > peer_dead_ns {
            let silent_ms = peer_dead_ns / 1_000_000;
            return Some(format!("silent for {silent_ms} ms (timeouts.peer_dead_ms)"));
        }
        if now_ns.saturating_sub(self.last_sent_ns) >= heartbeat_ns {
            // A full queue carries news enough.
            self.post(fabrics, &[], message.heartbeat(), TOKEN_NONE, now_ns)
                .ok();
        }
        None
    }

    /// Posts a chain to the peer.
    pub(crate) fn post(
        &mut self,
        fabrics: &mut Fabrics,
        writes: &[Write],
        message: &[u8],
        token: u64,
        now_ns: u64,
    ) -> Result<Posted, PostError> {
        let Some(peer) = self.peer else {
            return Err(PostError::Full);
        };
        let chain = Chain {
            writes,
            message,
            token,
        };
        let posted = fabrics.post(peer, &chain)?;
        self.last_sent_ns = now_ns;
        Ok(posted)
    }

    /// Queues a set-up message; [`flush`](Self::flush) posts it.
    pub(crate) fn say(&mut self, setup: Setup) {
        self.outbox.push(setup);
    }

    /// Posts what is queued, in order. Whatever finds no room stays.
    ///
    /// # Errors
    /// The peer cannot be talked to any more, for this reason.
    pub(crate) fn flush(
        &mut self,
        fabrics: &mut Fabrics,
        message: &mut MessageBuf,
        now_ns: u64,
    ) -> Result<(), Arc<str>> {
        let mut posted = 0;
        while let (Some(setup), Some(peer)) = (self.outbox.get(posted), self.peer) {
            let chain = Chain {
                writes: &[],
                message: message.setup(setup).map_err(|error| error.to_string())?,
                token: TOKEN_NONE,
            };
            match fabrics.post(peer, &chain) {
                Ok(_) => posted += 1,
                Err(PostError::Full) => break,
                Err(PostError::Failed(error)) => return Err(error.to_string().into()),
            }
        }
        if posted > 0 {
            self.outbox.drain(..posted);
            self.last_sent_ns = now_ns;
        }
        Ok(())
    }

    /// Whether set-up messages wait for room.
    pub(crate) fn has_queued(&self) -> bool {
        !self.outbox.is_empty()
    }
}

/// The token of chains whose completion nobody asks for.
pub(crate) const TOKEN_NONE: u64 = 0;

/// How a connection ended, in the words of whoever lost it.
pub(crate) fn end_of(reason: &FabricError) -> String {
    match reason {
        FabricError::PeerClosed { fabric, .. } => {
            format!("its process closed the {fabric} connection, or was killed")
        }
        other => other.to_string(),
    }
}
