//! The shm fabric against clients that speak its protocol by hand, and badly.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::Instant;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use stepmesh_transport::doorbell::Doorbell;
use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{Address, Chain, Fabric, PeerId, Posted, SharedRegion, Write};
use stepmesh_transport::memory::Memory;
use stepmesh_transport::shm::{ShmFabric, ShmOptions};
use stepmesh_transport::tcp::TcpFabric;

use crate::node::{Bytes, Event, LONG, MESSAGE_LEN_MAX, Pair, SHORT, Seal, pattern};
use crate::support::{Setup, count_bytes, report_absent, shm, shm_options, tcp_options};

/// A fabric with an honest peer, and a client by hand.
struct Stage {
    /// `b` of the pair is the fabric under test; `a` must not notice anything.
    pair: Pair,
    socket: OwnedFd,
}

impl Stage {
    fn new() -> Self {
        let pair = Pair::new(Setup::ShmMapped);
        let name = [b"stepmesh/", &pair.b.fabric.address().0[20..]].concat();
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
        let address = SocketAddrUnix::new_abstract_name(&name).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        Self { pair, socket }
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let flags = SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, flags).unwrap();
    }

    /// Polls until there is a packet; empty at the end of the connection.
    fn receive(&mut self) -> (Vec<u8>, Vec<OwnedFd>) {
        let deadline = Instant::now() + LONG;
        loop {
            self.pair.poll();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut bytes = [0; 512];
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::DONTWAIT;
            match rustix::net::recvmsg(&self.socket, &mut parts, &mut ancillary, flags) {
                Ok(message) => {
                    let mut descriptors = Vec::new();
                    for part in ancillary.drain() {
                        if let RecvAncillaryMessage::ScmRights(rights) = part {
                            descriptors.extend(rights);
                        }
                    }
                    return (bytes[..message.bytes].to_vec(), descriptors);
                }
                Err(rustix::io::Errno::AGAIN) => {}
                Err(_) => return (Vec::new(), Vec::new()),
            }
            assert!(Instant::now() < deadline, "nothing comes");
        }
    }

    /// Says a good hello. Returns the peer and the ring that it may write.
    fn greet(&mut self) -> (PeerId, Ring) {
        let offer = Offer::new();
        self.send(&hello(64, b"by hand"), &offer.descriptors());
        let (_, descriptors) = self.receive();
        let peer = self.pair.b.wait(|event| match event {
            Event::Accepted(peer, hello) => {
                assert_eq!(hello, b"by hand");
                Some(*peer)
            }
            _ => None,
        });
        (peer, Ring::map(&descriptors[0]))
    }

    fn wait_refusal(&mut self) -> u32 {
        let (answer, descriptors) = self.receive();
        assert!(descriptors.is_empty());
        assert_eq!(answer[..8], *b"SMshmfab");
        assert_eq!(self.receive().0, b"");
        u32::from_le_bytes(answer[16..20].try_into().unwrap())
    }
}

/// What an honest client brings: a ring and a doorbell.
struct Offer {
    ring: OwnedFd,
    page: OwnedFd,
    eventfd: OwnedFd,
}

impl Offer {
    fn new() -> Self {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        Self {
            ring: memfd(8192, Seal::Yes),
            page: memfd(4096, Seal::Yes),
            eventfd: rustix::event::eventfd(0, flags).unwrap(),
        }
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.ring.as_fd(), self.page.as_fd(), self.eventfd.as_fd()]
    }
}

/// The ring of the fabric under test, to be written by hand.
struct Ring(*mut u64);

impl Ring {
    fn map(fd: &OwnedFd) -> Self {
        let len = rustix::fs::fstat(fd).unwrap().st_size;
        let len = usize::try_from(len).unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel chooses; it stays until the test ends.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) };
        Self(base.unwrap().cast())
    }

    /// Writes a record at the start of the ring.
    fn write(&self, kind: u64, len: u64, payload: &[u8]) {
        for (idx, chunk) in payload.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.store(16 + 1 + idx, u64::from_ne_bytes(word));
        }
        self.store(16, 1 | len << 32 | kind << 56);
    }

    fn store(&self, word: usize, value: u64) {
        let address = self.0.wrapping_add(word);
        // SAFETY: inside of the mapping, which has room for many more words.
        unsafe { address.write_volatile(value) };
    }
}

fn memfd(len: u64, seal: Seal) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    if seal == Seal::Yes {
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    }
    fd
}

fn hello(lines: u64, hello: &[u8]) -> Vec<u8> {
    let mut out = b"SMshmfab".to_vec();
    out.extend(1_u32.to_le_bytes());
    out.extend(1_u32.to_le_bytes());
    out.extend(lines.to_le_bytes());
    out.extend(count_bytes(MESSAGE_LEN_MAX));
    out.extend([0; 16]);
    out.extend(hello);
    out
}

#[test]
fn a_bad_hello_is_refused_and_only_that_client() {
    let offer = Offer::new();
    let good = || offer.descriptors().to_vec();
    let unsealed = memfd(8192, Seal::No);
    let with_ring = |ring| vec![ring, offer.page.as_fd(), offer.eventfd.as_fd()];
    let small = memfd(4096, Seal::Yes);
    let mut version = hello(64, b"");
    version[8] = 9;
    for (name, bytes, descriptors, code) in [
        ("garbage", b"GET / HTTP/1.1\r\n".to_vec(), vec![], 2),
        ("version", version, good(), 1),
        ("cut short", hello(64, b"")[..40].to_vec(), good(), 2),
        ("no descriptors", hello(64, b""), vec![], 2),
        ("two descriptors", hello(64, b""), good()[..2].to_vec(), 2),
        (
            "another order",
            hello(64, b""),
            good().into_iter().rev().collect(),
            2,
        ),
        (
            "unsealed ring",
            hello(64, b""),
            with_ring(unsealed.as_fd()),
            2,
        ),
        ("short ring", hello(64, b""), with_ring(small.as_fd()), 2),
        ("no power of two", hello(100, b""), good(), 2),
        ("no lines", hello(0, b""), good(), 2),
        ("too many lines", hello(u64::MAX, b""), good(), 2),
        ("long hello", hello(64, &[0; 257]), good(), 0),
        (
            "many descriptors",
            hello(64, b""),
            vec![offer.ring.as_fd(); 8],
            0,
        ),
    ] {
        let mut stage = Stage::new();
        stage.send(&bytes, &descriptors);
        if code == 0 {
            assert_eq!(stage.receive().0, b"", "{name}");
        } else {
            assert_eq!(stage.wait_refusal(), code, "{name}");
        }
        stage.pair.assert_alive();
        assert!(stage.pair.b.events.0.is_empty(), "{name}");
    }
}

#[test]
fn a_client_that_says_nothing_is_dropped_after_the_timeout() {
    let mut stage = Stage::new();
    assert_eq!(stage.receive().0, b"");
    stage.pair.assert_alive();
}

#[test]
fn forged_records_close_that_peer_only_and_place_nothing() {
    const MESSAGE: u64 = 1;
    const CHUNK: u64 = 2;
    let chunk = |region: u32, offset: u64, bytes: &[u8]| {
        [&offset.to_le_bytes()[..], &region.to_le_bytes(), bytes].concat()
    };
    let memory = Bytes::plain(64);
    for case in 0..9 {
        let mut stage = Stage::new();
        let (peer, ring) = stage.greet();
        let fabric = &mut stage.pair.b.fabric;
        let shared = fabric.register(memory.memory()).unwrap();
        fabric.share(shared, peer).unwrap();
        let unshared = fabric.register(memory.memory()).unwrap();
        let gone = fabric.register(memory.memory()).unwrap();
        fabric.share(gone, peer).unwrap();
        fabric.deregister(gone).unwrap();
        let (kind, payload) = [
            (CHUNK, chunk(unshared.0, 0, &[0xff; 8])),
            (CHUNK, chunk(gone.0, 0, &[0xff; 8])),
            (CHUNK, chunk(u32::MAX, 0, &[0xff; 8])),
            (CHUNK, chunk(shared.0, 57, &[0xff; 8])),
            (CHUNK, chunk(shared.0, u64::MAX, &[0xff; 8])),
            (CHUNK, vec![0; 11]),
            (0, vec![]),
            (255, vec![1; 8]),
            (MESSAGE, vec![]),
        ][case]
            .clone();
        let len = match case {
            8 => 0xff_ffff,
            _ => payload.len() as u64,
        };
        ring.write(kind, len, &payload);
        let reason = stage.pair.b.wait_closed();
        assert!(reason.contains("InvalidWire"), "{case}: {reason}");
        stage.pair.assert_alive();
        assert_eq!(memory.to_vec(), [0; 64], "{case}");
    }
}

#[test]
fn a_record_by_hand_arrives() {
    let memory = Bytes::plain(64);
    let mut stage = Stage::new();
    let (peer, ring) = stage.greet();
    ring.write(1, 5, b"hello");
    assert_eq!(stage.pair.b.wait_message(), b"hello");
    // And when the client is gone, that is all.
    drop(stage.socket);
    assert!(stage.pair.b.wait_closed().contains("PeerClosed"));
    let region = stage.pair.b.fabric.register(memory.memory()).unwrap();
    assert!(matches!(
        stage.pair.b.fabric.share(region, peer),
        Err(Error::UnknownPeer { .. })
    ));
}

#[test]
fn impossible_control_packets_close_that_peer_only() {
    let file = |id: u32| [1_u32.to_le_bytes(), id.to_le_bytes()].concat();
    let sealed = memfd(4096, Seal::Yes);
    let unsealed = memfd(4096, Seal::No);
    let empty = memfd(0, Seal::Yes);
    for (name, bytes, descriptors) in [
        ("unknown kind", vec![9, 0, 0, 0, 0, 0, 0, 0], vec![]),
        ("cut short", vec![1, 0, 0, 0], vec![]),
        ("too long", vec![0; 9], vec![]),
        ("file without descriptor", file(1), vec![]),
        ("two descriptors", file(1), vec![sealed.as_fd(); 2]),
        ("unsealed file", file(1), vec![unsealed.as_fd()]),
        ("empty file", file(1), vec![empty.as_fd()]),
        (
            "descriptor for nothing",
            vec![2, 0, 0, 0, 0, 0, 0, 0],
            vec![sealed.as_fd()],
        ),
    ] {
        let mut stage = Stage::new();
        stage.greet();
        stage.send(&bytes, &descriptors);
        let reason = stage.pair.b.wait_closed();
        assert!(reason.contains("InvalidWire"), "{name}: {reason}");
        stage.pair.assert_alive();
    }
}

#[test]
fn descriptions_that_nobody_made_are_refused() {
    let sealed = memfd(4096, Seal::Yes);
    let mut stage = Stage::new();
    let (peer, _ring) = stage.greet();
    stage.send(&[1, 0, 0, 0, 5, 0, 0, 0], &[sealed.as_fd()]);
    for (region, len_bytes, key, valid) in [
        (0, 4096, 5 << 40, true),
        (0, 1, 5 << 40 | 4095, true),
        (0, 4097, 5 << 40, false),
        (0, 2, 5 << 40 | 4095, false),
        (0, u64::MAX, 5 << 40, false),
        (0, 8, 6 << 40, false),
        (0, u64::MAX, 1 << 63 | 4096, false),
    ] {
        let shared = SharedRegion {
            region,
            len_bytes,
            key,
        };
        let imported = stage.pair.b.fabric.import(peer, &shared);
        match imported {
            Ok(_) => assert!(valid, "{shared:?}"),
            Err(Error::InvalidWire { .. }) => assert!(!valid, "{shared:?}"),
            Err(other) => panic!("{other}"),
        }
    }
    stage.pair.assert_alive();
}

#[test]
fn memory_that_could_shrink_is_reached_in_another_way() {
    let mut pair = Pair::new(Setup::ShmMapped);
    let (source, target) = (Bytes::plain(5000), Bytes::mappable(5000, Seal::No));
    source.fill(pattern(4));
    let local = pair.a.fabric.register(source.memory()).unwrap();
    let (_, remote) = pair.share_b(target.memory());
    let write = Write {
        local,
        local_offset: 1,
        remote,
        remote_offset: 2,
        len_bytes: 4000,
    };
    pair.post(&[write], b"m");
    assert_eq!(pair.b.wait_message(), b"m");
    assert_eq!(target.to_vec()[2..4002], source.to_vec()[1..4001]);
}

#[test]
fn each_way_of_writing_is_the_one_that_was_asked_for() {
    for (setup, posted) in [
        (Setup::ShmMapped, Posted::Complete),
        (Setup::ShmDir, Posted::Complete),
        (Setup::ShmProcess, Posted::Complete),
        (Setup::ShmBounce, Posted::Pending),
    ] {
        let mut pair = Pair::new(setup);
        let (source, target) = (setup.memory(64), setup.memory(64));
        let local = pair.a.fabric.register(source.memory()).unwrap();
        let (_, remote) = pair.share_b(target.memory());
        let writes = [Write {
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            len_bytes: 64,
        }];
        let chain = Chain {
            writes: &writes,
            message: b"m",
            token: 0,
        };
        let found = pair.a.fabric.post(pair.b_of_a, &chain).unwrap();
        if setup == Setup::ShmProcess && found != posted {
            let reason = "the system does not let processes write each other's memory";
            report_absent("process_vm", "process_vm_writev", reason);
        } else {
            assert_eq!(found, posted, "{setup:?}");
        }
        assert_eq!(pair.b.wait_message(), b"m");
    }
}

#[test]
fn memory_that_the_cpu_cannot_reach_is_refused() {
    let address = 0x7000_0000_0000;
    // SAFETY: not host accessible, so that nothing is promised of the address.
    let memory = unsafe { Memory::new(address, 4096, false, None, std::sync::Arc::new(())) };
    let mut shm = shm(shm_options());
    let mut tcp = TcpFabric::new(tcp_options()).unwrap();
    assert!(matches!(
        shm.register(memory.clone()),
        Err(Error::Unsupported { .. })
    ));
    assert!(matches!(
        tcp.register(memory),
        Err(Error::Unsupported { .. })
    ));
}

#[test]
fn an_address_of_another_boot_is_refused() {
    let mut fabric = shm(shm_options());
    let mut bytes = fabric.address().0;
    bytes[5] ^= 1;
    let refused = fabric.connect(&Address(bytes), b"", SHORT);
    assert!(matches!(refused, Err(Error::InvalidAddress { .. })));
}

#[test]
fn options_that_cannot_work_are_errors() {
    let doorbell = Doorbell::new().unwrap();
    let long = ShmOptions {
        ring_len_bytes: 4096,
        message_len_bytes_max: 4096,
        ..ShmOptions::default()
    };
    let refused = ShmFabric::new(long, doorbell.clone());
    assert!(matches!(
        refused,
        Err(Error::InvalidOption {
            option: "message_len_bytes_max",
            ..
        })
    ));
    let nowhere = ShmOptions {
        dir: Some("/nonexistent/directory".into()),
        ..ShmOptions::default()
    };
    match ShmFabric::new(nowhere, doorbell) {
        Err(error @ Error::Io { .. }) => {
            assert!(
                error.to_string().contains("/nonexistent/directory"),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn tables_are_bounded() {
    let small = || {
        Box::new(shm(ShmOptions {
            peers_max: 1,
            regions_max: 2,
            ..shm_options()
        }))
    };
    let mut pair = Pair::connect(small(), small());
    let memory = Bytes::plain(8);
    for _ in 0..2 {
        pair.b.fabric.register(memory.memory()).unwrap();
    }
    let refused = pair.b.fabric.register(memory.memory());
    assert!(matches!(
        refused,
        Err(Error::Limit {
            what: "regions",
            limit: 2,
            ..
        })
    ));
    let address = pair.b.fabric.address();
    let refused = pair.a.fabric.connect(&address, b"", SHORT);
    assert!(matches!(
        refused,
        Err(Error::Limit {
            what: "peers",
            limit: 1,
            ..
        })
    ));
    // One more at the accepting side is turned away.
    let mut late = crate::node::Node::new(small());
    late.fabric.connect(&address, b"", LONG).unwrap();
    let deadline = Instant::now() + LONG;
    while late.events.0.is_empty() {
        pair.poll();
        late.poll();
        assert!(Instant::now() < deadline);
    }
    assert!(matches!(late.events.0[..], [Event::Closed(..)]));
    pair.assert_alive();
}
