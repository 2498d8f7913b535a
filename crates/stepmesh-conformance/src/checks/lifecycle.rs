//! X: opening, ending, and what is left of it in the process.
#![forbid(unsafe_code)]

use std::time::Duration;

use stepmesh_abi::device::SM_HEALTH_LOST;
use stepmesh_abi::error::{SM_ERROR_DEVICE_LOST, SM_INTERNAL};
use stepmesh_abi::memory::SM_COPY_D2H;
use stepmesh_abi::{Code, SmOpenArgs};

use super::every_slot::{good, make_all, ordinary_life, unknown_values};
use super::extension::needs_fault_injection;
use super::memory::resident_bytes;
use super::setting::{Setting, eventually, one_of};
use crate::check::{
    Check, Group, Stop, Tier, Verdict, ensure, expect_code, fail, optional, pass, pass_noting,
};
use crate::context::Context;
use crate::process::signal_name;
use crate::raw::memory::HostBuffer;
use crate::raw::{host, system};

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
        group: Group::Lifecycle,
        proves,
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "X1",
        "open and close, often",
        "no thread, descriptor or memory is left",
        often,
    ),
    check(
        "X2",
        "close with live handles",
        "they are released, or the close is refused; nothing is used afterwards",
        live_handles,
    ),
    check(
        "X3",
        "exit without close",
        "a program may end in any way, with work under way, and does not crash",
        exits,
    ),
    check(
        "X4",
        "destroying late",
        "destructors that run when the driver is gone succeed",
        late,
    ),
    check(
        "X5",
        "quiesce",
        "it is idempotent, and afterwards only what gives back is served",
        quiesced,
    ),
    check(
        "X6",
        "the process stays as it was",
        "no signal handler, locale, rounding mode, directory or variable changes",
        untouched,
    ),
    check(
        "X7",
        "values that nobody knows",
        "they are refused; if something breaks, that instance alone is out of use",
        poisoned,
    ),
    Check {
        tier: Tier::Capability,
        ..check(
            "X8",
            "a lost device",
            "work on it fails as such and no wait hangs, but everything can be given back",
            lost,
        )
    },
];

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).into_iter().flatten().count()
}

fn often(context: &Context<'_>) -> Verdict {
    let table = context.table()?;
    let cycle = || -> Result<(), Stop> {
        let session = table.open()?;
        let stream = session.stream_create(0)?;
        let memory = session.alloc(0, 10_000)?;
        let to = HostBuffer::zeroed(64);
        session.memcpy_async(to.all(), memory.at(0, 64), SM_COPY_D2H, stream)?;
        let event = session.event_create(0, 0)?;
        session.event_record(event, stream)?;
        session.event_sync(event, super::setting::LONG_NS, 2)?;
        session.event_destroy(event)?;
        session.stream_destroy(stream)?;
        session.free(0, memory.ptr)?;
        Ok(session.close()?)
    };
    for _ in 0..10 {
        cycle()?;
    }
    let settled = || (count(TASKS), count(FILES));
    let before = settled();
    let resident = resident_bytes();
    for _ in 0..100 {
        cycle()?;
    }
    // Threads that were told to end may take a moment.
    eventually(Duration::from_secs(2), || settled() <= before);
    let after = settled();
    ensure!(
        after.0 <= before.0,
        "{} threads before, {} after 100 instances",
        before.0,
        after.0
    );
    ensure!(
        after.1 <= before.1,
        "{} descriptors before, {} after 100 instances",
        before.1,
        after.1
    );
    let grown = resident_bytes().saturating_sub(resident);
    ensure!(
        grown <= GROWTH_MAX,
        "{grown} bytes more after 100 instances"
    );
    pass()
}

fn live_handles(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let memory = setting.alloc_with(&[1; 65_536])?;
    let other = setting.alloc(65_536)?;
    let event = setting.event()?;
    setting.copy(other.all(), memory.all(), setting.stream)?;
    setting.session.event_record(event, setting.stream)?;
    let closed = setting.session.close();
    one_of(
        "close with live handles",
        closed,
        &[Code::FailedPrecondition],
    )?;
    // The next instance is an ordinary one.
    let next = Setting::new(context)?;
    ordinary_life(&next)?;
    next.session.close()?;
    pass()
}

/// Work is under way, and nothing is closed.
fn busy(context: &Context<'_>) -> Result<Setting, Stop> {
    let setting = Setting::new(context)?;
    let len = 1 << 20;
    let (from, to) = (setting.alloc(len)?, setting.alloc(len)?);
    let event = setting.event()?;
    for _ in 0..32 {
        setting.copy(to.all(), from.all(), setting.stream)?;
    }
    setting.session.event_record(event, setting.stream)?;
    Ok(setting)
}

fn exits(context: &Context<'_>) -> Verdict {
    let Some(part) = &context.part else {
        return judge_exits(context);
    };
    // The instance is leaked: exit finds it open.
    let setting = std::mem::ManuallyDrop::new(busy(context)?);
    match part.as_str() {
        "return" => pass(),
        "exit" => system::exit(0),
        "underscore-exit" => system::exit_now(0),
        "exit-in-thread" => {
            std::thread::spawn(|| system::exit(0));
            std::thread::sleep(Duration::from_secs(60));
            fail("exit in another thread did not end the process")
        }
        "sigterm" => {
            system::raise(libc::SIGTERM);
            // A plugin that caught the signal is found out by the parent.
            drop(setting.session.alias());
            pass()
        }
        other => fail(format!("no part {other}")),
    }
}

fn judge_exits(context: &Context<'_>) -> Verdict {
    use std::os::unix::process::ExitStatusExt;

    for part in ["return", "exit", "underscore-exit", "exit-in-thread"] {
        let ended = context.rerun(part, &[])?;
        if let Some(why) = ended.bad_end() {
            return fail(format!("{part}: {why}"));
        }
    }
    let ended = context.rerun("sigterm", &[])?;
    let signal = ended.status.and_then(|status| status.signal());
    if signal == Some(libc::SIGTERM) {
        return pass();
    }
    let how = match signal {
        Some(other) => signal_name(other),
        None => ended.bad_end().unwrap_or_else(|| "it went on".into()),
    };
    fail(format!(
        "a process that got SIGTERM in the middle of a copy: {how}"
    ))
}

fn late(context: &Context<'_>) -> Verdict {
    if context.part.is_none() {
        let ended = context.rerun("in-exit-handler", &[])?;
        return match ended.bad_end() {
            Some(why) => fail(format!("destroying in an exit handler: {why}")),
            None => pass(),
        };
    }
    let setting = busy(context)?;
    let memory = setting.alloc(4096)?;
    let event = setting.event()?;
    setting.sync(setting.stream)?;
    system::at_exit(move || {
        host::set_exiting(true);
        let session = &setting.session;
        let results = [
            session.event_destroy(event),
            session.free(memory.dev, memory.ptr),
            session.stream_destroy(setting.stream),
            session.close(),
        ];
        if results.iter().any(Result::is_err) {
            system::exit_now(41);
        }
    });
    pass()
}

fn quiesced(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    let memory = setting.alloc_with(&[1; 4096])?;
    let event = setting.event()?;
    session.event_record(event, setting.stream)?;
    let calls = good(&setting)?;
    optional(session.quiesce())?;
    session.quiesce()?;
    for (what, result) in make_all(session, &calls) {
        if what != "last_error" {
            let what = format!("{what} after quiesce");
            expect_code(&what, result, Code::FailedPrecondition)?;
        }
    }
    session.event_destroy(event)?;
    session.free(memory.dev, memory.ptr)?;
    session.stream_destroy(setting.stream)?;
    session.close()?;
    pass()
}

/// What a plugin leaves alone.
fn process_state() -> Vec<(&'static str, String)> {
    let umask = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let umask = umask
        .lines()
        .find(|line| line.starts_with("Umask"))
        .map(str::to_owned);
    let variables: Vec<_> = std::env::vars_os().collect();
    vec![
        (
            "the signal handlers",
            format!("{:?}", system::signal_actions()),
        ),
        ("the locale", system::locale()),
        ("the way of rounding", format!("{:?}", rounding())),
        ("the environment", format!("{variables:?}")),
        (
            "the directory",
            format!("{:?}", std::env::current_dir().ok()),
        ),
        ("the umask", umask.unwrap_or_default()),
    ]
}

/// Shows rounding up or down, and the flushing of tiny numbers to zero.
fn rounding() -> [bool; 3] {
    use std::hint::black_box;

    let (one, tiny) = (black_box(1.0_f64), black_box(f64::EPSILON / 4.0));
    let smallest = black_box(f64::MIN_POSITIVE);
    [
        one + tiny == one,
        -one - tiny == -one,
        black_box(smallest / 2.0) > 0.0,
    ]
}

fn untouched(context: &Context<'_>) -> Verdict {
    let before = process_state();
    let setting = Setting::new(context)?;
    ordinary_life(&setting)?;
    let during = process_state();
    setting.session.close()?;
    let after = process_state();
    for (what, state) in [("while it is open", during), ("after close", after)] {
        let changed = before
            .iter()
            .zip(&state)
            .find(|(before, now)| before != now);
        if let Some(((name, _), _)) = changed {
            return fail(format!("{name} changed {what}"));
        }
    }
    pass()
}

fn poisoned(context: &Context<'_>) -> Verdict {
    let table = context.table()?;
    let setting = Setting::new(context)?;
    let unknown = SmOpenArgs {
        flags: 1 << 63,
        ..SmOpenArgs::new()
    };
    let opened = table.open_with(&unknown);
    expect_code(
        "open with unknown flags",
        opened.map(drop),
        Code::InvalidArgument,
    )?;
    for (what, result) in make_all(&setting.session, &unknown_values(&setting)?) {
        match result {
            Err(failure) if failure.code == Code::InvalidArgument => {}
            Err(failure) if failure.code.raw() == SM_INTERNAL => {
                return judge_poison(context, &setting, what);
            }
            Err(failure) => return fail(format!("{what}: {failure}")),
            Ok(()) => return fail(format!("{what} succeeded")),
        }
    }
    pass_noting("nothing broke, so no instance was out of use")
}

/// Something broke inside the plugin: that is told once, and from then on this instance is out of
/// use, and only this one.
fn judge_poison(context: &Context<'_>, setting: &Setting, what: &str) -> Verdict {
    let next = setting.session.device_count();
    let next = expect_code("a call after `internal`", next, Code::FailedPrecondition)?;
    let other = Setting::new(context)?;
    ordinary_life(&other)?;
    fail(format!(
        "{what}: internal; the instance is then refused ({}), and others work, but an argument \
         that is not known is `invalid argument`",
        next.message()
    ))
}

fn lost(context: &Context<'_>) -> Verdict {
    let setting = needs_fault_injection(context, "device:lost@100ms")?;
    let session = &setting.session;
    let memory = setting.alloc_with(&[1; 4096])?;
    let event = setting.event()?;
    session.event_record(event, setting.stream)?;
    let is_lost = || session.alloc(setting.dev, 64).is_err();
    ensure!(
        eventually(Duration::from_secs(4), is_lost),
        "4 s after the device was lost it still allocates"
    );
    let on = setting.stream;
    let all = memory.all();
    let to = HostBuffer::zeroed(4096);
    let copied = session
        .memcpy_async(to.all(), all, SM_COPY_D2H, on)
        .and_then(|()| session.stream_sync(on, super::setting::LONG_NS));
    for (what, result) in [
        ("alloc", session.alloc(setting.dev, 64).map(drop)),
        ("a copy", copied),
    ] {
        let Err(failure) = result else {
            return fail(format!("{what} succeeds on a lost device"));
        };
        ensure!(
            failure.flags() & SM_ERROR_DEVICE_LOST != 0,
            "{what} on a lost device: {failure}, without SM_ERROR_DEVICE_LOST"
        );
    }
    match session.health(setting.dev) {
        Err(failure) if failure.is_absent => {}
        // The error, if any, tells the fault.
        Ok(SM_HEALTH_LOST) | Err(_) => {}
        Ok(state) => return fail(format!("a lost device has health {state}")),
    }
    session.event_destroy(event)?;
    session.free(memory.dev, memory.ptr)?;
    session.stream_destroy(on)?;
    session.close()?;
    pass()
}

/// Threads of this process.
const TASKS: &str = "/proc/self/task";
/// Descriptors of this process.
const FILES: &str = "/proc/self/fd";
/// Memory that a hundred instances may leave in caches.
const GROWTH_MAX: u64 = 8 << 20;
