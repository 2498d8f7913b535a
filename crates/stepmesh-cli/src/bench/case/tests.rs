//! Names, globs and units.

use super::{CASES, duration, length, matches_glob};

#[test]
fn a_glob_chooses_cases_by_the_names_of_their_numbers() {
    let chosen = |glob: &str| {
        let cases = CASES.iter().filter(|case| case.matches(glob));
        cases.map(|case| case.name).collect::<Vec<_>>()
    };
    assert_eq!(chosen("*").len(), CASES.len());
    assert_eq!(chosen("afd.p99_us"), ["afd.p50_us"]);
    assert_eq!(
        chosen("loader.ms_dlopen_only"),
        ["loader.ms_10_plugins_over_dlopen"]
    );
    assert_eq!(chosen("alloc.*").len(), 2);
    assert_eq!(
        chosen("*896k*"),
        ["shm.rtt_896k_over_floor", "tcp.rtt_896k_over_raw"]
    );
    assert!(chosen("nothing").is_empty());
}

#[test]
fn globs_match_whole_names() {
    assert!(matches_glob("a?c", "abc"));
    assert!(matches_glob("*", ""));
    assert!(matches_glob("a*b*c", "a-b-b-c"));
    assert!(!matches_glob("a?c", "ac"));
    assert!(!matches_glob("a", "ab"));
    assert!(!matches_glob("", "a"));
}

#[test]
fn durations_have_three_digits_and_a_unit() {
    assert_eq!(duration(0.5), "0.50 ns");
    assert_eq!(duration(312.0), "312 ns");
    assert_eq!(duration(1_234.0), "1.23 µs");
    assert_eq!(duration(40_250.0), "40.2 µs");
    assert_eq!(duration(1_200_000.0), "1.20 ms");
    assert_eq!(duration(2e9), "2.00 s");
}

#[test]
fn lengths_are_told_in_the_largest_whole_unit() {
    assert_eq!(length(8), "8 B");
    assert_eq!(length(917_504), "896 KiB");
    assert_eq!(length(14_680_064), "14 MiB");
}
