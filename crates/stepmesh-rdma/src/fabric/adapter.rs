//! The adapter's port that a fabric uses: opened, with its domain, completion queues and channel, and
//! its address. Which one is chosen in `select`; connections over it are in `peer`.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::FabricKind;

use super::lag::Lag;
use super::options::RdmaOptions;
use crate::VerbsError;
use crate::select::{Adapter as Found, Candidate, System, choose};
use crate::verbs::{
    self, AsyncEvent, CompletionChannel, CompletionQueue, Context, DeviceAttributes, Mtu,
    PortAttributes, PortState, ProtectionDomain, QpOptions, QueuePair, WorkCompletion,
};

/// An open port.
#[derive(Debug)]
pub(super) struct Adapter {
    pub(super) port: u8,
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u8,
    pub(super) lid: u16,
    pub(super) mtu: Mtu,
    /// The longest write that the port takes.
    pub(super) piece_len_bytes_max: u32,
    /// The ports that queue pairs are spread over, if it is a bonded one.
    pub(super) lag: Lag,
    /// Why nothing works on it any more.
    pub(super) broken: Option<String>,
    attributes: DeviceAttributes,
    queues: Vec<SharedQueue>,
    /// How many of them are armed and have not reported.
    armed: usize,
    channel: Arc<CompletionChannel>,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) context: Arc<Context>,
}

/// A completion queue that several peers share, with what is left of it.
#[derive(Debug)]
struct SharedQueue {
    queue: CompletionQueue,
    free: usize,
    /// Places of peers that are gone, whose last completions may still lie in the queue.
    returning: usize,
    /// Whether the last poll found it empty.
    drained: bool,
}

/// Places in a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    queue: usize,
    places: usize,
}

impl Adapter {
    /// Chooses and opens a port.
    pub(super) fn open(options: &RdmaOptions) -> Result<Self, Error> {
        let devices = verbs::devices().map_err(|error| unsupported(error.to_string()))?;
        let candidate = candidate(options)?;
        let device = devices
            .iter()
            .find(|device| device.name() == candidate.adapter);
        let device = device.ok_or_else(|| {
            unsupported(format!(
                "the kernel has {}, but libibverbs does not: its provider is missing (Debian and \
                 Ubuntu: ibverbs-providers)",
                candidate.adapter
            ))
        })?;
        let open = || -> Result<Self, VerbsError> {
            let context = Context::open(device)?;
            let attributes = context.device_attributes()?;
            let port = context.port_attributes(candidate.port)?;
            let piece_len_bytes_max = port.message_len_bytes_max.min(PIECE_LEN_BYTES_MAX);
            Ok(Self {
                port: candidate.port,
                gid: candidate.gid.octets(),
                gid_index: candidate.gid.index,
                lid: port.lid,
                mtu: mtu(&port, options),
                piece_len_bytes_max: piece_len_bytes_max.max(1),
                lag: Lag::find(options.spread_ports, || context.lag_ports()),
                broken: None,
                attributes,
                queues: Vec::new(),
                armed: 0,
                channel: CompletionChannel::new(&context)?,
                domain: ProtectionDomain::new(&context)?,
                context,
            })
        };
        let adapter = open().map_err(|error| verbs_error("opening the adapter", &error))?;
        tracing::info!(
            adapter = candidate.adapter,
            port = candidate.port,
            gid = %candidate.gid,
            gid_index = candidate.gid.index,
            mtu = adapter.mtu.len_bytes(),
            lag = ?adapter.lag,
            "rdma: adapter opened"
        );
        Ok(adapter)
    }

    /// Makes a queue pair that completes into the seat's queue, with as much inline space as the
    /// device gives up to what is useful.
    pub(super) fn queue_pair(
        &self,
        seat: Seat,
        send_depth: usize,
        receive_depth: usize,
    ) -> Result<QueuePair, Error> {
        let queue = &self.queues[seat.queue].queue;
        let depth = |depth: usize| u32::try_from(depth).unwrap_or(u32::MAX);
        let mut refusal = None;
        for max_inline_len_bytes in INLINE_LEN_BYTES_LADDER {
            let wanted = QpOptions {
                max_send_wr: depth(send_depth),
                max_recv_wr: depth(receive_depth),
                max_inline_len_bytes,
            };
            match QueuePair::new(&self.domain, queue, queue, &wanted) {
                Ok(queue_pair) => return Ok(queue_pair),
                // What it has too much of is not said, so the inline space is tried first.
                Err(error) => _ = refusal.get_or_insert(error),
            }
        }
        let error = refusal.map(|error| verbs_error("making a queue pair", &error));
        Err(error.unwrap_or_else(|| unsupported("no queue pair".to_owned())))
    }

    /// Reserves room for so many completions.
    pub(super) fn seat(&mut self, places: usize) -> Result<Seat, Error> {
        let found = self.queues.iter().position(|shared| shared.free >= places);
        let queue = match found {
            Some(queue) => queue,
            None => {
                let most = self.attributes.completion_queue_depth_max as usize;
                if places > most {
                    return Err(Error::Limit {
                        fabric: FabricKind::Rdma,
                        what: "completions in a queue of this adapter (rdma.send_depth, \
                               rdma.ring_len_bytes, rdma.queue_pairs)",
                        limit: most as u64,
                    });
                }
                let depth = places.max(QUEUE_DEPTH.min(most));
                let wanted = u32::try_from(depth).unwrap_or(u32::MAX);
                let queue = CompletionQueue::new(&self.context, wanted, Some(&self.channel))
                    .map_err(|error| verbs_error("making a completion queue", &error))?;
                self.queues.push(SharedQueue {
                    queue,
                    free: depth,
                    returning: 0,
                    drained: false,
                });
                self.queues.len() - 1
            }
        };
        self.queues[queue].free -= places;
        Ok(Seat { queue, places })
    }

    /// Gives room back, which can be used again once the queue was seen empty.
    pub(super) fn leave(&mut self, seat: Seat) {
        self.queues[seat.queue].returning += seat.places;
    }

    /// How deep a queue of a queue pair may be.
    pub(super) fn queue_depth_max(&self) -> usize {
        self.attributes.queue_depth_max as usize
    }

    /// Takes completions of all queues, up to a bound for each. Returns how many.
    #[inline]
    pub(super) fn poll(
        &mut self,
        buffer: &mut [WorkCompletion],
        mut complete: impl FnMut(&WorkCompletion),
    ) -> usize {
        let mut total = 0;
        for shared in &mut self.queues {
            match shared.queue.poll(buffer) {
                Ok(count) => {
                    for completion in &buffer[..count] {
                        complete(completion);
                    }
                    total += count;
                    shared.drained = count < buffer.len();
                    if shared.drained && shared.returning > 0 {
                        shared.free += std::mem::take(&mut shared.returning);
                    }
                }
                Err(error) => _ = self.broken.get_or_insert_with(|| error.to_string()),
            }
        }
        total
    }

    /// Whether the last poll left nothing in the seat's queue.
    pub(super) fn is_drained(&self, seat: Seat) -> bool {
        self.queues[seat.queue].drained
    }

    /// Has the next completion make the channel readable. With an adapter in software, every part of
    /// it is a system call, so what is armed still is left alone.
    pub(super) fn arm(&mut self) -> Result<(), VerbsError> {
        if self.armed > 0 {
            self.armed -= self.channel.take(self.armed)?;
        }
        if self.armed < self.queues.len() {
            // Which of them reported is not known; arming one twice makes it report once or twice,
            // and a report too many wakes somebody for nothing.
            self.queues
                .iter()
                .try_for_each(|shared| shared.queue.arm())?;
            self.armed = self.queues.len();
        }
        Ok(())
    }

    pub(super) fn channel_fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.channel.as_fd()
    }

    /// What happened outside of any request, up to a bound.
    pub(super) fn events(&mut self) -> impl Iterator<Item = AsyncEvent> + use<> {
        let mut events = Vec::new();
        while events.len() < EVENTS_MAX {
            match self.context.next_async_event() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => {
                    self.broken.get_or_insert_with(|| error.to_string());
                    break;
                }
            }
        }
        events.into_iter()
    }

    /// Looks anew what the port is like, for connections that are made from now on.
    pub(super) fn reread(&mut self, options: &RdmaOptions) -> Result<(), Error> {
        let port = self.context.port_attributes(self.port);
        let port = port.map_err(|error| verbs_error("asking about the port", &error))?;
        if port.state != PortState::Active {
            return Err(broken(&format!(
                "port {} of {} is not active but {:?} (`rdma link show`)",
                self.port,
                self.context.device_name(),
                port.state
            )));
        }
        let mtu = mtu(&port, options);
        if mtu != self.mtu {
            tracing::info!(
                adapter = self.context.device_name(),
                port = self.port,
                before = self.mtu.len_bytes(),
                mtu = mtu.len_bytes(),
                "rdma: the port has another MTU"
            );
            self.mtu = mtu;
        }
        Ok(())
    }

    /// Looks anew which address the port has; true when it is another than before.
    pub(super) fn readdress(&mut self, options: &RdmaOptions) -> Result<bool, Error> {
        let candidate = candidate_of(options, self.context.device_name(), self.port)?;
        let port = self.context.port_attributes(self.port);
        let lid = port.map_or(self.lid, |port| port.lid);
        let changed = candidate.gid.octets() != self.gid
            || candidate.gid.index != self.gid_index
            || lid != self.lid;
        if changed {
            tracing::warn!(
                adapter = self.context.device_name(),
                port = self.port,
                gid = %candidate.gid,
                gid_index = candidate.gid.index,
                "rdma: the port has another address"
            );
            self.gid = candidate.gid.octets();
            self.gid_index = candidate.gid.index;
            self.lid = lid;
        }
        Ok(changed)
    }
}

/// The largest packet of the port, or what the options allow of it.
fn mtu(port: &PortAttributes, options: &RdmaOptions) -> Mtu {
    match options.mtu_len_bytes {
        0 => port.mtu_active,
        limit => port.mtu_active.min(Mtu::at_most(limit)),
    }
}

/// The best port.
fn candidate(options: &RdmaOptions) -> Result<Candidate, Error> {
    let adapters = Found::all(&System::this());
    let choice = choose(&adapters, &options.near, &options.select);
    match choice.for_ordinal(options.ordinal) {
        Some(candidate) => Ok(candidate.clone()),
        None => Err(unsupported(choice.absence().unwrap_or_default())),
    }
}

/// The port that is in use, as it is now.
fn candidate_of(options: &RdmaOptions, adapter: &str, port: u8) -> Result<Candidate, Error> {
    let adapters = Found::all(&System::this());
    let choice = choose(&adapters, &options.near, &options.select);
    let ours = |candidate: &&Candidate| candidate.adapter == adapter && candidate.port == port;
    let found = choice.candidates.iter().find(ours).cloned();
    found.ok_or_else(|| unsupported(format!("port {port} of {adapter} has no address any more")))
}

/// There is no device, or it cannot do this.
pub(super) fn unsupported(reason: String) -> Error {
    Error::Unsupported {
        fabric: FabricKind::Rdma,
        operation: "verbs",
        reason,
    }
}

/// The adapter is gone or broken.
pub(super) fn broken(reason: &str) -> Error {
    Error::Io {
        fabric: FabricKind::Rdma,
        operation: "using the adapter",
        object: "this fabric".to_owned(),
        source: io::Error::other(reason.to_owned()),
    }
}

/// A verb failed.
pub(super) fn verbs_error(operation: &'static str, error: &VerbsError) -> Error {
    Error::Io {
        fabric: FabricKind::Rdma,
        operation,
        object: error.object.clone(),
        source: io::Error::other(error.to_string()),
    }
}

/// Inline space to ask for: a message of the mesh with one tensor and its header fits into the first.
/// Adapters differ in what they give, and some refuse instead of giving less.
const INLINE_LEN_BYTES_LADDER: [u32; 4] = [256, 128, 64, 0];

/// Completions of one queue: some ten peers with the default depths.
const QUEUE_DEPTH: usize = 16384;

/// Longest write, in bytes: adapters say two gibibytes, which is no multiple of a page less one.
const PIECE_LEN_BYTES_MAX: u32 = 1 << 30;

/// Asynchronous events of one look.
const EVENTS_MAX: usize = 64;
