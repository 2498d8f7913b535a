//! `build-plugins`: builds the backends under `plugins/`, installs them where the loader looks, and
//! reads each back as a host would. How a file is judged lives in the modules below.

mod elf;
mod load;
#[cfg(test)]
mod tests;

use std::{
    fs,
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use stepmesh_abi::QUERY_SYMBOL;

use self::load::Reported;
use crate::{
    table::Table,
    workspace::{Package, Profile, Workspace, artifacts_of},
};

/// Which plugins are built, and how.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Builds this backend only, for example `cpu`; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,

    /// Optimises, and installs below target/release instead of target/debug
    #[arg(long)]
    pub(crate) release: bool,
}

/// A plugin that was built, read back and installed.
#[derive(Debug)]
pub(crate) struct Installed {
    reported: Reported,
    path: PathBuf,
    len_bytes: u64,
}

/// Builds, installs and judges the plugins that `options` names, all of them when it names none.
pub(crate) fn build(workspace: &Workspace, options: &Options) -> Result<Vec<Installed>> {
    let metadata = workspace.metadata()?;
    let found = metadata
        .packages()
        .filter_map(|package| Plugin::of(workspace, package));
    let plugins = choose(found.collect(), &options.only)?;
    let profile = Profile::of(options.release);
    let artifacts = compile(workspace, &plugins, profile)?;
    let dir = plugins_dir(&metadata.target_dir()?, profile);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    plugins
        .iter()
        .map(|plugin| plugin.install(&artifacts, &dir))
        .collect()
}

/// Prints what [`build`] installed.
pub(crate) fn print(workspace: &Workspace, installed: &[Installed]) {
    let mut table = Table::new(["name", "version", "abi", "size", "file"]);
    for plugin in installed {
        let Reported { name, version, abi } = &plugin.reported;
        table.row([
            name.clone(),
            version.clone(),
            abi.clone(),
            format!("{} KiB", plugin.len_bytes.div_ceil(1024)),
            workspace.relative(&plugin.path).display().to_string(),
        ]);
    }
    println!("{table}");
}

/// Where the programs of this build look for plugins: beside the executable.
pub(crate) fn plugins_dir(target_dir: &Path, profile: Profile) -> PathBuf {
    target_dir.join(profile.dir_name()).join(PLUGINS_DIR_NAME)
}

/// A package below `plugins/` whose cdylib carries a backend.
#[derive(Debug)]
struct Plugin<'m> {
    name: &'m str,
    package: Package<'m>,
}

impl<'m> Plugin<'m> {
    fn of(workspace: &Workspace, package: Package<'m>) -> Option<Self> {
        let below_plugins = package
            .manifest_path()
            .starts_with(workspace.path("plugins"));
        let name = package.cdylib()?.strip_prefix(LIB_NAME_PREFIX)?;
        below_plugins.then_some(Self { name, package })
    }

    fn file_name(&self) -> String {
        format!("lib{LIB_NAME_PREFIX}{}.so", self.name)
    }

    fn install(&self, artifacts: &[PathBuf], dir: &Path) -> Result<Installed> {
        let file_name = self.file_name();
        let built = artifacts
            .iter()
            .find(|path| {
                path.file_name()
                    .is_some_and(|name| name == file_name.as_str())
            })
            .with_context(|| format!("cargo built no {file_name} for plugin `{}`", self.name))?;
        let path = dir.join(&file_name);
        let (reported, len_bytes) = replace_if_good(built, &path, |staged| self.judge(staged))
            .with_context(|| format!("plugin `{}` is not usable", self.name))?;
        Ok(Installed {
            reported,
            path,
            len_bytes,
        })
    }

    fn judge(&self, path: &Path) -> Result<(Reported, u64)> {
        judge_file(path, self.name)
    }
}

/// Judges a file as a host does, and by more: what it exports. Returns its length too.
pub(crate) fn judge_file(path: &Path, name: &str) -> Result<(Reported, u64)> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let exported = elf::exported_symbols(&bytes)?;
    ensure!(
        exported == [QUERY_SYMBOL],
        "must export `{QUERY_SYMBOL}` and nothing else, but exports {}",
        if exported.is_empty() {
            "nothing".into()
        } else {
            exported.join(", ")
        }
    );
    let note = elf::note(&bytes)?;
    let noted = Reported {
        name: note.name.into(),
        version: note.version.into(),
        abi: format!("{}.{}", note.abi_major, note.abi_max_minor),
    };
    let reported = load::load_back(path)?;
    ensure!(
        noted == reported,
        "its note says {noted}, but its table {reported}"
    );
    ensure!(
        noted.name == name,
        "its file is named after `{name}`, it is {noted}"
    );
    Ok((reported, bytes.len() as u64))
}

fn choose<'m>(found: Vec<Plugin<'m>>, only: &[String]) -> Result<Vec<Plugin<'m>>> {
    let names: Vec<&str> = found.iter().map(|plugin| plugin.name).collect();
    ensure!(
        !names.is_empty(),
        "no package below plugins/ builds a cdylib `{LIB_NAME_PREFIX}*`"
    );
    if let Some(unknown) = only.iter().find(|name| !names.contains(&name.as_str())) {
        bail!(
            "no plugin `{unknown}` below plugins/; there is: {}",
            names.join(", ")
        );
    }
    let is_chosen = |plugin: &Plugin<'_>| only.is_empty() || only.iter().any(|n| n == plugin.name);
    Ok(found.into_iter().filter(is_chosen).collect())
}

/// Builds the libraries in one call of cargo, so that what they share is built once, and returns
/// the files that cargo reports.
fn compile(
    workspace: &Workspace,
    plugins: &[Plugin<'_>],
    profile: Profile,
) -> Result<Vec<PathBuf>> {
    let mut command = workspace.cargo("build");
    command.args(["--lib", "--message-format", "json-render-diagnostics"]);
    command.args(profile.cargo_args());
    // A plugin that is also linked into programs, without its entry, is there a file of the same name:
    // in one folder, each build would make the other anew, and all that depends on it.
    let target_dir = workspace.metadata()?.target_dir()?;
    command
        .arg("--target-dir")
        .arg(target_dir.join(PLUGINS_BUILD_DIR));
    for plugin in plugins {
        let name = plugin.package.name();
        command.args(["--package", name]);
        if plugin.package.has_feature(PLUGIN_FEATURE) {
            command.args(["--features", &format!("{name}/{PLUGIN_FEATURE}")]);
        }
    }
    let artifacts = artifacts_of(&mut command)?;
    let files = artifacts.iter().flat_map(|artifact| {
        let filenames = artifact["filenames"].as_array();
        let paths = filenames.into_iter().flatten().filter_map(Value::as_str);
        paths.map(PathBuf::from)
    });
    Ok(files.collect())
}

/// Puts a copy of `from` at `to` in one step, once `judge` has found it good: a host that starts in
/// between sees the old file or the new one, and one that has the old file mapped keeps it.
fn replace_if_good<T>(from: &Path, to: &Path, judge: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let staged = to.with_extension(format!("so.{}.part", process::id()));
    let replace = || {
        fs::copy(from, &staged).with_context(|| format!("cannot copy {}", from.display()))?;
        let verdict = judge(&staged)?;
        fs::rename(&staged, to).with_context(|| format!("cannot write {}", to.display()))?;
        Ok(verdict)
    };
    let replaced = replace();
    if replaced.is_err() {
        // Best effort: what went wrong before is worth reporting, not what is left of it.
        fs::remove_file(&staged).ok();
    }
    replaced
}

/// What the name of every backend's library starts with, so that the loader finds it by pattern.
const LIB_NAME_PREFIX: &str = "stepmesh_backend_";

/// Below `target/`: where cargo builds plugins, apart from programs.
const PLUGINS_BUILD_DIR: &str = "plugins";

/// The feature, where a plugin has it, that adds the note and the entry symbol to the library. A
/// host that links the backend statically leaves it off.
const PLUGIN_FEATURE: &str = "plugin";

/// Beside the executable, and not `stepmesh/plugins`: the executable itself is called `stepmesh`.
pub(crate) const PLUGINS_DIR_NAME: &str = "stepmesh-plugins";
