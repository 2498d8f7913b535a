//! L: the file, loading, the tables of both sides and their versions.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;

use stepmesh_abi::backend::SM_BACKEND_API_LEN_V1_0;
use stepmesh_abi::host::SM_HOST_API_LEN_V1_0;
use stepmesh_abi::note::SM_KIND_GPU;
use stepmesh_abi::{SM_ABI_MAJOR, SM_ABI_MINOR, SmHostApi, SmPluginInfo};
use stepmesh_core::Registry;
use stepmesh_core::config::{LoadPolicy, PluginsConfig};

use super::every_slot::ordinary_life;
use super::setting::Setting;
use crate::check::{Check, Group, Stop, Tier, Verdict, ensure, fail, pass, pass_noting};
use crate::context::{Context, host_table};
use crate::elf::Image;
use crate::inspect::{
    RULE_EXPORTS, RULE_NEEDED, RULE_NOTE, RULE_SECTION, RULE_STATIC_TLS, RULE_TEXT_RELOCATIONS,
    RULE_UNDEFINED, inspect,
};
use crate::raw::host;
use crate::raw::memory::narrow;

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
        group: Group::Load,
        proves,
        run,
    }
}

pub(super) const CHECKS: &[Check] = &[
    check(
        "L1",
        "the note",
        "a host can judge the file before any code of it runs, also after strip and patchelf",
        note,
    ),
    check(
        "L2",
        "one exported symbol",
        "nothing clashes with another library",
        exports,
    ),
    check(
        "L3",
        "symbols and relocations",
        "the file loads with RTLD_NOW where no driver is installed, without text relocations or \
         static TLS",
        dependencies,
    ),
    check(
        "L4",
        "query is pure",
        "looking at a plugin starts no thread, opens no file and changes no variable",
        pure,
    ),
    check(
        "L5",
        "query answers the same table",
        "the table is static",
        same_table,
    ),
    check(
        "L6",
        "sizes and versions of structs",
        "both sides can tell what the other knows",
        sizes,
    ),
    check(
        "L7",
        "required slots",
        "no call of a host meets a null",
        required_slots,
    ),
    check(
        "L8",
        "an older host",
        "a plugin reads no byte beyond the host's table",
        older_host,
    ),
    check(
        "L9",
        "a newer host",
        "what a plugin does not know does not matter",
        newer_host,
    ),
    check(
        "L10",
        "other minor versions",
        "any two minors of a major work together",
        minors,
    ),
    check(
        "L11",
        "texts",
        "name, version, vendor and build id are UTF-8 without NUL",
        texts,
    ),
    check(
        "L12",
        "no driver",
        "without the vendor's libraries there are no devices, and no crash",
        no_driver,
    ),
    check(
        "L13",
        "another plugin beside it",
        "two backends in one process do not disturb each other",
        two_plugins,
    ),
];

fn findings(context: &Context<'_>, rules: &[&str]) -> Verdict {
    let inspection = inspect(context.file()?).map_err(|error| Stop::Fail(error.to_string()))?;
    for finding in inspection.of(rules) {
        ensure!(finding.is_kept, "{}: {}", finding.rule, finding.detail);
    }
    pass()
}

fn note(context: &Context<'_>) -> Verdict {
    findings(context, &[RULE_NOTE, RULE_SECTION])?;
    let path = context.file()?;
    let mut data = fs::read(path).map_err(|error| Stop::Fail(error.to_string()))?;
    // What is left of a file after the most thorough strip: the header says that there are no
    // sections.
    for field in [SHOFF, SHNUM, SHSTRNDX] {
        data[field].fill(0);
    }
    let stripped = Image::parse(&data).map_err(|error| Stop::Fail(error.to_string()))?;
    let Ok(note) = stripped.segment_note else {
        return fail("the note is not found any more without the table of sections");
    };
    let told = context.table()?.info().map_err(Stop::Fail)?;
    let noted = [Ok(note.name), Ok(note.version)];
    ensure!(
        told.texts[..2] == noted,
        "the note says {noted:?}, the table {:?}",
        &told.texts[..2]
    );
    pass()
}

fn exports(context: &Context<'_>) -> Verdict {
    findings(context, &[RULE_EXPORTS])
}

fn dependencies(context: &Context<'_>) -> Verdict {
    let rules = [
        RULE_NEEDED,
        RULE_UNDEFINED,
        RULE_TEXT_RELOCATIONS,
        RULE_STATIC_TLS,
    ];
    findings(context, &rules)?;
    context.entry()?;
    pass()
}

/// What `query` must leave as it is.
#[derive(Debug, PartialEq)]
struct Footprint {
    threads: usize,
    files: BTreeSet<String>,
    variables: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    device_maps: BTreeSet<String>,
}

impl Footprint {
    fn take() -> Self {
        let entries = |dir| fs::read_dir(dir).into_iter().flatten().flatten();
        let files = entries("/proc/self/fd").filter_map(|fd| {
            let link = fs::read_link(fd.path()).ok()?;
            let number = fd.file_name().into_string().ok()?;
            // The folder that is being read is open, too.
            let is_other = !link.starts_with("/proc/");
            is_other.then(|| format!("{number} -> {}", link.display()))
        });
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let device_maps = maps.lines().filter_map(|line| {
            let at = line.find(" /dev/")?;
            Some(line[at..].trim().to_owned())
        });
        Self {
            threads: entries("/proc/self/task").count(),
            files: files.collect(),
            variables: std::env::vars_os().collect(),
            device_maps: device_maps.collect(),
        }
    }
}

fn pure(context: &Context<'_>) -> Verdict {
    let host = host_table(size_of::<SmHostApi>(), SM_ABI_MINOR)?;
    let before = Footprint::take();
    let entry = context.entry()?;
    let loaded = Footprint::take();
    ensure!(
        before == loaded,
        "loading changed {}",
        changed(&before, &loaded)
    );
    entry.query(host).map_err(Stop::Fail)?;
    let after = Footprint::take();
    ensure!(
        loaded == after,
        "query changed {}",
        changed(&loaded, &after)
    );
    let calls = host::calls();
    let asked = calls.keys().find(|name| !name.starts_with("log"));
    ensure!(
        asked.is_none(),
        "query called the host's {}",
        asked.unwrap_or(&"")
    );
    pass()
}

fn changed(before: &Footprint, after: &Footprint) -> String {
    if before.threads != after.threads {
        return format!("the threads: {} and then {}", before.threads, after.threads);
    }
    if before.variables != after.variables {
        return "the environment".into();
    }
    let new = after.files.difference(&before.files);
    let new: Vec<_> = new
        .chain(after.device_maps.difference(&before.device_maps))
        .collect();
    format!("the open files: {new:?}")
}

fn same_table(context: &Context<'_>) -> Verdict {
    let entry = context.entry()?;
    let host = host_table(size_of::<SmHostApi>(), SM_ABI_MINOR)?;
    let first = entry.query(host).map_err(Stop::Fail)?;
    let second = entry.query(host).map_err(Stop::Fail)?;
    ensure!(
        first.address() == second.address(),
        "the table is at {:#x} and then at {:#x}",
        first.address(),
        second.address()
    );
    pass()
}

fn sizes(context: &Context<'_>) -> Verdict {
    let table = context.table()?;
    let hdr = table.api.hdr;
    let check = |what: &str, size: u32, least: usize| {
        let is_right = size.is_multiple_of(8) && narrow(size.into()) >= least;
        ensure!(
            is_right,
            "{what} says it has {size} bytes; a multiple of 8 and at least {least} are right"
        );
        Ok(())
    };
    check("the table", hdr.struct_size, SM_BACKEND_API_LEN_V1_0)?;
    ensure!(
        hdr.abi_major == SM_ABI_MAJOR,
        "the table is of major version {}, its symbol of {SM_ABI_MAJOR}",
        hdr.abi_major
    );
    let info = table.info().map_err(Stop::Fail)?;
    check(
        "the description",
        info.struct_size,
        size_of::<SmPluginInfo>(),
    )?;
    pass()
}

fn required_slots(context: &Context<'_>) -> Verdict {
    match context.table()?.api.missing_required_slot() {
        Some(slot) => fail(format!("the required slot {slot} is null")),
        None => pass(),
    }
}

/// Opens and uses a plugin with a host table of this shape.
fn live_with(context: &Context<'_>, len_bytes: usize, minor: u16) -> Result<(), Stop> {
    let table = context.table_for(host_table(len_bytes, minor)?)?;
    table.probe()?;
    let session = table.open()?;
    let devices = session.device_count()?;
    if devices > 0 {
        let stream = session.stream_create(0)?;
        let setting = Setting {
            session,
            devices,
            dev: 0,
            stream,
        };
        ordinary_life(&setting)?;
        setting.session.close()?;
    }
    match host::misuse().first() {
        Some(misuse) => fail(misuse.clone()),
        None => Ok(()),
    }
}

fn older_host(context: &Context<'_>) -> Verdict {
    live_with(context, SM_HOST_API_LEN_V1_0, 0)?;
    pass()
}

fn newer_host(context: &Context<'_>) -> Verdict {
    live_with(context, SM_HOST_API_LEN_V1_0 + 128, SM_ABI_MINOR + 1)?;
    pass()
}

fn minors(context: &Context<'_>) -> Verdict {
    if let Some(minor) = &context.part {
        let minor = minor
            .parse()
            .map_err(|_| Stop::Fail("a wrong part".into()))?;
        live_with(context, size_of::<SmHostApi>(), minor)?;
        return pass();
    }
    for minor in [0, SM_ABI_MINOR + 1, u16::MAX] {
        context.rerun_well(&minor.to_string(), &[])?;
    }
    pass()
}

fn texts(context: &Context<'_>) -> Verdict {
    let info = context.table()?.info().map_err(Stop::Fail)?;
    let names = ["name", "version", "vendor", "build id"];
    for (what, text) in names.iter().zip(&info.texts) {
        if let Err(fault) = text {
            return fail(format!("the {what} {fault}"));
        }
    }
    let [Ok(name), Ok(version), _, _] = &info.texts else {
        return fail("name or version is no text");
    };
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    ensure!(
        !name.is_empty() && name.chars().all(is_name),
        "the name {name:?} is not made of lower case letters, digits, - and _"
    );
    ensure!(!version.is_empty(), "the version is empty");
    pass()
}

fn no_driver(context: &Context<'_>) -> Verdict {
    if context.part.is_some() {
        let (count, _) = context.table()?.probe()?;
        return pass_noting(count.to_string());
    }
    // An empty file of a library's name ends the dynamic linker's search for it with an error.
    let hidden = context.folder.join("no-driver");
    let made = fs::create_dir_all(&hidden).and_then(|()| {
        DRIVERS
            .iter()
            .try_for_each(|name| fs::write(hidden.join(name), ""))
    });
    made.map_err(|error| Stop::Fail(error.to_string()))?;
    let hidden = hidden.display().to_string();
    let count = context.rerun_well("without", &[("LD_LIBRARY_PATH", &hidden)])?;
    let is_gpu = match &context.subject {
        crate::Subject::File(path) => Image::read(path)
            .ok()
            .and_then(|image| image.segment_note.ok())
            .is_some_and(|note| note.kind == SM_KIND_GPU),
        crate::Subject::BuiltIn(_) => false,
    };
    ensure!(
        !is_gpu || count == "0",
        "probe counts {count} devices although no driver can be loaded"
    );
    pass()
}

fn two_plugins(context: &Context<'_>) -> Verdict {
    let path = context.file()?;
    let config = PluginsConfig {
        path: vec![path.to_owned()],
        load: LoadPolicy::Selected,
        // Whoever asks for a verdict on a file has decided to run it.
        trust: true,
        ..PluginsConfig::default()
    };
    let registry = Registry::discover(&config);
    let candidates = registry.candidates();
    let own = candidates.iter().find(|own| own.path() == Some(path));
    let beside = candidates.iter().find(|own| own.path().is_none());
    let (Some(own), Some(beside)) = (own, beside) else {
        return fail("the host found no two plugins");
    };
    let open = |candidate: &stepmesh_core::Candidate| {
        candidate
            .open()
            .map_err(|reason| Stop::Fail(format!("{candidate} {reason}")))
    };
    let backends = [open(own)?, open(beside)?];
    let core = |error: stepmesh_core::Error| Stop::Fail(error.to_string());
    for round in 0..4_u8 {
        for backend in backends.iter().filter(|backend| backend.device_count() > 0) {
            let device = backend.device(0).map_err(core)?;
            let buffer = device.alloc(10_000).map_err(core)?;
            buffer.write_bytes(1, &[round; 9_000]).map_err(core)?;
            let mut out = [0; 9_000];
            buffer.read_bytes(1, &mut out).map_err(core)?;
            ensure!(
                out == [round; 9_000],
                "{}: other bytes came back",
                backend.name()
            );
        }
    }
    pass()
}

/// Fields of the ELF header (64 bit) that tell of sections.
const SHOFF: std::ops::Range<usize> = 40..48;
const SHNUM: std::ops::Range<usize> = 60..62;
const SHSTRNDX: std::ops::Range<usize> = 62..64;
/// Libraries of drivers, as plugins open them.
const DRIVERS: [&str; 9] = [
    "libcuda.so.1",
    "libcuda.so",
    "libnvidia-ml.so.1",
    "libamdhip64.so",
    "libamdhip64.so.6",
    "libamdhip64.so.7",
    "libhsa-runtime64.so.1",
    "libze_loader.so.1",
    "libascendcl.so",
];
