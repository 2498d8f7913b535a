//! Deliberately wrong plugins: each is caught by the check that is there for it, which proves that
//! the check can fail.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{env, fs, io};

use libtest_mimic::{Failed, Trial};
use stepmesh_conformance::{Options, Outcome, Scale, Subject, Tier, run};
use tempfile::TempDir;

/// A way to be wrong, the check that must fail, and a part of what it says.
type Wrong = (&'static str, &'static str, &'static str);

/// A trial for each wrong plugin.
pub(crate) fn trials() -> Vec<Trial> {
    let shared = Arc::new(OnceLock::new());
    let at_run_time = WRONG.iter().map(|wrong| {
        let shared = Arc::clone(&shared);
        trial(wrong, move |directory, name| {
            let built = shared.get_or_init(|| Library::build(&[]));
            let built = built.as_ref().map_err(ToString::to_string)?;
            built
                .wrong(directory, name)
                .map_err(|error| error.to_string())
        })
    });
    let when_built = WRONG_FILES.iter().map(|(wrong, option)| {
        trial(wrong, |directory, name| {
            let path = plugin_path(directory, name);
            compile(&path, &[option]).map_err(|error| error.to_string())?;
            Ok(path)
        })
    });
    at_run_time.chain(when_built).collect()
}

fn trial(
    (name, check, part): &'static Wrong,
    make: impl FnOnce(&Path, &str) -> Result<PathBuf, String> + Send + 'static,
) -> Trial {
    Trial::test(format!("wrong::{check}_catches_{name}"), move || {
        let directory = tempfile::tempdir()?;
        let path = make(directory.path(), name)?;
        expect_failure(&path, check, part)
    })
}

fn expect_failure(path: &Path, check: &str, part: &str) -> Result<(), Failed> {
    let options = Options {
        tier: Tier::Stress,
        only: Some(check.into()),
        scale: Scale::Reduced,
        limit: Some(LIMIT),
        ..Options::default()
    };
    let report = run(&Subject::file(path), &options, &mut |_| {})?;
    let result = report.result(check).ok_or("the check did not run")?;
    if result.outcome != Outcome::Fail {
        let outcome = result.outcome.as_str();
        return Err(format!("{check} ends as {outcome}: {}", result.text).into());
    }
    if !result.text.contains(part) {
        return Err(format!("{check} does not say {part:?}: {}", result.text).into());
    }
    Ok(())
}

/// The library that becomes any of the wrong ones by its file name.
pub(crate) struct Library {
    path: PathBuf,
    _directory: TempDir,
}

impl Library {
    pub(crate) fn build(options: &[&str]) -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = plugin_path(directory.path(), "spoiled");
        compile(&path, options)?;
        Ok(Self {
            path,
            _directory: directory,
        })
    }

    /// The same file under the name of a way to be wrong.
    pub(crate) fn wrong(&self, directory: &Path, way: &str) -> io::Result<PathBuf> {
        let path = plugin_path(directory, way);
        fs::copy(&self.path, &path)?;
        Ok(path)
    }
}

pub(crate) fn plugin_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("libstepmesh_backend_{name}.so"))
}

fn compile(path: &Path, options: &[&str]) -> io::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    compile_with("CC", "cc", &here.join("tests/it/spoiled.c"), path, options)
}

/// Compiles a plugin with the system's compiler and the committed header.
pub(crate) fn compile_with(
    variable: &str,
    compiler: &str,
    source: &Path,
    path: &Path,
    options: &[&str],
) -> io::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiler = env::var(variable).unwrap_or_else(|_| compiler.into());
    let output = Command::new(&compiler)
        .args([
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
            "-Wl,--build-id",
            "-I",
        ])
        .arg(here.join("../stepmesh-abi/include"))
        .args(options)
        .arg("-o")
        .arg(path)
        .arg(source)
        .args(["-lpthread"])
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{compiler}: {errors}")))
}

/// Shorter than that of a run, because a hang takes all of it.
const LIMIT: Duration = Duration::from_secs(5);

/// Chosen by the file's name.
const WRONG: &[Wrong] = &[
    ("table_has_another_name", "L1", "the note says"),
    ("query_opens_a_file", "L4", "query changed the open files"),
    ("query_gives_another_table", "L5", "the table is at"),
    ("table_has_an_odd_size", "L6", "bytes"),
    ("table_lacks_alloc", "L7", "required slot alloc"),
    ("query_reads_beyond_the_host", "L8", "SIGSEGV (in query)"),
    ("query_wants_the_same_size", "L9", "query returned null"),
    ("query_wants_the_same_minor", "L10", "query returned null"),
    ("name_with_a_nul", "L11", "the name holds a NUL"),
    (
        "device_info_takes_any",
        "E1",
        "device_info of device 42: succeeded",
    ),
    ("error_is_never_null", "E2", "SIGSEGV (in device_sync)"),
    ("error_is_always_large", "E3", "SIGSEGV (in device_sync)"),
    (
        "error_is_cut_in_silence",
        "E4",
        "SM_ERROR_TRUNCATED is not set",
    ),
    (
        "error_has_another_code",
        "E4",
        "returned 5, but wrote code 3",
    ),
    (
        "out_of_memory_is_internal",
        "E5",
        "`resource exhausted` was due",
    ),
    ("error_is_half_written", "E6", "did not write all numbers"),
    ("alloc_prints", "E7", "bytes on standard output"),
    ("alloc_logs_unasked", "E8", "messages of a level"),
    ("last_error_is_shared", "E9", "has the last error 3"),
    ("device_count_grows", "D1", "1 devices, and then 2"),
    ("device_count_crashes", "D1", "SIGSEGV (in device_count)"),
    ("wrong_ordinal", "D2", "ordinal is 7"),
    ("wrong_numa_node", "D3", "node 77"),
    (
        "set_current_device_takes_any",
        "D4",
        "`invalid argument` was due",
    ),
    (
        "alloc_changes_the_device",
        "D5",
        "device 0 was current, 5 is afterwards",
    ),
    ("wrong_torch_name", "D7", "\"gpu\""),
    ("more_free_than_there_is", "D8", "bytes free of"),
    ("alloc_ignores_alignment", "M1", "aligned to"),
    ("free_takes_all", "M2", "`invalid argument` was due"),
    ("only_the_first_byte_is_known", "M3", "at +1 of"),
    ("unknown_memory_is_an_error", "M4", "who knows"),
    ("alloc_id_reused", "M5", "named another allocation before"),
    ("memcpy_drops_a_byte", "M6", "byte 4094 of"),
    ("empty_copies_are_refused", "M7", "nothing to copy"),
    ("pinned_is_not_there", "M8", "unimplemented"),
    ("memset_knows_bytes_only", "M9", "of width 2"),
    ("free_leaks", "M10", "left"),
    ("free_in_its_thread", "M11", "not allocated in this thread"),
    ("registers_anything", "M12", "`already exists` was due"),
    ("copies_change_places", "S1", "in a row: byte"),
    (
        "stream_query_hangs",
        "S1",
        "timeout: no end within 5 s (in stream_query)",
    ),
    ("unrecorded_is_pending", "S3", "has state 0"),
    ("events_stay_where_they_are", "S4", "has state 1"),
    ("event_sync_never_times_out", "S5", "event_sync"),
    ("destroy_of_pending_fails", "S6", "the event is pending"),
    ("time_runs_backwards", "S7", "-1 ms"),
    ("calls_twice", "S8", "called these numbers of times"),
    (
        "any_stream_will_do",
        "S9",
        "memcpy_async on stream 0: succeeded",
    ),
    ("few_events", "S12", "no more than 500"),
    ("claims_rdma", "R1", "the capability bit is set"),
    (
        "rdma_takes_any_mapping",
        "R5",
        "the PCIe mapping, whose bit is not set: succeeded",
    ),
    ("rdma_takes_any_scope", "R8", "flush scope 0: succeeded"),
    (
        "invalidation_never_comes",
        "R9",
        "the callback was called 0 times",
    ),
    ("claims_mem_events", "ME1", "the capability bit is set"),
    (
        "extension_without_header",
        "Z1",
        "the plugin has no supported_ops",
    ),
    (
        "failed_copies_are_silent",
        "S13",
        "event_sync succeeds after a copy that failed",
    ),
    ("a_lost_device_lives_on", "X8", "it still allocates"),
    (
        "mem_event_comes_early",
        "ME1",
        "the word is 1 while its stream is held",
    ),
    ("ipc_descriptor_is_inherited", "I2", "not closed on exec"),
    ("log_under_lock", "K2", "timeout"),
    ("config_under_lock", "K3", "timeout"),
    ("open_gives_the_same", "K4", "the same instance"),
    ("open_leaks_a_thread", "X1", "threads before"),
    ("open_leaks_a_file", "X1", "descriptors before"),
    (
        "close_breaks_the_next",
        "X2",
        "ended the process in the middle",
    ),
    ("exit_crashes", "X3", "SIGSEGV"),
    ("catches_sigterm", "X3", "it went on"),
    ("late_close_fails", "X4", "code 41"),
    ("quiesce_does_nothing", "X5", "after quiesce: succeeded"),
    ("catches_sigterm", "X6", "the signal handlers changed"),
    ("changes_the_directory", "X6", "the directory changed"),
    (
        "open_ignores_flags",
        "X7",
        "open with unknown flags: succeeded",
    ),
    (
        "alloc_knows_all_flags",
        "X7",
        "alloc with unknown flags succeeded",
    ),
    // A crash while the process ends counts against whatever check was passed before it.
    ("exit_crashes", "M4", "after the check had ended"),
];

/// Chosen when they are compiled.
const WRONG_FILES: &[(Wrong, &str)] = &[
    (("more_symbols", "L2", "1 more than"), "-DMORE_SYMBOLS"),
    (("static_tls", "L3", "DF_STATIC_TLS"), "-DSTATIC_TLS"),
    (
        ("undefined", "L3", "there_is_no_such_function"),
        "-DUNDEFINED",
    ),
    (
        ("constructor", "L4", "loading changed the open files"),
        "-DCONSTRUCTOR",
    ),
];
