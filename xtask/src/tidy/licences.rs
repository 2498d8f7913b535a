//! The licences of all dependencies, judged by the list in deny.toml: cargo-deny reads the same
//! list, but it is not installed everywhere, and this rule holds everywhere.

use std::fs;

use anyhow::{Context, Result};

use super::Violation;
use crate::workspace::{Metadata, Workspace};

/// What this rule takes from deny.toml.
#[derive(Debug)]
pub(super) struct DenyConfig {
    pub(super) allowed: Vec<String>,
    /// The platform whose dependencies are judged.
    pub(super) target: String,
}

impl DenyConfig {
    pub(super) fn read(workspace: &Workspace) -> Result<Self> {
        let text =
            fs::read_to_string(workspace.path("deny.toml")).context("cannot read deny.toml")?;
        Self::parse(&text)
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let allowed = strings_of(text, "allow").context("deny.toml: no `allow = [...]`")?;
        let targets = strings_of(text, "targets").context("deny.toml: no `targets = [...]`")?;
        let target = targets
            .into_iter()
            .next()
            .context("deny.toml: `targets` is empty")?;
        Ok(Self { allowed, target })
    }
}

pub(super) fn check(dependencies: &Metadata, deny: &DenyConfig) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in dependencies.packages() {
        let place = format!("{} {}", package.name(), package.version());
        match package.license() {
            None => violations.push(Violation::new(place, "names no licence")),
            Some(expression) if !is_allowed(expression, &deny.allowed) => {
                let message = format!("its licence `{expression}` is not allowed by deny.toml");
                violations.push(Violation::new(place, message));
            }
            Some(_) => {}
        }
    }
    violations
}

/// Whether an SPDX expression can be met with the `allowed` licences only. Anything that is not
/// understood is not allowed.
pub(super) fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    // Old manifests write `MIT/Apache-2.0` for a choice.
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser {
        tokens: &tokens,
        allowed,
    };
    parser.any_of() == Some(true) && parser.tokens.is_empty()
}

/// Recursive descent over `any := all ("OR" all)*`, `all := one ("AND" one)*`,
/// `one := "(" any ")" | licence ["WITH" exception]`. `None`: not an expression.
struct Parser<'a> {
    tokens: &'a [&'a str],
    allowed: &'a [String],
}

impl Parser<'_> {
    fn any_of(&mut self) -> Option<bool> {
        let mut is_met = self.all_of()?;
        while self.take("OR") {
            is_met |= self.all_of()?;
        }
        Some(is_met)
    }

    fn all_of(&mut self) -> Option<bool> {
        let mut is_met = self.one()?;
        while self.take("AND") {
            is_met &= self.one()?;
        }
        Some(is_met)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let is_met = self.any_of()?;
            return self.take(")").then_some(is_met);
        }
        let mut name = self.word()?.to_owned();
        if self.take("WITH") {
            name = format!("{name} WITH {}", self.word()?);
        }
        Some(self.allowed.contains(&name))
    }

    fn word(&mut self) -> Option<&str> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }

    fn take(&mut self, token: &str) -> bool {
        let is_next = self.tokens.first() == Some(&token);
        if is_next {
            self.tokens = &self.tokens[1..];
        }
        is_next
    }
}

/// The strings of `key = ["a", "b"]`, which may span lines and hold comments. A TOML parser would
/// cost more to build than the rest of this crate.
fn strings_of(text: &str, key: &str) -> Option<Vec<String>> {
    let without_comments = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    let text = without_comments.collect::<Vec<_>>().join("\n");
    let list = text.split('\n').position(|line| {
        line.strip_prefix(key)
            .is_some_and(|rest| rest.trim_start().starts_with('='))
    })?;
    let rest = text.split('\n').skip(list).collect::<Vec<_>>().join("\n");
    let (_, rest) = rest.split_once('[')?;
    let (list, _) = rest.split_once(']')?;
    Some(
        list.split('"')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect(),
    )
}
