//! The corpora and spoiled versions of them, as an ordinary test.

#[path = "../../../stepmesh-core/fuzz/mutate.rs"]
mod mutate;

use std::path::Path;

use self::mutate::replay;

fn check(target: &str, judge: impl Fn(&[u8]) -> bool) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let outcomes = replay(&corpus.join(target), ROUNDS, judge);
    assert!(outcomes.iter().all(|count| *count > 100), "{outcomes:?}");
}

#[test]
fn packets_of_the_link_are_what_they_are_encoded_to() {
    check("link", super::link);
}

#[test]
fn frames_of_tcp_are_what_they_are_encoded_to() {
    check("tcp", super::tcp);
}

#[test]
fn packets_of_shm_are_what_they_are_encoded_to() {
    check("shm", super::shm);
}

/// Some tenths of a second, unoptimised.
const ROUNDS: u32 = 30_000;
