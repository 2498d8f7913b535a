//! Free ranges under a long mix of takes and gives.

use super::FreeRanges;

#[test]
fn takes_are_aligned_apart_and_end_when_the_chunk_is_full() {
    let mut free = FreeRanges::new(64);
    assert_eq!(free.take(10, 1), Some(0));
    assert_eq!(free.take(16, 16), Some(16));
    assert_eq!(free.take(6, 1), Some(10));
    assert_eq!(free.take(33, 1), None);
    assert_eq!(free.take(32, 32), Some(32));
    assert_eq!(free.take(1, 1), None);
}

#[test]
fn everything_given_back_in_any_order_is_whole_again() {
    let mut free = FreeRanges::new(4096);
    let mut taken = Vec::new();
    let mut state = 7_usize;
    for _ in 0..2000 {
        // A small linear congruence: the order is odd but the same each time.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let (choice, len) = (state >> 60, (state >> 33) % 300 + 1);
        if choice < 9 {
            let align = 1 << (choice % 5);
            if let Some(at) = free.take(len, align) {
                assert_eq!(at % align, 0);
                let apart = |(other, other_len): &(usize, usize)| {
                    at + len <= *other || other + other_len <= at
                };
                assert!(at + len <= 4096 && taken.iter().all(apart));
                taken.push((at, len));
            }
        } else if !taken.is_empty() {
            let (at, len) = taken.swap_remove((state >> 20) % taken.len());
            free.give(at, len);
        }
        assert_eq!(free.is_whole(), taken.is_empty());
    }
    for (at, len) in taken {
        free.give(at, len);
    }
    assert!(free.is_whole());
}
