//! Logs on standard error. What is worth a line is decided where it happens.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// A log filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("`{filter}` is no log filter; take a level such as `info`, or `info,stepmesh_core=debug`")]
pub(crate) struct BadFilter {
    filter: String,
    source: tracing_subscriber::filter::ParseError,
}

/// Starts logging, once in the life of the program.
pub(crate) fn start(filter: &str) -> Result<(), BadFilter> {
    let parsed = EnvFilter::builder()
        .parse(filter)
        .map_err(|source| BadFilter {
            filter: filter.into(),
            source,
        })?;
    tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    Ok(())
}
