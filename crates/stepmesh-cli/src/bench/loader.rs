//! What it costs to find, check, load and register ten plugins, beside a bare dlopen of the same
//! files. Nothing is ever unloaded, so every block has a process of its own.
#![expect(
    unsafe_code,
    reason = "dlopen without the library, and the name in a plugin's table"
)]

use std::fs::{self, Permissions};
use std::mem::offset_of;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stepmesh_core::abi::note::{SmNoteDesc, SmNoteHeader};
use stepmesh_core::config::{Config, LoadPolicy, PluginsConfig};
use stepmesh_core::{Backend, Registry, State};

use crate::bench::peer::{Part, Peer, Setup, cpus, tell};
use crate::bench::statistics::{median, ratio_of_pairs};
use crate::bench::vtable;

/// Costs of all ten plugins, in nanoseconds.
#[derive(Debug)]
pub(crate) struct LoaderOutcome {
    pub(crate) ours_ns: f64,
    pub(crate) dlopen_ns: f64,
    /// The median over the pairs of neighbouring processes, of their ratio.
    pub(crate) ratio: f64,
}

/// What a process does for it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Step {
    /// Fills a directory with plugins, and tells which other files discovery comes across.
    Fill { dir: PathBuf },
    /// Discovers the plugins of a directory, and tells how long that took.
    Discover { dir: PathBuf, others: Vec<String> },
    /// Opens the same files without the library, and tells how long that took.
    Dlopen { dir: PathBuf },
}

/// Runs a process for each in turns for `budget`.
pub(crate) fn measure(setup: &Setup, budget: Duration) -> Result<LoaderOutcome> {
    let directory = tempfile::Builder::new().prefix("stepmesh-bench-").tempdir();
    let directory = directory.context("cannot create a directory for plugins")?;
    let dir = || directory.path().to_owned();
    let others: Vec<String> = perform_apart(setup, Step::Fill { dir: dir() })?;
    let pair = || -> Result<(f64, f64)> {
        let (dir, others) = (dir(), others.clone());
        let ours = perform_apart(setup, Step::Discover { dir, others })?;
        let floor = perform_apart(
            setup,
            Step::Dlopen {
                dir: directory.path().into(),
            },
        )?;
        Ok((ours, floor))
    };
    // Brings everything into the page cache.
    pair()?;
    let mut pairs = Vec::new();
    let deadline = Instant::now() + budget;
    while Instant::now() < deadline || pairs.is_empty() {
        pairs.push(pair()?);
    }
    let (ours_ns, dlopen_ns): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    Ok(LoaderOutcome {
        ours_ns: median(&ours_ns).unwrap_or_default(),
        dlopen_ns: median(&dlopen_ns).unwrap_or_default(),
        ratio: ratio_of_pairs(&pairs).context("dlopen took no time at all")?,
    })
}

fn perform_apart<T: DeserializeOwned>(setup: &Setup, step: Step) -> Result<T> {
    let [cpu, _] = cpus()?;
    let mut peer = Peer::start("loader", setup, &[cpu], Part::Loader(step))?;
    let answer = peer.answer(setup.deadline)?;
    peer.finish(setup.deadline)?;
    Ok(answer)
}

/// Does a step in this process.
pub(crate) fn perform(config: &Config, step: &Step) -> Result<()> {
    match step {
        Step::Fill { dir } => tell(&fill(config, dir)?),
        Step::Discover { dir, others } => tell(&discover(dir, others)?),
        Step::Dlopen { dir } => tell(&dlopen(dir)?),
    }
}

fn discover(dir: &Path, others: &[String]) -> Result<f64> {
    let config = PluginsConfig {
        path: vec![dir.to_owned()],
        load: LoadPolicy::All,
        // Those beside the program, which are found whatever the configuration says.
        disable: others.to_vec(),
        ..PluginsConfig::default()
    };
    let started = Instant::now();
    let registry = Registry::discover_with(&config, &[]);
    let elapsed = started.elapsed();
    let candidates = registry.candidates();
    let loaded = candidates.iter().filter(|one| one.state() == State::Loaded);
    let reasons = candidates.iter().filter_map(|one| {
        let reason = one.reason().filter(|_| one.state() != State::Disabled)?;
        Some(format!("{one} {reason}"))
    });
    let loaded = loaded.count();
    ensure!(
        loaded == PLUGINS,
        "{loaded} of {PLUGINS} plugins were loaded: {}",
        reasons.collect::<Vec<_>>().join("; ")
    );
    Ok(elapsed.as_secs_f64() * 1e9)
}

fn dlopen(dir: &Path) -> Result<f64> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut paths = paths.collect::<Result<Vec<_>>>()?;
    paths.sort();
    let mut libraries = Vec::with_capacity(paths.len());
    let started = Instant::now();
    for path in &paths {
        // SAFETY: copies of the cpu plugin, whose initialisers are those of any Rust library.
        libraries.push(unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) });
    }
    let elapsed = started.elapsed();
    for library in libraries {
        // Stays loaded, as ours does.
        let _ = library?.into_raw();
    }
    Ok(elapsed.as_secs_f64() * 1e9)
}

/// Copies of the cpu plugin, each of another name: those of one name would not all be loaded.
fn fill(config: &Config, dir: &Path) -> Result<Vec<String>> {
    let registry = Registry::discover(&config.plugins);
    let backend = vtable::open(&registry, true)?;
    let path = backend.path().context("the plugin has no file")?;
    let plugin = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let name = backend.name();
    let places = [
        name_in_note(&plugin, name).context("the plugin's note is not where it should be")?,
        name_in_table(&backend, path).context("the plugin's name is not in its file")?,
    ];
    let (stem, _) = name.split_at(name.len() - 1);
    for index in 0..PLUGINS {
        let mut copy = plugin.clone();
        let own_name = format!("{stem}{index}");
        for at in places {
            let text = copy.get_mut(at..at + name.len());
            let text = text.filter(|text| *text == name.as_bytes());
            let text = text.context("the plugin's name is not where it should be")?;
            text.copy_from_slice(own_name.as_bytes());
        }
        let path = dir.join(format!("libstepmesh_backend_{own_name}.so"));
        let written = fs::write(&path, copy);
        written.with_context(|| format!("cannot write {}", path.display()))?;
        // What others may write to is not trusted, and the umask is anybody's.
        fs::set_permissions(&path, Permissions::from_mode(0o700))?;
    }
    let found = registry.candidates().iter();
    let files = found.filter_map(|one| one.path()?.file_name());
    Ok(files.map(|name| name.to_string_lossy().into()).collect())
}

/// Where in a plugin's file its note has the name.
fn name_in_note(plugin: &[u8], name: &str) -> Option<usize> {
    let from_owner = size_of::<SmNoteHeader>() - offset_of!(SmNoteHeader, owner);
    let owners = plugin.windows(OWNER.len()).enumerate();
    let owners = owners.filter(|(_, bytes)| *bytes == OWNER);
    let mut names = owners.map(|(at, _)| at + from_owner + size_of::<SmNoteDesc>());
    names.find(|at| plugin.get(*at..at + name.len()) == Some(name.as_bytes()))
}

/// Where in a loaded plugin's file its table has the name.
fn name_in_table(backend: &Backend, path: &Path) -> Option<usize> {
    // SAFETY: the loader read the description of this plugin, which is never unloaded.
    let info = unsafe { backend.as_raw().api.info.as_ref() }?;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    offset_in_file(&maps, info.name.ptr.addr(), path.to_str()?)
}

/// Where in a file a byte of it is that was mapped to an address; see `proc_pid_maps(5)`.
fn offset_in_file(maps: &str, address: usize, file: &str) -> Option<usize> {
    maps.lines().find_map(|line| {
        let mapping = line.strip_suffix(file)?;
        let mut fields = mapping.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let offset = fields.nth(1)?;
        let [start, end, offset] =
            [start, end, offset].map(|hex| usize::from_str_radix(hex, 16).ok());
        let (start, end) = (start?, end?);
        (start..end).contains(&address).then_some(())?;
        Some(address - start + offset?)
    })
}

/// As many as the name of the benchmark says; each has a digit.
const PLUGINS: usize = 10;

/// The owner in the header of a note.
const OWNER: &[u8; 12] = b"StepMesh\0\0\0\0";

#[cfg(test)]
mod tests {
    use stepmesh_core::abi::note::{NoteParams, note_bytes, note_len};

    use super::{name_in_note, offset_in_file};

    #[test]
    fn the_name_of_a_note_is_found_behind_other_bytes() {
        const NOTE: NoteParams<'_> = NoteParams::new("cpu", "1.0");
        const BYTES: [u8; note_len(&NOTE)] = note_bytes(&NOTE);
        let file = [b"cpu StepMesh\0\0\0\0 cpu".as_slice(), &BYTES].concat();
        let at = name_in_note(&file, "cpu").unwrap();
        assert_eq!(&file[at..at + 6], b"cpu1.0");
        assert_eq!(name_in_note(&file, "gpu"), None);
        assert_eq!(name_in_note(&file[..at + 2], "cpu"), None);
    }

    #[test]
    fn an_address_is_found_in_the_file_that_is_mapped_there() {
        let maps = "\
7f00-8000 r--p 00000000 08:01 12                /a/b.so
8000-9000 r-xp 00001000 08:01 12                /a/b c.so
9000-a000 rw-p 00000000 00:00 0";
        assert_eq!(offset_in_file(maps, 0x7f10, "/a/b.so"), Some(0x10));
        assert_eq!(offset_in_file(maps, 0x8010, "/a/b c.so"), Some(0x1010));
        assert_eq!(offset_in_file(maps, 0x8000, "/a/b.so"), None);
        assert_eq!(offset_in_file(maps, 0x9000, "/a/b.so"), None);
    }
}
