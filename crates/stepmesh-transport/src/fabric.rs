//! The contract between the mesh and a fabric: regions, peers, chains of one-sided writes, events.
//! No fabric lives here; see `shm`, `tcp` and `sim`.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::error::Error;
use crate::memory::Memory;

/// A network, or what stands in for one, that moves bytes by one-sided writes.
///
/// A fabric is a set of queues and memory registrations owned by one engine. It has no threads of
/// its own: everything happens inside [`post`](Fabric::post) and [`poll`](Fabric::poll), which
/// never block. A fabric is `Send` but not shared: the engine holds it behind its lock.
///
/// The promises that every fabric keeps, in the words of reliable-connection RDMA:
/// - Chains to one peer arrive once and in the order in which they were posted.
/// - All bytes of a chain's writes are in the peer's memory before its message is delivered.
/// - [`EventSink::sent`] means that the source memory may be used again *and* that the fabric has
///   handed the bytes to a connection that delivers or fails; a fabric that can know says so only
///   once the bytes are in the peer's memory (`shm`, `rdma`).
/// - A peer can write only to regions shared with it, inside their bounds, and only while they are
///   registered. A write elsewhere closes that peer's connection and touches nothing.
/// - A connection that fails is reported once by [`EventSink::closed`]; nothing of it arrives
///   afterwards, and its [`PeerId`] is never used again.
pub trait Fabric: fmt::Debug + Send {
    /// Which fabric this is.
    fn kind(&self) -> FabricKind;

    /// What one chain may hold.
    fn limits(&self) -> Limits;

    /// Where peers connect to: opaque bytes that a peer's fabric of the same kind understands,
    /// published through the scheduler.
    fn address(&self) -> Address;

    /// Makes memory known to the fabric, as the source of writes and, once shared, as their target.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the fabric cannot reach such memory (device memory over `tcp`);
    /// the engine then stages. [`Error::Limit`] when the region table is full.
    fn register(&mut self, memory: Memory) -> Result<RegionId, Error>;

    /// Forgets a region: no peer can write to it from here on, and its keep-alive is dropped once
    /// no posted chain needs it.
    ///
    /// # Errors
    /// [`Error::UnknownRegion`].
    fn deregister(&mut self, region: RegionId) -> Result<(), Error>;

    /// The allocation of this number ([`Allocation::id`](crate::memory::Allocation::id)) has ended:
    /// what a fabric keeps of it beyond its regions goes. Nothing by default.
    fn forget_allocation(&mut self, _allocation_id: u64) {}

    /// Lets `peer` write to `region`, and describes it in the form that travels: the peer passes
    /// it to [`import`](Fabric::import). Sharing twice gives the same description.
    ///
    /// # Errors
    /// [`Error::UnknownRegion`], [`Error::UnknownPeer`].
    fn share(&mut self, region: RegionId, peer: PeerId) -> Result<SharedRegion, Error>;

    /// Makes a region that `peer` shared usable as a target of writes to that peer.
    ///
    /// # Errors
    /// [`Error::InvalidWire`] when the description is not one that this fabric made for us.
    fn import(&mut self, peer: PeerId, region: &SharedRegion) -> Result<RemoteId, Error>;

    /// Forgets an imported region. Harmless after the peer was closed.
    fn release(&mut self, peer: PeerId, remote: RemoteId);

    /// Starts a connection and returns at once. [`EventSink::connected`] or
    /// [`EventSink::closed`] follows within `timeout`. `hello` (at most
    /// [`HELLO_LEN_BYTES_MAX`]) is given to the other side, and its own comes back.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`], [`Error::Limit`].
    fn connect(
        &mut self,
        address: &Address,
        hello: &[u8],
        timeout: Duration,
    ) -> Result<PeerId, Error>;

    /// What this side answers to whoever connects to it. Set once, before the address is published.
    fn set_hello(&mut self, hello: &[u8]);

    /// Posts writes and one message as a unit. Either the whole chain is taken or nothing is.
    ///
    /// # Errors
    /// [`PostError::Full`] when the queue to the peer is full: poll, then post again.
    /// [`PostError::Failed`] for a chain that can never be posted (bounds, unknown ids, limits).
    fn post(&mut self, peer: PeerId, chain: &Chain<'_>) -> Result<Posted, PostError>;

    /// Moves what can be moved and reports what happened. `now_ns` is the engine's monotonic
    /// clock, used for the timeouts of connections only; it may be some microseconds old.
    /// Returns how many events were given to `sink`. At most [`POLL_EVENTS_MAX`] a call.
    fn poll(&mut self, now_ns: u64, sink: &mut dyn EventSink) -> usize;

    /// A descriptor that becomes readable when `poll` has something to do that no peer announces
    /// with the [`doorbell`](crate::doorbell): everything of `tcp`, connections and their end of
    /// `shm`. `None` when there is nothing of that kind.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Makes sure that whatever happens from here on makes [`wait_fd`](Fabric::wait_fd) readable, for
    /// a caller who wants to sleep on it: call this, poll once more, then sleep. False when there is
    /// something to do already: poll again instead of sleeping.
    fn prepare_wait(&mut self) -> bool {
        true
    }

    /// Ends a connection. What was posted and not yet sent may be lost. No event follows.
    fn close(&mut self, peer: PeerId);
}

/// What a fabric reports from [`Fabric::poll`].
///
/// A sink must not call back into the fabric; it notes what happened and acts afterwards.
pub trait EventSink {
    /// A connection that this side started is up. `hello` is what the other side answers with.
    fn connected(&mut self, peer: PeerId, hello: &[u8]);
    /// A peer connected to this side.
    fn accepted(&mut self, peer: PeerId, hello: &[u8]);
    /// A message came; the writes of its chain are in place. `message` is private memory of this
    /// process: the peer cannot change it any more.
    fn message(&mut self, peer: PeerId, message: &[u8]);
    /// The chain posted with this token has left; see [`Fabric`] for what that promises.
    fn sent(&mut self, peer: PeerId, token: u64);
    /// The connection is gone, for this reason. Also ends a connection attempt.
    fn closed(&mut self, peer: PeerId, reason: Error);
}

/// One-sided writes followed by one message.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a> {
    /// The writes, in order; at most [`Limits::writes_max`].
    pub writes: &'a [Write],
    /// The message, at most [`Limits::message_len_bytes_max`].
    pub message: &'a [u8],
    /// Comes back in [`EventSink::sent`] when the answer was [`Posted::Pending`].
    pub token: u64,
}

/// One write: `len_bytes` from a local region into a remote one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The region to read from.
    pub local: RegionId,
    /// Where in it to start, in bytes.
    pub local_offset: u64,
    /// The region to write to; it belongs to the peer that the chain is posted to.
    pub remote: RemoteId,
    /// Where in it to start, in bytes.
    pub remote_offset: u64,
    /// How much; zero is allowed.
    pub len_bytes: u64,
}

/// The answer to a chain that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// All of it is in the peer's memory; no [`EventSink::sent`] follows.
    Complete,
    /// [`EventSink::sent`] will follow; the source memory must not change until then.
    Pending,
}

/// Why a chain was not taken.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// The queue to the peer is full for now; nothing was taken.
    #[error("the queue to the peer is full; poll the fabric and post again")]
    Full,
    /// It can never be taken.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// What one chain may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most writes in a chain.
    pub writes_max: usize,
    /// Longest message, in bytes.
    pub message_len_bytes_max: usize,
    /// Messages up to this length are cheapest, in bytes.
    pub message_inline_len_bytes: usize,
}

/// The kinds of fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FabricKind {
    /// Shared memory of one host.
    Shm,
    /// TCP.
    Tcp,
    /// The simulated network of the tests.
    Sim,
    /// RDMA verbs.
    Rdma,
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Sim => "sim",
            Self::Rdma => "rdma",
        })
    }
}

/// Where a fabric can be reached: opaque to all but fabrics of the same kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address(pub Vec<u8>);

/// A peer of one fabric. Never used again after it was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// A registered region of this process. Never used again after it was deregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u32);

/// A region of a peer, imported. Only meaningful together with that peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemoteId(pub u32);

/// A shared region in the form that travels: which region of its owner, how long, and a secret
/// that the fabric checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedRegion {
    /// The owner's number of the region.
    pub region: u32,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// The fabric's key (an rkey, a token); meaningless to others.
    pub key: u64,
}

/// Longest hello, in bytes: a few ids, a name and a token's digest fit, and an unauthenticated
/// peer cannot make us hold more.
pub const HELLO_LEN_BYTES_MAX: usize = 256;

/// Most events of one [`Fabric::poll`], so that a fast peer cannot keep the engine in one call.
pub const POLL_EVENTS_MAX: usize = 64;
