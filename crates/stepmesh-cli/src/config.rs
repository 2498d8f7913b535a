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
    if loaded.origins.get("log.level") == Some(&Origin::Default) {
        logging::start("off")?;
    } else {
        logging::start(&loaded.config.log.level)?;
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
    Ok(Value::Object(keys))
}
