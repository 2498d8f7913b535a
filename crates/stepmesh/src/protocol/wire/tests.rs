//! Messages come back as they were, and hostile ones are refused.

use super::{
    Chunk, Define, Grant, Message, MessageBuf, PushSpec, Setup, TENSORS_MAX, Tag, TensorSpec,
    WireError,
};
use crate::dtype::DType;
use crate::shape::Shape;

#[test]
fn the_messages_of_a_push_pull_fit_into_one_cache_line() {
    // What the shared-memory ring carries without a second line.
    const LINE_MESSAGE_LEN_BYTES: usize = 56;
    let mut buf = MessageBuf::default();
    let launch = buf.launch(1, 2, Tag::default(), [0u32; 8].into_iter());
    assert!(launch.len() <= LINE_MESSAGE_LEN_BYTES);
    let response = buf.response(2, 0, [0; 4], [0u32; 2].into_iter());
    assert!(response.len() <= LINE_MESSAGE_LEN_BYTES);
}

#[test]
fn launch_and_response_come_back() {
    let mut buf = MessageBuf::default();
    let tag = Tag {
        layer: 60,
        stage: 2,
    };
    let bytes = buf.launch(9, 1 << 40, tag, [64, 0, u32::MAX].into_iter());
    let Message::Launch(launch) = Message::decode(bytes).unwrap() else {
        panic!("not a launch")
    };
    assert_eq!((launch.plan, launch.request, launch.tag), (9, 1 << 40, tag));
    let rows: Vec<u64> = launch.rows.iter().collect();
    assert_eq!(rows, [64, 0, u64::from(u32::MAX)]);
    let bytes = buf.response(7, 3, [1, 2, 3, 4], [5].into_iter());
    let Message::Response(response) = Message::decode(bytes).unwrap() else {
        panic!("not a response")
    };
    assert_eq!(
        (response.request, response.staged, response.times_ns),
        (7, 3, [1, 2, 3, 4])
    );
    assert_eq!(response.rows.iter().collect::<Vec<_>>(), [5]);
    let release = Message::decode(buf.release(8));
    assert_eq!(release, Ok(Message::Release { request: 8 }));
    assert_eq!(Message::decode(buf.heartbeat()), Ok(Message::Heartbeat));
    let chunk = Chunk {
        of: 1 << 50,
        part: 3,
        offset: 1 << 20,
        len_bytes: 77,
    };
    assert_eq!(
        Message::decode(buf.chunk(&chunk)),
        Ok(Message::Chunk(chunk))
    );
}

#[test]
fn short_and_unknown_messages_are_refused() {
    let mut buf = MessageBuf::default();
    let launch = buf
        .launch(1, 1, Tag::default(), [1, 2].into_iter())
        .to_vec();
    for cut in (1..launch.len()).filter(|cut| *cut != 24 && *cut != 28) {
        let refused = Message::decode(&launch[..cut]);
        assert_eq!(refused, Err(WireError("a short launch")), "cut at {cut}");
    }
    let response = buf.response(1, 0, [0; 4], [1].into_iter()).to_vec();
    for cut in (1..response.len()).filter(|cut| *cut != 48) {
        let refused = Message::decode(&response[..cut]);
        assert_eq!(refused, Err(WireError("a short response")), "cut at {cut}");
    }
    assert_eq!(Message::decode(&[]), Err(WireError("an empty message")));
    for kind in (0..=255u8).filter(|kind| !(1..=6).contains(kind)) {
        let bytes = [kind];
        let refused = Message::decode(&bytes);
        assert_eq!(refused, Err(WireError("an unknown kind of message")));
    }
    let rows = [0u32; TENSORS_MAX + 1];
    let too_many = buf.launch(1, 1, Tag::default(), rows.into_iter());
    Message::decode(too_many).unwrap_err();
}

#[test]
fn set_up_messages_come_back_and_their_tensors_are_checked() {
    let shape = Shape::new(&[64, 7168]).unwrap();
    let push = PushSpec {
        key: 3,
        tensor: TensorSpec::new(DType::BF16, &shape),
    };
    let define = Setup::Define(Define {
        plan: 4,
        push: vec![push],
        pull: Vec::new(),
    });
    let mut buf = MessageBuf::default();
    let bytes = buf.setup(&define).unwrap();
    let Message::Setup(body) = Message::decode(bytes).unwrap() else {
        panic!("not a set-up")
    };
    assert_eq!(Setup::decode(body).as_ref(), Ok(&define));
    let Setup::Define(back) = define else {
        panic!("not a define")
    };
    let checked = back.push[0].tensor.checked();
    assert_eq!(checked, Ok((DType::BF16, shape, 917_504)));
    for (dtype, dims) in [(99, vec![1]), (0, vec![1; 9]), (7, vec![u64::MAX, 2])] {
        TensorSpec { dtype, dims }.checked().unwrap_err();
    }
    Setup::decode(b"\xff\xff\xff\xff").unwrap_err();
    Setup::decode(&[]).unwrap_err();
}

#[test]
fn plans_with_too_many_tensors_are_refused() {
    let grant = Grant {
        region: 0,
        region_len_bytes: 1,
        key: 0,
        offset: 0,
        len_bytes: 1,
    };
    let setup = Setup::Granted {
        plan: 0,
        slots: vec![grant; TENSORS_MAX + 1],
    };
    let mut buf = MessageBuf::default();
    let bytes = buf.setup(&setup).unwrap();
    let Message::Setup(body) = Message::decode(bytes).unwrap() else {
        panic!("not a set-up")
    };
    let refused = WireError("more tensors than a plan may have");
    assert_eq!(Setup::decode(body), Err(refused));
}

#[test]
fn no_bytes_make_a_decoder_panic_or_pass_its_bounds() {
    let mut buf = MessageBuf::default();
    let mut seeds = vec![
        buf.launch(1, 2, Tag::default(), [3, 4].into_iter())
            .to_vec(),
        buf.response(1, 0, [1; 4], [3].into_iter()).to_vec(),
        buf.release(5).to_vec(),
    ];
    let shape = Shape::new(&[64, 7168]).unwrap();
    let push = PushSpec {
        key: 3,
        tensor: TensorSpec::new(DType::BF16, &shape),
    };
    let define = Setup::Define(Define {
        plan: 4,
        push: vec![push; 3],
        pull: Vec::new(),
    });
    seeds.push(buf.setup(&define).unwrap().to_vec());
    // A multiplicative generator: the same bytes in every run.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(state >> 33).unwrap() % below.max(1)
    };
    let mut decoded = 0;
    for round in 0..200_000 {
        let mut bytes = seeds[round % seeds.len()].clone();
        for _ in 0..=random(3) {
            match random(3) {
                0 => bytes.truncate(random(bytes.len() + 1)),
                1 => bytes.extend(std::iter::repeat_n(0xff, random(40))),
                _ => {}
            }
            let at = random(bytes.len());
            if let Some(byte) = bytes.get_mut(at) {
                *byte = u8::try_from(random(256)).unwrap();
            }
        }
        match Message::decode(&bytes) {
            Ok(Message::Launch(launch)) => {
                assert!(launch.rows.len() <= TENSORS_MAX);
                decoded += 1;
            }
            Ok(Message::Setup(body)) => {
                if let Ok(Setup::Define(define)) = Setup::decode(body) {
                    assert!(define.push.len() <= TENSORS_MAX && define.pull.len() <= TENSORS_MAX);
                    for spec in &define.push {
                        let _ = spec.tensor.checked();
                    }
                    decoded += 1;
                }
            }
            Ok(_) | Err(_) => {}
        }
    }
    assert!(
        decoded > 1000,
        "the mutations are not all refused: {decoded}"
    );
}
