//! Connecting to servers: each address in turn, until one answers as the server that was meant.

use stepmesh_transport::fabric::Address;

use std::time::Duration;

use crate::protocol::fabrics::{Fabrics, PeerRef};
use crate::protocol::hello::Hello;
use crate::role::Member;

/// A server, and where it can be reached: the best fabric first.
#[derive(Clone, Debug)]
pub(crate) struct ServerAddress {
    pub(crate) member: Member,
    /// The fabric by its place, and the address there.
    pub(crate) routes: Vec<(usize, Address)>,
    /// How long one attempt may take.
    pub(crate) timeout: Duration,
}

/// All attempts to connect that are under way.
#[derive(Debug)]
pub(super) struct Dialer {
    hello: Hello,
    attempts: Vec<Attempt>,
    /// Peers that answered wrongly or have no business here.
    refused: Vec<PeerRef>,
    /// Links that are up and must come down.
    broken: Vec<(usize, String)>,
}

#[derive(Debug)]
struct Attempt {
    index: usize,
    address: ServerAddress,
    next_route: usize,
    /// The attempt under way; none when the next route is to be tried.
    peer: Option<PeerRef>,
    reasons: Vec<String>,
}

impl Dialer {
    pub(super) fn new(hello: Hello) -> Self {
        Self {
            hello,
            attempts: Vec::new(),
            refused: Vec::new(),
            broken: Vec::new(),
        }
    }

    /// Starts to connect the link in place `index`; an attempt under way is dropped.
    pub(super) fn dial(&mut self, fabrics: &mut Fabrics, index: usize, address: ServerAddress) {
        self.attempts.retain(|attempt| {
            if let (true, Some(peer)) = (attempt.index == index, attempt.peer) {
                fabrics.close(peer);
            }
            attempt.index != index
        });
        self.attempts.push(Attempt {
            index,
            address,
            next_route: 0,
            peer: None,
            reasons: Vec::new(),
        });
    }

    /// Tries next routes where one failed, and closes whom it refused. Returns the links for
    /// which no route is left.
    pub(super) fn settle(&mut self, fabrics: &mut Fabrics) -> Vec<(usize, Member, String)> {
        for peer in self.refused.drain(..) {
            fabrics.close(peer);
        }
        let mut failed = Vec::new();
        if self.attempts.is_empty() {
            return failed;
        }
        let hello = self.hello.encode();
        self.attempts.retain_mut(|attempt| {
            while attempt.peer.is_none() {
                if !attempt.try_next(fabrics, &hello) {
                    let reason = format!("not reachable: {}", attempt.reasons.join("; "));
                    failed.push((attempt.index, attempt.address.member, reason));
                    return false;
                }
            }
            true
        });
        failed
    }

    /// A connection is up. Returns the link and the member if the right one answered.
    pub(super) fn connected(&mut self, peer: PeerRef, hello: &[u8]) -> Option<(usize, Member)> {
        let position = self
            .attempts
            .iter()
            .position(|attempt| attempt.peer == Some(peer))?;
        let attempt = self.attempts.get_mut(position)?;
        let meant = attempt.address.member;
        let reason = match Hello::check(hello, self.hello.mesh, &self.hello.token) {
            Ok(hello) if hello.member == meant => {
                let index = attempt.index;
                self.attempts.swap_remove(position);
                return Some((index, meant));
            }
            Ok(hello) => format!("{} answered instead", hello.member),
            Err(error) => format!("it was turned away: {error}"),
        };
        attempt.peer = None;
        attempt.reasons.push(reason);
        self.refused.push(peer);
        None
    }

    /// An attempt failed. False if there was none with this peer.
    pub(super) fn failed(&mut self, peer: PeerRef, reason: &str) -> bool {
        let attempt = self
            .attempts
            .iter_mut()
            .find(|attempt| attempt.peer == Some(peer));
        let Some(attempt) = attempt else { return false };
        attempt.peer = None;
        attempt.reasons.push(reason.to_owned());
        true
    }

    pub(super) fn refuse(&mut self, peer: PeerRef) {
        self.refused.push(peer);
    }

    pub(super) fn broken(&mut self, index: usize, reason: &str) {
        self.broken.push((index, reason.to_owned()));
    }

    pub(super) fn take_broken(&mut self) -> Vec<(usize, String)> {
        std::mem::take(&mut self.broken)
    }
}

impl Attempt {
    /// Starts the next route. False if there is none.
    fn try_next(&mut self, fabrics: &mut Fabrics, hello: &[u8]) -> bool {
        let Some((fabric, address)) = self.address.routes.get(self.next_route) else {
            if self.reasons.is_empty() {
                self.reasons
                    .push("no fabric in common (transport.kind)".into());
            }
            return false;
        };
        self.next_route += 1;
        let fabric_index = *fabric;
        let Some(fabric) = fabrics.fabric(fabric_index) else {
            return true;
        };
        match fabric.connect(address, hello, self.address.timeout) {
            Ok(peer) => {
                let peer = PeerRef {
                    fabric: fabric_index,
                    peer,
                };
                fabrics.bind(peer, self.index);
                self.peer = Some(peer);
            }
            Err(error) => self.reasons.push(error.to_string()),
        }
        true
    }
}
