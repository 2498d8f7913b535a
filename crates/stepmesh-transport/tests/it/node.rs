//! Two nodes with a fabric each, memory to write to, and a sink that remembers. Which fabrics there are
//! is told in `support`; other crates with a fabric include this file and `suite`.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{
    Chain, EventSink, Fabric, PeerId, PostError, Posted, RegionId, RemoteId, Write,
};
use stepmesh_transport::memory::{MappableFd, Memory};

use crate::support::Setup;

/// Memory for a region. The bytes are only touched through raw pointers, as the contract asks.
#[derive(Clone)]
pub(crate) struct Bytes {
    owner: Arc<Owner>,
    fd: Option<Arc<OwnedFd>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seal {
    Yes,
    No,
}

struct Owner {
    address: *mut u8,
    len: usize,
    mapped: bool,
}

// SAFETY: the owner is only an address and a length; the memory belongs to the process.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Bytes {
    pub(crate) fn plain(len: usize) -> Self {
        // SAFETY: the layout is not empty.
        let address = unsafe { alloc_zeroed(layout(len)) };
        assert!(!address.is_null());
        let mapped = false;
        Self {
            owner: Arc::new(Owner {
                address,
                len,
                mapped,
            }),
            fd: None,
        }
    }

    pub(crate) fn mappable(len: usize, seal: Seal) -> Self {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&fd, len as u64).unwrap();
        if seal == Seal::Yes {
            rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        }
        Self::of_file(fd, len)
    }

    pub(crate) fn of_file(fd: OwnedFd, len: usize) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel chooses.
        let address =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, &fd, 0) };
        let (address, mapped) = (address.unwrap().cast(), true);
        Self {
            owner: Arc::new(Owner {
                address,
                len,
                mapped,
            }),
            fd: Some(Arc::new(fd)),
        }
    }

    pub(crate) fn memory(&self) -> Memory {
        self.memory_range(0, self.owner.len)
    }

    pub(crate) fn memory_range(&self, offset: usize, len: usize) -> Memory {
        assert!(offset + len <= self.owner.len);
        let mappable = self.fd.clone().map(|fd| MappableFd {
            fd,
            offset: offset as u64,
        });
        let address = self.owner.address as u64 + offset as u64;
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(&self.owner) as _;
        // SAFETY: the range is inside of what the owner holds, and references to it are never made.
        unsafe { Memory::new(address, len as u64, true, mappable, owner) }
    }

    pub(crate) fn fill(&self, bytes: impl Iterator<Item = u8>) {
        let bytes: Vec<u8> = bytes.take(self.owner.len).collect();
        self.write(0, &bytes);
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.read(0, self.owner.len)
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.owner.len && bytes.len() <= self.owner.len - offset);
        let to = self.owner.address.wrapping_add(offset);
        // SAFETY: the range was checked to lie in the allocation, and no reference to it exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset <= self.owner.len && len <= self.owner.len - offset);
        let mut out = vec![0; len];
        let from = self.owner.address.wrapping_add(offset);
        // SAFETY: as above, and `out` is as long as what is read.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), len) };
        out
    }

    /// How many hold on to the memory, this one included.
    pub(crate) fn owners(&self) -> usize {
        Arc::strong_count(&self.owner)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.mapped {
            // SAFETY: the mapping made in `of_file`.
            unsafe { rustix::mm::munmap(self.address.cast(), self.len).unwrap() };
        } else {
            // SAFETY: allocated in `plain` with the same layout.
            unsafe { dealloc(self.address, layout(self.len)) };
        }
    }
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len.max(1), 64).unwrap()
}

/// What a fabric reported.
#[derive(Debug)]
pub(crate) enum Event {
    Connected(PeerId, Vec<u8>),
    Accepted(PeerId, Vec<u8>),
    Message(PeerId, Vec<u8>),
    Sent(u64),
    Closed(PeerId, Error),
}

#[derive(Default)]
pub(crate) struct Events(pub(crate) Vec<Event>);

impl EventSink for Events {
    fn connected(&mut self, peer: PeerId, hello: &[u8]) {
        self.0.push(Event::Connected(peer, hello.to_vec()));
    }
    fn accepted(&mut self, peer: PeerId, hello: &[u8]) {
        self.0.push(Event::Accepted(peer, hello.to_vec()));
    }
    fn message(&mut self, peer: PeerId, message: &[u8]) {
        self.0.push(Event::Message(peer, message.to_vec()));
    }
    fn sent(&mut self, _: PeerId, token: u64) {
        self.0.push(Event::Sent(token));
    }
    fn closed(&mut self, peer: PeerId, reason: Error) {
        self.0.push(Event::Closed(peer, reason));
    }
}

/// A fabric with what it has reported so far.
pub(crate) struct Node {
    pub(crate) fabric: Box<dyn Fabric>,
    pub(crate) events: Events,
    start: Instant,
}

impl Node {
    pub(crate) fn new(fabric: Box<dyn Fabric>) -> Self {
        Self {
            fabric,
            events: Events::default(),
            start: Instant::now(),
        }
    }

    pub(crate) fn poll(&mut self) {
        let now_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap();
        let before = self.events.0.len();
        let count = self.fabric.poll(now_ns, &mut self.events);
        assert_eq!(self.events.0.len() - before, count);
        assert!(count <= stepmesh_transport::fabric::POLL_EVENTS_MAX);
    }

    /// Takes the first event that `pick` likes.
    pub(crate) fn take<T>(&mut self, pick: impl Fn(&Event) -> Option<T>) -> Option<T> {
        let (idx, found) = (self.events.0.iter().enumerate())
            .find_map(|(idx, event)| pick(event).map(|found| (idx, found)))?;
        self.events.0.remove(idx);
        Some(found)
    }

    /// Polls until there is such an event.
    pub(crate) fn wait<T>(&mut self, pick: impl Fn(&Event) -> Option<T>) -> T {
        let deadline = Instant::now() + LONG;
        loop {
            self.poll();
            if let Some(found) = self.take(&pick) {
                return found;
            }
            assert!(Instant::now() < deadline, "only {:?} came", self.events.0);
        }
    }

    pub(crate) fn wait_message(&mut self) -> Vec<u8> {
        self.wait(|event| match event {
            Event::Message(_, message) => Some(message.clone()),
            Event::Closed(_, reason) => panic!("closed: {reason}"),
            _ => None,
        })
    }

    /// The same, while another node has work to do.
    pub(crate) fn wait_message_with(&mut self, other: &mut Self) -> Vec<u8> {
        let deadline = Instant::now() + LONG;
        loop {
            other.poll();
            self.poll();
            if let Some(message) = self.take(|event| match event {
                Event::Message(_, message) => Some(message.clone()),
                _ => None,
            }) {
                return message;
            }
            assert!(Instant::now() < deadline, "only {:?} came", self.events.0);
        }
    }

    pub(crate) fn wait_closed(&mut self) -> String {
        self.wait(|event| match event {
            Event::Closed(_, reason) => Some(format!("{reason:?}")),
            _ => None,
        })
    }
}

/// Two connected fabrics: `a` connected to `b`.
pub(crate) struct Pair {
    pub(crate) a: Node,
    pub(crate) b: Node,
    /// What `a` calls `b`.
    pub(crate) b_of_a: PeerId,
    /// What `b` calls `a`.
    pub(crate) a_of_b: PeerId,
}

impl Pair {
    pub(crate) fn new(setup: Setup) -> Self {
        Self::connect(setup.fabric(), setup.fabric())
    }

    pub(crate) fn connect(a: Box<dyn Fabric>, b: Box<dyn Fabric>) -> Self {
        let (mut a, mut b) = (Node::new(a), Node::new(b));
        b.fabric.set_hello(b"this is b");
        let address = b.fabric.address();
        let b_of_a = a.fabric.connect(&address, b"this is a", LONG).unwrap();
        let deadline = Instant::now() + LONG;
        let (mut connected, mut accepted) = (None, None);
        while connected.is_none() || accepted.is_none() {
            a.poll();
            b.poll();
            connected = connected.or_else(|| {
                a.take(|event| match event {
                    Event::Connected(peer, hello) => Some((*peer, hello.clone())),
                    _ => None,
                })
            });
            accepted = accepted.or_else(|| {
                b.take(|event| match event {
                    Event::Accepted(peer, hello) => Some((*peer, hello.clone())),
                    _ => None,
                })
            });
            assert!(
                Instant::now() < deadline,
                "{:?} {:?}",
                a.events.0,
                b.events.0
            );
        }
        assert_eq!(connected, Some((b_of_a, b"this is b".to_vec())));
        let (a_of_b, hello) = accepted.unwrap();
        assert_eq!(hello, b"this is a");
        Self {
            a,
            b,
            b_of_a,
            a_of_b,
        }
    }

    pub(crate) fn poll(&mut self) {
        self.a.poll();
        self.b.poll();
    }

    /// Registers memory of `b`'s, and imports it at `a`.
    pub(crate) fn share_b(&mut self, memory: Memory) -> (RegionId, RemoteId) {
        let region = self.b.fabric.register(memory).unwrap();
        let shared = self.b.fabric.share(region, self.a_of_b).unwrap();
        let again = self.b.fabric.share(region, self.a_of_b).unwrap();
        assert_eq!(shared, again);
        (region, self.a.fabric.import(self.b_of_a, &shared).unwrap())
    }

    /// Posts from `a` to `b` and goes on until it is sent.
    pub(crate) fn post(&mut self, writes: &[Write], message: &[u8]) {
        let token = 77;
        let chain = Chain {
            writes,
            message,
            token,
        };
        let deadline = Instant::now() + LONG;
        let posted = loop {
            match self.a.fabric.post(self.b_of_a, &chain) {
                Ok(posted) => break posted,
                Err(PostError::Full) => self.poll(),
                Err(PostError::Failed(error)) => panic!("{error}"),
            }
            assert!(Instant::now() < deadline);
        };
        if posted == Posted::Pending {
            while self
                .a
                .take(|event| matches!(event, Event::Sent(77)).then_some(()))
                .is_none()
            {
                self.poll();
                assert!(Instant::now() < deadline, "never sent");
            }
        }
    }

    /// Whether both sides still talk, in both directions.
    pub(crate) fn assert_alive(&mut self) {
        self.post(&[], b"still there?");
        assert_eq!(self.b.wait_message(), b"still there?");
        let chain = Chain {
            writes: &[],
            message: b"yes",
            token: 0,
        };
        self.b.fabric.post(self.a_of_b, &chain).unwrap();
        assert_eq!(self.a.wait_message(), b"yes");
    }
}

/// A pattern that differs at every place and for every seed.
pub(crate) fn pattern(seed: usize) -> impl Iterator<Item = u8> {
    (0_usize..).map(move |idx| {
        let mixed = (idx + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0x85eb_ca6b);
        mixed.to_le_bytes()[3]
    })
}

/// A bound for what is sure to happen, on a machine that does much else.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A bound that a test waits for.
pub(crate) const SHORT: Duration = Duration::from_millis(100);

pub(crate) const MESSAGE_LEN_MAX: usize = 16384;
