//! The layers, their order, their errors, and that the shipped file and the documentation agree.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{Config, KEYS, LoadPolicy, Loaded, Origin, Role, Sources};
use crate::Error;

#[test]
fn without_settings_every_key_is_its_default() {
    let loaded = Config::load(&Sources::default()).unwrap();
    assert_eq!(loaded.config, Config::default());
    assert_eq!(loaded.origins.len(), KEYS.len());
    assert!(
        loaded
            .origins
            .values()
            .all(|origin| *origin == Origin::Default)
    );
    assert!(loaded.warnings.is_empty());
}

#[test]
fn each_layer_beats_the_one_below_and_its_origin_is_kept() {
    let file = file("[mesh]\nworkers = 2\nservers = 2\nrank = 2\ngroup_size = 2\n");
    let sources = Sources::from_env([
        ("DMLC_NUM_SERVER", "3"),
        ("DMLC_RANK", "3"),
        ("DMLC_GROUP_SIZE", "3"),
        ("STEPMESH_MESH_RANK", "4"),
        ("STEPMESH_MESH_GROUP_SIZE", "4"),
    ])
    .with_file(file.path())
    .with_override("mesh.group_size", "5");
    let Loaded {
        config, origins, ..
    } = Config::load(&sources).unwrap();
    let mesh = &config.mesh;
    assert_eq!(
        (mesh.workers, mesh.servers, mesh.rank, mesh.group_size),
        (2, 3, 4, 5)
    );
    assert_eq!(
        origins["mesh.workers"],
        Origin::File {
            path: file.path().into()
        }
    );
    assert_eq!(
        origins["mesh.servers"],
        Origin::Env {
            name: "DMLC_NUM_SERVER".into()
        }
    );
    assert_eq!(
        origins["mesh.rank"],
        Origin::Env {
            name: "STEPMESH_MESH_RANK".into()
        }
    );
    assert_eq!(origins["mesh.group_size"], Origin::CommandLine);
    assert_eq!(origins["mesh.token"], Origin::Default);
}

#[test]
fn every_kind_of_value_is_read_from_the_environment() {
    let config = from_env(&[
        ("STEPMESH_BACKEND", "CUDA"),
        ("STEPMESH_PLUGIN_PATH", "/a:/b:"),
        ("STEPMESH_PLUGINS_DISABLE", "*rocm*, cuda"),
        ("STEPMESH_PLUGINS_LOAD", "Selected"),
        ("STEPMESH_PLUGIN_STRICT", "1"),
        ("STEPMESH_TRACE_ENABLED", "off"),
        ("STEPMESH_LOG", "debug"),
        ("DMLC_ROLE", "worker"),
        ("DMLC_PS_ROOT_URI", "node7"),
        ("DMLC_PS_ROOT_PORT", "8123"),
        ("STEPMESH_TCP_PORT", ""),
    ])
    .unwrap()
    .config;
    assert_eq!(config.backend, "CUDA");
    assert_eq!(config.plugins.path, [Path::new("/a"), Path::new("/b")]);
    assert_eq!(config.plugins.disable, ["*rocm*", "cuda"]);
    assert_eq!(config.plugins.load, LoadPolicy::Selected);
    assert!(config.plugins.strict && !config.trace.enabled);
    assert_eq!(config.log.level, "debug");
    assert_eq!(config.mesh.role, Role::Worker);
    assert_eq!(
        (
            config.mesh.scheduler_host.as_str(),
            config.mesh.scheduler_port
        ),
        ("node7", 8123)
    );
    assert_eq!(config.tcp.port, 0, "an empty variable counts as not set");
}

#[test]
fn a_bad_value_names_key_value_origin_and_what_is_allowed() {
    for (pairs, want) in [
        (
            [("STEPMESH_TCP_PORT", "70000")],
            "configuration key `tcp.port` = `70000` from environment STEPMESH_TCP_PORT: \
             allowed is 0 to 65535",
        ),
        (
            [("DMLC_NUM_WORKER", "0")],
            "configuration key `mesh.workers` = `0` from environment DMLC_NUM_WORKER: \
             allowed is 1 to 32768",
        ),
        (
            [("DMLC_NUM_WORKER", "two")],
            "configuration key `mesh.workers` = `two` from environment DMLC_NUM_WORKER: \
             allowed is 1 to 32768",
        ),
        (
            [("STEPMESH_TRANSPORT_KIND", "udp")],
            "configuration key `transport.kind` = `udp` from environment \
             STEPMESH_TRANSPORT_KIND: allowed is \"auto\", \"shm\", \"tcp\", \"rdma\"",
        ),
        (
            [("STEPMESH_TRACE_ENABLED", "maybe")],
            "configuration key `trace.enabled` = `maybe` from environment \
             STEPMESH_TRACE_ENABLED: allowed is true or false",
        ),
        (
            [("STEPMESH_SHM_RING_LEN_BYTES", "65537")],
            "configuration key `shm.ring_len_bytes` = `65537` from environment \
             STEPMESH_SHM_RING_LEN_BYTES: allowed is a power of two, 4096 to 1073741824",
        ),
        (
            [("STEPMESH_TIMEOUTS_PEER_DEAD_MS", "600")],
            "configuration key `timeouts.peer_dead_ms` = `600` from environment \
             STEPMESH_TIMEOUTS_PEER_DEAD_MS: allowed is at least twice timeouts.heartbeat_ms, \
             which is 500 from default",
        ),
    ] {
        assert_eq!(from_env(&pairs).unwrap_err().to_string(), want);
    }
    let error = load_file("[timeouts]\nconnect_ms = \"10s\"\n")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`timeouts.connect_ms` = `10s` from file "),
        "{error}"
    );
    assert!(error.ends_with("allowed is 1 to 86400000"), "{error}");
    let error = load_file("plugins = 3\n").unwrap_err().to_string();
    assert!(
        error.contains("unknown configuration key `plugins` from file "),
        "{error}"
    );
}

#[test]
fn an_unknown_key_in_the_file_is_an_error_with_the_nearest_one() {
    let file = file("[mesh]\nworker = 2\n");
    let error = Config::load(&Sources::default().with_file(file.path()))
        .unwrap_err()
        .to_string();
    let path = file.path().display();
    assert_eq!(
        error,
        format!(
            "unknown configuration key `mesh.worker` from file {path}; did you mean `mesh.workers`?"
        )
    );
    let error = load_file("[quantum]\n").unwrap_err().to_string();
    assert!(
        error.starts_with("unknown configuration key `quantum` from file "),
        "{error}"
    );
    assert_eq!(load_file("[mesh]\n").unwrap().config, Config::default());
}

#[test]
fn an_unknown_override_is_an_error_with_the_nearest_one() {
    let sources = Sources::default().with_override("mesh.rnak", "1");
    assert_eq!(
        Config::load(&sources).unwrap_err().to_string(),
        "unknown configuration key `mesh.rnak` from command line; did you mean `mesh.rank`?"
    );
}

#[test]
fn an_unknown_variable_is_a_warning_with_the_nearest_one() {
    let loaded = from_env(&[
        ("STEPMESH_MESH_RNK", "1"),
        ("STEPMESH_GPU", "0"),
        ("STEPMESH_CONFIG", ""),
        ("DMLC_SOMETHING", "1"),
        ("HOME", "/"),
    ])
    .unwrap();
    assert_eq!(
        loaded.warnings,
        [
            "STEPMESH_GPU of the original StepMesh has no effect here",
            "unknown environment variable STEPMESH_MESH_RNK; did you mean `STEPMESH_MESH_RANK`?",
        ]
    );
    let loaded = from_env(&[("STEPMESH_BAKEND", "cpu")]).unwrap();
    assert_eq!(
        loaded.warnings,
        ["unknown environment variable STEPMESH_BAKEND; did you mean `STEPMESH_BACKEND`?"]
    );
}

#[test]
fn the_misspelt_backend_variable_is_taken_with_a_warning_and_may_not_contradict() {
    let loaded = from_env(&[("STEPMESH_BAKCEND", "cuda")]).unwrap();
    assert_eq!(loaded.config.backend, "cuda");
    assert_eq!(
        loaded.warnings,
        ["STEPMESH_BAKCEND=cuda is taken as STEPMESH_BACKEND; correct the name"]
    );
    let both = from_env(&[("STEPMESH_BAKCEND", "cuda"), ("STEPMESH_BACKEND", "cuda")]).unwrap();
    assert_eq!(
        both.origins["backend"],
        Origin::Env {
            name: "STEPMESH_BACKEND".into()
        }
    );
    assert!(both.warnings.is_empty());
    let error = from_env(&[("STEPMESH_BAKCEND", "cuda"), ("STEPMESH_BACKEND", "cpu")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "STEPMESH_BACKEND=cpu and STEPMESH_BAKCEND=cuda both set `backend` and differ; \
         unset one of them"
    );
}

#[test]
fn a_short_and_a_full_name_may_not_contradict() {
    let error = from_env(&[("STEPMESH_LOG", "info"), ("STEPMESH_LOG_LEVEL", "warn")]).unwrap_err();
    assert!(matches!(error, Error::ConfigConflict { .. }), "{error}");
}

#[test]
fn options_of_backends_come_from_every_layer_and_keep_their_origin() {
    let file =
        file("[options.sim]\ndevices = 2\nfaults = 'copy:fail@1'\nexact = true\n[options.other]\n");
    let sources = Sources::from_env([
        ("STEPMESH_OPTIONS_SIM_MEMORY_LEN_BYTES", "4096"),
        ("STEPMESH_OPTIONS_SIM_DEVICES", "3"),
    ])
    .with_file(file.path())
    .with_override("options.sim.devices", "4");
    let loaded = Config::load(&sources).unwrap();
    let sim: Vec<_> = loaded.config.options["sim"]
        .iter()
        .map(|(option, text)| (option.as_str(), text.as_str()))
        .collect();
    assert_eq!(
        sim,
        [
            ("devices", "4"),
            ("exact", "true"),
            ("faults", "copy:fail@1"),
            ("memory_len_bytes", "4096"),
        ]
    );
    assert_eq!(
        loaded.config.options.len(),
        1,
        "an empty table sets nothing"
    );
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let origins = &loaded.option_origins;
    assert_eq!(origins["options.sim.devices"], Origin::CommandLine);
    let path = file.path().into();
    assert_eq!(origins["options.sim.faults"], Origin::File { path });
    // What was loaded can be written and read again.
    let text = toml::to_string(&loaded.config).unwrap();
    assert_eq!(load_file(&text).unwrap().config, loaded.config);
}

#[test]
fn what_is_no_option_of_a_backend_is_refused_or_told() {
    for text in ["[options]\ndevices = 2\n", "options = 2\n"] {
        let error = load_file(text).unwrap_err().to_string();
        assert!(
            error.contains("unknown configuration key `options"),
            "{error}"
        );
    }
    let error = load_file("[options.sim]\ndevices = [2]\n").unwrap_err();
    assert!(error.to_string().contains("text, a number"), "{error}");
    let loaded = from_env(&[("STEPMESH_OPTIONS_SIM", "1")]).unwrap();
    assert!(loaded.config.options.is_empty());
    assert_eq!(loaded.warnings.len(), 1);
}

#[test]
fn the_named_file_must_exist_and_parse() {
    let missing = Sources::default().with_file("/nonexistent/stepmesh.toml");
    let error = Config::load(&missing).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read the configuration file /nonexistent/stepmesh.toml; \
         name an existing file or none"
    );
    let env = Sources::from_env([("STEPMESH_CONFIG", "/nonexistent/other.toml")]);
    assert!(matches!(
        Config::load(&env).unwrap_err(),
        Error::ConfigRead { .. }
    ));
    let error = load_file("[mesh\n").unwrap_err();
    assert!(matches!(error, Error::ConfigParse { .. }), "{error}");
}

#[test]
fn the_named_file_beats_the_one_of_the_environment_and_that_the_default_one() {
    let (named, env, default) = (
        file("backend='a'"),
        file("backend='b'"),
        file("backend='c'"),
    );
    let mut sources = Sources::from_env([("STEPMESH_CONFIG", env.path())]);
    sources.file_default = Some(default.path().into());
    assert_eq!(Config::load(&sources).unwrap().config.backend, "b");
    let sources = sources.with_file(named.path());
    assert_eq!(Config::load(&sources).unwrap().config.backend, "a");
    let sources = Sources {
        file_default: Some(default.path().into()),
        ..Sources::default()
    };
    assert_eq!(Config::load(&sources).unwrap().config.backend, "c");
    let sources = Sources {
        file_default: Some("/nonexistent".into()),
        ..Sources::default()
    };
    assert_eq!(Config::load(&sources).unwrap().config.backend, "");
}

#[test]
fn a_process_with_more_rights_than_its_user_ignores_his_plugins_and_files() {
    let default = file("[plugins]\npath = ['/evil']\n");
    let mut sources = Sources::from_env([
        ("STEPMESH_PLUGIN_PATH", "/evil"),
        ("STEPMESH_PLUGIN_TRUST", "1"),
        ("STEPMESH_CONFIG", "/evil.toml"),
        ("STEPMESH_OPTIONS_CUDA_DRIVER", "/evil.so"),
        ("STEPMESH_MESH_RANK", "1"),
    ]);
    sources.file_default = Some(default.path().into());
    sources.is_secure = true;
    let loaded = Config::load(&sources).unwrap();
    assert!(loaded.config.plugins.path.is_empty() && !loaded.config.plugins.trust);
    assert_eq!(loaded.config.mesh.rank, 1);
    assert!(loaded.config.options.is_empty());
    assert_eq!(loaded.warnings.len(), 4, "{:?}", loaded.warnings);
}

#[test]
fn a_secret_is_never_printed() {
    let loaded = from_env(&[("STEPMESH_MESH_TOKEN", "hunter2")]).unwrap();
    assert_eq!(loaded.config.mesh.token.expose(), "hunter2");
    let values = format!("{:?} {:?}", loaded.values(), loaded);
    assert!(
        !values.contains("hunter2") && values.contains("***"),
        "{values}"
    );
    let error = load_file("[mesh]\ntoken = 12345\n")
        .unwrap_err()
        .to_string();
    assert!(!error.contains("12345"), "{error}");
}

#[test]
fn text_that_is_not_utf8_is_an_error_only_in_variables_of_ours() {
    use std::os::unix::ffi::OsStringExt;
    let bad = std::ffi::OsString::from_vec(vec![0xff]);
    let error = Config::load(&Sources::from_env([("STEPMESH_BACKEND", bad.clone())])).unwrap_err();
    assert!(error.to_string().contains("text in UTF-8"), "{error}");
    assert_eq!(
        Config::load(&Sources::from_env([("OTHER", bad)]))
            .unwrap()
            .config,
        Config::default()
    );
}

#[test]
fn the_table_of_keys_is_the_config() {
    let loaded = Config::load(&Sources::default()).unwrap();
    let names: BTreeSet<_> = KEYS.iter().map(|key| key.name.to_owned()).collect();
    assert_eq!(
        names,
        leaves(&toml::Table::try_from(&loaded.config).unwrap())
    );
    assert_eq!(names.len(), KEYS.len(), "no key twice");
    // Each default lies within its own limits: setting it again is accepted.
    for (key, value, _) in loaded.values() {
        let text = value.trim_matches(['"', '[', ']']).to_owned();
        if !text.is_empty() {
            Config::load(&Sources::default().with_override(key.name, text)).unwrap();
        }
    }
}

#[test]
fn the_shipped_file_has_every_key_with_its_default() {
    let path = root().join("config/stepmesh.toml");
    let loaded = Config::load(&Sources::default().with_file(&path)).unwrap();
    assert_eq!(loaded.config, Config::default());
    for (name, origin) in &loaded.origins {
        assert_ne!(
            *origin,
            Origin::Default,
            "{name} is missing from config/stepmesh.toml"
        );
    }
}

#[test]
fn the_documentation_lists_every_key() {
    let text = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let missing: Vec<_> = rows()
        .into_iter()
        .chain(super::keys::ENV_OTHER.iter().map(|name| (*name).to_owned()))
        .filter(|row| !text.contains(row.as_str()))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/configuration.md lacks:\n{}",
        missing.join("\n")
    );
}

#[test]
fn the_page_for_newcomers_names_keys_that_exist_and_every_name_of_the_original() {
    let text = fs::read_to_string(root().join("docs/migrating.md")).unwrap();
    let sections: BTreeSet<_> = KEYS
        .iter()
        .filter_map(|key| key.name.split_once('.'))
        .collect();
    let is_setting = |word: &&str| {
        sections
            .iter()
            .any(|(section, _)| word.starts_with(&format!("{section}.")))
    };
    let quoted = text.split('`').skip(1).step_by(2);
    let named: BTreeSet<_> = quoted
        .filter_map(|words| words.split_whitespace().next())
        .filter(is_setting)
        .collect();
    assert!(named.len() > 10, "{named:?}");
    for name in named {
        assert!(
            KEYS.iter().any(|key| key.name == name),
            "there is no key {name}"
        );
    }
    for name in KEYS.iter().filter_map(|key| key.dmlc) {
        assert!(
            text.contains(&format!("`{name}`")),
            "docs/migrating.md lacks {name}"
        );
    }
}

/// One line of the table in docs/configuration.md for each key.
fn rows() -> Vec<String> {
    let loaded = Config::load(&Sources::default()).unwrap();
    let row = |(key, value, _): (&super::Key, String, &Origin)| {
        let mut env = format!("`{}`", key.env());
        for short in key.env_short.iter().chain(key.dmlc.iter()) {
            env = format!("{env}, `{short}`");
        }
        let (name, allowed, meaning) = (key.name, key.allowed, key.meaning);
        format!("| `{name}` | `{value}` | {allowed} | {env} | {meaning} |")
    };
    loaded.values().into_iter().map(row).collect()
}

fn leaves(table: &toml::Table) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (name, value) in table {
        match value.as_table() {
            Some(inner) => names.extend(leaves(inner).iter().map(|leaf| format!("{name}.{leaf}"))),
            None => drop(names.insert(name.clone())),
        }
    }
    names
}

fn from_env(pairs: &[(&str, &str)]) -> Result<Loaded, Error> {
    Config::load(&Sources::from_env(pairs.iter().copied()))
}

fn load_file(text: &str) -> Result<Loaded, Error> {
    let file = file(text);
    Config::load(&Sources::default().with_file(file.path()))
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
