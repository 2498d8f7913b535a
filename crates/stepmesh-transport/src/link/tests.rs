//! The link alone: what its codecs accept, and when a connection sends what. Whole streams under
//! faults are in `tests/sim`.

use proptest::prelude::{Strategy, any, proptest};
use proptest::sample::select;

use super::chain::{self, ChainBody, Target};
use super::connection::{Arrival, Connection, Death, Transmission, Violation};
use super::options::LinkOptions;
use super::packet::{HEADER_LEN_BYTES, Header, HeaderError, Kind};

const OPTIONS: LinkOptions = LinkOptions {
    window_units: 8,
    window_len_bytes: 1000,
    ack_delay_ns: 10,
    retransmit_initial_ns: 100,
    retransmit_min_ns: 50,
    retransmit_max_ns: 400,
    retries_max: 3,
    keep_alive_ns: 5_000,
    silence_ns: 50_000,
    peers_max: 4,
};

/// A packet with every field in use.
const GOOD: Header = Header {
    kind: Kind::Data,
    generation_from: 1,
    generation_to: 2,
    connection_from: 3,
    connection_to: 4,
    sequence: 5,
    acknowledged: 6,
    held: 7,
};

/// Units are numbers both ways.
fn connection() -> Connection<u32, u32> {
    Connection::new(OPTIONS, 0)
}

/// All that leaves at that time: numbers of units, and `None` for a bare acknowledgement.
fn leaving(connection: &mut Connection<u32, u32>, now_ns: u64) -> Vec<Option<u64>> {
    let mut left = Vec::new();
    while let Some(transmission) = connection.transmit(now_ns) {
        left.push(match transmission {
            Transmission::Unit { sequence, .. } => Some(sequence),
            Transmission::Ack => None,
        });
    }
    left
}

fn posted(count: u32) -> Connection<u32, u32> {
    let mut connection = connection();
    for unit in 0..count {
        connection.post(unit, 1, 0).unwrap();
    }
    assert_eq!(leaving(&mut connection, 0).len(), count as usize);
    connection
}

#[test]
fn a_single_unit_is_acknowledged_after_the_delay_and_a_second_one_at_once() {
    let mut connection = connection();
    assert_eq!(connection.on_unit(0, 7, 1, 0), Ok(Arrival::InOrder));
    assert_eq!(connection.next_delivery(0), Some(7));
    assert_eq!(leaving(&mut connection, 9), []);
    assert_eq!(leaving(&mut connection, 10), [None]);
    assert_eq!(connection.acknowledgement(), (1, 0));
    assert_eq!(connection.on_unit(1, 8, 1, 20), Ok(Arrival::InOrder));
    assert_eq!(connection.on_unit(2, 9, 1, 20), Ok(Arrival::OutOfOrder));
    assert_eq!(leaving(&mut connection, 20), [None]);
}

#[test]
fn an_acknowledgement_rides_on_what_leaves_anyway() {
    let mut connection = connection();
    assert_eq!(connection.on_unit(0, 7, 1, 0), Ok(Arrival::InOrder));
    connection.post(1, 1, 0).unwrap();
    assert_eq!(leaving(&mut connection, 0), [Some(0)]);
    assert_eq!(leaving(&mut connection, 10), []);
}

#[test]
fn what_was_not_delivered_is_held_and_not_acknowledged() {
    let mut connection = connection();
    assert_eq!(connection.on_unit(2, 12, 1, 0), Ok(Arrival::OutOfOrder));
    assert_eq!(connection.on_unit(2, 12, 1, 0), Ok(Arrival::Duplicate));
    assert_eq!(connection.acknowledgement(), (0, 0b100));
    assert_eq!(connection.next_delivery(0), None);
    assert_eq!(connection.on_unit(0, 10, 1, 0), Ok(Arrival::OutOfOrder));
    assert_eq!(connection.acknowledgement(), (0, 0b101));
    assert_eq!(connection.next_delivery(0), Some(10));
    assert_eq!(connection.next_delivery(0), None);
    assert_eq!(connection.acknowledgement(), (1, 0b10));
    assert_eq!(connection.on_unit(0, 10, 1, 0), Ok(Arrival::Duplicate));
}

#[test]
fn the_reorder_buffer_is_bounded_in_units_and_bytes_but_takes_the_next_unit() {
    let mut connection = connection();
    assert!(matches!(connection.on_unit(8, 0, 1, 0), Err(Violation(_))));
    assert_eq!(connection.on_unit(1, 0, 1000, 0), Ok(Arrival::OutOfOrder));
    assert_eq!(connection.on_unit(2, 0, 1, 0), Ok(Arrival::Dropped));
    assert_eq!(connection.on_unit(0, 0, 1, 0), Ok(Arrival::OutOfOrder));
}

#[test]
fn retransmissions_back_off_and_end() {
    let mut connection = posted(1);
    let mut sent_at = vec![0];
    for now_ns in 1..5_000 {
        if connection.check(now_ns) == Err(Death::RetriesExhausted) {
            sent_at.push(now_ns);
            break;
        }
        if !leaving(&mut connection, now_ns).is_empty() {
            sent_at.push(now_ns);
        }
    }
    // 100, then doubled up to 400; the last is the end.
    assert_eq!(sent_at, [0, 100, 300, 700, 1100]);
}

#[test]
fn a_unit_that_three_others_overtook_is_sent_again_once_without_waiting() {
    let mut connection = posted(5);
    connection.on_ack(0, 0b0110, 10).unwrap();
    assert_eq!(leaving(&mut connection, 10), []);
    connection.on_ack(0, 0b1110, 11).unwrap();
    assert_eq!(leaving(&mut connection, 11), [Some(0)]);
    connection.on_ack(0, 0b1_1110, 12).unwrap();
    assert_eq!(leaving(&mut connection, 12), []);
    // Everybody's own timer still runs; held units are asked for after a full wait.
    assert_eq!(leaving(&mut connection, 109), []);
    assert_eq!(leaving(&mut connection, 110), [Some(1), Some(2)]);
    assert_eq!(leaving(&mut connection, 111), [Some(0), Some(3)]);
}

#[test]
fn units_are_reported_once_in_order_and_old_acknowledgements_change_nothing() {
    let mut connection = posted(3);
    connection.on_ack(2, 0, 10).unwrap();
    connection.on_ack(1, 0b11, 11).unwrap();
    let mut reported = || connection.next_acknowledged();
    assert_eq!(
        [reported(), reported(), reported()],
        [Some(0), Some(1), None]
    );
    assert!(connection.on_ack(4, 0, 12).is_err());
    assert!(connection.on_ack(2, 0b10, 12).is_err());
}

#[test]
fn a_unit_that_never_left_cannot_be_acknowledged() {
    let mut connection = connection();
    connection.post(1, 1, 0).unwrap();
    assert!(connection.on_ack(1, 0, 0).is_err());
}

#[test]
fn the_window_stays_full_until_what_was_acknowledged_is_taken() {
    let mut connection = posted(8);
    assert_eq!(connection.post(8, 1, 0), Err(8));
    connection.on_ack(8, 0, 10).unwrap();
    assert_eq!(connection.post(8, 1, 10), Err(8));
    assert_eq!(connection.next_acknowledged(), Some(0));
    assert_eq!(connection.post(8, 1, 10), Ok(()));
}

#[test]
fn an_idle_connection_keeps_itself_alive_and_dies_of_silence() {
    let mut connection = connection();
    assert_eq!(connection.next_timer_ns(), 5_000);
    assert_eq!(leaving(&mut connection, 4_999), []);
    assert_eq!(leaving(&mut connection, 5_000), [None]);
    assert_eq!(connection.next_timer_ns(), 10_000);
    assert_eq!(connection.check(49_999), Ok(()));
    assert_eq!(connection.check(50_000), Err(Death::Silence));
    connection.heard(49_999);
    assert_eq!(connection.check(50_000), Ok(()));
}

#[test]
fn headers_with_fields_that_do_not_belong_there_are_refused() {
    let check = |header: Header, body_len: usize, expected: Result<(), HeaderError>| {
        let mut bytes = header.encode(body_len);
        bytes.resize(HEADER_LEN_BYTES + body_len, 0);
        assert_eq!(Header::decode(&bytes).map(|_| ()), expected, "{header:?}");
    };
    let connect = Header {
        kind: Kind::Connect,
        connection_to: 0,
        sequence: 0,
        acknowledged: 0,
        held: 0,
        ..GOOD
    };
    let close = Header {
        kind: Kind::Close,
        connection_from: 0,
        connection_to: 4,
        ..connect
    };
    let field = |name| Err(HeaderError::Field(name));
    check(GOOD, 9, Ok(()));
    check(connect, 256, Ok(()));
    check(close, 0, Ok(()));
    check(connect, 257, field("body"));
    check(close, 1, field("body"));
    check(
        Header {
            connection_from: 0,
            ..GOOD
        },
        0,
        field("connection of the sender"),
    );
    check(
        Header {
            connection_to: 0,
            ..GOOD
        },
        0,
        field("connection of the receiver"),
    );
    check(
        Header {
            connection_to: 1,
            ..connect
        },
        0,
        field("connection of the receiver"),
    );
    check(
        Header {
            sequence: 1,
            ..connect
        },
        0,
        field("sequence"),
    );
    check(
        Header {
            acknowledged: 1,
            ..connect
        },
        0,
        field("acknowledgement"),
    );
    check(Header { held: 1, ..close }, 0, field("acknowledgement"));
}

#[test]
fn bytes_that_are_no_header_are_refused() {
    let check_bytes = |change: fn(&mut Vec<u8>), expected: HeaderError| {
        let mut bytes = GOOD.encode(0);
        change(&mut bytes);
        assert_eq!(Header::decode(&bytes).map(|_| ()), Err(expected));
    };
    check_bytes(
        |bytes| bytes.truncate(63),
        HeaderError::Short { len_bytes: 63 },
    );
    check_bytes(|bytes| bytes[0] = b'X', HeaderError::Magic);
    check_bytes(|bytes| bytes[4] = 9, HeaderError::Version(9));
    check_bytes(|bytes| bytes[5] = 6, HeaderError::Kind(6));
    check_bytes(|bytes| bytes[7] = 1, HeaderError::Field("reserved"));
    let promised = HeaderError::BodyLen {
        promised: 0,
        present: 1,
    };
    check_bytes(|bytes| bytes.push(0), promised);
}

fn header() -> impl Strategy<Value = Header> {
    let kind = select(vec![
        Kind::Connect,
        Kind::Accept,
        Kind::Data,
        Kind::Ack,
        Kind::Close,
    ]);
    let words = any::<[u64; 5]>();
    (kind, words, any::<[u32; 2]>()).prop_map(|(kind, words, connections)| Header {
        kind,
        generation_from: words[0],
        generation_to: words[1],
        connection_from: connections[0],
        connection_to: connections[1],
        sequence: words[2],
        acknowledged: words[3],
        held: words[4],
    })
}

proptest! {
    #[test]
    fn any_bytes_are_a_header_in_one_way_or_refused(mut bytes: Vec<u8>, good in header()) {
        // Most random bytes fail at the magic; a true header with a random tail gets further.
        Header::decode(&bytes).unwrap_err();
        let mut whole = good.encode(bytes.len());
        whole.append(&mut bytes);
        if let Ok((header, body)) = Header::decode(&whole) {
            assert_eq!(header, good);
            let mut again = header.encode(body.len());
            again.extend_from_slice(body);
            assert_eq!(again, whole);
        }
    }

    #[test]
    fn any_bytes_are_a_chain_or_refused(mut body: Vec<u8>, counts in (0_u64..4, 0_u64..40)) {
        let _ = chain::decode(&body, 3, 30).map(|chain| check_chain(&body, &chain));
        // The same with plausible counts in front.
        let mut whole = counts.0.to_le_bytes().to_vec();
        whole.extend_from_slice(&counts.1.to_le_bytes());
        whole.append(&mut body);
        let _ = chain::decode(&whole, 3, 30).map(|chain| check_chain(&whole, &chain));
    }

    #[test]
    fn a_chain_comes_back_as_it_was(
        targets in proptest::collection::vec((any::<u32>(), any::<u64>(), any::<u64>(), 0..50_u64), 0..5),
        message: Vec<u8>,
    ) {
        let targets: Vec<Target> = targets
            .into_iter()
            .map(|(region, key, offset, len_bytes)| Target { region, key, offset, len_bytes })
            .collect();
        let bytes_len: u64 = targets.iter().map(|target| target.len_bytes).sum();
        let bytes = vec![3; usize::try_from(bytes_len).unwrap()];
        let mut body = Vec::new();
        chain::encode_head(&targets, &message, &mut body);
        body.extend_from_slice(&bytes);
        assert_eq!(chain::body_len_bytes(&targets, &message), Some(body.len()));
        let expected = ChainBody { targets, message: &message, bytes: &bytes };
        assert_eq!(chain::decode(&body, 5, message.len()), Ok(expected));
        // Half of it never passes for a whole.
        chain::decode(&body[..body.len() - 1], 5, message.len()).unwrap_err();
    }
}

fn check_chain(body: &[u8], chain: &ChainBody<'_>) {
    let mut again = Vec::new();
    chain::encode_head(&chain.targets, chain.message, &mut again);
    again.extend_from_slice(chain.bytes);
    assert_eq!(again, body);
}
