//! `stepmesh config`, and how every subcommand reads its configuration.

use std::io::{self, Write};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use stepmesh_core::config::{Config, Loaded, Origin, Sources};

use crate::args::Global;
use crate::exit::Exit;
use crate::{logging, report};

/// What `stepmesh config` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Prints JSON: an object of keys, each with its value and origin
    #[arg(long)]
    json: bool,
}

/// Prints every key with its value and its origin.
pub(crate) fn run(global: &Global, options: &Options) -> Result<Exit> {
    let loaded = load_quietly(global)?;
    if options.json {
        report::print_json(&as_json(&loaded)?)?;
    } else {
        let mut table = report::table(["key", "value", "from"]);
        for (key, value, origin) in loaded.values() {
            table.add_row([key.name.to_owned(), value, origin.to_string()]);
        }
        for (name, value, origin) in options_of_backends(&loaded) {
            table.add_row([name, format!("{value:?}"), origin]);
        }
        report::print(&table)?;
    }
    Ok(Exit::Done)
}

/// Reads the configuration with what the subcommand overrides, tells the warnings, and starts
/// logging.
pub(crate) fn load(global: &Global, overrides: Overrides) -> Result<Config> {
    let loaded = read(global, overrides)?;
    logging::start(&loaded.config.log.level)?;
    Ok(loaded.config)
}

/// The same for subcommands whose output says all: nothing is logged unless it was asked for.
pub(crate) fn load_quietly(global: &Global) -> Result<Loaded> {
    let loaded = read(global, Overrides::default())?;
    // The file that comes with the source names the default.
    match loaded.origins.get("log.level") {
        Some(Origin::Env { .. } | Origin::CommandLine) => {
            logging::start(&loaded.config.log.level)?;
        }
        _ => logging::start("off")?,
    }
    Ok(loaded)
}

/// Configuration keys that options of a subcommand set.
#[derive(Debug, Default)]
pub(crate) struct Overrides(Vec<(&'static str, String)>);

impl Overrides {
    /// The same with one more key, if the option was given.
    pub(crate) fn with(mut self, key: &'static str, value: Option<impl ToString>) -> Self {
        self.0.extend(value.map(|value| (key, value.to_string())));
        self
    }
}

fn read(global: &Global, overrides: Overrides) -> Result<Loaded> {
    let mut sources = Sources::from_process();
    if let Some(file) = &global.config {
        sources = sources.with_file(file);
    }
    for (key, value) in &global.set {
        sources = sources.with_override(key, value);
    }
    // An option by its own name is more specific than `-o`.
    for (key, value) in overrides.with("log.level", global.log.as_ref()).0 {
        sources = sources.with_override(key, value);
    }
    let loaded = Config::load(&sources)?;
    for warning in &loaded.warnings {
        writeln!(io::stderr(), "warning: {warning}")?;
    }
    Ok(loaded)
}

/// Name, value and origin of what single backends are told.
fn options_of_backends(loaded: &Loaded) -> impl Iterator<Item = (String, &str, String)> {
    let backends = loaded.config.options.iter();
    let options = backends.flat_map(|(backend, options)| {
        options
            .iter()
            .map(move |(option, value)| (format!("options.{backend}.{option}"), value.as_str()))
    });
    options.map(|(name, value)| {
        let origin = loaded.option_origins.get(&name);
        let origin = origin.map(ToString::to_string).unwrap_or_default();
        (name, value, origin)
    })
}

fn as_json(loaded: &Loaded) -> Result<Value> {
    let mut keys = Map::new();
    for (key, text, origin) in loaded.values() {
        let table: toml::Table = format!("value = {text}")
            .parse()
            .context("a configuration value is no TOML")?;
        let value = serde_json::to_value(&table["value"])?;
        let entry = json!({ "value": value, "from": origin.to_string() });
        keys.insert(key.name.into(), entry);
    }
    for (name, value, origin) in options_of_backends(loaded) {
        keys.insert(name, json!({ "value": value, "from": origin }));
    }
    Ok(Value::Object(keys))
}
