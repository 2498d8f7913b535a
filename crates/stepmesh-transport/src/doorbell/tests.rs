//! Tests of the doorbell within one process; between processes it is tested with the fabrics.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{DESCRIPTORS_MAX, Doorbell, RemoteDoorbell, SleepMode};
use crate::error::Error;
use crate::segment;

/// Longer than any test may take: a sleep that lasts so long has missed its ring.
const LONG: Duration = Duration::from_secs(60);

const MODES: [SleepMode; 2] = [SleepMode::Futex, SleepMode::Descriptors];

fn remote(doorbell: &Doorbell) -> RemoteDoorbell {
    let [memfd, eventfd] = doorbell
        .descriptors()
        .map(|fd| fd.try_clone_to_owned().unwrap());
    RemoteDoorbell::from_descriptors(memfd, eventfd).unwrap()
}

/// What the eventfd holds; reading takes it.
fn pending_rings(doorbell: &Doorbell) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(&doorbell.inner.eventfd, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(error) => {
            assert_eq!(error, rustix::io::Errno::AGAIN);
            0
        }
    }
}

#[test]
fn a_ring_after_the_announcement_is_not_lost() {
    for mode in MODES {
        let doorbell = Doorbell::new().unwrap();
        let ticket = doorbell.prepare(mode);
        doorbell.ring();
        let started = Instant::now();
        ticket.sleep(&[], LONG).unwrap();
        assert!(started.elapsed() < LONG, "{mode:?}");
    }
}

#[test]
fn a_ring_without_a_sleeper_changes_nothing() {
    let doorbell = Doorbell::new().unwrap();
    doorbell.ring();
    remote(&doorbell).ring();
    let inner = &doorbell.inner;
    assert_eq!(inner.page.sequence().load(Ordering::SeqCst), 0);
    assert_eq!(pending_rings(&doorbell), 0);
}

#[test]
fn a_dropped_ticket_withdraws() {
    let doorbell = Doorbell::new().unwrap();
    for mode in MODES {
        drop(doorbell.prepare(mode));
        let sleepers = &doorbell.inner.sleepers;
        assert_eq!(sleepers.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn one_ring_wakes_every_sleeper() {
    let doorbell = Doorbell::new().unwrap();
    let peer = remote(&doorbell);
    let woken = AtomicU32::new(0);
    thread::scope(|scope| {
        for idx in 0..6 {
            let (doorbell, woken) = (&doorbell, &woken);
            scope.spawn(move || {
                doorbell.prepare(MODES[idx % 2]).sleep(&[], LONG).unwrap();
                woken.fetch_add(1, Ordering::SeqCst);
            });
        }
        let all = 3 | 3 << 32;
        while doorbell.inner.sleepers.load(Ordering::SeqCst) != all {
            thread::yield_now();
        }
        peer.ring();
    });
    assert_eq!(woken.load(Ordering::SeqCst), 6);
    // And the eventfd is empty again: nobody is woken by an old ring.
    assert_eq!(pending_rings(&doorbell), 0);
}

#[test]
fn no_handoff_between_two_threads_is_lost() {
    let (ping, pong) = (Doorbell::new().unwrap(), Doorbell::new().unwrap());
    let turn = AtomicU32::new(0);
    let wait_for = |doorbell: &Doorbell, mode, value| {
        while turn.load(Ordering::Acquire) != value {
            let ticket = doorbell.prepare(mode);
            if turn.load(Ordering::Acquire) != value {
                let started = Instant::now();
                ticket.sleep(&[], LONG).unwrap();
                assert!(started.elapsed() < LONG, "a ring was lost");
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..1000 {
                wait_for(&ping, MODES[round as usize % 2], 2 * round + 1);
                turn.store(2 * round + 2, Ordering::Release);
                remote(&pong).ring();
            }
        });
        for round in 0..1000 {
            turn.store(2 * round + 1, Ordering::Release);
            ping.ring();
            wait_for(&pong, MODES[round as usize % 2], 2 * round + 2);
        }
    });
    assert_eq!(turn.load(Ordering::Acquire), 2000);
}

#[test]
fn a_readable_descriptor_wakes() {
    let doorbell = Doorbell::new().unwrap();
    let (reader, mut writer) = UnixStream::pair().unwrap();
    writer.write_all(b"x").unwrap();
    let started = Instant::now();
    let ticket = doorbell.prepare(SleepMode::Descriptors);
    ticket.sleep(&[reader.as_fd()], LONG).unwrap();
    assert!(started.elapsed() < LONG);
}

#[test]
fn too_many_descriptors_are_an_error() {
    let doorbell = Doorbell::new().unwrap();
    let (reader, _writer) = UnixStream::pair().unwrap();
    let many = vec![reader.as_fd(); DESCRIPTORS_MAX + 1];
    let ticket = doorbell.prepare(SleepMode::Descriptors);
    let slept = ticket.sleep(&many, Duration::ZERO);
    assert!(matches!(slept, Err(Error::Doorbell { .. })));
    assert_eq!(doorbell.inner.sleepers.load(Ordering::SeqCst), 0);
}

#[test]
fn a_harmful_doorbell_is_refused() {
    let honest = Doorbell::new().unwrap();
    let [memfd, eventfd] = honest
        .descriptors()
        .map(|fd| fd.try_clone_to_owned().unwrap());
    let unsealed: OwnedFd = tempfile::tempfile().unwrap().into();
    rustix::fs::ftruncate(&unsealed, segment::PAGE_LEN_BYTES).unwrap();
    let large = segment::create("test", None, 2 * segment::PAGE_LEN_BYTES).unwrap();
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    let blocking = rustix::event::eventfd(0, flags).unwrap();
    let (socket, _other) = UnixStream::pair().unwrap();
    let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
    for (name, memfd, eventfd) in [
        ("unsealed page", unsealed, copy(&eventfd)),
        ("large page", large, copy(&eventfd)),
        ("blocking eventfd", copy(&memfd), blocking),
        ("socket for an eventfd", copy(&memfd), socket.into()),
    ] {
        assert!(
            RemoteDoorbell::from_descriptors(memfd, eventfd).is_err(),
            "{name}"
        );
    }
}

#[test]
fn a_scribbled_page_does_no_harm() {
    let doorbell = Doorbell::new().unwrap();
    doorbell
        .inner
        .page
        .sleepers()
        .store(u64::MAX, Ordering::SeqCst);
    doorbell.ring();
    for mode in MODES {
        doorbell
            .prepare(mode)
            .sleep(&[], Duration::from_millis(1))
            .unwrap();
        doorbell.ring();
    }
    // A ring takes away whatever was announced.
    let announced = doorbell.inner.page.sleepers();
    assert_eq!(announced.load(Ordering::SeqCst), 0);
    assert_eq!(doorbell.inner.sleepers.load(Ordering::SeqCst), 0);
}
