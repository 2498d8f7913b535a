//! Spoils bytes, the same way for the same seed: a fuzzer for every test run, without a compiler that
//! guides it. Shared by path between the crates that have corpora. What must hold lives with them.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// How many inputs were understood and how many refused.
pub(crate) type Outcomes = [u32; 2];

/// Judges every file of a folder, and `rounds` spoiled versions of them. An input that panics is shown.
pub(crate) fn replay(folder: &Path, rounds: u32, judge: impl Fn(&[u8]) -> bool) -> Outcomes {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let corpus: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(!corpus.is_empty(), "{folder:?} holds no input");
    let mut outcomes = [0; 2];
    let mut judge = |bytes: &[u8]| match catch_unwind(AssertUnwindSafe(|| judge(bytes))) {
        Ok(is_understood) => outcomes[usize::from(!is_understood)] += 1,
        Err(_) => panic!("this input breaks a promise: {}", bytes.escape_ascii()),
    };
    for bytes in &corpus {
        judge(bytes);
    }
    let mut random = Random(SEED);
    for _ in 0..rounds {
        let bytes = &corpus[random.below(corpus.len())];
        let other = &corpus[random.below(corpus.len())];
        judge(&spoil(bytes, other, &mut random));
    }
    outcomes
}

fn spoil(bytes: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(out.len() + 1);
        match random.below(7) {
            0 => out.truncate(at),
            1 => out.insert(at, random.byte()),
            // Numbers at the edge, where lengths and offsets go wrong.
            2 => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let len = (1 << random.below(4)).min(out.len() - at);
                out[at..at + len].copy_from_slice(&edge[..len]);
            }
            3 => {
                let from = random.below(other.len() + 1);
                out.truncate(at);
                out.extend_from_slice(&other[from..]);
            }
            4 => {
                let copy = out[at..].to_vec();
                out.extend(copy.into_iter().take(64));
            }
            5 if at < out.len() => out[at] ^= 1 << random.below(8),
            _ if at < out.len() => out[at] = random.byte(),
            _ => out.push(random.byte()),
        }
    }
    out
}

/// xorshift64*: small, and the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % end
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[7]
    }
}

const SEED: u64 = 0x5eed;
const EDGES: [u64; 8] = [
    0,
    1,
    0x7f,
    0x80,
    0xffff,
    0x7fff_ffff,
    i64::MAX as u64,
    u64::MAX,
];
