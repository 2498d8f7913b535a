//! E: how a plugin says that something failed.
#![forbid(unsafe_code)]

use stepmesh_abi::Code;
use stepmesh_abi::error::{
    SM_ERROR_FIXED_LEN, SM_ERROR_OOM, SM_ERROR_STICKY, SM_ERROR_TRUNCATED, SM_OK,
};
use stepmesh_abi::host::{SM_LOG_TRACE, SM_LOG_WARN};

use super::every_slot::{good, make_all, ordinary_life, unknown_values, with_device};
use super::setting::Setting;
use crate::check::{
    Check, Group, Stop, Tier, Verdict, ensure, expect_code, optional, pass, pass_noting,
};
use crate::context::Context;
use crate::raw::error_arg::ErrorMode;
use crate::raw::memory::narrow;
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
        group: Group::Errors,
        proves,
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "E1",
        "a device that does not exist",
        "every slot refuses it as an invalid argument, in words that name it",
        bad_device,
    ),
    check(
        "E2",
        "no error wanted",
        "every slot takes a null error",
        null_error,
    ),
    check(
        "E3",
        "a smaller error",
        "no slot writes beyond the struct_size that the caller gave",
        small_error,
    ),
    check(
        "E4",
        "whole and cut messages",
        "code, flags and message agree; a cut is at a character and is told",
        messages,
    ),
    check(
        "E5",
        "out of memory",
        "it is told as such, and the next allocation works",
        out_of_memory,
    ),
    check(
        "E6",
        "the vendor's number",
        "native_code is written with every failure",
        native_code,
    ),
    check(
        "E7",
        "silence",
        "nothing is printed; what there is to say goes to the host",
        silence,
    ),
    check(
        "E8",
        "the level of the log",
        "nothing is logged that the host does not want",
        log_level,
    ),
    check(
        "E9",
        "the last error of a thread",
        "threads do not see each other's errors",
        last_error,
    ),
];

fn bad_device(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let dev = setting.devices + 41;
    for (what, result) in make_all(&setting.session, &with_device(dev)) {
        let what = format!("{what} of device {dev}");
        let failure = expect_code(&what, result, Code::InvalidArgument)?;
        let names = [dev.to_string(), format!("{dev:#x}")];
        ensure!(
            names.iter().any(|name| failure.message().contains(name)),
            "{what}: the message does not name the device: {:?}",
            failure.message()
        );
    }
    pass()
}

fn null_error(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let (good, unknown) = (good(&setting)?, unknown_values(&setting)?);
    setting.session.set_error_mode(ErrorMode::Null);
    for (what, result) in make_all(&setting.session, &good) {
        result.map_err(|failure| Stop::Fail(format!("{what}: {failure}")))?;
    }
    for (what, result) in make_all(&setting.session, &with_device(setting.devices + 41)) {
        expect_code(what, result, Code::InvalidArgument)?;
    }
    for (what, result) in make_all(&setting.session, &unknown) {
        ensure!(result.is_err(), "{what} succeeded");
    }
    pass()
}

fn small_error(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let mut calls = with_device(setting.devices + 41);
    calls.extend(unknown_values(&setting)?);
    for size in ERROR_SIZES {
        setting.session.set_error_mode(ErrorMode::Sized(size));
        for (what, result) in make_all(&setting.session, &calls) {
            ensure!(result.is_err(), "{what} succeeded");
        }
    }
    pass()
}

fn messages(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let mut calls = with_device(setting.devices + 41);
    calls.extend(unknown_values(&setting)?);
    let whole = make_all(&setting.session, &calls);
    setting.session.set_error_mode(ErrorMode::Sized(SMALL));
    let cut = make_all(&setting.session, &calls);
    if let Some(fault) = setting.session.faults().first() {
        return Err(Stop::Fail(fault.clone()));
    }
    let cap = narrow(SMALL.into()) - SM_ERROR_FIXED_LEN;
    for ((what, whole), (_, cut)) in whole.into_iter().zip(cut) {
        let (Err(whole), Err(cut)) = (whole, cut) else {
            return Err(Stop::Fail(format!("{what} succeeded")));
        };
        let (long, short) = (whole.message(), cut.message());
        ensure!(
            whole.code == cut.code,
            "{what}: {} and then {}",
            whole.code,
            cut.code
        );
        ensure!(
            short.len() <= cap,
            "{what}: {} bytes of message in a struct with room for {cap}",
            short.len()
        );
        if long.len() > cap {
            ensure!(
                cut.flags() & SM_ERROR_TRUNCATED != 0,
                "{what}: the message was cut, but SM_ERROR_TRUNCATED is not set"
            );
        }
    }
    pass()
}

fn out_of_memory(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let result = setting.session.alloc(setting.dev, 1 << 62);
    let failure = expect_code("alloc of 2^62 bytes", result, Code::ResourceExhausted)?;
    ensure!(
        failure.flags() & SM_ERROR_OOM != 0,
        "alloc of 2^62 bytes: SM_ERROR_OOM is not set"
    );
    ensure!(
        failure.flags() & SM_ERROR_STICKY == 0,
        "alloc of 2^62 bytes: the error is said to stay"
    );
    let memory = setting.alloc_with(&[7; 4096])?;
    ensure!(
        setting.take(memory.all())? == [7; 4096],
        "other bytes came back from the next allocation"
    );
    pass()
}

fn native_code(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let mut calls = with_device(setting.devices + 41);
    calls.extend(unknown_values(&setting)?);
    make_all(&setting.session, &calls);
    let faults = setting.session.faults();
    let numbers = faults
        .iter()
        .find(|fault| fault.contains("numbers") || fault.contains("left"));
    if let Some(fault) = numbers {
        return Err(Stop::Fail(fault.clone()));
    }
    let result = setting.session.alloc(setting.dev, 1 << 62);
    let native = result.err().and_then(|failure| failure.error);
    let native = native.map_or(0, |error| error.native_code);
    pass_noting(format!("{native} for a lack of memory"))
}

fn silence(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    ordinary_life(&setting)?;
    setting.session.close()?;
    system::flush_c_streams();
    let len = |stat: rustix::io::Result<rustix::fs::Stat>| stat.map_or(0, |stat| stat.st_size);
    let out = len(rustix::fs::fstat(rustix::stdio::stdout()));
    let err = len(rustix::fs::fstat(rustix::stdio::stderr()));
    ensure!(
        out == 0 && err == 0,
        "{out} bytes on standard output and {err} on standard error"
    );
    pass()
}

fn log_level(context: &Context<'_>) -> Verdict {
    for level in [0, SM_LOG_WARN, SM_LOG_TRACE] {
        host::set_log_level(level);
        let setting = Setting::new(context)?;
        ordinary_life(&setting)?;
        setting.session.close()?;
        let unwanted = host::unwanted_logs();
        ensure!(
            unwanted == 0,
            "{unwanted} messages of a level for which log_enabled had said no"
        );
    }
    if let Some(misuse) = host::misuse().first() {
        return Err(Stop::Fail(misuse.clone()));
    }
    if let Some(failure) = host::async_failures().first() {
        let why = format!("a failure was reported in ordinary life: {failure}");
        return Err(Stop::Fail(why));
    }
    let logged = host::logged();
    match logged.first() {
        None => pass_noting("the plugin logged nothing"),
        Some(first) => {
            let (count, level) = (logged.len(), first.level);
            pass_noting(format!(
                "{count} messages, first of level {level}: {}",
                first.message
            ))
        }
    }
}

fn last_error(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    let dev = setting.devices + 41;
    let told = expect_code("alloc", session.alloc(dev, 64), Code::InvalidArgument)?;
    let (status, error) = optional(session.last_error())?;
    ensure!(
        Code::from_raw(status) == told.code && error.code == status,
        "after `{}`, last_error returns {status} and writes {}",
        told.code,
        error.code
    );
    let text = error.message_bytes();
    ensure!(
        text[..error.message_len()] == *told.message().as_bytes(),
        "last_error has another message than the call"
    );
    let other = std::thread::scope(|scope| scope.spawn(|| session.last_error()).join());
    let Ok(Ok((other, error))) = other else {
        return Err(Stop::Fail("last_error failed in another thread".into()));
    };
    ensure!(
        other == SM_OK && error.msg_len == 0,
        "a thread that failed in nothing has the last error {other}"
    );
    pass()
}

/// Sizes of an error that a caller may give: less than its fixed part, just that, a little message,
/// most of it, and one that a newer host might have.
const ERROR_SIZES: [u32; 7] = [8, 16, 24, 32, 104, 248, 512];
/// An error with room for 16 bytes of message.
const SMALL: u32 = 40;
