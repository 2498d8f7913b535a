//! ME: events as a number in memory (`stepmesh.memevent.v1`).
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use stepmesh_abi::Code;
use stepmesh_abi::device::SM_CAP_MEMEVENT;
use stepmesh_abi::event::{SM_EVENT_DONE, SM_EVENT_PENDING};
use stepmesh_abi::memory::SM_COPY_D2H;

use super::extension::{needs_fault_injection, with_extension};
use super::setting::{Setting, eventually};
use crate::check::{Check, Group, Stop, Tier, Verdict, ensure, expect_code, fail, pass};
use crate::context::Context;
use crate::raw::extensions::{MemEvent, MemEvents, Word};
use crate::raw::memory::HostBuffer;
use crate::raw::session::Stream;

const fn check(
    id: &'static str,
    name: &'static str,
    proves: &'static str,
    run: fn(&Context<'_>) -> Verdict,
) -> Check {
    Check {
        id,
        name,
        tier: Tier::Capability,
        group: Group::MemEvent,
        proves,
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "ME1",
        "numbers only grow",
        "the word has an armed number once the work before it is done, and not before",
        grows,
    ),
    check(
        "ME2",
        "no wake is lost",
        "a million arms are all seen, and so is the work before each",
        none_lost,
    ),
    check(
        "ME3",
        "a fault ends the wait",
        "a host that polls learns of a lost device",
        fault,
    ),
];

fn extension(setting: &Setting) -> Result<MemEvents<'_>, Stop> {
    with_extension(
        setting,
        SM_CAP_MEMEVENT,
        "MEMEVENT",
        MemEvents::of(&setting.session),
    )
}

/// A mem-event and its word.
fn make(events: MemEvents<'_>, dev: u32) -> Result<(MemEvent, Word), Stop> {
    let event = events.create(dev)?;
    ensure!(
        event != MemEvent::NULL,
        "create succeeded with a null event"
    );
    let (first, again) = (events.word(event)?, events.word(event)?);
    let (Some(word), Some(again)) = (first, again) else {
        return fail("poll_addr gave an address that is null or not aligned");
    };
    ensure!(
        word.address() == again.address(),
        "the word of a mem-event has moved"
    );
    ensure!(
        word.load() == 0,
        "a new mem-event's word is {}",
        word.load()
    );
    Ok((event, word))
}

fn grows(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let events = extension(&setting)?;
    let (event, word) = make(events, setting.dev)?;
    let on = setting.stream;
    let held = setting.hold_or_skip(on)?;
    events.arm(event, on, 1)?;
    ensure!(
        word.load() == 0,
        "the word is {} while its stream is held",
        word.load()
    );
    let state = events.query(event)?;
    ensure!(
        state == SM_EVENT_PENDING,
        "armed on a held stream, it has state {state}"
    );
    let again = events.arm(event, on, 1);
    expect_code(
        "arm with the same number again",
        again,
        Code::InvalidArgument,
    )?;
    events.arm(event, on, 5)?;
    let less = events.arm(event, on, 4);
    expect_code("arm with a smaller number", less, Code::InvalidArgument)?;
    held.release();
    reaches(word, 5)?;
    let state = events.query(event)?;
    ensure!(
        state == SM_EVENT_DONE,
        "at its number, it has state {state}"
    );
    let mut last = 5;
    for seq in 6..1000 {
        events.arm(event, on, seq)?;
        let seen = word.load();
        ensure!(
            last <= seen && seen <= seq,
            "the word is {seen} after {last}, armed to {seq}"
        );
        last = seen;
    }
    reaches(word, 999)?;
    let no_stream = Stream {
        dev: setting.dev,
        raw: 0,
    };
    let refused = events.arm(event, no_stream, 2000);
    expect_code("arm on stream 0", refused, Code::InvalidArgument)?;
    let no_device = events.create(setting.devices + 41).map(drop);
    expect_code(
        "create for a device that does not exist",
        no_device,
        Code::InvalidArgument,
    )?;
    // It may go while it is armed.
    let held = setting.hold_or_skip(on)?;
    events.arm(event, on, 3000)?;
    events.destroy(event)?;
    held.release();
    setting.sync(on)?;
    events.destroy(MemEvent::NULL)?;
    pass()
}

fn reaches(word: Word, seq: u64) -> Result<(), Stop> {
    let is_there = eventually(Duration::from_secs(10), || word.load() >= seq);
    ensure!(
        is_there,
        "the word is {} 10 s after {seq} was due",
        word.load()
    );
    Ok(())
}

fn none_lost(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let events = extension(&setting)?;
    let (event, word) = make(events, setting.dev)?;
    let (session, on) = (&setting.session, setting.stream);
    let sources = [setting.alloc_with(&[1; 64])?, setting.alloc_with(&[2; 64])?];
    let to = HostBuffer::zeroed(64);
    let rounds = u64::from(context.count(1_000_000, 10_000));
    // A full queue would only measure how long it is.
    let burst = 100;
    let mut seq = 0;
    while seq < rounds {
        for _ in 0..burst {
            seq += 1;
            events.arm(event, on, seq)?;
        }
        let source = if seq / burst % 2 == 0 { 0 } else { 1 };
        session.memcpy_async(to.all(), sources[source].all(), SM_COPY_D2H, on)?;
        seq += 1;
        events.arm(event, on, seq)?;
        spin(word, seq)?;
        let due = if source == 0 { 1 } else { 2 };
        ensure!(
            to.bytes() == [due; 64],
            "at {seq} the word was there, but not the copy before it"
        );
    }
    events.destroy(event)?;
    pass()
}

/// Waits as a host does: with loads, and a look at the clock now and then.
fn spin(word: Word, seq: u64) -> Result<(), Stop> {
    let start = Instant::now();
    loop {
        for _ in 0..1000 {
            if word.load() >= seq {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        std::thread::yield_now();
        if start.elapsed() > Duration::from_secs(10) {
            return fail(format!(
                "the word stays at {}, where {seq} is due",
                word.load()
            ));
        }
    }
}

fn fault(context: &Context<'_>) -> Verdict {
    let setting = needs_fault_injection(context, "device:lost@200ms")?;
    let events = extension(&setting)?;
    let (event, word) = make(events, setting.dev)?;
    let held = setting.hold_or_skip(setting.stream)?;
    events.arm(event, setting.stream, 1)?;
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        ensure!(
            word.load() == 0,
            "the word has its number although its stream is held"
        );
        if events.query(event).is_err() {
            held.release();
            return pass();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    fail("4 s after the device was lost, query still says nothing of it")
}
