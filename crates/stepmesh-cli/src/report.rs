//! Output: tables and JSON on standard output. What is in them is decided elsewhere.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Result;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{LineStyle, Table};
use serde_json::Value;

/// A table with these headings, in the style of all our tables.
pub(crate) fn table<const N: usize>(headings: [&str; N]) -> Table {
    let mut table = Table::new();
    let mut style = UTF8_HORIZONTAL_ONLY;
    style.row_separator = LineStyle::none();
    table.load_style(style).set_header(headings);
    table
}

/// Prints something and a line break.
pub(crate) fn print(what: impl Display) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{what}")?;
    out.flush()?;
    Ok(())
}

/// `1 server`, `2 servers`.
pub(crate) fn count(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Prints JSON for people and programs.
pub(crate) fn print_json(value: &Value) -> Result<()> {
    print(format_args!("{value:#}"))
}
