//! Makes plugin files, and directories of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use stepmesh_core::config::PluginsConfig;
use stepmesh_core::{Candidate, Registry};

/// A directory of plugins that goes away with its value. What was loaded from it stays loaded.
pub(crate) struct Plugins {
    directory: tempfile::TempDir,
}

impl Plugins {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        // Paths in results have no links.
        self.directory.path().canonicalize().unwrap()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(format!("libstepmesh_backend_{name}.so"))
    }

    /// Compiles plugin.c into `libstepmesh_backend_<file>.so`.
    pub(crate) fn compile(&self, file: &str, options: &[&str]) -> PathBuf {
        let path = self.file(file);
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let output = Command::new(&compiler)
            .args([
                "-shared",
                "-fPIC",
                "-Wall",
                "-Wextra",
                "-Wl,--build-id",
                "-I",
            ])
            .arg(here.join("../stepmesh-abi/include"))
            .args(options)
            .arg("-o")
            .arg(&path)
            .arg(here.join("tests/it/plugin.c"))
            .output()
            .unwrap_or_else(|error| panic!("these tests need a C compiler ({compiler}): {error}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{compiler} failed on plugin.c {options:?}:\n{errors}"
        );
        path
    }

    /// A plugin of the given name, with options.
    pub(crate) fn add(&self, name: &str, options: &[&str]) -> PathBuf {
        let name_option = format!("-DNAME=\"{name}\"");
        self.compile(name, &[&[name_option.as_str()], options].concat())
    }

    /// Option that makes the plugin leave marks, see [`Plugins::marks`].
    pub(crate) fn marker(&self, name: &str) -> String {
        format!("-DMARKER=\"{}\"", self.path().join(name).display())
    }

    /// How often a plugin with that marker did something (`loaded`, `asked`, `opened`, `closed`).
    pub(crate) fn marks(&self, name: &str, what: &str) -> u64 {
        fs::metadata(self.path().join(format!("{name}.{what}"))).map_or(0, |file| file.len())
    }

    pub(crate) fn config(&self) -> PluginsConfig {
        PluginsConfig {
            path: vec![self.path()],
            ..PluginsConfig::default()
        }
    }

    pub(crate) fn discover(&self) -> Registry {
        Registry::discover(&self.config())
    }
}

/// The candidate of a file.
pub(crate) fn candidate<'a>(registry: &'a Registry, path: &Path) -> &'a Candidate {
    let found = registry
        .candidates()
        .iter()
        .find(|candidate| candidate.path() == Some(path));
    found.unwrap_or_else(|| panic!("{} is not among {registry:?}", path.display()))
}

/// Why a file is not used.
pub(crate) fn reason(registry: &Registry, path: &Path) -> String {
    candidate(registry, path)
        .reason()
        .expect("it is not used")
        .to_string()
}
