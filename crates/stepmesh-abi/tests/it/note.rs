//! The note: what the builder writes the parser reads, and nothing hostile gets through.

use expect_test::{Expect, expect};
use stepmesh_abi::note::{NoteError, NoteParams, note_bytes, note_len, parse_note};
use stepmesh_abi::note::{SM_KIND_GPU, SM_NOTE_THREADS, SM_PANIC_UNWIND, TEXT_LEN_MAX};

const PARAMS: NoteParams<'static> = NoteParams {
    kind: SM_KIND_GPU,
    panic_strategy: SM_PANIC_UNWIND,
    flags: SM_NOTE_THREADS,
    priority: -7,
    aliases: "GPU,cuda12",
    ..NoteParams::new("cuda", "1.2.3")
};
const BYTES: [u8; note_len(&PARAMS)] = note_bytes(&PARAMS);
/// Where the description starts: three words and the padded owner.
const DESC: usize = 24;
/// Bytes of the fixed part.
const FIXED: usize = 36;

#[test]
fn a_built_note_parses_to_its_parameters() {
    assert_eq!(parse_note(&BYTES), Ok(PARAMS));
    assert_eq!(BYTES.len() % 4, 0);
}

#[test]
fn a_note_is_found_among_the_notes_of_others() {
    let mut segment = b"\x04\0\0\0\x05\0\0\0\x03\0\0\0GNU\0abcde\0\0\0".to_vec();
    segment.extend_from_slice(&BYTES);
    segment.extend_from_slice(b"\x00\0\0\0\x00\0\0\0\x09\0\0\0");
    assert_eq!(parse_note(&segment), Ok(PARAMS));
}

#[test]
fn a_longer_fixed_part_of_a_later_version_is_skipped() {
    let mut bytes = BYTES.to_vec();
    bytes.splice(DESC + FIXED..DESC + FIXED, [9; 8]);
    bytes[DESC] += 8;
    bytes[4] += 8;
    assert_eq!(parse_note(&bytes), Ok(PARAMS));
}

#[test]
fn every_truncation_is_an_error_and_never_a_panic() {
    for len in 0..BYTES.len() - 3 {
        let error = parse_note(&BYTES[..len]).unwrap_err();
        assert!(
            matches!(error, NoteError::NotFound | NoteError::Truncated { .. }),
            "{len}"
        );
    }
}

#[test]
fn every_single_byte_change_parses_or_fails_without_a_panic() {
    let mut outcomes = [0_u32; 2];
    for idx in 0..BYTES.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = BYTES;
            bytes[idx] = value;
            outcomes[usize::from(parse_note(&bytes).is_ok())] += 1;
        }
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

fn check(change: impl FnOnce(&mut Vec<u8>), expected: &Expect) {
    let mut bytes = BYTES.to_vec();
    change(&mut bytes);
    let error = parse_note(&bytes).expect_err("the change makes the note invalid");
    expected.assert_eq(&error.to_string());
}

#[test]
fn hostile_notes_are_refused_with_the_reason() {
    check(
        Vec::clear,
        &expect!["no note of the owner `StepMesh` and type 1"],
    );
    check(
        |b| b[12] = b'X',
        &expect!["no note of the owner `StepMesh` and type 1"],
    );
    check(
        |b| b[8] = 2,
        &expect!["no note of the owner `StepMesh` and type 1"],
    );
    check(
        |b| b[4..8].copy_from_slice(&u32::MAX.to_le_bytes()),
        &expect!["the note at byte 0 claims more bytes than there are"],
    );
    check(
        |b| b[0..4].copy_from_slice(&u32::MAX.to_le_bytes()),
        &expect!["the note at byte 0 claims more bytes than there are"],
    );
    check(
        |b| b[DESC] = 8,
        &expect!["the fixed part of the note has 8 bytes, at least 36 are needed"],
    );
    check(
        |b| b[4..8].copy_from_slice(&8_u32.to_le_bytes()),
        &expect!["the fixed part of the note has 8 bytes, at least 36 are needed"],
    );
    check(
        |b| b[DESC..DESC + 4].copy_from_slice(&u32::MAX.to_le_bytes()),
        &expect!["the name in the note reaches beyond its end"],
    );
    check(
        |b| b[DESC + 24] = 120,
        &expect!["the name in the note reaches beyond its end"],
    );
    check(
        |b| b[DESC + 25] = 0xff,
        &expect!["the name in the note has 65284 bytes, too many to be true"],
    );
    check(
        |b| b[DESC + 24] = 0,
        &expect![
            "the name in the note is empty or has other than lower case letters, digits, `-` and `_`"
        ],
    );
    check(
        |b| b[DESC + FIXED] = b'/',
        &expect![
            "the name in the note is empty or has other than lower case letters, digits, `-` and `_`"
        ],
    );
    check(
        |b| b[DESC + FIXED] = 0xff,
        &expect!["the name in the note is not printable utf-8"],
    );
    check(
        |b| b[DESC + FIXED + 5] = 0x1b,
        &expect!["the aliases in the note is not printable utf-8"],
    );
    check(
        |b| b[DESC + 6] = 9,
        &expect!["the note's oldest minor version 9 is newer than its newest 0"],
    );
    check(
        |b| b.extend_from_slice(&BYTES),
        &expect!["more than one note of the owner `StepMesh`"],
    );
}

#[test]
fn the_longest_text_round_trips() {
    let long = "v".repeat(TEXT_LEN_MAX);
    let params = NoteParams {
        version: &long,
        ..NoteParams::new("x", "")
    };
    let bytes: [u8; 24 + 36 + 1 + TEXT_LEN_MAX + 27] = note_bytes(&NoteParams {
        target: "x86_64-unknown-linux-gnu   ",
        ..params
    });
    assert_eq!(parse_note(&bytes).unwrap().version, long);
}
