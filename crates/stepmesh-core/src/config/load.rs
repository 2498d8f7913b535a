//! The layers of the configuration: file, environment, command line, and who set what.
//!
//! Each layer is a map from key to value; a later one wins. Only `Sources::from_process` looks at
//! the process; everything else works on what it is given, so that tests need no environment.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fmt, fs};

use toml::{Table, Value};

use super::keys::{ENV_ORIGINAL, ENV_OTHER};
use super::{Allowed, Config, KEYS, Key};
use crate::Error;
use crate::error::hint;
use crate::names::nearest;

/// Where settings are taken from.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Sources {
    /// The file of `--config`; it must exist. Beats `STEPMESH_CONFIG`.
    pub file: Option<PathBuf>,
    /// The file that is read when it exists and no other was named.
    pub file_default: Option<PathBuf>,
    /// A snapshot of the environment.
    pub env: Vec<(OsString, OsString)>,
    /// `key=value` pairs of the command line, the last one of a key wins.
    pub overrides: Vec<(String, String)>,
    /// The process has rights that its user has not (set-user-id, file capabilities): plugin paths,
    /// trust and configuration files of the environment and the working directory are ignored.
    pub is_secure: bool,
}

/// A configuration and where it came from.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Loaded {
    /// The effective values, checked.
    pub config: Config,
    /// Where the value of each key came from; every key of [`KEYS`] is present.
    pub origins: BTreeMap<&'static str, Origin>,
    /// Where each option of a backend came from, by `options.<backend>.<option>`.
    pub option_origins: BTreeMap<String, Origin>,
    /// What the user should hear about once, one sentence each.
    pub warnings: Vec<String>,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A configuration file.
    File {
        /// The file.
        path: PathBuf,
    },
    /// An environment variable.
    Env {
        /// Its name.
        name: String,
    },
    /// A `key=value` of the command line.
    CommandLine,
}

impl Sources {
    /// What this process was started with: its environment and `config/stepmesh.toml` below the
    /// working directory.
    #[must_use]
    pub fn from_process() -> Self {
        Self {
            file_default: Some(PathBuf::from(FILE_DEFAULT)),
            env: env::vars_os().collect(),
            is_secure: crate::secure::is_secure_process(),
            ..Self::default()
        }
    }

    /// Only this environment.
    pub fn from_env<K, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Self
    where
        K: Into<OsString>,
        V: Into<OsString>,
    {
        let env = pairs
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        Self {
            env,
            ..Self::default()
        }
    }

    /// The same with this file.
    #[must_use]
    pub fn with_file(self, path: impl Into<PathBuf>) -> Self {
        Self {
            file: Some(path.into()),
            ..self
        }
    }

    /// The same with one more override of the command line.
    #[must_use]
    pub fn with_override(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.overrides.push((key.into(), value.into()));
        self
    }
}

impl Config {
    /// Reads all layers, checks every value and remembers where it came from.
    ///
    /// # Errors
    /// `ConfigRead`, `ConfigParse`, `ConfigUnknownKey`, `ConfigValue`, `ConfigConflict`.
    pub fn load(sources: &Sources) -> Result<Loaded, Error> {
        Self::load_with(sources, |layers, env| match config_file(sources, env) {
            Some(path) => layers.add_file(&path),
            None => Ok(()),
        })
    }

    /// The same with this text in place of any file.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn load_text(sources: &Sources, text: &str) -> Result<Loaded, Error> {
        Self::load_with(sources, |layers, _| {
            layers.add_text(Path::new("text"), text)
        })
    }

    fn load_with(
        sources: &Sources,
        add_file: impl FnOnce(&mut Layers, &Environment) -> Result<(), Error>,
    ) -> Result<Loaded, Error> {
        let mut layers = Layers::defaults();
        let env = Environment::new(sources, &mut layers.warnings)?;
        add_file(&mut layers, &env)?;
        layers.add_dmlc(&env)?;
        layers.add_stepmesh(&env)?;
        for (name, value) in &sources.overrides {
            if is_option(name) {
                layers.set_option(name.clone(), value.clone(), Origin::CommandLine);
                continue;
            }
            let key = known_key(name, &Origin::CommandLine)?;
            layers.set_text(key, value, Origin::CommandLine)?;
        }
        layers.finish()
    }
}

impl Loaded {
    /// Every key with its value as TOML text (`"***"` for a secret) and its origin, in file order.
    #[must_use]
    pub fn values(&self) -> Vec<(&'static Key, String, &Origin)> {
        let values = flatten_config(&self.config);
        KEYS.iter()
            .map(|key| {
                let value = &values[key.name];
                let is_hidden = key.is_secret() && value.as_str() != Some("");
                let text = if is_hidden {
                    "\"***\"".into()
                } else {
                    value.to_string()
                };
                (key, text, &self.origins[key.name])
            })
            .collect()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path } => write!(f, "file {}", path.display()),
            Self::Env { name } => write!(f, "environment {name}"),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// The `STEPMESH_*` and `DMLC_*` variables that are set, not empty and may be used.
struct Environment(BTreeMap<String, String>);

/// The value and origin of each key so far.
struct Layers {
    values: BTreeMap<String, Value>,
    origins: BTreeMap<&'static str, Origin>,
    /// By the whole name, `options.sim.devices`.
    options: BTreeMap<String, (String, Origin)>,
    warnings: Vec<String>,
}

impl Environment {
    fn new(sources: &Sources, warnings: &mut Vec<String>) -> Result<Self, Error> {
        let mut kept = BTreeMap::new();
        for (name, value) in &sources.env {
            let Some(name) = name.to_str() else { continue };
            if !(name.starts_with("STEPMESH_") || name.starts_with("DMLC_")) || value.is_empty() {
                continue;
            }
            let is_refused =
                ENV_REFUSED_WHEN_SECURE.contains(&name) || name.starts_with(ENV_OPTIONS);
            if sources.is_secure && is_refused {
                warnings.push(format!(
                    "{name} is ignored because this process has rights that its user has not"
                ));
                continue;
            }
            let text = value.to_str().ok_or_else(|| Error::ConfigValue {
                key: name.into(),
                value: value.to_string_lossy().into_owned(),
                origin: Origin::Env { name: name.into() },
                allowed: "text in UTF-8".into(),
            })?;
            kept.insert(name.to_owned(), text.to_owned());
        }
        Ok(Self(kept))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The value that the names agree on, with the name that gave it.
    fn agreed(&self, key: &Key, names: &[&str]) -> Result<Option<(String, String)>, Error> {
        let mut found: Option<(&str, &str)> = None;
        for name in names {
            let Some(value) = self.get(name) else {
                continue;
            };
            match found {
                Some((first, earlier)) if earlier != value => {
                    let show = |name: &str, value: &str| {
                        if key.is_secret() {
                            name.into()
                        } else {
                            format!("{name}={value}")
                        }
                    };
                    return Err(Error::ConfigConflict {
                        key: key.name.into(),
                        first: show(first, earlier),
                        second: show(name, value),
                    });
                }
                Some(_) => {}
                None => found = Some((name, value)),
            }
        }
        Ok(found.map(|(name, value)| (name.to_owned(), value.to_owned())))
    }
}

impl Layers {
    fn defaults() -> Self {
        Self {
            values: flatten_config(&Config::default()),
            origins: KEYS.iter().map(|key| (key.name, Origin::Default)).collect(),
            options: BTreeMap::new(),
            warnings: Vec::new(),
        }
    }

    fn add_file(&mut self, path: &Path) -> Result<(), Error> {
        let text = fs::read_to_string(path).map_err(|source| Error::ConfigRead {
            path: path.into(),
            source,
        })?;
        self.add_text(path, &text)
    }

    fn add_text(&mut self, path: &Path, text: &str) -> Result<(), Error> {
        let table: Table = text.parse().map_err(|source| Error::ConfigParse {
            path: path.into(),
            source: Box::new(source),
        })?;
        let origin = Origin::File { path: path.into() };
        let mut values = BTreeMap::new();
        flatten("", &table, &mut values);
        for (name, value) in values {
            if is_option(&name) {
                let text = option_text(&value).ok_or_else(|| Error::ConfigValue {
                    key: name.clone(),
                    value: value.to_string(),
                    origin: origin.clone(),
                    allowed: "text, a number, true or false".into(),
                })?;
                self.set_option(name, text, origin.clone());
                continue;
            }
            let key = known_key(&name, &origin)?;
            self.set(key, value, origin.clone())?;
        }
        Ok(())
    }

    fn add_dmlc(&mut self, env: &Environment) -> Result<(), Error> {
        for key in KEYS {
            if let Some((name, text)) = key.dmlc.and_then(|name| Some((name, env.get(name)?))) {
                self.set_text(key, text, Origin::Env { name: name.into() })?;
            }
        }
        Ok(())
    }

    fn add_stepmesh(&mut self, env: &Environment) -> Result<(), Error> {
        for key in KEYS {
            let full = key.env();
            let mut names = vec![full.as_str()];
            names.extend(key.env_short);
            if key.name == "backend" {
                names.push(BACKEND_MISSPELT);
            }
            if let Some((name, text)) = env.agreed(key, &names)? {
                if name == BACKEND_MISSPELT {
                    self.warnings.push(format!(
                        "{BACKEND_MISSPELT}={text} is taken as STEPMESH_BACKEND; correct the name"
                    ));
                }
                self.set_text(key, &text, Origin::Env { name })?;
            }
        }
        for (name, text) in &env.0 {
            if let Some(option) = option_of_env(name) {
                self.set_option(option, text.clone(), Origin::Env { name: name.clone() });
            }
        }
        self.warn_about_unknown(env);
        Ok(())
    }

    fn warn_about_unknown(&mut self, env: &Environment) {
        let full: Vec<String> = KEYS.iter().map(Key::env).collect();
        let short = KEYS.iter().filter_map(|key| key.env_short);
        let known: Vec<&str> = full
            .iter()
            .map(String::as_str)
            .chain(short)
            .chain(ENV_OTHER.iter().copied())
            .collect();
        for name in env.0.keys().filter(|name| name.starts_with("STEPMESH_")) {
            if ENV_ORIGINAL.contains(&name.as_str()) {
                self.warnings.push(format!(
                    "{name} of the original StepMesh has no effect here"
                ));
            } else if !known.contains(&name.as_str()) && option_of_env(name).is_none() {
                // The misspelt name is known, but nobody should be led to it.
                let good = known
                    .iter()
                    .copied()
                    .filter(|known| *known != BACKEND_MISSPELT);
                let hint = hint(nearest(name, good));
                self.warnings
                    .push(format!("unknown environment variable {name}{hint}"));
            }
        }
    }

    fn set_text(&mut self, key: &'static Key, text: &str, origin: Origin) -> Result<(), Error> {
        let value = parse(key.allowed, text).ok_or_else(|| bad_value(key, text, &origin))?;
        self.set(key, value, origin)
    }

    fn set(&mut self, key: &'static Key, value: Value, origin: Origin) -> Result<(), Error> {
        if !is_allowed(key.allowed, &value) {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            return Err(bad_value(key, &text, &origin));
        }
        self.values.insert(key.name.into(), value);
        self.origins.insert(key.name, origin);
        Ok(())
    }

    fn set_option(&mut self, name: String, text: String, origin: Origin) {
        self.options.insert(name, (text, origin));
    }

    fn finish(self) -> Result<Loaded, Error> {
        let Self {
            values,
            origins,
            options,
            warnings,
        } = self;
        let mut config: Config = nest(values)
            .try_into()
            .expect("invariant: the limits in KEYS lie within the types of Config");
        check_together(&config, &origins)?;
        let mut option_origins = BTreeMap::new();
        for (name, (text, origin)) in options {
            if let Some((backend, option)) = option_parts(&name) {
                let of_backend = config.options.entry(backend.into()).or_default();
                of_backend.insert(option.into(), text);
                option_origins.insert(name, origin);
            }
        }
        Ok(Loaded {
            config,
            origins,
            option_origins,
            warnings,
        })
    }
}

/// Backend and option of `options.<backend>.<option>`.
fn option_parts(name: &str) -> Option<(&str, &str)> {
    let (backend, option) = name.strip_prefix("options.")?.split_once('.')?;
    (!backend.is_empty() && !option.is_empty()).then_some((backend, option))
}

fn is_option(name: &str) -> bool {
    option_parts(name).is_some()
}

/// `options.sim.devices` for `STEPMESH_OPTIONS_SIM_DEVICES`. The first word is the backend.
fn option_of_env(name: &str) -> Option<String> {
    let (backend, option) = name.strip_prefix(ENV_OPTIONS)?.split_once('_')?;
    let name = format!("options.{backend}.{option}").to_lowercase();
    is_option(&name).then_some(name)
}

/// What a plugin is told: it reads text and knows what it should mean.
fn option_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => Some(value.to_string()),
        _ => None,
    }
}

fn config_file(sources: &Sources, env: &Environment) -> Option<PathBuf> {
    let named = sources
        .file
        .clone()
        .or_else(|| env.get("STEPMESH_CONFIG").map(PathBuf::from));
    named.or_else(|| {
        sources
            .file_default
            .clone()
            .filter(|path| !sources.is_secure && path.exists())
    })
}

fn known_key(name: &str, origin: &Origin) -> Result<&'static Key, Error> {
    Key::find(name).ok_or_else(|| Error::ConfigUnknownKey {
        key: name.into(),
        origin: origin.clone(),
        nearest: nearest(name, KEYS.iter().map(|key| key.name)).map(str::to_owned),
    })
}

fn bad_value(key: &Key, text: &str, origin: &Origin) -> Error {
    Error::ConfigValue {
        key: key.name.into(),
        value: if key.is_secret() {
            "***".into()
        } else {
            text.into()
        },
        origin: origin.clone(),
        allowed: key.allowed.to_string(),
    }
}

/// Limits that tie two keys together.
fn check_together(config: &Config, origins: &BTreeMap<&str, Origin>) -> Result<(), Error> {
    let timeouts = &config.timeouts;
    if timeouts.peer_dead_ms < 2 * timeouts.heartbeat_ms {
        // One lost heartbeat must not be a death.
        return Err(Error::ConfigValue {
            key: "timeouts.peer_dead_ms".into(),
            value: timeouts.peer_dead_ms.to_string(),
            origin: origins["timeouts.peer_dead_ms"].clone(),
            allowed: format!(
                "at least twice timeouts.heartbeat_ms, which is {} from {}",
                timeouts.heartbeat_ms, origins["timeouts.heartbeat_ms"]
            ),
        });
    }
    Ok(())
}

fn parse(allowed: Allowed, text: &str) -> Option<Value> {
    Some(match allowed {
        Allowed::Bool => Value::Boolean(match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => true,
            "false" | "0" | "no" | "off" => false,
            _ => return None,
        }),
        Allowed::Range(..) | Allowed::PowerOfTwo(..) => Value::Integer(text.trim().parse().ok()?),
        Allowed::OneOf(_) => Value::String(text.trim().to_ascii_lowercase()),
        Allowed::Text | Allowed::Secret => Value::String(text.into()),
        Allowed::List(separator) => {
            let items = text
                .split(separator)
                .map(str::trim)
                .filter(|item| !item.is_empty());
            Value::Array(items.map(|item| Value::String(item.into())).collect())
        }
    })
}

fn is_allowed(allowed: Allowed, value: &Value) -> bool {
    match (allowed, value) {
        (Allowed::Bool, Value::Boolean(_))
        | (Allowed::Text | Allowed::Secret, Value::String(_)) => true,
        (Allowed::OneOf(words), Value::String(word)) => words.contains(&word.as_str()),
        (Allowed::Range(first, last), Value::Integer(n)) => (first..=last).contains(n),
        (Allowed::PowerOfTwo(first, last), Value::Integer(n)) => {
            (first..=last).contains(n) && n.count_ones() == 1
        }
        (Allowed::List(_), Value::Array(items)) => items.iter().all(Value::is_str),
        _ => false,
    }
}

fn flatten_config(config: &Config) -> BTreeMap<String, Value> {
    let table = Table::try_from(config).expect("invariant: Config is plain data");
    let mut values = BTreeMap::new();
    flatten("", &table, &mut values);
    values
}

fn flatten(prefix: &str, table: &Table, values: &mut BTreeMap<String, Value>) {
    for (name, value) in table {
        let name = format!("{prefix}{name}");
        match value {
            Value::Table(inner) if !inner.is_empty() => {
                flatten(&format!("{name}."), inner, values);
            }
            // An empty section sets nothing; an unknown one is still reported by its name.
            Value::Table(_) if is_section(&name) || is_options(&name) => {}
            _ => {
                values.insert(name, value.clone());
            }
        }
    }
}

fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| {
        key.name
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('.'))
    })
}

fn is_options(name: &str) -> bool {
    name == "options" || name.starts_with("options.")
}

fn nest(values: BTreeMap<String, Value>) -> Table {
    let mut root = Table::new();
    for (name, value) in values {
        match name.split_once('.') {
            None => {
                root.insert(name, value);
            }
            Some((section, field)) => {
                let section = root
                    .entry(section)
                    .or_insert_with(|| Value::Table(Table::new()))
                    .as_table_mut()
                    .expect("invariant: no key has the name of a section");
                section.insert(field.into(), value);
            }
        }
    }
    root
}

/// The file that is read when none is named and it exists.
const FILE_DEFAULT: &str = "config/stepmesh.toml";
/// The original's documentation says STEPMESH_BACKEND, its code reads only this.
const BACKEND_MISSPELT: &str = "STEPMESH_BAKCEND";
/// How the variables of options begin.
const ENV_OPTIONS: &str = "STEPMESH_OPTIONS_";
/// What an unprivileged user could use to run his code with the rights of the program.
const ENV_REFUSED_WHEN_SECURE: &[&str] = &[
    "STEPMESH_CONFIG",
    "STEPMESH_PLUGIN_PATH",
    "STEPMESH_PLUGINS_PATH",
    "STEPMESH_PLUGIN_TRUST",
    "STEPMESH_PLUGINS_TRUST",
];
