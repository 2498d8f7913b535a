//! S: streams, events and what is in order.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use stepmesh_abi::Code;
use stepmesh_abi::device::{SM_CAP_HOST_FUNC, SM_CAP_TIMING};
use stepmesh_abi::event::{
    SM_EVENT_DONE, SM_EVENT_ERROR, SM_EVENT_PENDING, SM_EVENT_TIMING, SM_WAIT_BLOCK, SM_WAIT_SPIN,
    SM_WAIT_YIELD,
};
use stepmesh_abi::memory::{SM_COPY_D2D, SM_COPY_D2H, SM_COPY_H2D};

use super::every_slot::{make_all, with_stream};
use super::extension::needs_fault_injection;
use super::setting::{GATE_MAX, LONG_NS, Setting, difference, eventually, one_of, pattern};
use crate::check::pass_noting;
use crate::check::{Check, Group, Stop, Tier, Verdict, ensure, expect_code, fail, optional, pass};
use crate::context::Context;
use crate::raw::memory::HostBuffer;
use crate::raw::session::{Event, Stream};

const fn check(
    id: &'static str,
    name: &'static str,
    proves: &'static str,
    run: fn(&Context<'_>) -> Verdict,
) -> Check {
    Check {
        id,
        name,
        tier: Tier::Required,
        group: Group::Stream,
        proves,
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "S1",
        "order within a stream",
        "work is done in the order of its submission",
        order,
    ),
    check(
        "S2",
        "order across streams",
        "a stream that waits for an event comes after the event's stream",
        across,
    ),
    check(
        "S3",
        "an event never recorded",
        "it is done, and waiting for it ends at once",
        never,
    ),
    check(
        "S4",
        "recording again",
        "the mark moves, and who waits for the earlier one is not disturbed",
        again,
    ),
    check(
        "S5",
        "waits have a bound",
        "a wait that is too short says so in time, in every way of waiting, and all stays usable",
        deadlines,
    ),
    check(
        "S6",
        "ending what is pending",
        "events and streams may go before their work",
        pending,
    ),
    Check {
        tier: Tier::Capability,
        ..check(
            "S7",
            "time between events",
            "it is that of the host's clock",
            elapsed,
        )
    },
    Check {
        tier: Tier::Capability,
        ..check(
            "S8",
            "functions of the host",
            "each runs exactly once, after the work before it",
            host_functions,
        )
    },
    check(
        "S9",
        "numbers of streams",
        "stream 0 is refused everywhere, the default streams are there",
        numbers,
    ),
    check(
        "S11",
        "an event of another device",
        "the answer is one of the ABI's, not a crash",
        foreign_event,
    ),
    check("S12", "a thousand events", "events are cheap", many_events),
    Check {
        tier: Tier::Capability,
        ..check(
            "S13",
            "work that fails",
            "who waits for it, on the stream or by an event, is told; later work is done again",
            failing_work,
        )
    },
];

fn order(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let on = setting.stream;
    let len = 40_000;
    // The last of many writes to one place wins.
    let place = setting.alloc(len)?;
    let sources: Vec<_> = (0..32)
        .map(|seed| HostBuffer::new(&pattern(len, seed)))
        .collect();
    for source in &sources {
        setting
            .session
            .memcpy_async(place.all(), source.all(), SM_COPY_H2D, on)?;
    }
    // A chain carries it on.
    let mut last = place;
    for _ in 0..16 {
        let next = setting.alloc(len)?;
        setting.copy(next.all(), last.all(), on)?;
        last = next;
    }
    let out = HostBuffer::zeroed(len);
    setting
        .session
        .memcpy_async(out.all(), last.all(), SM_COPY_D2H, on)?;
    // Later work on the sources must not be seen.
    setting.copy(place.all(), last.all(), on)?;
    setting.sync(on)?;
    ensure!(
        setting.session.stream_query(on)?,
        "stream_query says that work is left after stream_sync"
    );
    match difference(&out.bytes(), &pattern(len, 31)) {
        Some(why) => fail(format!("after 32 writes and 16 copies in a row: {why}")),
        None => pass(),
    }
}

fn across(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    let (first, second) = (setting.stream, session.stream_create(setting.dev)?);
    let len = 100_000;
    let mut was_held = true;
    for round in 0..8 {
        let source = HostBuffer::new(&pattern(len, round));
        let (middle, end) = (setting.alloc(len)?, setting.alloc(len)?);
        let event = setting.event()?;
        let held = setting.hold(first)?;
        session.memcpy_async(middle.all(), source.all(), SM_COPY_H2D, first)?;
        session.event_record(event, first)?;
        session.stream_wait_event(second, event)?;
        setting.copy(end.all(), middle.all(), second)?;
        was_held &= held.is_some();
        drop(held);
        setting.sync(second)?;
        if let Some(why) = difference(&setting.take(end.all())?, &pattern(len, round)) {
            return fail(format!("the waiting stream came too early: {why}"));
        }
        session.event_destroy(event)?;
    }
    pass_noting(if was_held { "" } else { UNHELD })
}

fn never(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    let event = setting.event()?;
    let state = session.event_query(event)?;
    ensure!(
        state == SM_EVENT_DONE,
        "an event never recorded has state {state}, where SM_EVENT_DONE ({SM_EVENT_DONE}) is right"
    );
    session.event_sync(event, LONG_NS, SM_WAIT_BLOCK)?;
    session.stream_wait_event(setting.stream, event)?;
    setting.sync(setting.stream)?;
    session.event_destroy(event)?;
    session.event_destroy(Event::NULL)?;
    pass()
}

fn again(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    let streams = [
        session.stream_create(setting.dev)?,
        session.stream_create(setting.dev)?,
        session.stream_create(setting.dev)?,
    ];
    let [early, waiting, late] = streams;
    let event = setting.event()?;
    let (from, to) = (
        setting.alloc_with(&[5; 4096])?,
        setting.alloc_with(&[0; 4096])?,
    );
    let held_early = setting.hold_or_skip(early)?;
    session.event_record(event, early)?;
    session.stream_wait_event(waiting, event)?;
    setting.copy(to.all(), from.all(), waiting)?;
    let held_late = setting.hold_or_skip(late)?;
    session.event_record(event, late)?;
    let state = session.event_query(event)?;
    ensure!(
        state == SM_EVENT_PENDING,
        "recorded on a held stream, the event has state {state}"
    );
    held_early.release();
    // Only the earlier mark is due now: the waiting stream goes on, the event stays pending.
    if session.stream_sync(waiting, LONG_NS / 10).is_err() {
        return fail("a stream that waits for the earlier record waits for the later one");
    }
    let state = session.event_query(event)?;
    ensure!(
        state == SM_EVENT_PENDING,
        "the earlier record's end gave the event state {state}"
    );
    held_late.release();
    setting.sync_event(event)?;
    ensure!(
        setting.is_done(event)?,
        "the event is not done after event_sync"
    );
    ensure!(
        setting.take(to.all())? == [5; 4096],
        "the waiting stream's copy is not there"
    );
    pass()
}

fn deadlines(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    let on = session.stream_create(setting.dev)?;
    let event = setting.event()?;
    for wait in [SM_WAIT_SPIN, SM_WAIT_YIELD, SM_WAIT_BLOCK] {
        let Some(held) = setting.hold(on)? else {
            return without_holding(&setting, on, event);
        };
        session.event_record(event, on)?;
        let what = format!("event_sync in way {wait}");
        timely(&what, || session.event_sync(event, SHORT_NS, wait))?;
        timely("stream_sync", || session.stream_sync(on, SHORT_NS))?;
        let at_once = session.event_sync(event, 0, wait);
        expect_code("event_sync without time", at_once, Code::DeadlineExceeded)?;
        ensure!(
            !session.stream_query(on)?,
            "a held stream is said to be done"
        );
        held.release();
        setting.sync_event(event)?;
        ensure!(
            setting.is_done(event)?,
            "the event is not usable after a deadline"
        );
        setting.sync(on)?;
    }
    pass()
}

/// Without host functions a deadline can only be met by chance: large copies may be slow enough.
fn without_holding(setting: &Setting, on: Stream, event: Event) -> Verdict {
    let len = 32 << 20;
    let (from, to) = (setting.alloc(len)?, setting.alloc(len)?);
    for _ in 0..8 {
        setting.copy(to.all(), from.all(), on)?;
    }
    setting.session.event_record(event, on)?;
    one_of(
        "event_sync without time",
        setting.session.event_sync(event, 0, SM_WAIT_BLOCK),
        &[Code::DeadlineExceeded],
    )?;
    setting.sync_event(event)?;
    pass_noting(UNHELD)
}

/// A wait that must end in `DEADLINE_EXCEEDED`, neither early nor late.
fn timely(
    what: &str,
    wait: impl FnOnce() -> Result<(), crate::raw::failure::Failure>,
) -> Result<(), Stop> {
    let start = Instant::now();
    let result = wait();
    let took = start.elapsed();
    expect_code(what, result, Code::DeadlineExceeded)?;
    let due = Duration::from_nanos(SHORT_NS);
    ensure!(
        took + Duration::from_millis(1) >= due,
        "{what}: gave up after {took:?} of {due:?}"
    );
    ensure!(
        took <= 2 * due + SLACK,
        "{what}: took {took:?}, where {due:?} was the limit"
    );
    Ok(())
}

fn pending(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    let mut was_held = true;
    for _ in 0..16 {
        let (on, other) = (
            session.stream_create(setting.dev)?,
            session.stream_create(setting.dev)?,
        );
        let (from, to) = (
            setting.alloc_with(&[9; 65_536])?,
            setting.alloc_with(&[0; 65_536])?,
        );
        let event = setting.event()?;
        let held = setting.hold(on)?;
        was_held &= held.is_some();
        setting.copy(to.all(), from.all(), on)?;
        session.event_record(event, on)?;
        session.stream_wait_event(other, event)?;
        session.event_destroy(event)?;
        session.stream_destroy(on)?;
        drop(held);
        // The other stream's wait ends with the work of the stream that is gone.
        setting.sync(other)?;
        session.device_sync(setting.dev)?;
        ensure!(
            setting.take(to.all())? == vec![9; 65_536],
            "the work of a destroyed stream was not done"
        );
        session.stream_destroy(other)?;
        setting.free(from)?;
        setting.free(to)?;
    }
    pass_noting(if was_held { "" } else { UNHELD })
}

fn elapsed(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    setting.needs(SM_CAP_TIMING, "TIMING")?;
    let (session, on) = (&setting.session, setting.stream);
    let timed = || session.event_create(setting.dev, SM_EVENT_TIMING);
    let (start, end) = (timed()?, timed()?);
    let begun = Instant::now();
    session.event_record(start, on)?;
    if setting.hold(on)?.is_some_and(|held| {
        std::thread::sleep(Duration::from_millis(30));
        held.release();
        true
    }) {
        session.event_record(end, on)?;
        setting.sync_event(end)?;
        let at_most = begun.elapsed().as_secs_f64() * 1e3;
        let ms = optional(session.event_elapsed_ms(start, end))?;
        ensure!(
            (25.0..=at_most + 1.0).contains(&ms),
            "{ms} ms between two events, where 30 to {at_most:.1} passed"
        );
    }
    session.event_record(end, on)?;
    setting.sync_event(end)?;
    let ms = optional(session.event_elapsed_ms(start, end))?;
    ensure!(ms >= 0.0, "{ms} ms from an event to a later one");
    let plain = setting.event()?;
    session.event_record(plain, on)?;
    setting.sync_event(plain)?;
    ensure!(
        session.event_elapsed_ms(start, plain).is_err(),
        "event_elapsed works with an event made without SM_EVENT_TIMING"
    );
    pass()
}

fn host_functions(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    setting.needs(SM_CAP_HOST_FUNC, "HOST_FUNC")?;
    let (session, on) = (&setting.session, setting.stream);
    let len = 1 << 20;
    let (from, to) = (HostBuffer::new(&pattern(len, 8)), HostBuffer::zeroed(len));
    let memory = setting.alloc(len)?;
    session.memcpy_async(memory.all(), from.all(), SM_COPY_H2D, on)?;
    session.memcpy_async(to.all(), memory.all(), SM_COPY_D2H, on)?;
    let right = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&right);
    let copied = session.launch(on, move || {
        let is_there = to.bytes() == pattern(len, 8);
        seen.store(1 + u32::from(is_there), Ordering::SeqCst);
    });
    let mut calls = vec![optional(copied)?];
    let next = Arc::new(AtomicU32::new(0));
    let early = Arc::new(AtomicU32::new(0));
    for due in 0..100 {
        let (next, early) = (Arc::clone(&next), Arc::clone(&early));
        let call = session.launch(on, move || {
            let is_due = next.fetch_add(1, Ordering::SeqCst) == due;
            early.fetch_add(u32::from(!is_due), Ordering::SeqCst);
        });
        calls.push(call?);
    }
    setting.sync(on)?;
    let counts: Vec<u32> = calls
        .iter()
        .map(crate::raw::session::HostCall::count)
        .collect();
    ensure!(
        counts.iter().all(|count| *count == 1),
        "functions were called these numbers of times: {counts:?}"
    );
    let right = right.load(Ordering::SeqCst);
    ensure!(
        right == 2,
        "a function ran before the copy that was submitted before it"
    );
    let early = early.load(Ordering::SeqCst);
    ensure!(
        early == 0,
        "{early} of 100 functions ran out of their order"
    );
    // One that is left when the instance goes runs all the same.
    let held = setting.hold_or_skip(on)?;
    let left = session.launch(on, || {})?;
    held.release();
    session.close()?;
    let ran = eventually(GATE_MAX, || left.count() == 1 && held.call.count() == 1);
    ensure!(
        ran,
        "a function was called {} times when its instance closed",
        left.count()
    );
    pass()
}

fn numbers(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let dev = setting.dev;
    for (what, raw) in [("0", 0), ("\"current\"", u64::MAX)] {
        for (slot, result) in make_all(
            &setting.session,
            &with_stream(&setting, Stream { dev, raw })?,
        ) {
            let what = format!("{slot} on stream {what}");
            expect_code(&what, result, Code::InvalidArgument)?;
        }
    }
    for raw in [1, 2] {
        let on = Stream { dev, raw };
        let memory = setting.alloc_with(&[0; 100])?;
        let from = HostBuffer::new(&[6; 100]);
        let event = setting.event()?;
        let (session, all) = (&setting.session, memory.all());
        session.memcpy_async(all, from.all(), SM_COPY_H2D, on)?;
        session.event_record(event, on)?;
        session.stream_wait_event(on, event)?;
        setting.sync_event(event)?;
        setting.sync(on)?;
        ensure!(
            session.stream_query(on)?,
            "default stream {raw} is not done after a wait"
        );
        ensure!(
            setting.take(all)? == [6; 100],
            "work on default stream {raw} was lost"
        );
    }
    let created = setting.session.stream_create(dev)?;
    ensure!(
        !matches!(created.raw, 0..=2 | u64::MAX),
        "stream_create gave the number {}, which means another stream",
        created.raw
    );
    let other = Stream {
        dev,
        raw: created.raw,
    };
    setting.session.stream_destroy(other)?;
    pass()
}

fn foreign_event(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let second = setting.second_device()?;
    let session = &setting.session;
    let event = session.event_create(second, 0)?;
    let codes = [
        Code::InvalidArgument,
        Code::FailedPrecondition,
        Code::Unimplemented,
    ];
    let recorded = session.event_record(event, setting.stream);
    one_of("event_record", recorded, &codes)?;
    let waited = session.stream_wait_event(setting.stream, event);
    one_of("stream_wait_event", waited, &codes)?;
    setting.sync_event(event)?;
    session.event_destroy(event)?;
    pass()
}

fn many_events(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    let memory = setting.alloc(64)?;
    let from = HostBuffer::zeroed(64);
    let mut events = Vec::new();
    for _ in 0..1000 {
        let event = setting.event()?;
        session.memcpy_async(memory.all(), from.all(), SM_COPY_H2D, setting.stream)?;
        session.event_record(event, setting.stream)?;
        events.push(event);
    }
    for event in &events {
        setting.sync_event(*event)?;
        ensure!(
            setting.is_done(*event)?,
            "an event is not done after event_sync"
        );
    }
    for event in events {
        session.event_destroy(event)?;
    }
    pass()
}

fn failing_work(context: &Context<'_>) -> Verdict {
    let setting = needs_fault_injection(context, "copy:fail@2")?;
    let (session, on) = (&setting.session, setting.stream);
    let memory = setting.alloc_with(&[1; 4096])?;
    let (other, event) = (setting.alloc(4096)?, setting.event()?);
    // The second copy is the one that fails: when it is submitted, or when it is waited for.
    if session
        .memcpy_async(other.all(), memory.all(), SM_COPY_D2D, on)
        .is_ok()
    {
        session.event_record(event, on)?;
        let told = session.event_sync(event, LONG_NS, SM_WAIT_BLOCK);
        ensure!(
            told.is_err(),
            "event_sync succeeds after a copy that failed"
        );
        let state = session.event_query(event)?;
        ensure!(
            state == SM_EVENT_ERROR,
            "after a copy that failed the event has state {state}, where {SM_EVENT_ERROR} is right"
        );
        let told = session.stream_sync(on, LONG_NS);
        ensure!(
            told.is_err(),
            "stream_sync succeeds after a copy that failed"
        );
    }
    setting.copy(other.all(), memory.all(), on)?;
    setting.sync(on)?;
    ensure!(
        setting.take(other.all())? == [1; 4096],
        "the copy after the failed one is not there"
    );
    session.event_record(event, on)?;
    setting.sync_event(event)?;
    session.event_destroy(event)?;
    pass()
}

/// What a pass is worth when no stream could be held.
const UNHELD: &str = "without launch_host_func no stream could be held: little was seen";
/// A wait that is too short.
const SHORT_NS: u64 = 100_000_000;
/// How late a wait may be on a machine that does other things too.
const SLACK: Duration = Duration::from_secs(2);
