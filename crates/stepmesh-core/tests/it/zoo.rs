//! Plugins that are broken in one way each. None of them may harm the good one beside them.
//!
//! The list of the design (docs/abi.md, "What a host refuses") and where each is:
//!
//! | plugin | test |
//! |---|---|
//! | wrong architecture, truncated ELF, FIFO or folder named `.so`, loop of links | `files_that_are_no_libraries_...` here |
//! | no note, note or table of another major, missing symbol, query that answers null, garbage size, missing slot | `each_bad_plugin_has_its_reason_...` here |
//! | constructor that crashes, ends the process or hangs; query that throws or panics | `crashes` |
//! | writable by others, by another owner, in a set-user-id process | `trust`, and the unit tests of `discovery` |
//! | the same file twice | `the_same_file_by_two_paths_is_one_plugin` here |
//! | the same name twice | `selection::the_higher_priority_wins_...`, `strict_refuses_...` |
//!
//! And what the host promises: `STEPMESH_BAKCEND` is in the unit tests of `config`; the alias, the
//! list of candidates, disabled globs and 32 threads that race are in `selection`; hosts and plugins
//! of other minor versions in `loader::versions`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use stepmesh_core::State;

use crate::plugins::{Plugins, candidate, reason};

#[test]
fn each_bad_plugin_has_its_reason_and_the_good_one_still_loads() {
    let zoo = Plugins::new();
    let good = zoo.add("good", &[]);
    for (name, options, _) in SPOILED {
        let name_option = format!("-DNAME=\"{name}\"");
        let named = if name == "upper" {
            vec![]
        } else {
            vec![name_option.as_str()]
        };
        zoo.compile(name, &[&named, options].concat());
    }
    let registry = zoo.discover();
    for (name, _, expected) in SPOILED {
        let reason = reason(&registry, &zoo.file(name));
        assert!(reason.contains(expected), "{name}: {reason}");
        assert_eq!(
            candidate(&registry, &zoo.file(name)).state(),
            State::Rejected,
            "{name}"
        );
    }
    assert_eq!(candidate(&registry, &good).state(), State::Loaded);
    let backend = registry.select(Some("good")).unwrap();
    assert_eq!(
        (backend.path(), backend.device_count()),
        (Some(good.as_path()), 1)
    );
}

#[test]
fn files_that_are_no_libraries_are_refused_without_running_them() {
    let zoo = Plugins::new();
    let good = zoo.add("good", &[]);
    let bytes = fs::read(&good).unwrap();
    let file = |name: &str, bytes: &[u8]| fs::write(zoo.file(name), bytes).unwrap();
    file("text", b"#!/bin/sh\necho no\n");
    file("empty", b"");
    file("header", &bytes[..40]);
    // The note is still there, but segments lie beyond the end: dlopen would die of SIGBUS.
    file("half", &bytes[..bytes.len() / 2]);
    let mut machine = bytes.clone();
    machine[18] = 0x28;
    file("arm", &machine);
    let mut class = bytes.clone();
    class[4] = 1;
    file("elf32", &class);
    fs::create_dir(zoo.file("directory")).unwrap();
    let fifo = Command::new("mkfifo")
        .arg(zoo.file("fifo"))
        .status()
        .unwrap();
    assert!(fifo.success());
    symlink(zoo.file("loop"), zoo.file("loop")).unwrap();
    symlink("/nonexistent", zoo.file("dangling")).unwrap();

    let registry = zoo.discover();
    for (name, expected) in [
        ("text", "is not a shared library"),
        ("empty", "is not a shared library"),
        ("header", "is not a shared library"),
        (
            "half",
            "is not a shared library: the file is shorter than its parts",
        ),
        ("arm", "is built for another machine (ELF machine 40)"),
        ("elf32", "is not a shared library"),
        ("directory", "is not a regular file"),
        ("fifo", "is not a regular file"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
        ("dangling", "cannot be read: No such file or directory"),
    ] {
        let reason = reason(&registry, &zoo.file(name));
        assert!(reason.contains(expected), "{name}: {reason}");
    }
    assert_eq!(candidate(&registry, &good).state(), State::Loaded);
}

#[test]
fn every_prefix_of_a_plugin_is_refused_or_whole() {
    let zoo = Plugins::new();
    let bytes = fs::read(zoo.add("good", &[])).unwrap();
    // Only the section table, which nothing needs, lies at the end.
    for len in (0..bytes.len() * 3 / 4).step_by(509) {
        fs::write(zoo.file("cut"), &bytes[..len]).unwrap();
        let registry = zoo.discover();
        let cut = candidate(&registry, &zoo.file("cut"));
        assert_ne!(cut.state(), State::Loaded, "{len} bytes of {}", bytes.len());
    }
}

#[test]
fn flipped_bytes_in_the_headers_never_harm_the_host() {
    let zoo = Plugins::new();
    let bytes = fs::read(zoo.add("good", &["-DNO_SYMBOL"])).unwrap();
    let config = stepmesh_core::config::PluginsConfig {
        // Judged only: a library with a broken header is the dynamic linker's business.
        load: stepmesh_core::config::LoadPolicy::Selected,
        ..zoo.config()
    };
    let mut judged = 0;
    for at in (0..1200).step_by(7) {
        let mut spoiled = bytes.clone();
        spoiled[at] ^= 0xff;
        fs::write(zoo.file("flipped"), spoiled).unwrap();
        let registry = stepmesh_core::Registry::discover(&config);
        judged += usize::from(candidate(&registry, &zoo.file("flipped")).path().is_some());
    }
    assert_eq!(judged, 172);
}

#[test]
fn the_note_survives_strip() {
    let zoo = Plugins::new();
    let stripped = zoo.add("stripped", &["-s"]);
    let registry = zoo.discover();
    let candidate = candidate(&registry, &stripped);
    assert_eq!(
        (candidate.name(), candidate.state()),
        (Some("stripped"), State::Loaded)
    );
    assert_eq!(
        (candidate.version(), candidate.abi()),
        (Some("1.0.0"), Some((1, 0)))
    );
}

#[test]
fn the_note_is_found_as_a_section_when_no_segment_leads_to_it() {
    let zoo = Plugins::new();
    let path = zoo.add("sectioned", &[]);
    let mut bytes = fs::read(&path).unwrap();
    let number = |at: usize, len: usize| {
        bytes[at..at + len]
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    let (table, entry_len, count) = (number(32, 8), number(54, 2), number(56, 2));
    let notes: Vec<usize> = (0..count)
        .map(|idx| table + idx * entry_len)
        .filter(|at| number(*at, 4) == PT_NOTE)
        .collect();
    assert!(!notes.is_empty());
    for at in notes {
        bytes[at..at + 4].fill(0);
    }
    fs::write(&path, bytes).unwrap();
    let registry = zoo.discover();
    assert_eq!(
        candidate(&registry, &path).state(),
        State::Loaded,
        "{registry:?}"
    );
}

#[test]
fn the_same_file_by_two_paths_is_one_plugin() {
    let zoo = Plugins::new();
    let real = zoo.add("a_real", &[]);
    symlink(&real, zoo.file("b_link")).unwrap();
    fs::hard_link(&real, zoo.file("c_hard")).unwrap();
    fs::copy(&real, zoo.file("d_copy")).unwrap();
    let registry = zoo.discover();
    assert_eq!(candidate(&registry, &real).state(), State::Loaded);
    let first = real.display();
    for (name, expected) in [
        ("b_link", format!("is the same file as {first}")),
        ("c_hard", format!("is the same file as {first}")),
        ("d_copy", format!("is a copy of {first} (same build)")),
    ] {
        let path = zoo.file(name);
        assert_eq!(reason(&registry, &path), expected);
        assert_eq!(candidate(&registry, &path).state(), State::Shadowed);
    }
    // The same directory twice is no second plugin either.
    let mut config = zoo.config();
    config.strict = true;
    config.path.push(zoo.path().join("."));
    let registry = stepmesh_core::Registry::discover(&config);
    assert_eq!(candidate(&registry, &real).state(), State::Loaded);
}

#[test]
fn a_plugin_that_was_corrected_loads_at_the_next_search() {
    let zoo = Plugins::new();
    let path = zoo.add("mended", &["-DUNDEFINED"]);
    assert!(reason(&zoo.discover(), &path).contains("undefined symbol"));
    fs::remove_file(&path).unwrap();
    zoo.add("mended", &[]);
    assert_eq!(candidate(&zoo.discover(), &path).state(), State::Loaded);
}

#[test]
fn a_plugin_that_was_replaced_after_loading_asks_for_a_restart() {
    let zoo = Plugins::new();
    let path = zoo.add("replaced", &[]);
    assert_eq!(candidate(&zoo.discover(), &path).state(), State::Loaded);
    fs::remove_file(&path).unwrap();
    zoo.add("replaced", &["-DVERSION=\"2.0.0\""]);
    assert_eq!(
        reason(&zoo.discover(), &path),
        "was replaced since it was loaded; restart the program to load the new one"
    );
}

#[test]
fn a_configured_path_that_does_not_exist_is_told() {
    let missing = Path::new("/nonexistent/stepmesh");
    let config = stepmesh_core::config::PluginsConfig {
        path: vec![missing.into()],
        ..Default::default()
    };
    let registry = stepmesh_core::Registry::discover(&config);
    assert_eq!(
        reason(&registry, missing),
        "cannot be read: No such file or directory (os error 2)"
    );
    assert_eq!(registry.searched()[0], missing);
}

/// Name, how plugin.c is spoiled, and what the reason says of it.
const SPOILED: [(&str, &[&str], &str); 15] = [
    (
        "no_note",
        &["-DNO_NOTE"],
        "no note of the owner `StepMesh` and type 1",
    ),
    (
        "major",
        &["-DNOTE_MAJOR=2"],
        "is built for ABI 2, this host has ABI 1",
    ),
    (
        "table_major",
        &["-DTABLE_MAJOR=2"],
        "has a bad table: the table is of ABI 2, this host has 1",
    ),
    (
        "target",
        &["-DSM_TARGET_TRIPLE=\"riscv64-acme\""],
        "is built for riscv64-acme (64 bit)",
    ),
    (
        "sanitized",
        &["-D__SANITIZE_ADDRESS__"],
        "is built with a sanitizer (bits 0x1)",
    ),
    (
        "upper",
        &["-DNAME=\"Upper\""],
        "name in the note is empty or has other than lower",
    ),
    (
        "symbol",
        &["-DNO_SYMBOL"],
        "does not export `stepmesh_backend_query_v1`",
    ),
    (
        "undefined",
        &["-DUNDEFINED"],
        "undefined symbol: there_is_no_such_function",
    ),
    (
        "null",
        &["-DQUERY_NULL=\"no driver\""],
        "refused this host: no driver",
    ),
    ("size0", &["-DSIZE=0"], "the table claims a size of 0 bytes"),
    ("size7", &["-DSIZE=7"], "the table claims a size of 7 bytes"),
    (
        "size_huge",
        &["-DSIZE=1u<<31"],
        "the table claims a size of 2147483648 bytes",
    ),
    (
        "slot",
        &["-DNO_ALLOC"],
        "lacks the required function `alloc`",
    ),
    (
        "liar",
        &["-DTABLE_NAME=\"other\""],
        "the note says (\"liar\", \"1.0.0\"), the table (\"other\"",
    ),
    (
        "tls",
        &["-DKIND=7", "-ftls-model=initial-exec", "-DTLS"],
        "static thread-local storage",
    ),
];

/// Type of a segment with notes, in an ELF program header.
const PT_NOTE: usize = 4;
