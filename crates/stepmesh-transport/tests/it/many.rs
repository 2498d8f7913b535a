//! One fabric with many peers at once.

use std::time::Instant;

use stepmesh_transport::fabric::{Chain, PeerId, Write};

use crate::node::{Bytes, Event, LONG, Node, pattern};
use crate::support::Setup;

#[test]
fn many_peers_write_to_one_at_once() {
    for setup in [
        Setup::ShmMapped,
        Setup::ShmBounce,
        Setup::Tcp4,
        Setup::TcpNarrow,
    ] {
        many_peers(setup);
    }
}

struct Client {
    node: Node,
    /// What the client calls the server.
    server: PeerId,
    /// What the server calls the client.
    id: PeerId,
    write: Write,
    source: Bytes,
    posted: u8,
    received: u8,
}

impl Client {
    /// Connects a client that writes to its part of `target`.
    fn new(setup: Setup, server: &mut Node, target: &Bytes, idx: usize) -> Self {
        let mut node = Node::new(setup.fabric());
        let address = server.fabric.address();
        let peer = node.fabric.connect(&address, b"c", LONG).unwrap();
        let deadline = Instant::now() + LONG;
        let id = loop {
            node.poll();
            server.poll();
            let accepted = server.take(|event| match event {
                Event::Accepted(id, _) => Some(*id),
                _ => None,
            });
            if let Some(id) = accepted {
                break id;
            }
            assert!(Instant::now() < deadline);
        };
        node.wait(|event| matches!(event, Event::Connected(..)).then_some(()));
        let region = server
            .fabric
            .register(target.memory_range(idx * LEN, LEN))
            .unwrap();
        let shared = server.fabric.share(region, id).unwrap();
        let source = setup.memory(LEN);
        source.fill(pattern(idx));
        let write = Write {
            local: node.fabric.register(source.memory()).unwrap(),
            local_offset: 0,
            remote: node.fabric.import(peer, &shared).unwrap(),
            remote_offset: 0,
            len_bytes: LEN as u64,
        };
        Self {
            node,
            server: peer,
            id,
            write,
            source,
            posted: 0,
            received: 0,
        }
    }

    fn post(&mut self) {
        let chain = Chain {
            writes: &[self.write],
            message: &[self.posted],
            token: 0,
        };
        if self.posted < ROUNDS && self.node.fabric.post(self.server, &chain).is_ok() {
            self.posted += 1;
        }
    }
}

fn many_peers(setup: Setup) {
    let mut server = Node::new(setup.fabric());
    let target = setup.memory(LEN * PEERS);
    let mut clients: Vec<_> = (0..PEERS)
        .map(|idx| Client::new(setup, &mut server, &target, idx))
        .collect();
    let deadline = Instant::now() + LONG;
    while clients.iter().any(|client| client.received < ROUNDS) {
        for client in &mut clients {
            client.post();
            client.node.poll();
        }
        server.poll();
        while let Some((from, message)) = server.take(|event| match event {
            Event::Message(from, message) => Some((*from, message.clone())),
            _ => None,
        }) {
            let client = clients.iter_mut().find(|client| client.id == from).unwrap();
            assert_eq!(message, [client.received]);
            client.received += 1;
        }
        assert!(Instant::now() < deadline, "{setup:?}");
    }
    let all: Vec<u8> = clients
        .iter()
        .flat_map(|client| client.source.to_vec())
        .collect();
    assert!(target.to_vec() == all);
    half_of_them_leave(server, clients);
}

fn half_of_them_leave(mut server: Node, mut clients: Vec<Client>) {
    for client in clients.drain(..PEERS / 2) {
        let id = client.id;
        drop(client);
        server.wait(|event| matches!(event, Event::Closed(peer, _) if *peer == id).then_some(()));
    }
    for client in &mut clients {
        let chain = Chain {
            writes: &[],
            message: b"on",
            token: 0,
        };
        server.fabric.post(client.id, &chain).unwrap();
        assert_eq!(client.node.wait_message_with(&mut server), b"on");
    }
}

/// More than the fabrics treat as few.
const PEERS: usize = 9;

const ROUNDS: u8 = 50;

/// Bytes that each client writes.
const LEN: usize = 3000;
