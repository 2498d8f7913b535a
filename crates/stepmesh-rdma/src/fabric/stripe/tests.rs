//! Every byte goes once, in order, and no queue pair has much more than another.

use super::{Piece, Plan, STRIPE_LEN_BYTES_MIN};

const PIECE_MAX: u32 = 8 << 20;

fn cut(plan: &Plan, lengths: &[u64]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let done: Result<(), ()> = plan.cut(lengths.iter().copied(), |piece| {
        pieces.push(piece);
        Ok(())
    });
    assert_eq!(done, Ok(()));
    pieces
}

#[test]
fn small_chains_are_not_spread() {
    for bytes in [0, 1, STRIPE_LEN_BYTES_MIN, 2 * STRIPE_LEN_BYTES_MIN - 1] {
        assert_eq!(Plan::new(bytes, 8, PIECE_MAX).stripes, 1, "{bytes}");
    }
    assert_eq!(Plan::new(2 * STRIPE_LEN_BYTES_MIN, 8, PIECE_MAX).stripes, 2);
    assert_eq!(Plan::new(1 << 40, 1, PIECE_MAX).stripes, 1);
}

#[test]
fn every_byte_is_carried_once_and_all_stripes_are_used() {
    for lengths in [
        &[1_u64 << 20][..],
        &[3 << 20, 0, 1, (5 << 20) + 7],
        &[100 << 20],
        &[255 << 10; 64],
        &[(2 << 20) + 1],
    ] {
        for queue_pairs in 1..=16 {
            let total = lengths.iter().sum();
            let plan = Plan::new(total, queue_pairs, PIECE_MAX);
            let pieces = cut(&plan, lengths);
            let mut carried = vec![0; lengths.len()];
            let mut loads = vec![0; plan.stripes];
            for piece in &pieces {
                assert_eq!(piece.offset, carried[piece.write]);
                assert!(piece.len_bytes <= PIECE_MAX && piece.len_bytes > 0);
                carried[piece.write] += u64::from(piece.len_bytes);
                loads[piece.queue_pair] += u64::from(piece.len_bytes);
            }
            assert_eq!(carried, lengths);
            assert!(pieces.is_sorted_by_key(|piece| piece.queue_pair));
            assert!(loads.iter().all(|load| *load > 0), "{lengths:?} {loads:?}");
            let most = total / plan.stripes as u64 + 4096;
            assert!(loads.iter().all(|load| *load <= most), "{loads:?}");
        }
    }
}

#[test]
fn cutting_ends_where_a_piece_is_refused() {
    let plan = Plan::new(10, 1, 3);
    let mut count = 0;
    let ended = plan.cut([10].into_iter(), |_| {
        count += 1;
        if count == 2 { Err("full") } else { Ok(()) }
    });
    assert_eq!((ended, count), (Err("full"), 2));
}
