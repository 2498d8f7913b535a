//! I: memory shared between processes (`stepmesh.ipc.v1`).
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use stepmesh_abi::device::SM_CAP_IPC;
use stepmesh_abi::extension::{SM_IPC_FD, SM_IPC_OPAQUE};
use stepmesh_abi::memory::{
    SM_ALLOC_SHAREABLE, SM_MEMORY_DEVICE, SM_MEMORY_HOST_PINNED, SM_PTR_HOST_ACCESSIBLE,
};
use stepmesh_abi::{Code, SmIpcHandle};

use super::extension::with_extension;
use super::setting::{Setting, difference, pattern};
use crate::check::{Check, Group, Stop, Tier, Verdict, ensure, expect_code, fail, pass};
use crate::context::Context;
use crate::raw::extensions::Ipc;
use crate::raw::memory::{Allocation, Range, narrow};
use crate::raw::system::owned_fd;

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
        group: Group::Ipc,
        proves,
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "I1",
        "another process reads and writes",
        "an exported part is the same memory, to the byte, in both processes",
        there_and_back,
    ),
    check(
        "I2",
        "the descriptor",
        "it is closed on exec, the caller's own, and covers the range",
        descriptor,
    ),
    check(
        "I3",
        "exports and imports leak nothing",
        "descriptors are as before",
        no_leak,
    ),
    check(
        "I4",
        "a descriptor outlives free",
        "the memory stays through it, and is given to nobody else",
        outlives,
    ),
    check(
        "I5",
        "ranges that are not there",
        "they are refused, on both sides",
        bad_ranges,
    ),
];

fn extension(setting: &Setting) -> Result<Ipc<'_>, Stop> {
    with_extension(setting, SM_CAP_IPC, "IPC", Ipc::of(&setting.session))
}

/// Memory that can be exported: the device's own, or pinned memory where the capability is not set.
fn shareable(setting: &Setting) -> Result<Allocation, Stop> {
    let session = &setting.session;
    let alloc = |kind| session.alloc_with(setting.dev, LEN, 0, kind, SM_ALLOC_SHAREABLE);
    let memory = match alloc(SM_MEMORY_DEVICE) {
        Err(failure) if failure.code == Code::Unimplemented && !setting.has(SM_CAP_IPC)? => {
            alloc(SM_MEMORY_HOST_PINNED)?
        }
        result => result?,
    };
    put(setting, memory.all(), &pattern(narrow(LEN), 6))?;
    Ok(memory)
}

/// Whether it is the host's by kind: copies take it for host memory, and the host itself may.
fn is_host_memory(setting: &Setting, range: Range) -> Result<bool, Stop> {
    let facts = setting.session.pointer_attributes(range.addr)?;
    Ok(facts.kind != SM_MEMORY_DEVICE && facts.flags & SM_PTR_HOST_ACCESSIBLE != 0)
}

fn put(setting: &Setting, to: Range, bytes: &[u8]) -> Result<(), Stop> {
    if is_host_memory(setting, to)? {
        to.write_as_host(bytes);
        return Ok(());
    }
    setting.put(to, bytes)
}

fn take(setting: &Setting, from: Range) -> Result<Vec<u8>, Stop> {
    if is_host_memory(setting, from)? {
        return Ok(from.read_as_host());
    }
    setting.take(from)
}

/// An exported range and its descriptor, if it has one.
fn export(
    ipc: Ipc<'_>,
    setting: &Setting,
    range: Range,
) -> Result<(SmIpcHandle, Option<OwnedFd>), Stop> {
    let handle = ipc.export(setting.dev, range)?;
    let fd = match handle.kind {
        SM_IPC_FD => match owned_fd(handle.fd) {
            Some(fd) => Some(fd),
            None => return fail(format!("the descriptor {} is not open", handle.fd)),
        },
        SM_IPC_OPAQUE => None,
        other => return fail(format!("a handle of kind {other}")),
    };
    ensure!(
        handle.len == range.len_bytes,
        "{} bytes exported instead of {}",
        handle.len,
        range.len_bytes
    );
    Ok((handle, fd))
}

fn there_and_back(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let ipc = extension(&setting)?;
    if context.part.is_some() {
        return other_process(&setting, ipc);
    }
    let memory = shareable(&setting)?;
    let part = memory.at(4321, 60_001);
    let (handle, fd) = export(ipc, &setting, part)?;
    let bytes: String = handle
        .bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let file = fd
        .as_ref()
        .map(|fd| format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd()));
    let env = [
        (ENV_FILE, file.unwrap_or_default()),
        (
            ENV_NUMBERS,
            format!("{} {} {}", handle.offset, handle.len, handle.flags),
        ),
        (ENV_BYTES, bytes),
    ];
    let env: Vec<_> = env
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    context.rerun_well("other-process", &env)?;
    let mut due = pattern(narrow(LEN), 6);
    due[4321..4321 + 60_001].copy_from_slice(&pattern(60_001, 7));
    match difference(&take(&setting, memory.all())?, &due) {
        Some(why) => fail(format!("after another process wrote to it: {why}")),
        None => pass(),
    }
}

/// Reads what the first process wrote, and writes something else.
fn other_process(setting: &Setting, ipc: Ipc<'_>) -> Verdict {
    let env = |name| std::env::var(name).unwrap_or_default();
    let numbers: Vec<u64> = env(ENV_NUMBERS)
        .split(' ')
        .filter_map(|number| number.parse().ok())
        .collect();
    let [offset, len, flags] = numbers[..] else {
        return fail("the other process was told nothing");
    };
    let mut handle = SmIpcHandle::new();
    handle.offset = offset;
    handle.len = len;
    handle.flags = u32::try_from(flags).unwrap_or(0);
    let path = env(ENV_FILE);
    let open = || File::options().read(true).write(true).open(&path);
    let file = match path.is_empty() {
        true => None,
        false => Some(open().map_err(|error| Stop::Fail(format!("{path}: {error}")))?),
    };
    handle.kind = if file.is_some() {
        SM_IPC_FD
    } else {
        SM_IPC_OPAQUE
    };
    handle.fd = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    let bytes = env(ENV_BYTES);
    for (to, at) in handle.bytes.iter_mut().zip((0..).step_by(2)) {
        *to = bytes
            .get(at..at + 2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .unwrap_or(0);
    }
    let memory = ipc.import(setting.dev, &handle)?;
    let due = &pattern(narrow(LEN), 6)[4321..4321 + 60_001];
    if let Some(why) = difference(&take(setting, memory.all())?, due) {
        return fail(format!("in another process: {why}"));
    }
    put(setting, memory.all(), &pattern(60_001, 7))?;
    ipc.close_import(setting.dev, memory.ptr)?;
    pass()
}

fn descriptor(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let ipc = extension(&setting)?;
    let memory = shareable(&setting)?;
    let (handle, fd) = export(ipc, &setting, memory.at(100, 5000))?;
    let Some(fd) = fd else {
        return pass();
    };
    let (_, again) = export(ipc, &setting, memory.at(100, 5000))?;
    ensure!(
        again.is_some_and(|again| again.as_raw_fd() != fd.as_raw_fd()),
        "two exports gave the same descriptor"
    );
    let flags = rustix::io::fcntl_getfd(&fd).map_err(|error| Stop::Fail(error.to_string()))?;
    ensure!(
        flags.contains(rustix::io::FdFlags::CLOEXEC),
        "the descriptor is not closed on exec"
    );
    let len = File::from(fd)
        .metadata()
        .map_or(0, |metadata| metadata.len());
    // A dma-buf has no length that stat tells.
    ensure!(
        len == 0 || handle.offset + handle.len <= len,
        "{} bytes at {} of a file of {len}",
        handle.len,
        handle.offset
    );
    pass()
}

fn no_leak(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let ipc = extension(&setting)?;
    let memory = shareable(&setting)?;
    let count = || {
        std::fs::read_dir("/proc/self/fd")
            .into_iter()
            .flatten()
            .count()
    };
    let round = || -> Result<(), Stop> {
        let (_, fd) = export(ipc, &setting, memory.all())?;
        drop(fd);
        Ok(())
    };
    round()?;
    let before = count();
    for _ in 0..context.count(10_000, 1000) {
        round()?;
    }
    let after = count();
    ensure!(
        after <= before,
        "{before} descriptors before, {after} after"
    );
    ipc.close_import(setting.dev, 0)?;
    pass()
}

fn outlives(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let ipc = extension(&setting)?;
    let memory = shareable(&setting)?;
    let (mut handle, fd) = export(ipc, &setting, memory.all())?;
    let Some(fd) = fd else {
        return pass();
    };
    setting.free(memory)?;
    // Whoever gets memory now gets other memory.
    for _ in 0..8 {
        let other = shareable(&setting)?;
        put(&setting, other.all(), &vec![0xdd; narrow(LEN)])?;
    }
    handle.fd = fd.as_raw_fd();
    let imported = ipc.import(setting.dev, &handle)?;
    let found = take(&setting, imported.all())?;
    ipc.close_import(setting.dev, imported.ptr)?;
    match difference(&found, &pattern(narrow(LEN), 6)) {
        Some(why) => fail(format!(
            "memory that was freed, through its descriptor: {why}"
        )),
        None => pass(),
    }
}

fn bad_ranges(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let ipc = extension(&setting)?;
    let memory = shareable(&setting)?;
    let beyond = Range {
        len_bytes: LEN + (64 << 20),
        ..memory.all()
    };
    let unknown = Range {
        addr: 4096,
        ..memory.all()
    };
    for (what, range) in [("beyond the end", beyond), ("where nothing is", unknown)] {
        let result = ipc.export(setting.dev, range);
        expect_code(&format!("export {what}"), result, Code::InvalidArgument)?;
    }
    let nobody = ipc.export(setting.devices + 41, memory.all());
    expect_code(
        "export of a device that does not exist",
        nobody,
        Code::InvalidArgument,
    )?;
    let (mut handle, fd) = export(ipc, &setting, memory.all())?;
    let Some(fd) = fd else {
        return pass();
    };
    handle.fd = fd.as_raw_fd();
    handle.len = 1 << 40;
    let result = ipc.import(setting.dev, &handle);
    ensure!(
        result.is_err(),
        "an import of more than the file has succeeded"
    );
    pass()
}

/// Bytes of the memory that is shared.
const LEN: u64 = 100_000;
/// How the other process is told of the handle.
const ENV_FILE: &str = "CONFORMANCE_IPC_FILE";
const ENV_NUMBERS: &str = "CONFORMANCE_IPC_NUMBERS";
const ENV_BYTES: &str = "CONFORMANCE_IPC_BYTES";
