//! Which backends there are and which one is taken.
//!
//! Discovery never fails as a whole: a bad plugin is a candidate with a reason, and the others go
//! on. Judging files is in `discovery`, loading in `loader`.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use stepmesh_abi::note::{SM_KIND_GPU, SM_PANIC_ABORT};

use crate::config::{LoadPolicy, PluginsConfig};
use crate::discovery::{self, Found, Judged, Note, Reason};
use crate::error::Unavailable;
use crate::loader::{self, Plugin, StaticPlugin};
use crate::names::nearest;
use crate::{Backend, Error, probe};

/// The backends that were found, usable or not. Immutable; any thread may use it.
#[derive(Debug)]
pub struct Registry {
    candidates: Vec<Candidate>,
    searched: Vec<PathBuf>,
}

/// A plugin file, or a backend linked into the program, and what became of it.
#[derive(Debug, Clone)]
pub struct Candidate {
    path: Option<PathBuf>,
    note: Option<Note>,
    source: Option<Source>,
    state: State,
    reason: Option<Reason>,
}

/// What became of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Loaded; its devices were not touched.
    Loaded,
    /// Compatible by its note; loaded when it is selected (`plugins.load = "selected"`).
    Compatible,
    /// Another file of the same name, or the same file by another path, comes first.
    Shadowed,
    /// Disabled by the configuration.
    Disabled,
    /// Unusable.
    Rejected,
}

/// What a plugin says of its devices without touching them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Probe {
    /// Usable devices.
    pub device_count: u32,
    /// How good the backend is on this host; 0: unusable.
    pub score: u32,
}

/// Where a candidate's code comes from.
#[derive(Debug, Clone)]
enum Source {
    File(Arc<Found>),
    Static(&'static Plugin),
}

impl Registry {
    /// Searches the configured paths, then `stepmesh-plugins` beside the program, adds the backends
    /// linked into the program, and loads what is compatible (unless `plugins.load` says later).
    #[must_use]
    pub fn discover(config: &PluginsConfig) -> Self {
        Self::discover_with(config, loader::BUILT_IN)
    }

    /// The same with these static backends instead of the built-in one.
    #[must_use]
    pub fn discover_with(config: &PluginsConfig, built_in: &[StaticPlugin]) -> Self {
        let searched = discovery::directories(&config.path);
        let judged = discovery::judge_all(config, &searched);
        let mut candidates: Vec<_> = judged.into_iter().map(Candidate::from_judged).collect();
        candidates.extend(
            built_in
                .iter()
                .map(|plugin| Candidate::from_static(*plugin, config)),
        );
        let mut registry = Self {
            candidates,
            searched,
        };
        for contenders in registry.contenders_by_name().into_values() {
            registry.settle(&contenders, config);
        }
        registry
    }

    /// Every file that was looked at, in search order, then the static ones.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The places that were searched, in order.
    #[must_use]
    pub fn searched(&self) -> &[PathBuf] {
        &self.searched
    }

    /// Opens a backend by its name or alias, without regard to case. Without a name: the alias
    /// `GPU` if one is usable, else `cpu`, with a warning in the log that says why.
    ///
    /// # Errors
    /// `BackendUnavailable` with every candidate's reason, `BackendAmbiguous` when several backends
    /// with devices answer to the alias and none has the higher priority.
    pub fn select(&self, name: Option<&str>) -> Result<Backend, Error> {
        let Some(name) = name else {
            return self.select_best();
        };
        let mut failures = Failures::new();
        let is_named = |candidate: &&Candidate| {
            candidate
                .name()
                .is_some_and(|own| own.eq_ignore_ascii_case(name))
        };
        if self.usable().any(|(_, candidate)| is_named(&candidate)) {
            for (at, candidate) in self.usable().filter(|(_, candidate)| is_named(candidate)) {
                match candidate.load() {
                    Ok(plugin) => {
                        // Once its code runs a plugin of this name stands for the name: a failure
                        // to open is told, not papered over with another file.
                        match probed(plugin).and_then(|_| Backend::open_plugin(plugin)) {
                            Ok(backend) => return Ok(opened(backend)),
                            Err(reason) => {
                                failures.insert(at, reason);
                                break;
                            }
                        }
                    }
                    Err(reason) => {
                        failures.insert(at, reason);
                    }
                }
            }
            return Err(self.unavailable(name, &failures));
        }
        match self.resolve_alias(name, &mut failures)? {
            Some(backend) => Ok(backend),
            None => Err(self.unavailable(name, &failures)),
        }
    }

    fn select_best(&self) -> Result<Backend, Error> {
        let mut failures = Failures::new();
        if let Some(backend) = self.resolve_alias(ALIAS_GPU, &mut failures)? {
            return Ok(backend);
        }
        let backend = self.select(Some(FALLBACK))?;
        let gpus = self
            .candidates
            .iter()
            .enumerate()
            .filter(|(_, c)| c.answers_to(ALIAS_GPU));
        let reasons: Vec<_> = gpus
            .map(|(at, candidate)| self.report(at, candidate, &failures))
            .map(|(candidate, reason)| format!("{candidate} {reason}"))
            .collect();
        let why = if reasons.is_empty() {
            "no plugin for one was found".into()
        } else {
            reasons.join("; ")
        };
        tracing::warn!(
            backend = backend.name(),
            "no GPU is usable and STEPMESH_BACKEND is not set, so `{FALLBACK}` is used: {why}"
        );
        Ok(backend)
    }

    /// The one backend with devices that answers to an alias, if any.
    fn resolve_alias(
        &self,
        alias: &str,
        failures: &mut Failures,
    ) -> Result<Option<Backend>, Error> {
        let mut live: Vec<(usize, &Candidate, &'static Plugin)> = Vec::new();
        for (at, candidate) in self.usable().filter(|(_, c)| c.answers_to(alias)) {
            match candidate
                .load()
                .and_then(|plugin| probed(plugin).map(|_| plugin))
            {
                // Two files of one name are one backend: the better one stands for it.
                Ok(plugin) if live.iter().any(|(_, _, other)| other.name == plugin.name) => {}
                Ok(plugin) => live.push((at, candidate, plugin)),
                Err(reason) => {
                    failures.insert(at, reason);
                }
            }
        }
        let Some(best) = live
            .iter()
            .map(|(_, candidate, _)| candidate.priority())
            .max()
        else {
            return Ok(None);
        };
        live.retain(|(_, candidate, _)| candidate.priority() == best);
        if let [(at, _, plugin)] = live[..] {
            return match Backend::open_plugin(plugin) {
                Ok(backend) => Ok(Some(opened(backend))),
                Err(reason) => {
                    failures.insert(at, reason);
                    Ok(None)
                }
            };
        }
        let names: Vec<_> = live
            .iter()
            .map(|(_, candidate, _)| candidate.to_string())
            .collect();
        Err(Error::BackendAmbiguous {
            alias: alias.into(),
            names: names.join(", "),
        })
    }

    /// Candidates that may be loaded, better ones of a name first.
    fn usable(&self) -> impl Iterator<Item = (usize, &Candidate)> {
        let order = self.contenders_by_name().into_values().flatten();
        order
            .map(|at| (at, &self.candidates[at]))
            .filter(|(_, candidate)| {
                matches!(
                    candidate.state,
                    State::Loaded | State::Compatible | State::Shadowed
                )
            })
    }

    /// Candidates whose code may be used, by lower-case name, the preferred one first.
    fn contenders_by_name(&self) -> BTreeMap<String, Vec<usize>> {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, candidate) in self.candidates.iter().enumerate() {
            if let (Some(name), Some(_)) = (candidate.name(), &candidate.source) {
                groups.entry(name.to_lowercase()).or_default().push(at);
            }
        }
        for group in groups.values_mut() {
            group.sort_by(|a, b| self.candidates[*a].by_preference(&self.candidates[*b]));
        }
        groups
    }

    /// Decides between the candidates of one name and loads the winner.
    fn settle(&mut self, contenders: &[usize], config: &PluginsConfig) {
        let files: Vec<usize> = contenders
            .iter()
            .copied()
            .filter(|at| self.candidates[*at].path.is_some())
            .collect();
        if config.strict && files.len() > 1 {
            for at in &files {
                let others = files.iter().filter(|other| *other != at);
                let others: Vec<_> = others
                    .map(|other| self.candidates[*other].to_string())
                    .collect();
                self.candidates[*at].refuse(Reason::Ambiguous {
                    others: others.join(", "),
                });
            }
            return;
        }
        let mut winner: Option<usize> = None;
        for at in contenders {
            if let Some(winner) = winner {
                let why = self.candidates[winner].why_before(&self.candidates[*at]);
                let winner = self.candidates[winner].to_string();
                self.candidates[*at].state = State::Shadowed;
                self.candidates[*at].reason = Some(Reason::Shadowed { winner, why });
                continue;
            }
            if config.load == LoadPolicy::Selected {
                winner = Some(*at);
                continue;
            }
            match self.candidates[*at].load() {
                Ok(_) => {
                    self.candidates[*at].state = State::Loaded;
                    winner = Some(*at);
                }
                Err(reason) => self.candidates[*at].refuse(reason),
            }
        }
    }

    fn unavailable(&self, name: &str, failures: &Failures) -> Error {
        let is_found = self.candidates.iter().any(|known| known.answers_to(name));
        // A name that is right needs no other one, be it that its plugin is missing.
        let is_known = is_found || NAMES.iter().any(|known| known.eq_ignore_ascii_case(name));
        let known = self
            .candidates
            .iter()
            .flat_map(Candidate::names)
            .chain(NAMES);
        let nearest = nearest(name, known).filter(|_| !is_known);
        let report = |(at, candidate)| self.report(at, candidate, failures);
        Error::BackendUnavailable(Box::new(Unavailable {
            name: name.into(),
            is_found,
            nearest: nearest.map(str::to_owned),
            candidates: self.candidates.iter().enumerate().map(report).collect(),
            searched: self.searched.clone(),
        }))
    }

    /// A candidate and why it was not taken.
    fn report(&self, at: usize, candidate: &Candidate, failures: &Failures) -> (String, String) {
        let reason = match (failures.get(&at), &candidate.reason) {
            (Some(reason), _) | (None, Some(reason)) => reason.to_string(),
            (None, None) => format!("is `{}`", candidate.name().unwrap_or("nameless")),
        };
        (candidate.to_string(), reason)
    }
}

impl Candidate {
    /// The file; `None` when it is linked into the program.
    #[must_use]
    pub fn path(&self) -> Option<&std::path::Path> {
        self.path.as_deref()
    }

    /// Name of the backend, as far as the file was readable.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match &self.source {
            Some(Source::Static(plugin)) => Some(&plugin.name),
            _ => self.note.as_ref().map(|note| note.name.as_str()),
        }
    }

    /// Version of the plugin.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        match &self.source {
            Some(Source::Static(plugin)) => Some(&plugin.version),
            _ => self.note.as_ref().map(|note| note.version.as_str()),
        }
    }

    /// Major and minor version of the ABI that it was built with.
    #[must_use]
    pub fn abi(&self) -> Option<(u16, u16)> {
        match &self.source {
            Some(Source::Static(plugin)) => {
                Some((plugin.api.hdr.abi_major, plugin.api.hdr.abi_minor))
            }
            _ => self
                .note
                .as_ref()
                .map(|note| (note.abi_major, note.abi_max_minor)),
        }
    }

    /// The whole note; a static backend has none.
    #[must_use]
    pub fn note(&self) -> Option<&Note> {
        self.note.as_ref()
    }

    /// What became of it.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Why it is not used, if it is not.
    #[must_use]
    pub fn reason(&self) -> Option<&Reason> {
        self.reason.as_ref()
    }

    /// Loads it if it is not loaded yet, and asks what devices it has without touching them.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub fn probe(&self) -> Result<Probe, Reason> {
        probe::probe(self.load()?)
    }

    /// Why its [`Candidate::probe`] found no device, in the plugin's words, if it has any: which
    /// library was looked for and what the driver answered, for example.
    #[must_use]
    pub fn why_no_device(&self) -> Option<String> {
        self.load().ok().and_then(why_no_device)
    }

    /// Loads it if it is not loaded yet, and opens it.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub fn open(&self) -> Result<Backend, Reason> {
        Backend::open_plugin(self.load()?)
    }

    fn from_judged(judged: Judged) -> Self {
        let Judged {
            path,
            note,
            verdict,
        } = judged;
        match verdict {
            Ok(found) => Self {
                path: Some(path),
                note,
                source: Some(Source::File(Arc::new(found))),
                state: State::Compatible,
                reason: None,
            },
            Err(reason) => {
                let mut candidate = Self {
                    path: Some(path),
                    note,
                    source: None,
                    state: State::Rejected,
                    reason: None,
                };
                candidate.refuse(reason);
                candidate
            }
        }
    }

    fn from_static(plugin: StaticPlugin, config: &PluginsConfig) -> Self {
        let mut candidate = Self {
            path: None,
            note: None,
            source: None,
            state: State::Loaded,
            reason: None,
        };
        match plugin.load() {
            Ok(plugin) => {
                let mut globs = config.disable.iter();
                match globs.find(|glob| discovery::matches_glob(glob, &plugin.name)) {
                    Some(glob) => candidate.refuse(Reason::Disabled { glob: glob.clone() }),
                    None => candidate.source = Some(Source::Static(plugin)),
                }
            }
            Err(reason) => candidate.refuse(reason),
        }
        candidate
    }

    fn load(&self) -> Result<&'static Plugin, Reason> {
        match &self.source {
            Some(Source::Static(plugin)) => Ok(plugin),
            Some(Source::File(found)) => {
                if found.note.panic_strategy == SM_PANIC_ABORT {
                    tracing::warn!(
                        path = %found.path.display(),
                        "a panic in this plugin would end the process; build it with unwinding"
                    );
                }
                loader::load(found)
            }
            None => Err(self.reason.clone().unwrap_or(Reason::NotAFile)),
        }
    }

    fn refuse(&mut self, reason: Reason) {
        self.source = None;
        self.state = match reason {
            Reason::Disabled { .. } => State::Disabled,
            Reason::SameFile { .. } | Reason::SameBuild { .. } => State::Shadowed,
            _ => State::Rejected,
        };
        if self.state == State::Rejected {
            tracing::warn!(candidate = %self, "plugin not used: it {reason}");
        }
        self.reason = Some(reason);
    }

    fn priority(&self) -> i32 {
        self.note.as_ref().map_or(0, |note| note.priority)
    }

    /// Name and aliases; a GPU answers to `GPU` whether it says so or not.
    fn names(&self) -> impl Iterator<Item = &str> {
        let note = self.note.as_ref();
        let aliases = note
            .into_iter()
            .flat_map(|note| note.aliases.iter().map(String::as_str));
        let gpu = note
            .filter(|note| note.kind == SM_KIND_GPU)
            .map(|_| ALIAS_GPU);
        self.name().into_iter().chain(aliases).chain(gpu)
    }

    fn answers_to(&self, name: &str) -> bool {
        self.names().any(|own| own.eq_ignore_ascii_case(name))
    }

    fn by_preference(&self, other: &Self) -> std::cmp::Ordering {
        match (&self.source, &other.source) {
            (Some(Source::File(a)), Some(Source::File(b))) => discovery::by_preference(a, b),
            // A file beats the static one, so that a backend can be replaced without a new program.
            (a, b) => {
                let is_file = |source: &Option<Source>| matches!(source, Some(Source::File(_)));
                is_file(b).cmp(&is_file(a))
            }
        }
    }

    /// Why this one comes before another of the same name.
    fn why_before(&self, other: &Self) -> &'static str {
        match (self.note(), other.note()) {
            (_, None) => "a file comes before what is built in",
            (Some(a), Some(b)) if a.priority != b.priority => "its priority is higher",
            (Some(a), Some(b)) if a.version != b.version => "its version is newer",
            _ => "its directory comes earlier",
        }
    }
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}", path.display())?,
            None => f.write_str("built in")?,
        }
        match (self.name(), self.version()) {
            (Some(name), Some(version)) => write!(f, " ({name} {version})"),
            _ => Ok(()),
        }
    }
}

/// Why candidates, by index, failed in this selection.
type Failures = BTreeMap<usize, Reason>;

/// What a plugin without devices says when it is opened: `probe` has no words for it.
fn why_no_device(plugin: &'static Plugin) -> Option<String> {
    match Backend::open_plugin(plugin) {
        Ok(_) => None,
        Err(Reason::Open { message }) => Some(message),
        Err(reason) => Some(reason.to_string()),
    }
}

/// At least one device, or the reason.
fn probed(plugin: &'static Plugin) -> Result<Probe, Reason> {
    let probe = probe::probe(plugin)?;
    if probe.device_count == 0 || probe.score == 0 {
        Err(Reason::NoDevice {
            why: why_no_device(plugin),
        })
    } else {
        Ok(probe)
    }
}

fn opened(backend: Backend) -> Backend {
    tracing::info!(
        backend = backend.name(),
        version = backend.version(),
        devices = backend.device_count(),
        path = backend.path().map(|path| path.display().to_string()),
        "backend opened"
    );
    backend
}

/// The names that StepMesh gives out itself.
const NAMES: [&str; 4] = ["cpu", "cuda", "rocm", ALIAS_GPU];
/// The alias of whichever GPU backend has a device.
const ALIAS_GPU: &str = "GPU";
/// What is used when nothing was asked for and there is no GPU.
const FALLBACK: &str = "cpu";
