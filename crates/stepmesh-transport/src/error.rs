//! What can go wrong in a fabric.

use std::io;

use crate::fabric::{FabricKind, PeerId, RegionId, RemoteId};

/// A failure of a fabric. Each names the operation and the object, and what helps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The fabric cannot reach this memory or do this at all.
    #[error("{fabric}: {operation} is not supported: {reason}")]
    Unsupported {
        /// The fabric.
        fabric: FabricKind,
        /// What was asked.
        operation: &'static str,
        /// Why not.
        reason: String,
    },
    /// A system call failed.
    #[error("{fabric}: {operation} failed for {object}")]
    Io {
        /// The fabric.
        fabric: FabricKind,
        /// The system call or step, for example `mmap`.
        operation: &'static str,
        /// What it was done to.
        object: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A doorbell could not be made or slept on.
    #[error("doorbell: {operation} failed")]
    Doorbell {
        /// What was tried.
        operation: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// An option has a value that cannot work.
    #[error("{fabric}: {option} cannot be {value}: {reason}")]
    InvalidOption {
        /// The fabric.
        fabric: FabricKind,
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        reason: String,
    },
    /// There is no room for memory to share.
    #[error(
        "{fabric}: no room for {len_bytes} bytes of shared memory in {place}; free some there, \
         raise its limit, or choose another directory"
    )]
    NoSpace {
        /// The fabric.
        fabric: FabricKind,
        /// The directory, or `anonymous memory`.
        place: String,
        /// How much was asked for, in bytes.
        len_bytes: u64,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The other side refused the connection.
    #[error("{fabric}: peer {peer:?} refused the connection: {reason}")]
    Refused {
        /// The fabric.
        fabric: FabricKind,
        /// The peer.
        peer: PeerId,
        /// Why, as far as it said.
        reason: String,
    },
    /// The address is not one of this fabric.
    #[error("{fabric}: not an address of this fabric: {reason}")]
    InvalidAddress {
        /// The fabric.
        fabric: FabricKind,
        /// What is wrong with it.
        reason: String,
    },
    /// A peer sent what no honest peer sends; its connection is closed.
    #[error("{fabric}: peer {peer:?} broke the protocol: {reason}")]
    InvalidWire {
        /// The fabric.
        fabric: FabricKind,
        /// The peer.
        peer: PeerId,
        /// What was wrong.
        reason: String,
    },
    /// The peer is gone: its process ended or it closed the connection.
    #[error("{fabric}: peer {peer:?} closed the connection")]
    PeerClosed {
        /// The fabric.
        fabric: FabricKind,
        /// The peer.
        peer: PeerId,
    },
    /// The network gave up on a connection.
    #[error("{fabric}: the connection with peer {peer:?} broke: {reason}")]
    Broken {
        /// The fabric.
        fabric: FabricKind,
        /// The peer.
        peer: PeerId,
        /// What failed first, and what helps.
        reason: String,
    },
    /// The other side did not answer in time.
    #[error("{fabric}: {operation} with {object} took longer than {timeout_ms} ms")]
    Timeout {
        /// The fabric.
        fabric: FabricKind,
        /// What was waited for.
        operation: &'static str,
        /// With whom.
        object: String,
        /// The bound, in milliseconds.
        timeout_ms: u64,
    },
    /// No such peer, or it was closed.
    #[error("{fabric}: peer {peer:?} is not connected")]
    UnknownPeer {
        /// The fabric.
        fabric: FabricKind,
        /// The peer.
        peer: PeerId,
    },
    /// No such region, or it was deregistered.
    #[error("{fabric}: region {region:?} is not registered")]
    UnknownRegion {
        /// The fabric.
        fabric: FabricKind,
        /// The region.
        region: RegionId,
    },
    /// No such imported region: it was released, or its owner deregistered it.
    #[error("{fabric}: peer {peer:?} shares no region {remote:?}, or no longer")]
    UnknownRemote {
        /// The fabric.
        fabric: FabricKind,
        /// The peer.
        peer: PeerId,
        /// The imported region.
        remote: RemoteId,
    },
    /// A write reaches outside of its region.
    #[error(
        "{fabric}: {len_bytes} bytes at offset {offset} reach outside of a {what} of {region_len_bytes} bytes"
    )]
    OutOfBounds {
        /// The fabric.
        fabric: FabricKind,
        /// `local region` or `remote region`.
        what: &'static str,
        /// Start of the access, in bytes.
        offset: u64,
        /// Length of the access, in bytes.
        len_bytes: u64,
        /// Length of the region, in bytes.
        region_len_bytes: u64,
    },
    /// A table or a message would grow beyond its bound.
    #[error("{fabric}: more than {limit} {what}")]
    Limit {
        /// The fabric.
        fabric: FabricKind,
        /// What there would be too many of.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
}
