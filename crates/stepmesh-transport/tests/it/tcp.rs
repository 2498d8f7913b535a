//! The tcp fabric against clients that speak its protocol by hand, and badly.

use std::io::{ErrorKind, Read, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Instant;

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{PeerId, RegionId};
use stepmesh_transport::tcp::{TcpFabric, TcpOptions};

use crate::node::{Bytes, Event, LONG, MESSAGE_LEN_MAX, Node, Pair, SHORT};
use crate::support::{count_bytes, tcp_options};

/// A fabric with an honest peer, and a client by hand.
struct Stage {
    /// `b` of the pair is the fabric under test; `a` must not notice anything.
    pair: Pair,
    client: TcpStream,
}

impl Stage {
    fn new() -> Self {
        let fabric = TcpFabric::new(tcp_options()).unwrap();
        let address = fabric.socket_address();
        let other = TcpFabric::new(tcp_options()).unwrap();
        let pair = Pair::connect(Box::new(other), Box::new(fabric));
        let client = client(address);
        Self { pair, client }
    }

    /// A client that has said hello and was accepted.
    fn accepted() -> (Self, PeerId) {
        let mut stage = Self::new();
        stage.client.write_all(&hello(b"by hand")).unwrap();
        let peer = stage.pair.b.wait(|event| match event {
            Event::Accepted(peer, hello) => {
                assert_eq!(hello, b"by hand");
                Some(*peer)
            }
            _ => None,
        });
        (stage, peer)
    }

    /// Polls until the client's connection ends, and returns what it received.
    fn wait_end(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + LONG;
        let mut received = Vec::new();
        let mut bytes = [0; 512];
        loop {
            self.pair.poll();
            match self.client.read(&mut bytes) {
                Ok(0) => return received,
                Ok(len) => received.extend_from_slice(&bytes[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return received,
            }
            assert!(Instant::now() < deadline, "the connection does not end");
        }
    }
}

fn client(address: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(address).unwrap();
    client.set_nonblocking(true).unwrap();
    client.set_nodelay(true).unwrap();
    client
}

fn hello(hello: &[u8]) -> Vec<u8> {
    let mut out = b"SMtcpfab".to_vec();
    for number in [1, 1, MESSAGE_LEN_MAX, hello.len()] {
        out.extend(count_bytes(number));
    }
    out.extend(hello);
    out
}

fn chain(writes: &[(RegionId, u64, u64)], payload: &[u8], message: &[u8]) -> Vec<u8> {
    let mut out = b"SMch".to_vec();
    out.extend(count_bytes(writes.len()));
    out.extend(count_bytes(message.len()));
    for (region, offset, len) in writes {
        out.extend(offset.to_le_bytes());
        out.extend(len.to_le_bytes());
        out.extend(region.0.to_le_bytes());
    }
    out.extend(payload);
    out.extend(message);
    out
}

#[test]
fn a_bad_hello_is_refused_and_only_that_client() {
    let mut version = hello(b"");
    version[8] = 9;
    let mut long = hello(&[0; 256]);
    long[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
    for (bytes, code) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 2_u32),
        (b"x".to_vec(), 2),
        (version, 1),
        (long, 2),
    ] {
        let mut stage = Stage::new();
        stage.client.write_all(&bytes).unwrap();
        let answer = stage.wait_end();
        assert_eq!(answer[..8], *b"SMtcpfab");
        assert_eq!(answer[16..20], code.to_le_bytes());
        stage.pair.assert_alive();
    }
}

#[test]
fn a_client_that_says_nothing_is_dropped_after_the_timeout() {
    for begun in [&b""[..], b"SMtcp"] {
        let mut stage = Stage::new();
        stage.client.write_all(begun).unwrap();
        assert_eq!(stage.wait_end(), b"");
        stage.pair.assert_alive();
    }
}

#[test]
fn forged_writes_are_refused_before_a_byte_is_placed() {
    let memory = Bytes::plain(64);
    for case in 0..8 {
        let (mut stage, peer) = Stage::accepted();
        let fabric = &mut stage.pair.b.fabric;
        let shared = fabric.register(memory.memory()).unwrap();
        fabric.share(shared, peer).unwrap();
        let unshared = fabric.register(memory.memory()).unwrap();
        let other = fabric.register(memory.memory()).unwrap();
        fabric.share(other, stage.pair.a_of_b).unwrap();
        let gone = fabric.register(memory.memory()).unwrap();
        fabric.share(gone, peer).unwrap();
        fabric.deregister(gone).unwrap();
        let good = (shared, 0, 8);
        let bad = [
            (unshared, 0, 8),
            (other, 0, 8),
            (gone, 0, 8),
            (RegionId(u32::MAX), 0, 8),
            (shared, 57, 8),
            (shared, u64::MAX, 8),
            (shared, 0, u64::MAX),
            (shared, 65, 0),
        ][case];
        let frame = chain(&[good, bad], &[0xff; 16], b"m");
        stage.client.write_all(&frame).unwrap();
        let reason = stage.pair.b.wait_closed();
        assert!(reason.contains("InvalidWire"), "{bad:?}: {reason}");
        stage.wait_end();
        stage.pair.assert_alive();
        assert_eq!(memory.to_vec(), [0; 64], "{bad:?}");
    }
}

#[test]
fn impossible_frames_close_that_peer_only() {
    let mut many = chain(&[], b"", b"");
    many[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut long = chain(&[], b"", b"");
    long[8..12].copy_from_slice(&count_bytes(MESSAGE_LEN_MAX + 1));
    let garbage = vec![0x5a; 100_000];
    let late = [chain(&[], b"", b"fine"), b"GET /".to_vec()].concat();
    for bytes in [many, long, garbage, late] {
        let (mut stage, _) = Stage::accepted();
        // The fabric may close before it has read everything.
        let _ = stage.client.write_all(&bytes);
        assert!(stage.pair.b.wait(|event| match event {
            Event::Closed(_, reason) => Some(matches!(reason, Error::InvalidWire { .. })),
            _ => None,
        }));
        stage.pair.b.events.0.clear();
        stage.pair.assert_alive();
    }
}

#[test]
fn half_a_frame_and_the_end_close_that_peer_only() {
    let memory = Bytes::plain(64);
    let (mut stage, peer) = Stage::accepted();
    let region = stage.pair.b.fabric.register(memory.memory()).unwrap();
    stage.pair.b.fabric.share(region, peer).unwrap();
    let frame = chain(&[(region, 0, 64)], &[7; 64], b"message");
    for len in [1, 11, 12, 31, 32, 50, 96, frame.len() - 1] {
        let mut late = client_like(&stage);
        late.write_all(&hello(b"")).unwrap();
        let peer = stage.pair.b.wait(|event| match event {
            Event::Accepted(peer, _) => Some(*peer),
            _ => None,
        });
        stage.pair.b.fabric.share(region, peer).unwrap();
        late.write_all(&frame[..len]).unwrap();
        drop(late);
        assert!(stage.pair.b.wait_closed().contains("PeerClosed"), "{len}");
    }
    assert!(stage.pair.b.events.0.is_empty());
    stage.pair.assert_alive();
}

fn client_like(stage: &Stage) -> TcpStream {
    client(stage.client.peer_addr().unwrap())
}

#[test]
fn a_frame_in_single_bytes_arrives_whole() {
    let memory = Bytes::plain(64);
    let (mut stage, peer) = Stage::accepted();
    let region = stage.pair.b.fabric.register(memory.memory()).unwrap();
    stage.pair.b.fabric.share(region, peer).unwrap();
    let writes = [(region, 3, 5), (region, 0, 0), (region, 60, 4)];
    for byte in chain(&writes, b"fivesfour", b"message") {
        stage.client.write_all(&[byte]).unwrap();
        stage.pair.b.poll();
    }
    assert_eq!(stage.pair.b.wait_message(), b"message");
    assert_eq!(memory.to_vec()[3..8], *b"fives");
    assert_eq!(memory.to_vec()[60..], *b"four");
}

#[test]
fn frames_right_behind_the_hello_are_not_lost() {
    let mut stage = Stage::new();
    let mut bytes = hello(b"eager");
    for number in 0..100 {
        bytes.extend(chain(&[], b"", &[number]));
    }
    stage.client.write_all(&bytes).unwrap();
    for number in 0..100 {
        assert_eq!(stage.pair.b.wait_message(), [number]);
    }
}

#[test]
fn a_port_in_use_and_a_bad_interface_are_errors() {
    let first = TcpFabric::new(tcp_options()).unwrap();
    let taken = TcpFabric::new(TcpOptions {
        port: first.socket_address().port(),
        ..tcp_options()
    });
    match taken {
        Err(error @ Error::Io { .. }) => {
            assert!(
                error
                    .to_string()
                    .contains(&first.socket_address().to_string()),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    }
    let elsewhere = TcpFabric::new(TcpOptions {
        bind: Ipv4Addr::new(192, 0, 2, 1).into(),
        ..tcp_options()
    });
    assert!(matches!(elsewhere, Err(Error::Io { .. })));
    let anywhere = TcpOptions {
        bind: Ipv4Addr::UNSPECIFIED.into(),
        ..tcp_options()
    };
    let unreachable = TcpFabric::new(anywhere.clone());
    assert!(matches!(
        unreachable,
        Err(Error::InvalidOption { option: "bind", .. })
    ));
    let reachable = TcpFabric::new(TcpOptions {
        advertise: Some(Ipv4Addr::LOCALHOST.into()),
        ..anywhere
    });
    assert_eq!(
        reachable.unwrap().socket_address().ip(),
        Ipv4Addr::LOCALHOST
    );
}

#[test]
fn a_host_that_does_not_answer_ends_in_closed() {
    // A listener whose queue is full answers no more.
    let listener = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    rustix::net::bind(&listener, &any).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address: SocketAddr = rustix::net::getsockname(&listener)
        .unwrap()
        .try_into()
        .unwrap();
    let _filler: Vec<_> = (0..4)
        .map(|_| {
            let socket = rustix::net::socket_with(
                rustix::net::AddressFamily::INET,
                rustix::net::SocketType::STREAM,
                rustix::net::SocketFlags::NONBLOCK,
                None,
            );
            let socket = socket.unwrap();
            let _ = rustix::net::connect(&socket, &address);
            socket
        })
        .collect();
    let mut bytes = b"tcp1".to_vec();
    bytes.extend(address.port().to_le_bytes());
    bytes.extend([4, 127, 0, 0, 1]);
    let address = stepmesh_transport::fabric::Address(bytes);
    let mut node = Node::new(Box::new(TcpFabric::new(tcp_options()).unwrap()));
    node.fabric.connect(&address, b"", SHORT).unwrap();
    assert!(node.wait_closed().contains("Timeout"));
}

#[test]
fn a_dead_host_option_is_taken() {
    let options = TcpOptions {
        dead_after: Some(std::time::Duration::from_secs(3)),
        ..tcp_options()
    };
    let fabric = || Box::new(TcpFabric::new(options.clone()).unwrap());
    Pair::connect(fabric(), fabric()).assert_alive();
}
