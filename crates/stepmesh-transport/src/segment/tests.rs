//! Tests of shared segments.

use std::fs;
use std::sync::atomic::Ordering;

use super::{Segment, create, is_sealed};

#[test]
fn an_anonymous_segment_is_sealed_and_keeps_its_size() {
    let fd = create("test", None, 8192).unwrap();
    assert!(is_sealed(&fd));
    rustix::fs::ftruncate(&fd, 0).unwrap_err();
    rustix::fs::ftruncate(&fd, 1 << 20).unwrap_err();
    let segment = Segment::map(&fd, true).unwrap();
    assert_eq!(segment.lines().len(), 128);
}

#[test]
fn two_mappings_show_the_same_words() {
    let fd = create("test", None, 4096).unwrap();
    let (one, two) = (
        Segment::map(&fd, true).unwrap(),
        Segment::map(&fd, false).unwrap(),
    );
    one.lines()[3].0[2].store(77, Ordering::Relaxed);
    assert_eq!(two.lines()[3].0[2].load(Ordering::Relaxed), 77);
}

#[test]
fn ranges_outside_are_refused() {
    let segment = Segment::map(create("test", None, 4096).unwrap(), false).unwrap();
    for (offset, len, inside) in [
        (0, 4096, true),
        (4096, 0, true),
        (4095, 1, true),
        (4095, 2, false),
        (4097, 0, false),
        (u64::MAX, 1, false),
        (1, u64::MAX, false),
    ] {
        assert_eq!(
            segment.range(offset, len).is_some(),
            inside,
            "{offset} {len}"
        );
    }
    segment.populate(4000, 96).unwrap();
    segment.populate(4000, 97).unwrap_err();
    assert!(segment.word32(64).is_none());
}

#[test]
fn a_segment_in_a_directory_has_no_name_and_no_seal() {
    let dir = tempfile::tempdir().unwrap();
    let fd = create("test", Some(dir.path()), 4096).unwrap();
    assert!(!is_sealed(&fd));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn an_empty_file_is_not_mapped() {
    let file = tempfile::tempfile().unwrap();
    Segment::map(&file, false).unwrap_err();
}
