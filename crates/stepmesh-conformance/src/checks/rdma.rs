//! R: memory for network adapters (`stepmesh.rdma.v1`).
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::SeekFrom;
use stepmesh_abi::Code;
use stepmesh_abi::device::{
    SM_CAP_DMABUF_DEFAULT, SM_CAP_DMABUF_PCIE, SM_CAP_FLUSH_RDMA, SM_CAP_SYNC_MEMOPS, SM_CAP_VMM,
};
use stepmesh_abi::extension::{
    SM_DMABUF_DEFAULT, SM_DMABUF_PCIE, SM_RDMA_CAPS_ASYNC_POOL, SM_RDMA_FLUSH_ALL_DEVICES,
    SM_RDMA_FLUSH_OWNER,
};
use stepmesh_abi::memory::{SM_MEMORY_DEVICE, SM_MEMORY_HOST_PINNED, SM_MEMORY_MANAGED};

use super::extension::with_extension;
use super::setting::{Setting, difference, pattern};
use crate::check::{Check, Group, Stop, Tier, Verdict, ensure, expect_code, fail, pass, skip};
use crate::context::Context;
use crate::raw::failure::Failure;
use crate::raw::memory::{Allocation, HostBuffer, Range, narrow};
use crate::raw::rdma::{Dmabuf, Ended, Rdma};

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
        group: Group::Rdma,
        proves,
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "R1",
        "export of an unaligned part",
        "descriptor, offset and length cover the range",
        unaligned,
    ),
    check(
        "R2",
        "a real dma-buf, closed on exec",
        "the descriptor is what it should be",
        descriptor,
    ),
    check(
        "R3",
        "dmabuf_close leaks nothing",
        "10 000 exports leave no descriptor",
        no_leak,
    ),
    check(
        "R4",
        "a descriptor outlives free",
        "it can be held and closed, and memory of others is whole",
        outlives,
    ),
    check(
        "R5",
        "mappings are refused honestly",
        "a mapping works if its bit is set and is refused if not, and unknown ones are",
        mappings,
    ),
    check(
        "R6",
        "export of other kinds of memory",
        "they are exported or refused as rdma_caps says, which agrees with the bits",
        kinds,
    ),
    check(
        "R7",
        "a loopback write is seen",
        "a network adapter's write is there after a flush",
        loopback,
    ),
    check(
        "R8",
        "scopes and addresses are checked",
        "unknown flush scopes are refused, and so is sync_memops of unknown memory",
        scopes,
    ),
    check(
        "R9",
        "invalidation comes before reuse",
        "a cache of registrations is told in time of each allocation that ends",
        invalidation,
    ),
    check(
        "R10",
        "ranges of several segments",
        "covered whole or refused, never short",
        segments,
    ),
];

fn extension(setting: &Setting) -> Result<Rdma<'_>, Stop> {
    let bits = SM_CAP_DMABUF_DEFAULT | SM_CAP_DMABUF_PCIE | SM_CAP_FLUSH_RDMA | SM_CAP_SYNC_MEMOPS;
    with_extension(
        setting,
        bits,
        "DMABUF, FLUSH_RDMA or SYNC_MEMOPS",
        Rdma::of(&setting.session),
    )
}

/// The extension and a mapping that the device makes; skipped, with what the plugin says of it, if it
/// makes none.
fn exporting(setting: &Setting) -> Result<(Rdma<'_>, u32), Stop> {
    let rdma = extension(setting)?;
    if setting.has(SM_CAP_DMABUF_DEFAULT)? {
        return Ok((rdma, SM_DMABUF_DEFAULT));
    }
    if setting.has(SM_CAP_DMABUF_PCIE)? {
        return Ok((rdma, SM_DMABUF_PCIE));
    }
    let memory = setting.alloc(narrow(LEN))?;
    let refused = rdma.export(setting.dev, memory.all(), SM_DMABUF_DEFAULT);
    let why = refusal("an export with no capability for it", refused)?;
    skip(format!("no capability DMABUF is set: {why}"))
}

/// That an export is refused as one that cannot be made, and why.
fn refusal(what: &str, result: Result<Dmabuf, Failure>) -> Result<String, Stop> {
    match result {
        Ok(_) => fail(format!("{what}: succeeded")),
        Err(failure)
            if !failure.is_absent
                && matches!(failure.code, Code::Unimplemented | Code::Unavailable) =>
        {
            Ok(failure.to_string())
        }
        Err(failure) => fail(format!(
            "{what}: {failure}, where unimplemented or unavailable is due"
        )),
    }
}

/// Exports a range, which the answer must cover.
fn export(
    rdma: Rdma<'_>,
    setting: &Setting,
    range: Range,
    mapping: u32,
) -> Result<(OwnedFd, u64), Stop> {
    let dmabuf = rdma.export(setting.dev, range, mapping)?;
    let Some(fd) = dmabuf.fd else {
        return fail("dmabuf_export gave a descriptor that is not open");
    };
    ensure!(
        dmabuf.len >= range.len_bytes,
        "{} bytes exported instead of {}",
        dmabuf.len,
        range.len_bytes
    );
    // A dma-buf tells its size to those who look for its end.
    if let Ok(size) = rustix::fs::seek(&fd, SeekFrom::End(0))
        && size > 0
    {
        let end = dmabuf.offset.checked_add(dmabuf.len);
        ensure!(
            end.is_some_and(|end| end <= size),
            "{} bytes at {} of a dma-buf of {size}",
            dmabuf.len,
            dmabuf.offset
        );
    }
    Ok((fd, dmabuf.offset))
}

fn unaligned(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let (rdma, mapping) = exporting(&setting)?;
    let memory = setting.alloc(narrow(LEN))?;
    for (at, len) in [(0, LEN), (4321, 60_001), (4095, 2), (LEN - 1, 1)] {
        let (fd, _) = export(rdma, &setting, memory.at(at, len), mapping)?;
        rdma.close(fd)?;
    }
    let beyond = Range {
        len_bytes: LEN + (64 << 20),
        ..memory.all()
    };
    let unknown = Range {
        addr: 4096,
        ..memory.all()
    };
    let nothing = Range {
        len_bytes: 0,
        ..memory.all()
    };
    for (what, range) in [
        ("beyond the end", beyond),
        ("where nothing is", unknown),
        ("of nothing", nothing),
    ] {
        let result = rdma.export(setting.dev, range, mapping);
        expect_code(&format!("export {what}"), result, Code::InvalidArgument)?;
    }
    pass()
}

fn descriptor(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let (rdma, mapping) = exporting(&setting)?;
    let memory = setting.alloc(narrow(LEN))?;
    let (fd, _) = export(rdma, &setting, memory.all(), mapping)?;
    let flags = rustix::io::fcntl_getfd(&fd).map_err(|error| Stop::Fail(error.to_string()))?;
    ensure!(
        flags.contains(rustix::io::FdFlags::CLOEXEC),
        "the descriptor is not closed on exec"
    );
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let facts = std::fs::read_to_string(path).unwrap_or_default();
    ensure!(
        facts.contains("exp_name:"),
        "the kernel does not say that the descriptor is a dma-buf: {facts:?}"
    );
    rdma.close(fd)?;
    pass()
}

fn no_leak(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let (rdma, mapping) = exporting(&setting)?;
    let memory = setting.alloc(narrow(LEN))?;
    let count = || {
        std::fs::read_dir("/proc/self/fd")
            .into_iter()
            .flatten()
            .count()
    };
    let round = || -> Result<(), Stop> {
        let (fd, _) = export(rdma, &setting, memory.all(), mapping)?;
        Ok(rdma.close(fd)?)
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
    expect_code(
        "dmabuf_close of -1",
        rdma.close_nothing(),
        Code::InvalidArgument,
    )?;
    pass()
}

fn outlives(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let (rdma, mapping) = exporting(&setting)?;
    let memory = setting.alloc_with(&pattern(narrow(LEN), 3))?;
    let (fd, _) = export(rdma, &setting, memory.all(), mapping)?;
    setting.free(memory)?;
    let others = (0..8)
        .map(|seed| setting.alloc_with(&pattern(narrow(LEN), seed)))
        .collect::<Result<Vec<_>, _>>()?;
    rdma.close(fd)?;
    for (seed, other) in (0..).zip(others) {
        if let Some(why) = difference(&setting.take(other.all())?, &pattern(narrow(LEN), seed)) {
            return fail(format!(
                "memory allocated while a descriptor was held: {why}"
            ));
        }
    }
    pass()
}

fn mappings(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let rdma = extension(&setting)?;
    let memory = setting.alloc(narrow(LEN))?;
    for (name, mapping, bit) in [
        ("PCIe", SM_DMABUF_PCIE, SM_CAP_DMABUF_PCIE),
        ("default", SM_DMABUF_DEFAULT, SM_CAP_DMABUF_DEFAULT),
    ] {
        if setting.has(bit)? {
            let (fd, _) = export(rdma, &setting, memory.all(), mapping)?;
            rdma.close(fd)?;
        } else {
            let result = rdma.export(setting.dev, memory.all(), mapping);
            refusal(&format!("the {name} mapping, whose bit is not set"), result)?;
        }
    }
    let unknown = rdma.export(setting.dev, memory.all(), 41);
    expect_code("an unknown mapping", unknown, Code::InvalidArgument)?;
    let nobody = rdma.export(setting.devices + 41, memory.all(), SM_DMABUF_DEFAULT);
    expect_code(
        "export of a device that does not exist",
        nobody,
        Code::InvalidArgument,
    )?;
    pass()
}

fn kinds(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let rdma = extension(&setting)?;
    let caps = rdma.caps(setting.dev)?;
    for (mapping, bit) in [
        (SM_DMABUF_DEFAULT, SM_CAP_DMABUF_DEFAULT),
        (SM_DMABUF_PCIE, SM_CAP_DMABUF_PCIE),
    ] {
        ensure!(
            (caps.mappings & 1 << mapping != 0) == setting.has(bit)?,
            "mappings {:#x} of rdma_caps and the capability bits do not agree",
            caps.mappings
        );
    }
    let info = setting.session.device_info(setting.dev)?;
    ensure!(
        (caps.write_ordering, caps.dmabuf_granularity)
            == (info.rdma_write_ordering, info.dmabuf_granularity),
        "rdma_caps and device_info do not agree on write ordering or granularity"
    );
    let mapping = if caps.mappings & 1 << SM_DMABUF_DEFAULT != 0 || caps.mappings == 0 {
        SM_DMABUF_DEFAULT
    } else {
        SM_DMABUF_PCIE
    };
    let judge = |what: &str, memory: Allocation, is_due: bool| -> Result<(), Stop> {
        if is_due && caps.mappings != 0 {
            let (fd, _) = export(rdma, &setting, memory.at(1, 5000), mapping)?;
            return Ok(rdma.close(fd)?);
        }
        let result = rdma.export(setting.dev, memory.at(1, 5000), mapping);
        refusal(&format!("{what}, which rdma_caps has not"), result).map(drop)
    };
    for (what, kind) in [
        ("device memory", SM_MEMORY_DEVICE),
        ("pinned memory", SM_MEMORY_HOST_PINNED),
        ("managed memory", SM_MEMORY_MANAGED),
    ] {
        match setting.session.alloc_with(setting.dev, LEN, 0, kind, 0) {
            Ok(memory) => judge(what, memory, caps.memory_kinds & 1 << kind != 0)?,
            Err(failure) if failure.code == Code::Unimplemented => {}
            Err(failure) => return Err(failure.into()),
        }
    }
    match setting
        .session
        .alloc_async(setting.dev, LEN, setting.stream)
    {
        Ok(memory) => {
            setting.sync(setting.stream)?;
            let is_due = caps.flags & SM_RDMA_CAPS_ASYNC_POOL != 0;
            judge("memory of alloc_async", memory, is_due)?;
        }
        Err(failure) if failure.is_absent || failure.code == Code::Unimplemented => {}
        Err(failure) => return Err(failure.into()),
    }
    pass()
}

fn loopback(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    extension(&setting)?;
    skip("needs a network adapter that registers dma-bufs, which this suite does not drive yet")
}

fn scopes(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let rdma = extension(&setting)?;
    let caps = rdma.caps(setting.dev)?;
    let flushes = setting.has(SM_CAP_FLUSH_RDMA)?;
    ensure!(
        flushes == (caps.flush_scopes != 0),
        "flush_scopes {:#x} of rdma_caps and the capability bit do not agree",
        caps.flush_scopes
    );
    for scope in [SM_RDMA_FLUSH_OWNER, SM_RDMA_FLUSH_ALL_DEVICES] {
        let result = rdma.flush(setting.dev, scope);
        if caps.flush_scopes & 1 << scope != 0 {
            result?;
        } else {
            let what = format!("flush scope {scope}, which rdma_caps has not");
            expect_code(&what, result, Code::Unimplemented)?;
        }
    }
    let invalid = Code::InvalidArgument;
    for scope in [0, 3, 41, u32::MAX] {
        let result = rdma.flush(setting.dev, scope);
        expect_code(&format!("flush scope {scope}"), result, invalid)?;
    }
    let nobody = rdma.flush(setting.devices + 41, SM_RDMA_FLUSH_OWNER);
    expect_code("flush of a device that does not exist", nobody, invalid)?;
    let memory = setting.alloc(narrow(LEN))?;
    let inside = rdma.set_sync_memops(memory.ptr + 1000);
    if setting.has(SM_CAP_SYNC_MEMOPS)? {
        inside?;
        let unknown = rdma.set_sync_memops(4096);
        expect_code("set_sync_memops of unknown memory", unknown, invalid)?;
        let bytes = pattern(narrow(LEN), 5);
        setting.put(memory.all(), &bytes)?;
        if let Some(why) = difference(&setting.take(memory.all())?, &bytes) {
            return fail(format!("memory with sync_memops: {why}"));
        }
    } else {
        let what = "set_sync_memops, whose bit is not set";
        expect_code(what, inside, Code::Unimplemented)?;
    }
    pass()
}

fn invalidation(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let rdma = extension(&setting)?;
    let early = setting.alloc(narrow(LEN))?;
    let ended = rdma.watch()?;
    let session = &setting.session;
    let id_of = |ptr| session.pointer_attributes(ptr).map(|facts| facts.alloc_id);
    // Memory from before, small and large, and pinned where there is any.
    let mut all = vec![early];
    for len in [1, 5000, LEN, 4 << 20] {
        all.push(setting.alloc(narrow(len))?);
    }
    all.extend(session.alloc_with(setting.dev, LEN, 0, SM_MEMORY_HOST_PINNED, 0));
    for memory in all {
        let id = id_of(memory.ptr)?;
        ensure!(
            ended.count(id) == 0,
            "the callback named memory that is live"
        );
        setting.free(memory)?;
        ensure!(
            ended.count(id) == 1,
            "free returned, and the callback was called {} times with its alloc_id",
            ended.count(id)
        );
    }
    let buffer = HostBuffer::zeroed(narrow(LEN));
    if session.host_register(&buffer, 0).is_ok() {
        let id = id_of(buffer.all().addr)?;
        session.host_unregister(&buffer)?;
        ensure!(
            ended.count(id) == 1,
            "host_unregister returned, and the callback was called {} times",
            ended.count(id)
        );
    }
    before_reuse(context, &setting, &ended)?;
    rdma.unwatch()?;
    let count = ended.len();
    setting.free(setting.alloc(narrow(LEN))?)?;
    ensure!(
        ended.len() == count,
        "the callback was called after it was taken away"
    );
    pass()
}

/// While one thread frees, another that gets the same address must find that its end was told.
fn before_reuse(context: &Context<'_>, setting: &Setting, ended: &Ended) -> Result<(), Stop> {
    let given = Mutex::new(HashMap::new());
    let is_over = AtomicBool::new(false);
    let session = &setting.session;
    let free_some = || -> Result<(), Failure> {
        for _ in 0..context.count(20_000, 2000) {
            let memory = session.alloc(setting.dev, 4096)?;
            let id = session.pointer_attributes(memory.ptr)?.alloc_id;
            let mut given = given.lock().unwrap_or_else(PoisonError::into_inner);
            given.insert(memory.ptr, id);
            drop(given);
            session.free(memory.dev, memory.ptr)?;
        }
        Ok(())
    };
    let take_over = || -> Result<(), Stop> {
        while !is_over.load(Ordering::SeqCst) {
            let memory = session.alloc(setting.dev, 4096)?;
            let given = given.lock().unwrap_or_else(PoisonError::into_inner);
            let before = given.get(&memory.ptr).copied();
            drop(given);
            if let Some(id) = before {
                ensure!(
                    ended.count(id) > 0,
                    "an address was given away before the callback named its earlier memory"
                );
            }
            setting.free(memory)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(take_over);
        let freed = free_some();
        is_over.store(true, Ordering::SeqCst);
        let found = other.join();
        freed?;
        found.unwrap_or_else(|_| fail("the thread that reuses addresses panicked"))
    })
}

fn segments(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    extension(&setting)?;
    setting.needs(SM_CAP_VMM, "VMM")?;
    skip("needs memory of several segments, and stepmesh.vmm.v1 has no table yet")
}

/// Bytes of the memory that is exported.
const LEN: u64 = 100_000;
