//! What two connected queue pairs do for each other.

use std::os::fd::AsFd as _;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stepmesh_rdma::Access;
use stepmesh_rdma::verbs::{
    CompletionQueue, Ledger, Opcode, PortState, QpOptions, QueuePair, SendList, Write,
};

use crate::support::{Device, push, wait_until};

#[test]
fn a_device_tells_what_it_can_and_the_ledger_counts_it() {
    let Some(device) = Device::present("attributes of a device") else {
        return;
    };
    let attributes = device.context().device_attributes().unwrap();
    assert!(
        attributes.port_count >= 1 && attributes.queue_depth_max >= 64,
        "{attributes:?}"
    );
    let port = device.context().port_attributes(device.port.port).unwrap();
    assert_eq!(port.state, PortState::Active, "{port:?}");
    let gids = device.context().gid_table(device.port.port);
    assert!(gids.contains(&device.port.gid), "{gids:?}");
    assert_eq!(device.context().next_async_event().unwrap(), None);
    let missing = device.context().port_attributes(200).unwrap_err();
    assert_eq!(missing.verb, "ibv_query_port");
    let now = Ledger::now();
    assert_eq!(
        (now.contexts, now.protection_domains, now.queue_pairs),
        (1, 1, 0)
    );
    assert_eq!(now.descriptors, 2, "the device and its events: {now:?}");
}

#[test]
fn writes_of_every_size_arrive_byte_exact_and_touch_nothing_else() {
    let Some(device) = Device::present("writes") else {
        return;
    };
    let (mut sender, mut receiver) = device.pair(&QpOptions::default());
    receiver.queue_pair.post_recv_empty(1, SIZES.len()).unwrap();
    for (round, len) in SIZES.into_iter().enumerate() {
        let source = device.memory(len + 64, Access::LOCAL);
        let target = device.memory(len + 64, Access::REMOTE_WRITE);
        source.fill(pattern(round));
        let imm = 0x8000_0001 + u32::try_from(round).unwrap();
        sender.write(&source.write_to(&target, (3, 17), len), Some(imm));
        let received = receiver.wait();
        assert!(received.status.is_success(), "{received:?}");
        assert_eq!(received.opcode, Opcode::ReceiveRdmaWithImmediate);
        assert_eq!(received.imm_data, Some(imm));
        assert_eq!(received.byte_len as usize, len);
        assert_eq!(received.qp_num, receiver.queue_pair.number());
        let mut expected = vec![0; len + 64];
        expected[17..17 + len].copy_from_slice(&source.read()[3..3 + len]);
        assert!(target.read() == expected, "{len} bytes arrived wrong");
        let sent = sender.wait();
        assert!(sent.status.is_success() && sent.wr_id == 7, "{sent:?}");
    }
}

#[test]
fn a_chain_is_one_post_and_one_completion_on_each_side() {
    let Some(device) = Device::present("chains") else {
        return;
    };
    let (mut sender, mut receiver) = device.pair(&QpOptions::default());
    receiver.queue_pair.post_recv_empty(1, 1).unwrap();
    let source = device.memory(4096, Access::LOCAL);
    let target = device.memory(4096, Access::REMOTE_WRITE);
    source.fill(pattern(1));
    let mut list = SendList::with_capacity(8);
    for piece in 0..8 {
        let write = Write {
            wr_id: piece as u64,
            signalled: piece == 7,
            ..source.write_to(&target, (piece * 512, piece * 512), 512)
        };
        push(&mut list, &write, (piece == 7).then_some(99));
    }
    assert_eq!(sender.queue_pair.post(&mut list).unwrap(), 8);
    assert_eq!(receiver.wait().imm_data, Some(99));
    assert!(target.read() == source.read());
    assert_eq!(sender.wait().wr_id, 7);
    sender.assert_silent();
    receiver.assert_silent();
}

#[test]
fn inline_writes_need_no_registration_and_the_source_is_free_at_once() {
    let Some(device) = Device::present("inline writes") else {
        return;
    };
    let (mut sender, mut receiver) = device.pair(&QpOptions::default());
    receiver.queue_pair.post_recv_empty(1, 1).unwrap();
    let target = device.memory(64, Access::REMOTE_WRITE);
    let message = *b"sixteen bytes ok";
    let write = Write {
        wr_id: 3,
        lkey: 0,
        local_address: message.as_ptr().expose_provenance() as u64,
        len_bytes: 16,
        rkey: target.region().rkey(),
        remote_address: target.address(8),
        signalled: true,
    };
    let mut list = SendList::with_capacity(1);
    // SAFETY: the message lives until it is posted.
    assert!(unsafe { list.push_write_imm(&write, 5, true) });
    sender.queue_pair.post(&mut list).unwrap();
    let received = receiver.wait();
    assert_eq!((received.imm_data, received.byte_len), (Some(5), 16));
    assert_eq!(target.read()[8..24], message);
    assert_eq!(sender.wait().wr_id, 3);
}

#[test]
fn a_sleeper_is_woken_by_the_channel_of_an_armed_queue() {
    let Some(device) = Device::present("completion channels") else {
        return;
    };
    let (mut sender, mut receiver) = device.pair(&QpOptions::default());
    assert_eq!(receiver.channel.drain().unwrap(), 0, "nothing is armed yet");
    receiver.queue_pair.post_recv_empty(1, 1).unwrap();
    receiver.completions.arm().unwrap();
    receiver.assert_silent();
    let source = device.memory(64, Access::LOCAL);
    let target = device.memory(64, Access::REMOTE_WRITE);
    sender.write(&source.write_to(&target, (0, 0), 64), Some(1));
    let bound = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::from_borrowed_fd(
        receiver.channel.as_fd(),
        PollFlags::IN,
    )];
    assert_eq!(poll(&mut fds, Some(&bound)).unwrap(), 1);
    assert_eq!(receiver.channel.drain().unwrap(), 1);
    assert_eq!(receiver.channel.drain().unwrap(), 0);
    assert_eq!(receiver.wait().imm_data, Some(1));
    assert_eq!(sender.wait().wr_id, 7);
}

#[test]
fn what_the_device_gives_is_at_least_what_was_asked_for() {
    let Some(device) = Device::present("capacities") else {
        return;
    };
    let queue = CompletionQueue::new(device.context(), 100, None).unwrap();
    assert!(queue.depth() >= 100);
    let options = QpOptions {
        max_send_wr: 33,
        max_recv_wr: 17,
        max_inline_len_bytes: 60,
    };
    let queue_pair = QueuePair::new(&device.domain, &queue, &queue, &options).unwrap();
    let caps = queue_pair.caps();
    assert!(caps.max_send_wr >= 33 && caps.max_recv_wr >= 17, "{caps:?}");
    assert!(caps.max_inline_len_bytes >= 60, "{caps:?}");
    // The queue stays alive as long as the queue pair needs it.
    drop(queue);
    assert_eq!(Ledger::now().completion_queues, 1);
    drop(queue_pair);
    wait_until("the end of the queue", || {
        Ledger::now().completion_queues == 0
    });
}

fn pattern(seed: usize) -> impl Iterator<Item = u8> {
    (0_usize..).map(move |index| {
        let mixed =
            (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0x85eb_ca6b);
        mixed.to_le_bytes()[3]
    })
}

const SIZES: [usize; 8] = [0, 1, 63, 1023, 4096, 4097, 65_537, 1_048_577];
