//! Who may have written the code that is loaded.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use stepmesh_core::State;

use crate::plugins::{Plugins, candidate, reason};

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_file_that_everybody_may_write_is_refused_and_never_loaded() {
    let zoo = Plugins::new();
    let path = zoo.add("open", &[&zoo.marker("open")]);
    chmod(&path, 0o777);
    let expected = format!(
        "file {} is writable by everybody (mode 777), so other users could change the code; \
         correct that or set plugins.trust",
        path.display()
    );
    assert_eq!(reason(&zoo.discover(), &path), expected);
    assert_eq!(zoo.marks("open", "loaded"), 0);
}

#[test]
fn a_directory_that_everybody_may_write_is_refused() {
    let zoo = Plugins::new();
    let path = zoo.add("exposed", &[]);
    chmod(&zoo.path(), 0o777);
    let reason = reason(&zoo.discover(), &path);
    assert!(
        reason.starts_with(&format!("directory {} is writable", zoo.path().display())),
        "{reason}"
    );
}

#[test]
fn trust_takes_them_all_the_same() {
    let zoo = Plugins::new();
    let path = zoo.add("trusted", &[]);
    chmod(&path, 0o777);
    chmod(&zoo.path(), 0o777);
    let config = stepmesh_core::config::PluginsConfig {
        trust: true,
        ..zoo.config()
    };
    let registry = stepmesh_core::Registry::discover(&config);
    assert_eq!(candidate(&registry, &path).state(), State::Loaded);
}
