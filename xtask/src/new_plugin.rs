//! `new-plugin`: writes the skeleton of a backend that already works. In C and C++ it is the example
//! plugin under another name, in Rust the text beside this file; both are built and loaded by the
//! tests. What a plugin must do is said in docs/abi.md.

#[cfg(test)]
mod tests;

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::Workspace;

/// What is written, and in which language.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Name of the backend: lower case letters, digits, `-` and `_`
    pub(crate) name: String,

    /// Writes C11, to be built by one line of a compiler
    #[arg(long, group = "language")]
    pub(crate) c: bool,

    /// Writes C++17, to be built by one line of a compiler
    #[arg(long, group = "language")]
    pub(crate) cpp: bool,

    /// Writes a crate that uses stepmesh-plugin (the default)
    #[arg(long, group = "language")]
    pub(crate) rust: bool,
}

/// Writes the skeleton to `plugins/<name>` and says what comes next.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let language = Language::of(options);
    write(&workspace.path(""), &options.name, language)?;
    println!("{}", next_steps(&options.name, language));
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    C,
    Cpp,
    Rust,
}

impl Language {
    fn of(options: &Options) -> Self {
        match (options.c, options.cpp) {
            (true, _) => Self::C,
            (_, true) => Self::Cpp,
            _ => Self::Rust,
        }
    }

    /// The files of the skeleton, by path below its folder.
    fn files(self, name: &str) -> Vec<(&'static str, String)> {
        match self {
            Self::C => {
                let source = EXAMPLE_C
                    .replace(
                        ", and is meant to be copied: `cargo xtask new-plugin NAME --c`",
                        "",
                    )
                    .replace("Example in C", name)
                    .replace("\"example-c\"", &format!("\"{name}\""));
                let compute = EXAMPLE_C_COMPUTE.replace("example.c", "plugin.c");
                vec![
                    ("plugin.c", source),
                    ("compute.c", compute),
                    ("README.md", readme(name, self)),
                ]
            }
            Self::Cpp => {
                let source = EXAMPLE_CPP
                    .replace(
                        ", and is meant to be copied: `cargo xtask new-plugin NAME --cpp`",
                        "",
                    )
                    .replace("Example in C++", name)
                    .replace("\"example-cpp\"", &format!("\"{name}\""));
                vec![("plugin.cc", source), ("README.md", readme(name, self))]
            }
            Self::Rust => vec![
                ("Cargo.toml", MANIFEST.replace("@NAME@", name)),
                ("src/lib.rs", SOURCE.replace("@NAME@", name)),
            ],
        }
    }
}

/// Writes the files below `root` and, for a folder that is no package, tells the manifest so.
fn write(root: &Path, name: &str, language: Language) -> Result<()> {
    check_name(name, language)?;
    let dir = root.join("plugins").join(name);
    ensure!(
        !dir.exists(),
        "plugins/{name} exists already; remove it or choose another name"
    );
    for (path, text) in language.files(name) {
        let path = dir.join(path);
        let parent = path.parent().unwrap_or(&dir);
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if language == Language::Rust {
        return Ok(());
    }
    let manifest = root.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).context("cannot read Cargo.toml")?;
    fs::write(&manifest, exclude(&text, name)?).context("cannot write Cargo.toml")
}

fn check_name(name: &str, language: Language) -> Result<()> {
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    ensure!(
        name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(is_valid),
        "`{name}` is no name of a backend: a lower case letter, then such letters, digits, `-`, `_`"
    );
    ensure!(
        language != Language::Rust || !name.contains('-'),
        "`{name}`: the name of a library in Rust has no `-`; write `{}`",
        name.replace('-', "_")
    );
    Ok(())
}

/// The workspace's manifest with the folder among those that are no packages.
fn exclude(manifest: &str, name: &str) -> Result<String> {
    let entry = format!("\"plugins/{name}\"");
    let Some(line) = manifest
        .lines()
        .find(|line| line.starts_with("exclude = ["))
    else {
        bail!("Cargo.toml has no line `exclude = [`; add one with {entry}");
    };
    let Some(kept) = line.strip_suffix(']') else {
        bail!("`exclude` of Cargo.toml has several lines; add {entry} there");
    };
    Ok(manifest.replacen(line, &format!("{kept}, {entry}]"), 1))
}

fn command(name: &str, language: Language) -> String {
    let (compiler, standard, file) = match language {
        Language::Cpp => ("c++", "c++17", "plugin.cc"),
        Language::C | Language::Rust => ("cc", "c11", "plugin.c"),
    };
    format!(
        "{compiler} -std={standard} -O2 -fPIC -shared -fvisibility=hidden \
         -I crates/stepmesh-abi/include plugins/{name}/{file} -o libstepmesh_backend_{name}.so"
    )
}

fn readme(name: &str, language: Language) -> String {
    format!(
        "# The backend {name}\n\ndocs/abi.md says what each slot promises. From the root of the \
         repository:\n\n```console\n$ {}\n```\n",
        command(name, language)
    )
}

fn next_steps(name: &str, language: Language) -> String {
    let (build, file) = match language {
        Language::Rust => (
            format!("cargo xtask build-plugins --only {name}"),
            format!("target/debug/stepmesh-plugins/libstepmesh_backend_{name}.so"),
        ),
        Language::C | Language::Cpp => (
            command(name, language),
            format!("libstepmesh_backend_{name}.so"),
        ),
    };
    let note = if language == Language::Rust {
        "\nIts `unsafe` is judged by `cargo xtask tidy`: add the files that have it to \
         xtask/src/tidy/unsafe_code.rs."
    } else {
        ""
    };
    format!(
        "plugins/{name} is a backend that works: one device with the host's memory.\n\
         Build it:   {build}\n\
         Judge it:   stepmesh plugin conform {file}\n\
         What each slot promises: docs/abi.md{note}"
    )
}

/// The plugins that are judged as they are; a skeleton is one of them under another name.
const EXAMPLE_C: &str = include_str!("../../plugins/example-c/example.c");
const EXAMPLE_C_COMPUTE: &str = include_str!("../../plugins/example-c/compute.c");
const EXAMPLE_CPP: &str = include_str!("../../plugins/example-cpp/example.cc");
/// The crate of a skeleton in Rust.
const MANIFEST: &str = include_str!("new_plugin/manifest.txt");
const SOURCE: &str = include_str!("new_plugin/lib.rs.txt");
