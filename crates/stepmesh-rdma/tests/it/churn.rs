//! Memory that comes and goes while the fabric works, as fast as a program can.

use std::collections::VecDeque;
use std::env;
use std::time::Instant;

use stepmesh_transport::fabric::{Chain, PostError, RegionId, Write};
use stepmesh_transport::memory::{Allocation, Memory, MemoryKind};

use crate::node::{Bytes, Event, LONG, Pair};
use crate::support::Setup;

/// Each piece is allocated, registered, pushed once, forgotten and freed, with some of them on their way
/// at any time; and each arrives, though addresses are used again and again.
#[test]
fn memory_that_comes_and_goes_is_pushed_and_let_go() {
    let Some(_turn) = Setup::One.take_turn("memory that comes and goes") else {
        return;
    };
    let rounds = rounds();
    let mut pair = Pair::new(Setup::One);
    let target = Setup::One.memory(SLOTS * LEN);
    let (_, remote) = pair.share_b(target.memory());
    let mut sending: VecDeque<Piece> = VecDeque::new();
    let (mut posted, mut received) = (0, 0);
    let mut last = Instant::now();
    while received < rounds || !sending.is_empty() {
        assert!(last.elapsed() < LONG, "stuck after {posted} and {received}");
        if posted < rounds && posted - received < SLOTS as u64 {
            let piece = Piece::new(&mut pair, posted);
            let write = Write {
                local: piece.region,
                local_offset: 0,
                remote,
                remote_offset: at(posted) as u64,
                len_bytes: LEN as u64,
            };
            let chain = Chain {
                writes: &[write],
                message: &posted.to_le_bytes(),
                token: posted,
            };
            match pair.a.fabric.post(pair.b_of_a, &chain) {
                Ok(_) => {
                    posted += 1;
                    sending.push_back(piece);
                }
                Err(PostError::Full) => piece.end(&mut pair),
                Err(PostError::Failed(error)) => panic!("{error}"),
            }
        }
        pair.poll();
        for event in std::mem::take(&mut pair.b.events.0) {
            let Event::Message(_, message) = event else {
                panic!("{event:?}");
            };
            assert_eq!(message, received.to_le_bytes());
            assert_eq!(target.read(at(received), LEN), bytes(received));
            received += 1;
            last = Instant::now();
        }
        for event in std::mem::take(&mut pair.a.events.0) {
            let piece = sending.pop_front().unwrap();
            assert!(matches!(event, Event::Sent(token) if token == piece.id - 1));
            piece.end(&mut pair);
        }
    }
    assert_eq!((posted, received), (rounds, rounds));
    pair.assert_alive();
}

/// An allocation with a number of its own, as a backend makes them.
struct Piece {
    memory: Bytes,
    region: RegionId,
    id: u64,
}

impl Piece {
    fn new(pair: &mut Pair, round: u64) -> Self {
        let memory = Bytes::plain(LEN);
        memory.write(0, &bytes(round));
        let id = round + 1;
        let described: Memory = memory.memory();
        let allocation = Allocation {
            base: described.address(),
            len_bytes: described.len_bytes(),
            id,
            kind: MemoryKind::Host,
            pci_address: None,
            numa_node: None,
            dmabuf: None,
        };
        let described = described.with_allocation(allocation);
        let region = pair.a.fabric.register(described).unwrap();
        Self { memory, region, id }
    }

    /// It is forgotten before it is freed, and nobody holds on to it.
    fn end(self, pair: &mut Pair) {
        pair.a.fabric.deregister(self.region).unwrap();
        pair.a.fabric.forget_allocation(self.id);
        assert_eq!(self.memory.owners(), 1, "the fabric still holds it");
    }
}

fn at(round: u64) -> usize {
    usize::try_from(round).unwrap() % SLOTS * LEN
}

fn bytes(round: u64) -> Vec<u8> {
    (round + 1).to_le_bytes().repeat(LEN / 8)
}

fn rounds() -> u64 {
    let asked = env::var("STEPMESH_TEST_CHURN_ROUNDS").ok();
    asked.map_or(ROUNDS, |rounds| rounds.parse().unwrap())
}

/// Bytes of a piece: what is measured is its registration.
const LEN: usize = 64;

/// Pieces on their way.
const SLOTS: usize = 32;

/// Some 0.3 ms each where all is emulated, of which the kernel takes most: more than any table of ours
/// keeps. `STEPMESH_TEST_CHURN_ROUNDS` says another number, also through `cargo xtask vm test`.
const ROUNDS: u64 = 100_000;
