//! Parts of the workspace: none overlaps another that is needed at the same time, and memory that is
//! free again is used again.

use super::Buffers;

#[test]
fn parts_that_are_needed_together_do_not_overlap() {
    let mut buffers = Buffers::default();
    for step in 0..60 {
        let len = (step * 7919) % 1000;
        buffers.add_part(len, step, (step + step % 7).min(60));
    }
    buffers.place(60, 64).expect("a small workspace");
    for (idx, a) in buffers.parts.iter().enumerate() {
        assert!(a.offset + a.len_bytes <= buffers.workspace_len);
        for b in &buffers.parts[idx + 1..] {
            let together = a.first <= b.last && b.first <= a.last;
            let apart = a.offset + a.len_bytes <= b.offset || b.offset + b.len_bytes <= a.offset;
            assert!(!together || apart, "{a:?} and {b:?}");
        }
    }
}

#[test]
fn a_chain_needs_room_for_two() {
    let mut buffers = Buffers::default();
    for step in 0..100 {
        buffers.add_part(1 << 20, step, step + 1);
    }
    buffers.place(100, 64).expect("a small workspace");
    assert_eq!(buffers.workspace_len, 2 << 20);
}

#[test]
fn more_than_a_process_can_have_is_refused() {
    let mut buffers = Buffers::default();
    buffers.add_part(usize::MAX / 2, 0, 1);
    buffers.add_part(usize::MAX / 2, 0, 1);
    buffers.add_part(usize::MAX / 2, 0, 1);
    assert_eq!(buffers.place(1, 64), None);
}
