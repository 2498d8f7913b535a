//! The corpora and spoiled versions of them, as an ordinary test.

#[path = "../../fuzz/mutate.rs"]
mod mutate;

use std::path::Path;

use self::mutate::replay;

fn check(target: &str, rounds: u32, judge: impl Fn(&[u8]) -> bool) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let outcomes = replay(&corpus.join(target), rounds, judge);
    assert!(outcomes.iter().all(|count| *count > 50), "{outcomes:?}");
}

#[test]
fn accepted_notes_are_fit_for_use() {
    check("note", 30_000, super::note);
}

#[test]
fn plugin_files_are_judged_without_a_panic() {
    check("elf", 10_000, super::elf);
}

#[test]
fn an_accepted_configuration_is_accepted_again_as_the_same() {
    check("config", 1_000, super::config);
}
