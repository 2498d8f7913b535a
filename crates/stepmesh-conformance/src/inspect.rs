//! What a plugin file is, judged without running any of its code: the rules of `docs/abi.md` that an
//! ELF file can keep or break.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use stepmesh_abi::QUERY_SYMBOL;
use stepmesh_abi::note::NOTE_SECTION;
use stepmesh_core::Registry;
use stepmesh_core::config::{LoadPolicy, PluginsConfig};

use crate::elf::Image;
use crate::error::Error;

/// A plugin file and how it keeps the rules for files.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The file, without links.
    pub path: PathBuf,
    /// Name in its note, if that can be read.
    pub name: Option<String>,
    /// Version in its note, if that can be read.
    pub version: Option<String>,
    /// One for each rule.
    pub findings: Vec<Finding>,
}

/// How a file keeps one rule.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: &'static str,
    /// Whether it is kept.
    pub is_kept: bool,
    /// What was found.
    pub detail: String,
}

impl Inspection {
    /// Whether every rule is kept.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.findings.iter().all(|finding| finding.is_kept)
    }

    /// The findings on these rules.
    pub(crate) fn of<'a>(&'a self, rules: &'a [&str]) -> impl Iterator<Item = &'a Finding> {
        let findings = self.findings.iter();
        findings.filter(|finding| rules.contains(&finding.rule))
    }
}

/// Reads a plugin file and runs no code of it.
///
/// # Errors
/// `ReadPlugin`, `NotALibrary`.
pub fn inspect(path: &Path) -> Result<Inspection, Error> {
    let path = path.canonicalize().map_err(|source| Error::ReadPlugin {
        path: path.into(),
        source,
    })?;
    let image = Image::read(&path)?;
    let note = image.segment_note.as_ref().ok();
    let (name, version) = (
        note.map(|note| note.name.clone()),
        note.map(|note| note.version.clone()),
    );
    let findings = vec![
        note_in_segment(&image),
        note_in_section(&image),
        file_name(&path, name.as_deref()),
        exports(&image),
        needed(&image),
        undefined(&path, &image),
        Finding {
            rule: RULE_TEXT_RELOCATIONS,
            is_kept: !image.has_text_relocations,
            detail: told(
                image.has_text_relocations,
                "DT_TEXTREL is set: build with -fPIC",
            ),
        },
        Finding {
            rule: RULE_STATIC_TLS,
            is_kept: !image.has_static_tls,
            detail: told(
                image.has_static_tls,
                "DF_STATIC_TLS is set: build without -ftls-model=initial-exec",
            ),
        },
        accepted(&path),
    ];
    Ok(Inspection {
        path,
        name,
        version,
        findings,
    })
}

fn told(is_so: bool, what: &str) -> String {
    if is_so { what.into() } else { String::new() }
}

fn note_in_segment(image: &Image) -> Finding {
    let detail = match &image.segment_note {
        Ok(_) if !image.is_note_loaded => {
            "the note is in no loaded part of the file: `strip` may take it".into()
        }
        Ok(note) => {
            let (major, min, max) = note.abi;
            format!(
                "{} {}, ABI {major}.{min} to {major}.{max}, {}",
                note.name, note.version, note.target
            )
        }
        Err(error) => error.to_string(),
    };
    Finding {
        rule: RULE_NOTE,
        is_kept: image.segment_note.is_ok() && image.is_note_loaded,
        detail,
    }
}

fn note_in_section(image: &Image) -> Finding {
    let (is_kept, detail) = match &image.section_note {
        None => (
            true,
            "the file has no sections, so no tool can move one".into(),
        ),
        Some(Ok(note)) if image.segment_note.as_ref() == Ok(note) => (true, String::new()),
        Some(Ok(_)) => (
            false,
            "the section has another note than the segment".into(),
        ),
        Some(Err(error)) => (false, format!("section {NOTE_SECTION}: {error}")),
    };
    Finding {
        rule: RULE_SECTION,
        is_kept,
        detail,
    }
}

fn file_name(path: &Path, name: Option<&str>) -> Finding {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let right = name.map(|name| format!("libstepmesh_backend_{name}.so"));
    let is_kept = file.starts_with("libstepmesh_backend_") && file.ends_with(".so");
    let detail = match right {
        Some(right) if right != file => format!("{file}, though its note suggests {right}"),
        _ => file.into_owned(),
    };
    Finding {
        rule: RULE_FILE_NAME,
        is_kept,
        detail,
    }
}

fn exports(image: &Image) -> Finding {
    let is_one = image.exported == [QUERY_SYMBOL];
    let counted = image
        .segment_note
        .as_ref()
        .map(|note| note.exported_symbols);
    let is_counted = counted == Ok(1) || counted.is_err();
    let mut others: Vec<&str> = image.exported.iter().map(String::as_str).collect();
    others.retain(|name| *name != QUERY_SYMBOL);
    let detail = if !image.exported.iter().any(|name| name == QUERY_SYMBOL) {
        format!("{QUERY_SYMBOL} is not exported")
    } else if !others.is_empty() {
        let shown = others.iter().take(NAMES_SHOWN).copied();
        format!(
            "{} more than {QUERY_SYMBOL}: {}; hide them with -fvisibility=hidden and \
             -Wl,--exclude-libs,ALL",
            others.len(),
            shown.collect::<Vec<_>>().join(", ")
        )
    } else if !is_counted {
        "the note counts another number of symbols than 1".into()
    } else {
        String::new()
    };
    Finding {
        rule: RULE_EXPORTS,
        is_kept: is_one && is_counted,
        detail,
    }
}

fn needed(image: &Image) -> Finding {
    let is_vendor = |name: &&String| VENDOR_LIBRARIES.iter().any(|own| name.starts_with(own));
    let vendor: Vec<_> = image.needed.iter().filter(is_vendor).cloned().collect();
    let detail = if vendor.is_empty() {
        image.needed.join(", ")
    } else {
        format!(
            "{}: a host without it could not load the plugin; open it with dlopen in `probe`",
            vendor.join(", ")
        )
    };
    Finding {
        rule: RULE_NEEDED,
        is_kept: vendor.is_empty(),
        detail,
    }
}

/// Every symbol that is not weak must be in a library that the file, or one of its libraries, names.
fn undefined(path: &Path, image: &Image) -> Finding {
    let mut wanted: BTreeSet<&str> = image
        .undefined
        .iter()
        .filter(|symbol| !symbol.is_weak)
        .map(|symbol| symbol.name.as_str())
        .collect();
    let mut queue: Vec<(PathBuf, String, Vec<String>)> = Vec::new();
    let enqueue = |queue: &mut Vec<_>, of: &Path, image: &Image| {
        let names = image.needed.iter().cloned();
        queue.extend(names.map(|name| (of.to_owned(), name, image.run_paths.clone())));
    };
    enqueue(&mut queue, path, image);
    let (mut seen, mut missing) = (BTreeSet::new(), Vec::new());
    let mut at = 0;
    while at < queue.len() && seen.len() < LIBRARIES_MAX {
        let (of, name, run_paths) = queue[at].clone();
        at += 1;
        if !seen.insert(name.clone()) {
            continue;
        }
        let found = find_library(&of, &name, &run_paths);
        let library = found.and_then(|path| Image::read(&path).ok().map(|image| (path, image)));
        let Some((path, library)) = library else {
            missing.push(name);
            continue;
        };
        for name in &library.exported {
            wanted.remove(name.as_str());
        }
        enqueue(&mut queue, &path, &library);
    }
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("not found: {}", missing.join(", ")));
    }
    if !wanted.is_empty() {
        let shown: Vec<_> = wanted.iter().take(NAMES_SHOWN).copied().collect();
        let (count, shown) = (wanted.len(), shown.join(", "));
        parts.push(format!("{count} in no library that it names: {shown}"));
    }
    Finding {
        rule: RULE_UNDEFINED,
        is_kept: wanted.is_empty() && missing.is_empty(),
        detail: parts.join("; "),
    }
}

/// Where the dynamic linker would look, but for its cache.
fn find_library(of: &Path, name: &str, run_paths: &[String]) -> Option<PathBuf> {
    let origin = of
        .parent()
        .unwrap_or_else(|| Path::new("/"))
        .to_string_lossy();
    let own = run_paths.iter().map(|path| {
        path.replace("${ORIGIN}", &origin)
            .replace("$ORIGIN", &origin)
    });
    let system = SYSTEM_DIRECTORIES.iter().map(|path| (*path).to_owned());
    let mut directories: Vec<String> = own.chain(system).collect();
    directories.extend(configured_directories());
    directories
        .into_iter()
        .map(|directory| Path::new(&directory).join(name))
        .find(|path| path.is_file())
}

/// The directories of the dynamic linker's own configuration.
fn configured_directories() -> Vec<String> {
    let files = fs::read_dir("/etc/ld.so.conf.d")
        .into_iter()
        .flatten()
        .flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    texts
        .flat_map(|text| {
            text.lines()
                .map(|line| line.trim().to_owned())
                .collect::<Vec<_>>()
        })
        .filter(|line| line.starts_with('/'))
        .collect()
}

/// The host's own judgement on the file, owner and mode included.
fn accepted(path: &Path) -> Finding {
    let config = PluginsConfig {
        path: vec![path.to_owned()],
        load: LoadPolicy::Selected,
        ..PluginsConfig::default()
    };
    let registry = Registry::discover_with(&config, &[]);
    let own = registry
        .candidates()
        .iter()
        .find(|own| own.path() == Some(path));
    let reason = own.and_then(|candidate| candidate.reason());
    Finding {
        rule: RULE_ACCEPTED,
        is_kept: reason.is_none(),
        detail: reason.map(ToString::to_string).unwrap_or_default(),
    }
}

/// Rule: the host reads the note before any code runs.
pub(crate) const RULE_NOTE: &str = "a note in a loaded segment";
/// Rule: found even if a tool moved the segment.
pub(crate) const RULE_SECTION: &str = "the same note in its section";
/// Rule: what a host's search finds.
pub(crate) const RULE_FILE_NAME: &str = "a file name that hosts look for";
/// Rule: nothing clashes with another library's symbols.
pub(crate) const RULE_EXPORTS: &str = "exactly one exported symbol";
/// Rule: loads on a machine without the driver.
pub(crate) const RULE_NEEDED: &str = "no vendor library among the needed";
/// Rule: `RTLD_NOW` succeeds.
pub(crate) const RULE_UNDEFINED: &str = "every symbol in a needed library";
/// Rule: the code is shared and never written.
pub(crate) const RULE_TEXT_RELOCATIONS: &str = "no text relocations";
/// Rule: the dynamic linker's reserve for late libraries is small.
pub(crate) const RULE_STATIC_TLS: &str = "no static thread-local storage";
/// Rule: all that a host looks at before it loads.
pub(crate) const RULE_ACCEPTED: &str = "accepted by this host";

/// How the libraries of accelerators and adapters start: a host without them must still load the
/// plugin.
const VENDOR_LIBRARIES: [&str; 14] = [
    "libcuda",
    "libcudart",
    "libnv",
    "libcublas",
    "libcudnn",
    "libnccl",
    "libamdhip",
    "libhip",
    "libhsa",
    "librocm",
    "libze_",
    "libsycl",
    "libascend",
    "libibverbs",
];
/// Where libraries lie without any configuration.
const SYSTEM_DIRECTORIES: [&str; 10] = [
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/lib",
    "/usr/local/lib64",
];
/// Names in a message.
const NAMES_SHOWN: usize = 5;
/// Libraries that are followed; a plugin with more is beyond judging.
const LIBRARIES_MAX: usize = 256;
