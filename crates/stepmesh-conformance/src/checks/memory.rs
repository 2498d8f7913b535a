//! M: allocations, addresses and copies.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use stepmesh_abi::Code;
use stepmesh_abi::device::{SM_CAP_PEER_ACCESS, SM_CAP_PINNED_HOST, SM_CAP_UVA};
use stepmesh_abi::memory::{
    SM_ALLOC_RDMA, SM_COPY_AUTO, SM_COPY_D2D, SM_COPY_D2H, SM_COPY_H2D, SM_COPY_P2P,
    SM_MEMORY_DEVICE, SM_MEMORY_HOST_PAGEABLE, SM_MEMORY_HOST_PINNED, SM_MEMORY_HOST_REGISTERED,
    SM_MEMORY_UNKNOWN, SM_PTR_HOST_ACCESSIBLE, SM_RDMA_ALIGN_BYTES,
};

use super::setting::{Setting, difference, pattern};
use crate::check::{
    Check, Group, Stop, Tier, Verdict, ensure, expect_code, fail, optional, pass, pass_noting, skip,
};
use crate::context::Context;
use crate::raw::memory::{Allocation, HostBuffer, wide};
use crate::raw::session::Session;

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
        group: Group::Memory,
        proves,
        run,
    }
}

const fn capability(check: Check) -> Check {
    Check {
        tier: Tier::Capability,
        ..check
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "M1",
        "sizes and alignments",
        "memory is as large and as aligned as was asked",
        sizes,
    ),
    check(
        "M2",
        "what free refuses",
        "only live allocations are given back, once",
        free,
    ),
    check(
        "M3",
        "addresses inside an allocation",
        "every byte of it resolves to it, and the next one does not",
        interior,
    ),
    check(
        "M4",
        "the host's own memory",
        "it is unknown, which is no error",
        foreign,
    ),
    check(
        "M5",
        "alloc_id",
        "a number names one allocation for ever, be it that its address comes again",
        alloc_id,
    ),
    check(
        "M6",
        "copies",
        "every direction, size and misalignment is exact to the byte",
        copies,
    ),
    check(
        "M7",
        "empty copies",
        "a copy of nothing succeeds",
        empty_copies,
    ),
    capability(check(
        "M8",
        "pinned memory",
        "the host reads and writes it by its address",
        pinned,
    )),
    capability(check(
        "M9",
        "fills",
        "widths 1, 2 and 4 fill exactly what they should",
        fills,
    )),
    Check {
        tier: Tier::Stress,
        ..check(
            "M10",
            "no leak",
            "a hundred thousand allocations leave memory as it was",
            leaks,
        )
    },
    check(
        "M11",
        "free in another thread",
        "memory belongs to no thread",
        other_thread,
    ),
    capability(check(
        "M12",
        "registered memory",
        "it is registered once, known, and forgotten when it is unregistered",
        registration,
    )),
];

fn sizes(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let (session, dev) = (&setting.session, setting.dev);
    let nothing = session.alloc(dev, 0)?;
    ensure!(nothing.ptr == 0, "alloc of 0 bytes gave {:#x}", nothing.ptr);
    let mut live: Vec<Allocation> = Vec::new();
    for len in [1, 4095, 4096, 64 << 10] {
        for align in [0, 256, 4096, 64 << 10] {
            let memory = session.alloc_with(dev, len, align, SM_MEMORY_DEVICE, 0)?;
            ensure!(
                memory.ptr != 0 && memory.ptr.is_multiple_of(align.max(1)),
                "alloc of {len} bytes aligned to {align} gave {:#x}",
                memory.ptr
            );
            let end = memory.ptr + len;
            let overlaps = live
                .iter()
                .find(|own| own.ptr < end && memory.ptr < own.ptr + own.len_bytes);
            ensure!(overlaps.is_none(), "{memory:?} overlaps {overlaps:?}");
            live.push(memory);
        }
    }
    let rdma = session.alloc_with(dev, 100, 0, SM_MEMORY_DEVICE, SM_ALLOC_RDMA)?;
    ensure!(
        rdma.ptr.is_multiple_of(SM_RDMA_ALIGN_BYTES),
        "memory for a network adapter is at {:#x}, not aligned to 64 KiB",
        rdma.ptr
    );
    // Each holds its own bytes, from the first to the last.
    for (memory, seed) in live.iter().zip(0..) {
        setting.put(
            memory.all(),
            &pattern(crate::raw::memory::narrow(memory.len_bytes), seed),
        )?;
    }
    for (memory, seed) in live.iter().zip(0..) {
        let due = pattern(crate::raw::memory::narrow(memory.len_bytes), seed);
        if let Some(why) = difference(&setting.take(memory.all())?, &due) {
            return fail(format!("{memory:?}: {why}"));
        }
        setting.free(*memory)?;
    }
    large(context, &setting)
}

fn large(context: &Context<'_>, setting: &Setting) -> Verdict {
    let len = u64::from(context.count(1 << 30, 64 << 20));
    match setting.session.alloc(setting.dev, len) {
        Ok(memory) => {
            let ends = [memory.at(0, 4096), memory.at(len - 4096, 4096)];
            for end in ends {
                setting.put(end, &[0x5a; 4096])?;
                let is_same = setting.take(end)? == [0x5a; 4096];
                ensure!(is_same, "other bytes came back from {len} bytes of memory");
            }
            setting.free(memory)?;
            pass()
        }
        Err(failure) if failure.code == Code::ResourceExhausted => {
            pass_noting(format!("there is no room for {len} bytes"))
        }
        Err(failure) => Err(failure.into()),
    }
}

fn free(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let (session, dev) = (&setting.session, setting.dev);
    session.free(dev, 0)?;
    let memory = setting.alloc(10_000)?;
    let refused =
        |what: &str, ptr| expect_code(what, session.free(dev, ptr), Code::InvalidArgument);
    refused("free of the middle of an allocation", memory.ptr + 4096)?;
    refused("free of the last byte of an allocation", memory.ptr + 9999)?;
    refused("free of address 4096", 4096)?;
    let local = 0_u8;
    let stack = wide((&raw const local).expose_provenance());
    refused("free of the caller's stack", stack)?;
    setting.free(memory)?;
    refused("free of what was freed", memory.ptr)?;
    pass()
}

fn interior(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    for len in [1_u64, 100, 4096, 10_000] {
        let memory = session.alloc(setting.dev, len)?;
        let first = session.pointer_attributes(memory.ptr)?;
        ensure!(
            first.kind == SM_MEMORY_DEVICE && u32::try_from(first.device) == Ok(setting.dev),
            "memory of device {}: kind {}, device {}",
            setting.dev,
            first.kind,
            first.device
        );
        ensure!(first.alloc_id != 0, "memory of the device has no alloc_id");
        for offset in [0, 1.min(len - 1), len / 2, len - 1] {
            let facts = session.pointer_attributes(memory.ptr + offset)?;
            let is_right = facts.base == memory.ptr
                && facts.size == len
                && facts.alloc_id == first.alloc_id
                && facts.device == first.device;
            ensure!(is_right, "at +{offset} of {memory:?}: {facts:?}");
        }
        let beyond = session.pointer_attributes(memory.ptr + len)?;
        ensure!(
            beyond.alloc_id != first.alloc_id,
            "the byte after {memory:?} is said to be part of it"
        );
    }
    pass()
}

fn foreign(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let local = 0_u8;
    let buffer = HostBuffer::zeroed(100);
    let addresses = [
        ("the stack", wide((&raw const local).expose_provenance())),
        ("the heap", buffer.all().addr),
        ("address 0", 0),
        ("the last address", u64::MAX),
    ];
    for (what, address) in addresses {
        let facts = setting.session.pointer_attributes(address)?;
        ensure!(
            matches!(facts.kind, SM_MEMORY_UNKNOWN | SM_MEMORY_HOST_PAGEABLE),
            "{what} is said to be of kind {}",
            facts.kind
        );
        ensure!(facts.alloc_id == 0, "{what} has an alloc_id");
    }
    pass()
}

fn alloc_id(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    let (mut ids, mut addresses, mut reused) = (BTreeSet::new(), BTreeSet::new(), 0_u32);
    for round in 0..context.count(1000, 100) {
        let len = if round % 2 == 0 { 4096 } else { 1 << 20 };
        let memory = session.alloc(setting.dev, len)?;
        let facts = session.pointer_attributes(memory.ptr)?;
        ensure!(
            ids.insert(facts.alloc_id),
            "alloc_id {} named another allocation before",
            facts.alloc_id
        );
        reused += u32::from(!addresses.insert(memory.ptr));
        setting.free(memory)?;
        let gone = session.pointer_attributes(memory.ptr)?;
        ensure!(
            gone.alloc_id != facts.alloc_id,
            "{:#x} still has its alloc_id after it was freed",
            memory.ptr
        );
    }
    pass_noting(format!("addresses came again {reused} times"))
}

/// Sizes at which copies go wrong: around words, lines, pages and chunks.
const COPY_SIZES: [usize; 10] = [1, 2, 7, 8, 63, 64, 4095, 4097, 65_537, 1 << 20];

fn copies(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let directions = [
        (SM_COPY_H2D, SM_COPY_D2D, SM_COPY_D2H),
        (SM_COPY_AUTO, SM_COPY_AUTO, SM_COPY_AUTO),
    ];
    let with_auto = setting.has(SM_CAP_UVA)?;
    for directions in directions.iter().take(if with_auto { 2 } else { 1 }) {
        for len in COPY_SIZES {
            for (to, from) in [(0, 0), (1, 0), (0, 3), (5, 2)] {
                copy_round(&setting, *directions, len, to, from)?;
            }
        }
    }
    if setting.devices > 1 && setting.has(SM_CAP_PEER_ACCESS)? {
        peer_copy(&setting)?;
    }
    sync_copy(&setting)?;
    let mut note = Vec::new();
    if !with_auto {
        note.push("SM_COPY_AUTO not tried without UVA");
    }
    if setting.devices < 2 {
        note.push("copies between devices not tried with one device");
    }
    pass_noting(note.join("; "))
}

/// Host to device, within the device, back to the host; what lies around must stay.
fn copy_round(
    setting: &Setting,
    (in_dir, within, out_dir): (u32, u32, u32),
    len: usize,
    to: u64,
    from: u64,
) -> Result<(), Stop> {
    let session = &setting.session;
    let (room, wide_len) = (len + 16, wide(len));
    let bytes = pattern(len, 3);
    let host = HostBuffer::zeroed(room);
    let source = HostBuffer::new(&pattern(room, 3));
    let (first, second) = (setting.alloc(room)?, setting.alloc(room)?);
    setting.put(first.all(), &vec![0xee; room])?;
    setting.put(second.all(), &vec![0xee; room])?;
    let on = setting.stream;
    session.memcpy_async(first.at(from, wide_len), source.at(0, len), in_dir, on)?;
    session.memcpy_async(
        second.at(to, wide_len),
        first.at(from, wide_len),
        within,
        on,
    )?;
    session.memcpy_async(host.at(0, room), second.all(), out_dir, on)?;
    setting.sync(on)?;
    let mut due = vec![0xee; room];
    let start = crate::raw::memory::narrow(to);
    due[start..start + len].copy_from_slice(&bytes);
    let what = || format!("a copy of {len} bytes from +{from} to +{to}");
    if let Some(why) = difference(&host.bytes(), &due) {
        return fail(format!("{}: {why}", what()));
    }
    setting.free(first)?;
    setting.free(second)
}

fn peer_copy(setting: &Setting) -> Result<(), Stop> {
    let session = &setting.session;
    let bytes = pattern(70_000, 9);
    let first = setting.alloc_with(&bytes)?;
    let second = session.alloc(1, 70_000)?;
    session.memcpy_async(second.all(), first.all(), SM_COPY_P2P, setting.stream)?;
    setting.sync(setting.stream)?;
    match difference(&setting.take(second.all())?, &bytes) {
        Some(why) => fail(format!("a copy from device 0 to device 1: {why}")),
        None => Ok(()),
    }
}

fn sync_copy(setting: &Setting) -> Result<(), Stop> {
    if setting.session.api.memcpy_sync.is_none() {
        return Ok(());
    }
    let bytes = pattern(10_001, 5);
    let memory = setting.alloc(10_001)?;
    let (from, to) = (HostBuffer::new(&bytes), HostBuffer::zeroed(10_001));
    setting
        .session
        .memcpy_sync(memory.all(), from.all(), SM_COPY_H2D)?;
    setting
        .session
        .memcpy_sync(to.all(), memory.all(), SM_COPY_D2H)?;
    match difference(&to.bytes(), &bytes) {
        Some(why) => fail(format!("memcpy_sync there and back: {why}")),
        None => Ok(()),
    }
}

fn empty_copies(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let memory = setting.alloc_with(&[7; 100])?;
    let host = HostBuffer::zeroed(10);
    let (none, nowhere) = (host.at(3, 0), host.at(10, 0));
    let (session, on) = (&setting.session, setting.stream);
    session.memcpy_async(memory.at(50, 0), none, SM_COPY_H2D, on)?;
    session.memcpy_async(nowhere, memory.at(100, 0), SM_COPY_D2H, on)?;
    session.memcpy_async(memory.at(0, 0), memory.at(0, 0), SM_COPY_D2D, on)?;
    match session.memset_async(memory.at(8, 0), 1, 4, on) {
        Err(failure) if !failure.is_absent => return Err(failure.into()),
        _ => {}
    }
    setting.sync(on)?;
    let is_same = setting.take(memory.all())? == [7; 100];
    ensure!(is_same, "copies of nothing changed something");
    pass()
}

fn pinned(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    setting.needs(SM_CAP_PINNED_HOST, "PINNED_HOST")?;
    let session = &setting.session;
    let memory = session.alloc_with(setting.dev, 10_000, 0, SM_MEMORY_HOST_PINNED, 0)?;
    let facts = session.pointer_attributes(memory.ptr)?;
    ensure!(
        facts.kind == SM_MEMORY_HOST_PINNED && facts.flags & SM_PTR_HOST_ACCESSIBLE != 0,
        "pinned memory: kind {}, flags {:#x}; the host must be able to access it",
        facts.kind,
        facts.flags
    );
    memory.all().write_as_host(&[0x3c; 10_000]);
    let device = setting.alloc(10_000)?;
    session.memcpy_async(device.all(), memory.all(), SM_COPY_H2D, setting.stream)?;
    setting.sync(setting.stream)?;
    ensure!(
        setting.take(device.all())? == vec![0x3c; 10_000],
        "the device got other bytes than the host wrote to pinned memory"
    );
    let bytes = pattern(10_000, 4);
    setting.put(device.all(), &bytes)?;
    session.memcpy_async(memory.all(), device.all(), SM_COPY_D2H, setting.stream)?;
    setting.sync(setting.stream)?;
    if let Some(why) = difference(&memory.all().read_as_host(), &bytes) {
        return fail(format!("what the host reads in pinned memory: {why}"));
    }
    setting.free(memory)?;
    pass()
}

fn fills(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let (session, on) = (&setting.session, setting.stream);
    for width in [1_u32, 2, 4] {
        for (offset, len) in [(0, 4096), (8, 16), (4, 4), (64, 65_536 + 8)] {
            let room = len + 128;
            let memory = setting.alloc_with(&vec![0xee; room])?;
            let part = memory.at(offset, wide(len));
            optional(session.memset_async(part, FILL, width, on))?;
            setting.sync(on)?;
            let unit = &FILL.to_le_bytes()[..crate::raw::memory::narrow(width.into())];
            let mut due = vec![0xee; room];
            let start = crate::raw::memory::narrow(offset);
            for (to, from) in due[start..start + len].iter_mut().zip(unit.iter().cycle()) {
                *to = *from;
            }
            if let Some(why) = difference(&setting.take(memory.all())?, &due) {
                return fail(format!(
                    "a fill of {len} bytes at +{offset} of width {width}: {why}"
                ));
            }
            setting.free(memory)?;
        }
    }
    let memory = setting.alloc(64)?;
    for (what, range, width) in [
        ("an odd size", memory.at(0, 7), 4),
        ("an odd address", memory.at(1, 8), 2),
    ] {
        let result = session.memset_async(range, 0, width, on);
        expect_code(&format!("a fill of {what}"), result, Code::InvalidArgument)?;
    }
    pass()
}

/// Resident pages of this process, in bytes.
pub(super) fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * wide(rustix::param::page_size())
}

fn leaks(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let rounds = context.count(100_000, 2_000);
    let churn = |session: &Session, rounds: u32| -> Result<(), Stop> {
        for round in 0..rounds {
            let len = 1 + u64::from(round % 9) * 5000;
            let memory = session.alloc(setting.dev, len)?;
            session.free(setting.dev, memory.ptr)?;
        }
        Ok(())
    };
    // Caches fill first.
    churn(&setting.session, rounds / 10)?;
    let before = resident_bytes();
    churn(&setting.session, rounds)?;
    let grown = resident_bytes().saturating_sub(before);
    // A leak of an allocation's record alone is 64 bytes or so each.
    let limit = (u64::from(rounds) * 16).max(4 << 20);
    ensure!(
        grown <= limit,
        "{rounds} allocations that were freed left {grown} bytes, more than {limit}"
    );
    pass_noting(format!("{grown} bytes more after {rounds} allocations"))
}

fn other_thread(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let memory = setting.alloc_with(&pattern(10_000, 1))?;
    let session = &setting.session;
    let freed =
        std::thread::scope(|scope| scope.spawn(|| session.free(memory.dev, memory.ptr)).join());
    match freed {
        Ok(result) => result?,
        Err(_) => return fail("the thread that freed the memory panicked"),
    }
    let gone = session.pointer_attributes(memory.ptr)?;
    ensure!(gone.alloc_id == 0, "the memory is still known");
    pass()
}

fn registration(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    let buffer = HostBuffer::zeroed(100_000);
    match session.host_register(&buffer, 0) {
        Err(failure) if failure.is_absent || failure.code == Code::Unimplemented => {
            return skip(failure.to_string());
        }
        result => result?,
    };
    let again = session.host_register(&buffer, 0);
    expect_code(
        "host_register of registered memory",
        again,
        Code::AlreadyExists,
    )?;
    let facts = session.pointer_attributes(buffer.all().addr + 50_000)?;
    ensure!(
        facts.kind == SM_MEMORY_HOST_REGISTERED && facts.base == buffer.all().addr,
        "registered memory: {facts:?}"
    );
    session.host_unregister(&buffer)?;
    let again = session.host_unregister(&buffer);
    expect_code("host_unregister of unknown memory", again, Code::NotFound)?;
    let facts = session.pointer_attributes(buffer.all().addr + 50_000)?;
    ensure!(
        facts.alloc_id == 0,
        "unregistered memory is still known: {facts:?}"
    );
    session.host_register(&buffer, 0)?;
    session.host_unregister(&buffer)?;
    pass()
}

/// A word whose bytes all differ.
const FILL: u32 = 0x4433_2211;
