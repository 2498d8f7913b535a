//! Producer and consumer against each other, and a consumer against a liar.

use super::{
    Broken, Consumer, HEADER_LEN_BYTES, Header, LINE_LEN_BYTES, Producer, message_len_bytes_max,
};

fn header(len_bytes: usize) -> Header {
    Header {
        len_bytes: u32::try_from(len_bytes).unwrap(),
        stripes: 1,
        credit: 0,
    }
}

/// The longest message of a record of so many lines.
fn lines(count: usize) -> usize {
    count * LINE_LEN_BYTES - HEADER_LEN_BYTES
}

#[test]
fn a_producer_and_a_consumer_agree_for_ever() {
    let (mut producer, mut consumer) = (Producer::new(16), Consumer::new(16));
    // Close to where positions wrap around.
    producer.position = u32::MAX - 40;
    producer.consumed = producer.position;
    consumer.expected = producer.position;
    consumer.consumed = producer.position;
    consumer.told = producer.position;
    let mut waiting = std::collections::VecDeque::new();
    let mut credit = producer.position;
    for round in 0..1000_usize {
        let len = lines(1 + round * 7 % 8);
        if let Some(place) = producer.place(len) {
            producer.push(place);
            let line = consumer.announced(place.imm).unwrap();
            assert_eq!(line, place.line);
            waiting.push_back(consumer.arrived(line, &header(len), 1 << 20, 1).unwrap());
        } else {
            while let Some(arrival) = waiting.pop_front() {
                consumer.delivered(&arrival);
            }
            assert!(consumer.owes());
            // What is old already may come again.
            producer.credit(credit).unwrap();
            credit = consumer.position();
            consumer.told();
            assert!(!consumer.owes());
            producer.credit(credit).unwrap();
            assert!(
                producer.place(len).is_some(),
                "an empty ring takes half of itself"
            );
        }
    }
}

#[test]
fn the_longest_message_fits_into_an_empty_ring_wherever_it_begins() {
    for at in 0..16 {
        let mut producer = Producer::new(16);
        producer.position = at;
        producer.consumed = at;
        assert!(producer.place(message_len_bytes_max(16)).is_some(), "{at}");
        assert_eq!(producer.place(message_len_bytes_max(16) * 2 + 100), None);
    }
}

#[test]
fn a_credit_for_what_was_not_written_is_refused() {
    let mut producer = Producer::new(16);
    producer.push(producer.place(lines(3)).unwrap());
    assert_eq!(producer.credit(3), Ok(()));
    assert!(producer.credit(4).is_err());
    assert_eq!(producer.credit(2), Ok(()), "an older one is ignored");
}

#[test]
fn a_liar_is_caught() {
    let mut consumer = Consumer::new(16);
    let arrival = consumer.arrived(0, &header(lines(3)), 1 << 20, 2).unwrap();
    assert_eq!(arrival.advance, 3);
    let next = 1 << 16;
    assert_eq!(consumer.announced(next | 3), Ok(3));
    assert!(consumer.announced(3).is_err(), "an old sequence");
    assert!(consumer.announced(next | 4).is_err(), "another line");
    assert!(consumer.announced(next | 16).is_err(), "a line outside");
    let long = Header {
        len_bytes: u32::MAX,
        ..header(0)
    };
    let no_stripes = Header {
        stripes: 0,
        ..header(0)
    };
    let many_stripes = Header {
        stripes: 3,
        ..header(0)
    };
    for bad in [long, no_stripes, many_stripes] {
        assert!(consumer.arrived(3, &bad, 1 << 20, 2).is_err(), "{bad:?}");
    }
    let refused = consumer.arrived(3, &header(lines(14)), 1 << 20, 2);
    refused.unwrap_err();
    // The front of the ring is in use.
    let refused = consumer.arrived(0, &header(lines(3)), 1 << 20, 2);
    refused.unwrap_err();
    consumer.delivered(&arrival);
    let taken = consumer.arrived(0, &header(lines(3)), 1 << 20, 2);
    taken.unwrap();
}

#[test]
fn headers_come_back_and_others_are_refused() {
    let header = Header {
        len_bytes: 16384,
        stripes: 16,
        credit: u32::MAX,
    };
    assert_eq!(Header::of_words(header.words()), Ok(header));
    for words in [[0; 2], [u64::MAX; 2], [header.words()[0], u64::MAX]] {
        assert!(matches!(Header::of_words(words), Err(Broken(_))));
    }
}
