//! Drivers that are not there, too old, empty or broken. Each case is a scenario in a process of its own,
//! with its own driver and surroundings.

use std::path::Path;
use std::process::Command;

use libtest_mimic::{Completion, Failed, Trial};

use crate::judged::{search_path, simulated_driver};
use crate::scenarios::{ABSENT, ROLE};

pub(crate) fn trials() -> Vec<Trial> {
    let simulated = SIMULATED.iter().map(|(name, variables)| {
        Trial::ignorable_test(format!("trouble::{name}"), move || {
            scenario(name, &simulated_driver()?, variables)
        })
    });
    let mut trials: Vec<_> = simulated.collect();
    trials.extend([
        Trial::ignorable_test("trouble::a_file_that_is_no_library", || {
            let folder = tempfile::tempdir()?;
            for name in ["libcuda.so.1", "libcuda.so"] {
                std::fs::write(folder.path().join(name), "no library")?;
            }
            scenario("a_file_that_is_no_library", folder.path(), &[])
        }),
        Trial::ignorable_test("trouble::a_driver_that_is_too_old", || {
            let folder = tempfile::tempdir()?;
            compile(OLD_DRIVER, &folder.path().join("libcuda.so.1"))?;
            scenario("a_driver_that_is_too_old", folder.path(), &[])
        }),
        Trial::ignorable_test("trouble::a_driver_without_newer_functions", || {
            let folder = tempfile::tempdir()?;
            let whole = std::fs::read(simulated_driver()?.join("libcuda.so.1"))?;
            let file = folder.path().join("libcuda.so.1");
            std::fs::write(&file, without(whole, &NEWER))?;
            scenario("a_driver_without_newer_functions", folder.path(), &[])
        }),
        Trial::ignorable_test("trouble::the_driver_of_this_machine", || {
            let folder = tempfile::tempdir()?;
            let mut command = child("the_driver_of_this_machine")?;
            // Whatever the machine has, and not the simulated one.
            command.env("LD_LIBRARY_PATH", folder.path());
            ended(&mut command)
        }),
    ]);
    trials
}

pub(crate) fn scenario(
    name: &str,
    driver: &Path,
    variables: &[(&str, &str)],
) -> Result<Completion, Failed> {
    let mut command = child(name)?;
    command.env("LD_LIBRARY_PATH", search_path(driver));
    command.envs(variables.iter().copied());
    ended(&mut command)
}

pub(crate) fn child(name: &str) -> Result<Command, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ROLE, name);
    Ok(command)
}

pub(crate) fn ended(command: &mut Command) -> Result<Completion, Failed> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        Some(0) => Ok(Completion::Completed),
        Some(ABSENT) => Ok(Completion::ignored_with(said.trim())),
        _ => {
            let told = String::from_utf8_lossy(&output.stderr);
            Err(format!("{}\n{said}{told}", output.status).into())
        }
    }
}

fn compile(source: &str, to: &Path) -> Result<(), Failed> {
    let from = to.with_extension("c");
    std::fs::write(&from, source)?;
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(compiler)
        .args(["-shared", "-fPIC", "-o"])
        .arg(to)
        .arg(&from)
        .status()?;
    if status.success() {
        return Ok(());
    }
    Err(format!("the C compiler ended with {status}").into())
}

/// A library in which nobody finds these functions: their names are other ones.
fn without(mut library: Vec<u8>, functions: &[&str]) -> Vec<u8> {
    for function in functions {
        let name = [b"\0", function.as_bytes(), b"\0"].concat();
        let places: Vec<usize> = library
            .windows(name.len())
            .enumerate()
            .filter(|(_, window)| *window == name)
            .map(|(at, _)| at)
            .collect();
        assert!(!places.is_empty(), "the library has no {function}");
        for at in places {
            library[at + 1] = b'x';
        }
    }
    library
}

/// Scenarios over the simulated driver, and what it is told.
const SIMULATED: &[(&str, &[(&str, &str)])] = &[
    ("devices_that_are_hidden", &[("CUDA_VISIBLE_DEVICES", "")]),
    (
        "memory_that_runs_out",
        &[("STEPMESH_SIMDRIVER_MEMORY_BYTES", "67108864")],
    ),
    ("pointers_that_are_not_ours", &[]),
    (
        "a_device_that_is_lost",
        &[("STEPMESH_SIMDRIVER_FAULTS", "work.0:719@3")],
    ),
    (
        "a_context_that_stays_when_calls_fail",
        &[(
            "STEPMESH_SIMDRIVER_FAULTS",
            "cuMemAlloc_v2:2@1,cuEventCreate:999@1",
        )],
    ),
    ("flags_in_memory", &[]),
    ("waits_that_end", &[]),
];

/// What came with later versions than the oldest, or is not there on every machine.
const NEWER: [&str; 6] = [
    "cuMemAllocAsync",
    "cuStreamWriteValue64_v2",
    "cuMemGetHandleForAddressRange",
    "cuFlushGPUDirectRDMAWrites",
    "cuIpcGetMemHandle",
    "cuDeviceGetUuid_v2",
];

/// A driver of CUDA 11.4.
const OLD_DRIVER: &str = "
int cuDriverGetVersion(int *version) { *version = 11040; return 0; }
int cuInit(unsigned flags) { (void)flags; return 0; }
";
