//! Rules for each Rust file: its first line, its length, its white space, and marks of unfinished
//! work.

use super::{Violation, files::File, mask};

pub(super) fn check(file: &File) -> Vec<Violation> {
    if !file.is_rust() {
        return Vec::new();
    }
    let mut violations = Vec::new();
    let text = file.text.as_deref().unwrap_or_default();
    if !text.starts_with("//! ") {
        let message = "the first line is `//!` and says what lives here and what does not";
        violations.push(Violation::at(&file.path, 1, message));
    }
    let line_count = text.lines().count();
    if line_count > FILE_LINES_MAX {
        let message = format!("{line_count} lines, {FILE_LINES_MAX} at most: split it by noun");
        violations.push(Violation::new(&file.path, message));
    }
    if !text.ends_with('\n') {
        violations.push(Violation::new(&file.path, "no line break at the end"));
    }
    for (number, line) in file.lines() {
        violations.extend(check_line(line).map(|why| Violation::at(&file.path, number, why)));
    }
    let code = mask::code_only(text);
    for (number, line) in code.lines().enumerate() {
        violations.extend(check_code(line).map(|why| Violation::at(&file.path, number + 1, why)));
    }
    violations
}

/// Rules for everything that is written, comments and strings included.
fn check_line(line: &str) -> Option<&'static str> {
    if line.contains('\t') {
        return Some("a tab: indent with blanks");
    }
    if line.ends_with([' ', '\r']) {
        return Some("white space at the end of the line");
    }
    if UNFINISHED_MARKS
        .iter()
        .any(|mark| mask::has_word(line, mark))
    {
        return Some("a mark of unfinished work: finish it, or file an issue and say the fact");
    }
    None
}

/// Rules for code only.
fn check_code(code: &str) -> Option<&'static str> {
    if UNFINISHED_MACROS.iter().any(|name| code.contains(name)) {
        return Some("a macro for unfinished work");
    }
    // The reason is a string, which the mask has blanked out: what is left of `= "..."` is `=`.
    if let Some((_, after)) = code.split_once("#[ignore")
        && !after.trim_start().starts_with('=')
    {
        return Some("an ignored test without a reason: report what is absent instead");
    }
    None
}

/// Longer than this, a file is about more than one thing.
const FILE_LINES_MAX: usize = 800;

/// Written in two parts, so that this file does not break its own rule.
const UNFINISHED_MARKS: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];

const UNFINISHED_MACROS: [&str; 2] = ["todo!", "unimplemented!"];
