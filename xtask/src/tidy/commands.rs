//! The commands that the documents show. A `console` block holds commands after `$ `, an `sh` block
//! holds nothing else; each must start with a program that a reader has, and a task or subcommand
//! of ours must exist. Whether a command does what the text says is for the tests.

use clap::{CommandFactory as _, error::ErrorKind};

use super::{Violation, files::File};
use crate::Cli;

pub(super) fn check(file: &File) -> Vec<Violation> {
    let is_document = !file.path.contains('/') || file.path.starts_with("docs/");
    if !is_document || !file.path.ends_with(".md") {
        return Vec::new();
    }
    let text = file.text.as_deref().unwrap_or_default();
    let problems = shown_commands(text)
        .into_iter()
        .filter_map(|(number, command)| {
            let problem = problem_of(&command)?;
            Some(Violation::at(
                &file.path,
                number,
                format!("`{command}`: {problem}"),
            ))
        });
    problems.collect()
}

/// Each command of the document with the number of its first line.
fn shown_commands(text: &str) -> Vec<(usize, String)> {
    let mut commands = Vec::new();
    let mut block = None;
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = block.is_none().then_some(language.trim());
            continue;
        }
        let start = match block {
            Some("console") => line.strip_prefix("$ "),
            Some("sh") => Some(line.trim()).filter(|line| !line.is_empty()),
            _ => None,
        };
        let Some(start) = start.filter(|line| !line.starts_with('#')) else {
            continue;
        };
        let mut command = start.to_owned();
        while let Some(open) = command.strip_suffix('\\') {
            let next = lines.next().map_or("", |(_, line)| line.trim());
            command = format!("{}{next}", open.trim_end().to_owned() + " ");
        }
        commands.push((index + 1, command));
    }
    commands
}

/// What is wrong with a command line: each part of it between `&&`, `|` and `;` is judged.
pub(super) fn problem_of(line: &str) -> Option<String> {
    let line = line
        .split(" #")
        .next()
        .unwrap_or_default()
        .replace("&&", "\n");
    line.split(['\n', '|', ';']).find_map(|part| {
        let is_assignment = |word: &&str| {
            word.split_once('=').is_some_and(|(name, _)| {
                name.chars()
                    .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
            })
        };
        let words: Vec<&str> = part.split_whitespace().skip_while(is_assignment).collect();
        problem_of_words(words.strip_suffix(&["&"]).unwrap_or(&words))
    })
}

fn problem_of_words(words: &[&str]) -> Option<String> {
    let (program, args) = words.split_first()?;
    let name = program.rsplit('/').next().unwrap_or(program);
    match (name, args) {
        // What needs an unstable flag names its toolchain.
        ("cargo", ["+nightly", subcommand, ..]) if CARGO_SUBCOMMANDS.contains(subcommand) => None,
        ("cargo", ["xtask", args @ ..]) => problem_of_task(args),
        ("cargo", [subcommand, ..]) if CARGO_SUBCOMMANDS.contains(subcommand) => None,
        ("cargo", _) => Some("no known subcommand of cargo".into()),
        ("stepmesh", [subcommand, ..]) if STEPMESH_SUBCOMMANDS.contains(subcommand) => None,
        ("stepmesh", _) => Some("no known subcommand of stepmesh".into()),
        _ if PROGRAMS.contains(&name) => None,
        _ => Some(format!(
            "`{name}` is not a program that a reader is known to have"
        )),
    }
}

/// Judged by the parser of this very program, flags included.
fn problem_of_task(args: &[&str]) -> Option<String> {
    let error = Cli::command()
        .try_get_matches_from([&["cargo xtask"], args].concat())
        .err()?;
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    let reason = error.to_string();
    (!is_help).then(|| reason.lines().next().unwrap_or("not a task").to_owned())
}

const CARGO_SUBCOMMANDS: [&str; 10] = [
    "add", "build", "check", "clippy", "doc", "fmt", "fuzz", "install", "run", "test",
];

const STEPMESH_SUBCOMMANDS: [&str; 9] = [
    "backends",
    "bench",
    "config",
    "doctor",
    "plugin",
    "rdma",
    "scheduler",
    "server",
    "worker",
];

/// What a reader has: the tools of every Linux and those that the README asks for.
const PROGRAMS: [&str; 15] = [
    "cat", "cc", "cd", "cp", "export", "g++", "gcc", "git", "kill", "ls", "mkdir", "readelf", "rm",
    "valgrind", "wait",
];
