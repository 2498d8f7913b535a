//! D: devices, facts about them, and which one is current.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::Path;

use stepmesh_abi::Code;
use stepmesh_abi::SmDeviceInfo;
use stepmesh_abi::note::SM_KIND_GPU;

use super::every_slot::{good, unknown_values, with_device};
use super::setting::Setting;
use crate::check::{
    Check, Group, Stop, Tier, Verdict, ensure, expect_code, fail, optional, pass, pass_noting,
};
use crate::context::Context;
use crate::elf::Image;
use crate::probe::text;
use crate::runner::Subject;

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
        group: Group::Device,
        proves,
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "D1",
        "the count of devices",
        "it stays, and probe agrees with it",
        count,
    ),
    check(
        "D2",
        "facts of each device",
        "ordinal, identity and PCI address can be relied on",
        facts,
    ),
    check(
        "D3",
        "the NUMA node",
        "it is one of this machine, or said to be unknown",
        numa,
    ),
    check(
        "D4",
        "the current device",
        "it is what was set, and each thread has its own",
        current,
    ),
    check(
        "D5",
        "the caller's device stays",
        "no slot changes the current device, be it that it fails",
        preserved,
    ),
    check(
        "D6",
        "hidden devices",
        "variables such as CUDA_VISIBLE_DEVICES are honoured",
        hidden,
    ),
    check(
        "D7",
        "names for torch and DLPack",
        "a tensor's device can be named",
        framework_names,
    ),
    Check {
        tier: Tier::Capability,
        ..check(
            "D8",
            "free memory",
            "it is no more than there is, and less after an allocation",
            memory_info,
        )
    },
];

fn count(context: &Context<'_>) -> Verdict {
    let table = context.table()?;
    let (probed, score) = table.probe()?;
    let session = table.open()?;
    let first = session.device_count()?;
    for _ in 0..100 {
        let count = session.device_count()?;
        ensure!(count == first, "{first} devices, and then {count}");
    }
    ensure!(
        first == 0 || probed > 0,
        "{first} devices, of which probe saw none"
    );
    ensure!(
        first == 0 || score > 0,
        "{first} devices, but a score of 0, which means unusable"
    );
    pass_noting(format!("{first} device(s)"))
}

fn infos(setting: &Setting) -> Result<Vec<SmDeviceInfo>, Stop> {
    let all = (0..setting.devices).map(|dev| setting.session.device_info(dev));
    Ok(all.collect::<Result<_, _>>()?)
}

fn facts(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let mut seen = BTreeSet::new();
    let mut names = Vec::new();
    for (dev, info) in (0..setting.devices).zip(infos(&setting)?) {
        ensure!(
            u32::try_from(info.ordinal) == Ok(dev),
            "device {dev} says that its ordinal is {}",
            info.ordinal
        );
        ensure!(
            info.uuid == [0; 16] || seen.insert(info.uuid),
            "device {dev} has the uuid of another one"
        );
        let name = text(&info.name);
        ensure!(!name.is_empty(), "device {dev} has no name");
        names.push(name);
        for (what, field) in [("name", &info.name[..]), ("arch", &info.arch)] {
            let bytes: Vec<u8> = field.iter().map(|c| c.to_ne_bytes()[0]).collect();
            let is_text = std::str::from_utf8(&bytes).is_ok();
            ensure!(is_text, "the {what} of device {dev} is not UTF-8");
        }
        let bdf = text(&info.pci_bdf);
        let is_there = bdf.is_empty() || Path::new("/sys/bus/pci/devices").join(&bdf).exists();
        ensure!(
            is_there,
            "device {dev} has the PCI address {bdf:?}, which this machine does not know; write it \
             like 0000:3b:00.0"
        );
        ensure!(info.total_mem > 0, "device {dev} has no memory");
        let page = info.page_granularity;
        ensure!(
            page == 0 || page.is_power_of_two(),
            "device {dev} has pages of {page} bytes"
        );
    }
    // A caller of an older version has a shorter struct.
    let short = setting.session.device_info_sized(0, 24)?;
    ensure!(short.len() == 24, "a shorter struct was not filled");
    // So that a report tells what it was made on, a simulated device for example.
    pass_noting(names.join(", "))
}

fn numa(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    for (dev, info) in (0..setting.devices).zip(infos(&setting)?) {
        let node = info.numa_node;
        let is_there = Path::new(&format!("/sys/devices/system/node/node{node}")).exists();
        ensure!(
            node == -1 || (node >= 0 && is_there),
            "device {dev} is on NUMA node {node}, which this machine has not"
        );
    }
    pass()
}

fn current(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    for dev in 0..setting.devices {
        session.set_current_device(dev)?;
        let now = session.current_device()?;
        ensure!(
            i32::try_from(dev) == Ok(now),
            "device {dev} was set, {now} is current"
        );
    }
    let last = setting.devices - 1;
    let result = session.set_current_device(setting.devices);
    expect_code("set_current_device", result, Code::InvalidArgument)?;
    let now = session.current_device()?;
    ensure!(
        i32::try_from(last) == Ok(now),
        "a refused set_current_device made {now} current"
    );
    let other = std::thread::scope(|scope| {
        let set = || {
            session
                .set_current_device(0)
                .and_then(|()| session.current_device())
        };
        scope.spawn(set).join()
    });
    let Ok(Ok(other)) = other else {
        return fail("set_current_device failed in another thread");
    };
    ensure!(
        other == 0,
        "device 0 was set in another thread, {other} is current there"
    );
    let now = session.current_device()?;
    ensure!(
        i32::try_from(last) == Ok(now),
        "another thread's set_current_device made {now} current here"
    );
    match setting.devices {
        1 => pass_noting("one device only, so threads could not differ"),
        _ => pass(),
    }
}

fn preserved(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    let mut calls = good(&setting)?;
    let refused = with_device(setting.devices + 41).into_iter();
    calls.extend(refused.filter(|call| call.what != "set_current_device"));
    calls.extend(unknown_values(&setting)?);
    let last = setting.devices - 1;
    session.set_current_device(last)?;
    for call in &calls {
        // Whether it succeeds is judged elsewhere.
        let _ = (call.make)(session);
        let now = session.current_device()?;
        ensure!(
            i32::try_from(last) == Ok(now),
            "{}: device {last} was current, {now} is afterwards",
            call.what
        );
    }
    // On each device, while another one is current.
    for dev in 0..setting.devices {
        let stream = session.stream_create(dev)?;
        let memory = session.alloc(dev, 4096)?;
        let event = session.event_create(dev, 0)?;
        session.event_record(event, stream)?;
        session.event_sync(event, super::setting::LONG_NS, 2)?;
        session.event_destroy(event)?;
        session.free(dev, memory.ptr)?;
        session.stream_destroy(stream)?;
        let now = session.current_device()?;
        ensure!(
            i32::try_from(last) == Ok(now),
            "work on device {dev} made {now} current in place of {last}"
        );
    }
    match setting.devices {
        1 => pass_noting("one device only"),
        _ => pass(),
    }
}

fn is_gpu(context: &Context<'_>) -> bool {
    match &context.subject {
        Subject::File(path) => Image::read(path)
            .ok()
            .and_then(|image| image.segment_note.ok())
            .is_some_and(|note| note.kind == SM_KIND_GPU),
        Subject::BuiltIn(_) => false,
    }
}

fn hidden(context: &Context<'_>) -> Verdict {
    if context.part.is_some() {
        let (count, _) = context.table()?.probe()?;
        return pass_noting(count.to_string());
    }
    let (all, _) = context.table()?.probe()?;
    let none = VISIBLE_DEVICES.map(|name| (name, "-1"));
    let left = context.rerun_well("none-visible", &none)?;
    let left: u32 = left.parse().unwrap_or(u32::MAX);
    ensure!(
        left <= all,
        "{all} devices, and {left} when all are to be hidden"
    );
    ensure!(
        left == 0 || !is_gpu(context),
        "{left} GPUs although {} hide all",
        VISIBLE_DEVICES.join(", ")
    );
    pass()
}

fn framework_names(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    for (dev, info) in (0..setting.devices).zip(infos(&setting)?) {
        let torch = text(&info.torch_device_type);
        ensure!(
            TORCH_TYPES.contains(&torch.as_str()),
            "device {dev} has the torch type {torch:?}, none of {TORCH_TYPES:?}"
        );
        ensure!(
            (1..=DLPACK_TYPE_MAX).contains(&info.dlpack_type),
            "device {dev} has the DLPack type {}, none of 1 to {DLPACK_TYPE_MAX}",
            info.dlpack_type
        );
        ensure!(
            info.torch_index >= 0 && info.dlpack_id >= 0,
            "device {dev} has the index {} for torch and {} for DLPack",
            info.torch_index,
            info.dlpack_id
        );
    }
    pass()
}

fn memory_info(context: &Context<'_>) -> Verdict {
    let setting = Setting::new(context)?;
    let session = &setting.session;
    let (free, total) = optional(session.mem_info(setting.dev))?;
    ensure!(free <= total && total > 0, "{free} bytes free of {total}");
    let len = (free / 8).min(MEMORY_STEP);
    // Others use the memory too, so it takes several looks to be sure of the opposite.
    let mut seen = Vec::new();
    for _ in 0..MEMORY_LOOKS {
        let (before, _) = session.mem_info(setting.dev)?;
        let memory = session.alloc(setting.dev, len)?;
        let (after, _) = session.mem_info(setting.dev)?;
        session.free(setting.dev, memory.ptr)?;
        if before.saturating_sub(after) >= len / 2 {
            return pass();
        }
        seen.push(before.saturating_sub(after));
    }
    fail(format!(
        "an allocation of {len} bytes takes {seen:?} bytes off the free memory"
    ))
}

/// What hides devices, by vendor.
const VISIBLE_DEVICES: [&str; 5] = [
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "ASCEND_RT_VISIBLE_DEVICES",
];
/// Types of torch's devices.
const TORCH_TYPES: [&str; 12] = [
    "cpu",
    "cuda",
    "xpu",
    "mps",
    "hpu",
    "npu",
    "mtia",
    "xla",
    "ipu",
    "maia",
    "privateuseone",
    "mlu",
];
/// Largest `DLDeviceType` of DLPack 1.1 (`kDLMAIA`, 17, and one more that is reserved).
const DLPACK_TYPE_MAX: i32 = 18;
/// Large enough to be seen among what others allocate.
const MEMORY_STEP: u64 = 256 << 20;
/// How often free memory is looked at.
const MEMORY_LOOKS: u32 = 5;
