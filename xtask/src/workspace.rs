//! The workspace as the tasks see it: root, packages, target directory, and how `cargo` and other
//! programs are run. What is built or checked lives in the tasks themselves.

use std::{
    env,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The checkout that this xtask was built from.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    pub(crate) fn locate() -> Result<Self> {
        // At run time, cargo names the manifest that it runs; the compiled-in path serves a binary
        // that was started by hand.
        let manifest_dir = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = manifest_dir
            .parent()
            .filter(|root| root.join("Cargo.toml").is_file())
            .with_context(|| format!("{} does not lie in the workspace", manifest_dir.display()))?;
        Ok(Self {
            root: root.to_path_buf(),
        })
    }

    pub(crate) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// `path` as one would write it in the workspace root.
    pub(crate) fn relative<'p>(&self, path: &'p Path) -> &'p Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }

    /// `cargo` in the workspace root, the same one that runs this task.
    pub(crate) fn cargo(&self, subcommand: &str) -> Command {
        let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut command = self.program(program);
        command.arg(subcommand);
        command
    }

    /// Any program, started in the workspace root.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    /// The packages of the workspace without their dependencies: reads manifests only, so that it
    /// costs milliseconds and no download.
    pub(crate) fn metadata(&self) -> Result<Metadata> {
        self.metadata_with(&["--no-deps"])
    }

    /// Every package that a build for `target` uses.
    pub(crate) fn metadata_of_dependencies(&self, target: &str) -> Result<Metadata> {
        self.metadata_with(&["--filter-platform", target])
    }

    fn metadata_with(&self, args: &[&str]) -> Result<Metadata> {
        let mut command = self.cargo("metadata");
        command.args(["--format-version", "1"]).args(args);
        let json = output_of(&mut command)?;
        let json = serde_json::from_slice(&json).context("cargo metadata printed no JSON")?;
        Ok(Metadata { json })
    }
}

/// What `cargo metadata` printed.
#[derive(Debug)]
pub(crate) struct Metadata {
    json: Value,
}

impl Metadata {
    pub(crate) fn packages(&self) -> impl Iterator<Item = Package<'_>> {
        self.json["packages"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|json| Package { json })
    }

    pub(crate) fn target_dir(&self) -> Result<PathBuf> {
        let dir = self.json["target_directory"].as_str();
        Ok(dir
            .context("cargo metadata names no target directory")?
            .into())
    }
}

/// One package of [`Metadata`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Package<'m> {
    json: &'m Value,
}

impl<'m> Package<'m> {
    pub(crate) fn name(&self) -> &'m str {
        text(&self.json["name"])
    }

    pub(crate) fn version(&self) -> &'m str {
        text(&self.json["version"])
    }

    pub(crate) fn license(&self) -> Option<&'m str> {
        self.json["license"].as_str()
    }

    pub(crate) fn manifest_path(&self) -> &'m Path {
        Path::new(text(&self.json["manifest_path"]))
    }

    pub(crate) fn has_feature(&self, feature: &str) -> bool {
        self.json["features"].get(feature).is_some()
    }

    /// Name of the package's cdylib target, when it has one.
    pub(crate) fn cdylib(&self) -> Option<&'m str> {
        let targets = self.json["targets"].as_array()?;
        let is_cdylib = |target: &&Value| {
            target["crate_types"]
                .as_array()
                .is_some_and(|types| types.iter().any(|kind| kind == "cdylib"))
        };
        targets
            .iter()
            .find(is_cdylib)
            .map(|target| text(&target["name"]))
    }

    /// Names of what the package is built from; what only its tests use is left out.
    pub(crate) fn dependencies(&self) -> impl Iterator<Item = &'m str> {
        let is_built = |dependency: &&Value| dependency["kind"] != "dev";
        let dependencies = self.json["dependencies"].as_array();
        dependencies
            .into_iter()
            .flatten()
            .filter(is_built)
            .map(|json| text(&json["name"]))
    }
}

/// The two ways of building that the tasks use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Dev,
    Release,
}

impl Profile {
    pub(crate) fn of(release: bool) -> Self {
        if release { Self::Release } else { Self::Dev }
    }

    /// Name of the folder below `target/`.
    pub(crate) fn dir_name(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
        }
    }

    pub(crate) fn cargo_args(self) -> &'static [&'static str] {
        match self {
            Self::Dev => &[],
            Self::Release => &["--release"],
        }
    }
}

/// Runs `command` with this process's output streams; an unsuccessful end is an error that shows
/// the command as one would type it.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    check(command, status)
}

/// Runs `command` and returns what it printed on its standard output.
pub(crate) fn output_of(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    check(command, output.status)?;
    Ok(output.stdout)
}

/// Runs a build, which must print its messages as JSON, and returns those about what it built.
pub(crate) fn artifacts_of(command: &mut Command) -> Result<Vec<Value>> {
    let messages = output_of(command)?;
    let messages = String::from_utf8(messages).context("cargo printed no UTF-8")?;
    let mut artifacts = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo printed no JSON")?;
        if message["reason"] == "compiler-artifact" {
            artifacts.push(message);
        }
    }
    Ok(artifacts)
}

/// The command as one would type it, without the folder of the program.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut line = program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}

fn check(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("`{}` failed: {status}", shown(command));
    }
    Ok(())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
