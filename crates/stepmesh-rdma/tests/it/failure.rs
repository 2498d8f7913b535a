//! What is refused, by whom, and that a connection can be used again afterwards.

use stepmesh_rdma::Access;
use stepmesh_rdma::verbs::{PathOptions, QpOptions, SendList, WorkStatus, Write};

use crate::support::{Device, End, push};

#[test]
fn a_wrong_key_is_refused_by_the_peer_and_the_connection_can_be_made_anew() {
    let Some(device) = Device::present("a wrong key") else {
        return;
    };
    let (mut sender, mut receiver) = device.pair(&QpOptions::default());
    receiver.queue_pair.post_recv_empty(1, 4).unwrap();
    let source = device.memory(4096, Access::LOCAL);
    let target = device.memory(4096, Access::REMOTE_WRITE);
    let good = source.write_to(&target, (0, 0), 4096);
    let rkey = good.rkey ^ 0x00ff_ff00;
    sender.write(&Write { rkey, ..good }, None);
    let failed = sender.wait();
    assert_eq!((failed.status, failed.wr_id), (WorkStatus::RemoteAccess, 7));
    assert!(target.read().iter().all(|byte| *byte == 0));
    // The first failure is told from those that follow it.
    sender.write(&good, None);
    assert!(sender.wait().status.is_flush());

    reconnect(&device, &mut sender, &mut receiver);
    receiver.queue_pair.post_recv_empty(1, 1).unwrap();
    sender.write(&good, Some(11));
    // Receives of before the reset may have been flushed.
    let received = std::iter::repeat_with(|| receiver.wait())
        .find(|completion| completion.status.is_success())
        .unwrap();
    assert_eq!(received.imm_data, Some(11));
}

#[test]
fn memory_beyond_a_region_or_without_permission_or_deregistered_is_refused() {
    let Some(device) = Device::present("ranges of regions") else {
        return;
    };
    let source = device.memory(4096, Access::LOCAL);
    let closed = device.memory(4096, Access::REMOTE_WRITE);
    let open = device.memory(4096, Access::REMOTE_WRITE);
    let private = device.memory(4096, Access::LOCAL);
    let beyond = source.write_to(&open, (0, 1), 4096);
    let forbidden = source.write_to(&private, (0, 0), 64);
    let stale = source.write_to(&closed, (0, 0), 64);
    let mut closed = closed;
    closed.region.take().unwrap().close().unwrap();
    for (write, what) in [
        (beyond, "beyond"),
        (forbidden, "forbidden"),
        (stale, "stale"),
    ] {
        let (mut sender, _receiver) = device.pair(&QpOptions::default());
        sender.write(&write, None);
        assert_eq!(sender.wait().status, WorkStatus::RemoteAccess, "{what}");
    }
    assert!(
        open.read()
            .iter()
            .chain(&private.read())
            .all(|byte| *byte == 0)
    );
}

#[test]
fn local_memory_that_is_not_registered_fails_before_anything_is_sent() {
    let Some(device) = Device::present("a wrong local key") else {
        return;
    };
    let (mut sender, _receiver) = device.pair(&QpOptions::default());
    let source = device.memory(4096, Access::LOCAL);
    let target = device.memory(4096, Access::REMOTE_WRITE);
    let good = source.write_to(&target, (0, 0), 4096);
    let lkey = good.lkey ^ 0x00ff_ff00;
    sender.write(&Write { lkey, ..good }, None);
    let failed = sender.wait().status;
    let is_local = matches!(
        failed,
        WorkStatus::LocalProtection | WorkStatus::LocalOperation | WorkStatus::LocalLength
    );
    assert!(is_local, "{failed:?}");
}

#[test]
fn a_peer_without_receives_is_given_up_after_the_retries() {
    let Some(device) = Device::present("a receiver that is not ready") else {
        return;
    };
    let (mut sender, mut receiver) = device.pair(&QpOptions::default());
    let path = PathOptions {
        rnr_retry: 1,
        min_rnr_timer: 1,
        ..device.path()
    };
    connect(&device, &mut sender, &mut receiver, &path);
    let source = device.memory(64, Access::LOCAL);
    let target = device.memory(64, Access::REMOTE_WRITE);
    sender.write(&source.write_to(&target, (0, 0), 64), Some(1));
    assert_eq!(sender.wait().status, WorkStatus::ReceiverNotReady);
}

#[test]
fn a_peer_that_went_away_is_given_up_after_the_retries() {
    let Some(device) = Device::present("a peer that went away") else {
        return;
    };
    let (mut sender, mut receiver) = device.pair(&QpOptions::default());
    let path = PathOptions {
        timeout: 10,
        retry_count: 2,
        ..device.path()
    };
    connect(&device, &mut sender, &mut receiver, &path);
    let source = device.memory(64, Access::LOCAL);
    let target = device.memory(64, Access::REMOTE_WRITE);
    drop(receiver);
    sender.write(&source.write_to(&target, (0, 0), 64), Some(1));
    assert_eq!(sender.wait().status, WorkStatus::RetriesExhausted);
}

#[test]
fn of_a_list_that_is_refused_in_the_middle_the_head_was_taken() {
    let Some(device) = Device::present("a refused list") else {
        return;
    };
    let options = QpOptions::default();
    let (mut sender, _receiver) = device.pair(&options);
    let inline_len = sender.queue_pair.caps().max_inline_len_bytes;
    let source = device.memory(65_536, Access::LOCAL);
    let target = device.memory(65_536, Access::REMOTE_WRITE);
    let mut list = SendList::with_capacity(3);
    let good = source.write_to(&target, (0, 0), 64);
    let too_long = Write {
        len_bytes: inline_len + 1,
        ..good
    };
    push(&mut list, &good, None);
    // SAFETY: the memory lives until the connection is gone.
    assert!(unsafe { list.push_write_imm(&too_long, 0, true) });
    push(&mut list, &good, None);
    let refused = sender.queue_pair.post(&mut list).unwrap_err();
    assert_eq!(refused.taken, 1, "{refused}");
    assert_eq!(refused.error.verb, "ibv_post_send");
    assert!(sender.wait().status.is_success());
    sender.assert_silent();
}

#[test]
fn a_full_queue_refuses_more_receives_and_says_how_many_it_took() {
    let Some(device) = Device::present("a full queue") else {
        return;
    };
    let (mut end, _peer) = device.pair(&QpOptions::default());
    let room = end.queue_pair.caps().max_recv_wr as usize;
    let refused = end.queue_pair.post_recv_empty(1, room + 1000).unwrap_err();
    assert!(refused.taken >= room.min(64), "{refused}");
    assert_eq!(refused.error.verb, "ibv_post_recv");
    // All that were taken come back when the queue pair is brought down.
    end.queue_pair.to_error().unwrap();
    for _ in 0..refused.taken.min(200) {
        assert!(end.wait().status.is_flush());
    }
}

#[test]
fn a_path_that_does_not_fit_the_port_is_refused_with_both_ends_in_the_message() {
    let Some(device) = Device::present("a wrong path") else {
        return;
    };
    let (mut one, two) = device.pair(&QpOptions::default());
    one.queue_pair.to_reset().unwrap();
    let path = PathOptions {
        gid_index: 250,
        ..device.path()
    };
    let error = one
        .queue_pair
        .bring_up(&two.endpoint(&device), &path)
        .unwrap_err();
    assert_eq!(error.verb, "ibv_modify_qp");
    let message = error.to_string();
    assert!(
        message.contains("to RTR") && message.contains("gid_index: 250"),
        "{message}"
    );
}

fn reconnect(device: &Device, one: &mut End, two: &mut End) {
    connect(device, one, two, &device.path());
}

fn connect(device: &Device, one: &mut End, two: &mut End, path: &PathOptions) {
    for end in [&mut *one, &mut *two] {
        end.queue_pair.to_reset().unwrap();
    }
    let (first, second) = (one.endpoint(device), two.endpoint(device));
    one.connect(&second, path);
    two.connect(&first, path);
}
