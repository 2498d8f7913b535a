//! What must hold for hostile files, for the targets below `fuzz/` and for the replay of their corpora
//! as a test. Each function says whether the bytes were understood. Compiled for these two only.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests;

use stepmesh_abi::note::{TEXT_LEN_MAX, parse_note};

use crate::config::{Config, Sources};
use crate::discovery;

/// A note segment.
///
/// # Panics
/// When a note is accepted that no host could use, or that a neighbour changes.
#[must_use]
pub fn note(bytes: &[u8]) -> bool {
    let Ok(note) = parse_note(bytes) else {
        return false;
    };
    let texts = [note.name, note.aliases, note.version, note.target];
    let is_fit = |text: &str| text.len() <= TEXT_LEN_MAX && !text.chars().any(char::is_control);
    assert!(texts.into_iter().all(is_fit), "{note:?}");
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    assert!(!note.name.is_empty() && note.name.chars().all(is_name));
    assert!(note.abi_min_minor <= note.abi_max_minor);
    if bytes.len().is_multiple_of(4) {
        let behind = [FOREIGN_NOTE, bytes].concat();
        assert_eq!(parse_note(&behind), Ok(note));
    }
    true
}

/// A plugin file.
///
/// # Panics
/// When a note is accepted that is not in the file.
#[must_use]
pub fn elf(bytes: &[u8]) -> bool {
    let Ok((note, _)) = discovery::judge_bytes(bytes) else {
        return false;
    };
    let name = note.name.as_bytes();
    assert!(bytes.windows(name.len()).any(|window| window == name));
    true
}

/// A configuration: lines that begin with `$` are the environment, with `@` the command line, the
/// others the file.
///
/// # Panics
/// When an accepted configuration is not accepted again, or as something else.
#[must_use]
pub fn config(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let pairs = |sign: char| {
        let marked = text.lines().filter_map(move |line| line.strip_prefix(sign));
        marked.filter_map(|line| line.split_once('='))
    };
    let mut sources = Sources::from_env(pairs('$'));
    for (key, value) in pairs('@') {
        sources = sources.with_override(key, value);
    }
    let file: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with(['$', '@']))
        .collect();
    let loaded = match Config::load_text(&sources, &file.join("\n")) {
        Ok(loaded) => loaded,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    let written = toml::to_string(&loaded.config).expect("invariant: a configuration is TOML");
    let again = Config::load_text(&Sources::default(), &written);
    let again = again.unwrap_or_else(|error| panic!("{error}: {written}"));
    assert_eq!(again.config, loaded.config);
    let secret = loaded.config.mesh.token.expose();
    let shown = format!("{:?}", loaded.config.mesh.token);
    assert!(secret.len() < 8 || !shown.contains(secret));
    true
}

/// A note of another owner, which a plugin may have beside its own.
const FOREIGN_NOTE: &[u8] = b"\x04\0\0\0\x05\0\0\0\x03\0\0\0GNU\0abcde\0\0\0";
