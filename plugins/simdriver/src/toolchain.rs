//! The vendors' run-time compilers: the source that they are given is compiled as C++ for the host, with a
//! header that stands in for what a GPU's compiler knows by itself. What was compiled once is kept in a
//! folder beside the library, by its content.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Answer, Kernel, Status};

/// The programs of the process, by handle. Statuses are those that NVRTC and HIPRTC share.
#[derive(Debug)]
pub struct Programs;

#[derive(Clone, Debug, Default)]
struct Program {
    source: String,
    log: String,
    image: Option<Vec<u8>>,
}

impl Programs {
    /// Keeps a source.
    ///
    /// # Errors
    /// None.
    pub fn create(source: String) -> Answer<u64> {
        let mut programs = lock();
        let last = programs.last_key_value().map(|(last, _)| *last);
        let handle = last.map_or(PROGRAM_BASE, |last| last + 16);
        let program = Program {
            source,
            ..Program::default()
        };
        programs.insert(handle, program);
        Ok(handle)
    }

    /// Compiles it.
    ///
    /// # Errors
    /// `INVALID_PROGRAM`; `COMPILATION`, and the log says why.
    pub fn compile(handle: u64) -> Answer<()> {
        let source = get(handle)?.source;
        // Not locked: it takes long, and programs are compiled side by side.
        let compiled = compile(&source);
        let mut programs = lock();
        let program = programs.get_mut(&handle).ok_or(INVALID_PROGRAM)?;
        match compiled {
            Ok(image) => {
                program.image = Some(image);
                Ok(())
            }
            Err(log) => {
                program.log = log;
                Err(COMPILATION)
            }
        }
    }

    /// What the compiler wrote, with a NUL at the end.
    ///
    /// # Errors
    /// `INVALID_PROGRAM`.
    pub fn log(handle: u64) -> Answer<Vec<u8>> {
        let mut log = get(handle)?.log.into_bytes();
        log.push(0);
        Ok(log)
    }

    /// What it made.
    ///
    /// # Errors
    /// `INVALID_PROGRAM` before it was compiled.
    pub fn image(handle: u64) -> Answer<Vec<u8>> {
        get(handle)?.image.ok_or(INVALID_PROGRAM)
    }

    /// Ends a program.
    ///
    /// # Errors
    /// `INVALID_PROGRAM`.
    pub fn destroy(handle: u64) -> Answer<()> {
        lock().remove(&handle).map(|_| ()).ok_or(INVALID_PROGRAM)
    }
}

/// Where the library of an image is, written there if it is not.
pub(crate) fn file_of(key: &str, library: &[u8]) -> Answer<PathBuf> {
    let path = folder()
        .map_err(|_| Status::INVALID_IMAGE)?
        .join(format!("{key}.so"));
    if !path.is_file() {
        put(&path, library).map_err(|_| Status::INVALID_IMAGE)?;
    }
    Ok(path)
}

/// The image of a source, or what the compiler wrote.
fn compile(source: &str) -> Result<Vec<u8>, String> {
    let words = source.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    if words.filter_map(Kernel::named).next().is_some() {
        // Kernels that are known are done in Rust: the image is their source.
        return Ok([source.as_bytes(), b"\0"].concat());
    }
    let key = key_of(source);
    let folder = folder()?;
    let path = folder.join(format!("{key}.so"));
    if !path.is_file() {
        build(source, &folder, &key, &path)?;
    }
    let library = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(crate::code::image(&key, &library))
}

fn build(source: &str, folder: &Path, key: &str, path: &Path) -> Result<(), String> {
    let said = |error: std::io::Error| format!("{}: {error}", folder.display());
    let header = header(folder)?;
    // Files of this build alone: another process may build the same.
    let file = folder.join(format!("{key}.{}.cc", own()));
    let built = file.with_extension("part");
    fs::write(&file, source).map_err(said)?;
    let mut command = command();
    command.args(["-shared", "-include"]).arg(&header);
    command.args(["-x", "c++", "-o"]).args([&built, &file]);
    let outcome = ran(&mut command).and_then(|()| fs::rename(&built, path).map_err(said));
    if outcome.is_ok() || std::env::var_os("STEPMESH_SIMDRIVER_KEEP").is_none() {
        // What is left is in no one's way.
        let _ = fs::remove_file(&file);
    }
    outcome
}

/// The stand-in header, compiled ahead: that is most of what a kernel costs.
fn header(folder: &Path) -> Result<PathBuf, String> {
    let said = |error: std::io::Error| format!("{}: {error}", folder.display());
    let path = folder.join(format!("{}.hpp", key_of("")));
    let ahead = path.with_extension("hpp.gch");
    if !ahead.is_file() {
        put(&path, stepmesh_gpu_source::STAND_IN_HEADER.as_bytes()).map_err(said)?;
        let built = path.with_extension(format!("{}.part", own()));
        let mut command = command();
        command
            .args(["-x", "c++-header", "-o"])
            .args([&built, &path]);
        ran(&mut command)?;
        fs::rename(&built, &ahead).map_err(said)?;
    }
    Ok(path)
}

/// The compiler, told all that must be the same for what is compiled ahead.
fn command() -> Command {
    let mut command = Command::new(compiler());
    command.args(ARGUMENTS);
    command
}

/// # Errors
/// What it wrote.
fn ran(command: &mut Command) -> Result<(), String> {
    let output = command.output();
    let output = output.map_err(|error| format!("{}: {error}", compiler()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Names files of this call alone.
fn own() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{number}", std::process::id())
}

/// Names what a source becomes: the header and the way in which it is compiled are part of it.
fn key_of(source: &str) -> String {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        source.hash(&mut hasher);
        stepmesh_gpu_source::STAND_IN_HEADER.hash(&mut hasher);
        (compiler(), ARGUMENTS).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", half(0), half(1))
}

fn compiler() -> String {
    std::env::var("STEPMESH_SIMDRIVER_CXX").unwrap_or_else(|_| "c++".into())
}

/// A folder beside this library.
fn folder() -> Result<PathBuf, String> {
    let folder = own_file()?.with_file_name("compiled");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// The file that this code was loaded from, which is the one mapped where it is.
fn own_file() -> Result<PathBuf, String> {
    let own: fn() -> Result<PathBuf, String> = own_file;
    let at = own as usize as u64;
    let maps = fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
    let holds = |line: &&str| {
        let (start, rest) = line.split_once('-').unwrap_or_default();
        let end = rest.split_once(' ').unwrap_or_default().0;
        let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        (number(start)..number(end)).contains(&at)
    };
    let line = maps.lines().find(holds).unwrap_or_default();
    let path = line.find('/').and_then(|at| line.get(at..));
    path.map(PathBuf::from)
        .ok_or_else(|| "this library is in no file".into())
}

/// Writes a file in one step.
fn put(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let staged = path.with_extension(format!("{}.part", own()));
    fs::write(&staged, bytes)?;
    fs::rename(&staged, path)
}

fn get(handle: u64) -> Answer<Program> {
    lock().get(&handle).cloned().ok_or(INVALID_PROGRAM)
}

fn lock() -> MutexGuard<'static, BTreeMap<u64, Program>> {
    PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Programs by handle.
static PROGRAMS: Mutex<BTreeMap<u64, Program>> = Mutex::new(BTreeMap::new());
/// Where no memory is mapped.
const PROGRAM_BASE: u64 = 0x5e20_0000_0000_0000;
/// `NVRTC_ERROR_INVALID_PROGRAM`, `HIPRTC_ERROR_INVALID_PROGRAM`.
const INVALID_PROGRAM: Status = Status(4);
/// `NVRTC_ERROR_COMPILATION`, `HIPRTC_ERROR_COMPILATION`.
const COMPILATION: Status = Status(6);
/// Without contraction of products and sums, so that the same is computed on every host.
const ARGUMENTS: [&str; 5] = ["-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-w"];
