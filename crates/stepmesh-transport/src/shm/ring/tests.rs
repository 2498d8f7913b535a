//! Tests of the ring: orders, laps, and ends that lie.

use std::sync::atomic::Ordering;
use std::thread;

use super::{BrokenRing, Consumer, LINE_HEAD, LINES_BEFORE, Producer, record_len_bytes_max};

fn pair(lines: u64) -> (Consumer, Producer) {
    let consumer = Consumer::create(None, lines).unwrap();
    let fd = consumer.descriptor().try_clone_to_owned().unwrap();
    let producer = Producer::map(&fd, lines).unwrap();
    (consumer, producer)
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    // 0xff in every place that a stamp could be in makes bytes that look like stamps likely.
    (0..len)
        .map(|idx| [1, 3, 0, 0, 255][(seed + idx) % 5])
        .collect()
}

#[test]
fn records_of_every_length_arrive_whole_and_in_order() {
    let (mut consumer, mut producer) = pair(64);
    let mut out = vec![0; producer.record_len_bytes_max()];
    for len in 0..=producer.record_len_bytes_max() {
        assert_eq!(producer.has_room(len), Ok(true), "{len}");
        producer.push(7, &pattern(len, len));
        let record = consumer.next(&mut out).unwrap().unwrap();
        assert_eq!((record.kind, record.len_bytes), (7, len));
        assert_eq!(out[..len], pattern(len, len));
        assert_eq!(consumer.next(&mut out), Ok(None));
    }
}

#[test]
fn a_full_ring_takes_nothing_until_it_is_read() {
    let (mut consumer, mut producer) = pair(64);
    for _ in 0..64 {
        assert_eq!(producer.has_room(56), Ok(true));
        producer.push(1, &[5; 56]);
    }
    assert_eq!(producer.has_room(0), Ok(false));
    let mut out = [0; 56];
    let mut returned = 0;
    while let Some(record) = consumer.next(&mut out).unwrap() {
        returned += u32::from(record.returned_lines);
    }
    assert_eq!(returned, 8);
    assert_eq!(producer.has_room(producer.record_len_bytes_max()), Ok(true));
}

#[test]
fn a_drained_ring_always_has_room_for_the_longest_record() {
    let (mut consumer, mut producer) = pair(64);
    let mut out = vec![0; producer.record_len_bytes_max()];
    for round in 0..500 {
        let len = (round * 37) % 300;
        assert_eq!(producer.has_room(out.len()), Ok(true));
        producer.push(1, &pattern(round, len));
        assert!(consumer.next(&mut out).unwrap().is_some());
    }
}

#[test]
fn a_threaded_stream_is_intact() {
    let (mut consumer, mut producer) = pair(64);
    let sizes = || (0..20_000_usize).map(|round| (round * 131) % 700);
    thread::scope(|scope| {
        scope.spawn(move || {
            for (round, len) in sizes().enumerate() {
                while !producer.has_room(len).unwrap() {
                    thread::yield_now();
                }
                producer.push(2, &pattern(round, len));
            }
        });
        let mut out = vec![0; record_len_bytes_max(64)];
        for (round, len) in sizes().enumerate() {
            let record = loop {
                match consumer.next(&mut out).unwrap() {
                    Some(record) => break record,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(record.len_bytes, len);
            assert!(out[..len] == pattern(round, len), "round {round}");
        }
    });
}

#[test]
fn a_record_longer_than_allowed_breaks_the_ring() {
    let (mut consumer, mut producer) = pair(64);
    producer.push(1, &[0; 200]);
    assert!(matches!(consumer.next(&mut [0; 199]), Err(BrokenRing(_))));
    // A length that no producer of ours writes, stored by hand.
    let (mut consumer, producer) = pair(64);
    let head = &producer.segment.lines()[LINES_BEFORE].0[0];
    head.store(1 | 0xff_ffff << 32, Ordering::Release);
    let mut out = vec![0; 1 << 25];
    assert!(matches!(consumer.next(&mut out), Err(BrokenRing(_))));
}

#[test]
fn an_impossible_count_of_read_lines_breaks_the_ring() {
    for (lie, broken) in [(0, false), (64, false), (65, true), (u64::MAX, true)] {
        let (consumer, mut producer) = pair(64);
        for _ in 0..64 {
            producer.push(1, &[]);
        }
        let count = &consumer.segment.lines()[LINE_HEAD].0[0];
        count.store(lie, Ordering::Release);
        assert_eq!(producer.has_room(0).is_err(), broken, "{lie}");
    }
    let (consumer, mut producer) = pair(64);
    (0..64).for_each(|_| producer.push(1, &[]));
    for (count, broken) in [(10, false), (9, true)] {
        consumer.segment.lines()[LINE_HEAD].0[0].store(count, Ordering::Release);
        assert_eq!(producer.consumed().is_err(), broken);
    }
}

#[test]
fn a_shape_that_does_not_fit_is_refused() {
    for lines in [0, 1, 63, 65, 1 << 25, u64::MAX] {
        assert!(Consumer::create(None, lines).is_err(), "{lines}");
    }
    let small = Consumer::create(None, 64).unwrap();
    let fd = small.descriptor().try_clone_to_owned().unwrap();
    Producer::map(&fd, 128).unwrap_err();
}
