//! Which backend is taken, and what the user reads when none is.

use std::sync::{Arc, Barrier, Mutex};

use stepmesh_core::config::{Config, LoadPolicy, PluginsConfig, Secret};
use stepmesh_core::{Backend, Error, Registry, State, original};
use tracing_subscriber::fmt::MakeWriter;

use crate::plugins::{Plugins, candidate, reason};
use crate::real::cpu_built_in;

#[test]
fn the_higher_priority_wins_then_the_newer_version_then_the_earlier_directory() {
    let (first, second) = (Plugins::new(), Plugins::new());
    let config = PluginsConfig {
        path: vec![first.path(), second.path()],
        ..Default::default()
    };
    let low = first.add("by_priority", &["-DVERSION=\"9.0.0\""]);
    let high = second.add("by_priority", &["-DPRIORITY=5"]);
    let old = first.add("by_version", &["-DVERSION=\"1.9.0\""]);
    let new = second.add("by_version", &["-DVERSION=\"1.10.0\""]);
    let earlier = first.add("by_place", &["-DKIND=3"]);
    let later = second.add("by_place", &["-DKIND=2", "-DDEVICES=0"]);
    let registry = Registry::discover(&config);
    for (winner, loser, why) in [
        (&high, &low, "its priority is higher"),
        (&new, &old, "its version is newer"),
        (&earlier, &later, "its directory comes earlier"),
    ] {
        assert_eq!(candidate(&registry, winner).state(), State::Loaded);
        assert_eq!(candidate(&registry, loser).state(), State::Shadowed);
        let reason = reason(&registry, loser);
        assert!(
            reason.starts_with(&winner.display().to_string()),
            "{reason}"
        );
        assert!(
            reason.ends_with(&format!("of the same name comes first ({why})")),
            "{reason}"
        );
    }
    let backend = registry.select(Some("by_version")).unwrap();
    assert_eq!(
        (backend.version(), backend.path()),
        ("1.10.0", Some(new.as_path()))
    );
}

#[test]
fn strict_refuses_two_files_of_one_name_and_nothing_else() {
    let zoo = Plugins::new();
    let (one, two) = (
        zoo.add("twin", &[]),
        zoo.compile("twin2", &["-DNAME=\"twin\"", "-DPRIORITY=1"]),
    );
    let other = zoo.add("single", &[]);
    let registry = Registry::discover(&PluginsConfig {
        strict: true,
        ..zoo.config()
    });
    let expected = format!(
        "{} (twin 1.0.0) has the same name, and plugins.strict allows one file for each name",
        two.display()
    );
    assert_eq!(reason(&registry, &one), expected);
    assert_eq!(candidate(&registry, &two).state(), State::Rejected);
    assert_eq!(candidate(&registry, &other).state(), State::Loaded);
    let error = registry.select(Some("twin")).unwrap_err().to_string();
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn a_better_file_that_does_not_load_leaves_its_name_to_the_next() {
    let zoo = Plugins::new();
    let broken = zoo.compile("heir1", &["-DNAME=\"heir\"", "-DPRIORITY=9", "-DUNDEFINED"]);
    let heir = zoo.add("heir", &[]);
    let registry = zoo.discover();
    assert_eq!(candidate(&registry, &broken).state(), State::Rejected);
    assert_eq!(
        registry.select(Some("heir")).unwrap().path(),
        Some(heir.as_path())
    );
    let config = PluginsConfig {
        load: LoadPolicy::Selected,
        ..zoo.config()
    };
    let backend = Registry::discover(&config).select(Some("heir")).unwrap();
    assert_eq!(backend.path(), Some(heir.as_path()));
}

#[test]
fn a_disabled_plugin_is_never_loaded() {
    let zoo = Plugins::new();
    let by_name = zoo.compile("x1", &["-DNAME=\"unwanted\"", &zoo.marker("by_name")]);
    let by_file = zoo.compile("x2_beta", &["-DNAME=\"another\"", &zoo.marker("by_file")]);
    let wanted = zoo.add("wanted", &[&zoo.marker("wanted")]);
    let disable = vec!["unw*".into(), "*_BETA.so".into()];
    let registry = Registry::discover(&PluginsConfig {
        disable,
        ..zoo.config()
    });
    assert_eq!(candidate(&registry, &by_name).state(), State::Disabled);
    assert_eq!(
        reason(&registry, &by_file),
        "is disabled by `*_BETA.so` in plugins.disable"
    );
    assert_eq!(candidate(&registry, &wanted).state(), State::Loaded);
    let loads = |name| zoo.marks(name, "loaded");
    assert_eq!(
        (loads("by_name"), loads("by_file"), loads("wanted")),
        (0, 0, 1)
    );
}

#[test]
fn load_selected_loads_only_what_is_selected() {
    let zoo = Plugins::new();
    let chosen = zoo.add("chosen", &[&zoo.marker("chosen")]);
    zoo.add("bystander", &[&zoo.marker("bystander")]);
    let config = PluginsConfig {
        load: LoadPolicy::Selected,
        ..zoo.config()
    };
    let registry = Registry::discover(&config);
    assert_eq!(candidate(&registry, &chosen).state(), State::Compatible);
    assert_eq!(zoo.marks("chosen", "loaded"), 0);
    registry.select(Some("CHOSEN")).unwrap();
    assert_eq!(
        (
            zoo.marks("chosen", "loaded"),
            zoo.marks("bystander", "loaded")
        ),
        (1, 0)
    );
}

#[test]
fn nothing_is_opened_before_it_is_selected_and_the_last_handle_closes() {
    let zoo = Plugins::new();
    zoo.add("lifecycle", &[&zoo.marker("m")]);
    let registry = zoo.discover();
    assert_eq!((zoo.marks("m", "asked"), zoo.marks("m", "opened")), (1, 0));
    let backend = registry.select(Some("lifecycle")).unwrap();
    let device = backend.device(0).unwrap();
    drop(backend);
    assert_eq!((zoo.marks("m", "opened"), zoo.marks("m", "closed")), (1, 0));
    drop(device);
    assert_eq!(zoo.marks("m", "closed"), 1);
    registry.select(Some("lifecycle")).unwrap();
    assert_eq!((zoo.marks("m", "loaded"), zoo.marks("m", "opened")), (1, 2));
}

#[test]
fn threads_that_race_load_a_plugin_once() {
    let zoo = Plugins::new();
    zoo.add("raced", &[&zoo.marker("raced")]);
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                zoo.discover().select(Some("raced")).unwrap();
            });
        }
    });
    let marks = |what| zoo.marks("raced", what);
    assert_eq!((marks("loaded"), marks("asked")), (1, 1));
    assert_eq!(marks("opened"), THREADS as u64);
}

#[test]
fn an_unknown_name_gets_the_nearest_and_every_candidate_with_its_reason() {
    let zoo = Plugins::new();
    let good = zoo.add("cuda_like", &[]);
    let bad = zoo.add("bad", &["-DNOTE_MAJOR=3"]);
    let Err(Error::BackendUnavailable(error)) = zoo.discover().select(Some("cuda_liek")) else {
        panic!("there is no such backend")
    };
    assert_eq!(error.nearest.as_deref(), Some("cuda_like"));
    assert_eq!(error.searched[0], zoo.path());
    let text = error.to_string();
    for line in [
        "backend `cuda_liek` was not found; did you mean `cuda_like`?".to_owned(),
        format!(
            "\n  {} (bad 1.0.0): is built for ABI 3, this host has ABI 1",
            bad.display()
        ),
        format!("\n  {} (cuda_like 1.0.0): is `cuda_like`", good.display()),
        format!("\n  searched: {}", zoo.path().display()),
        "\n  put its plugin there, or name its folder in STEPMESH_PLUGIN_PATH".to_owned(),
    ] {
        assert!(text.contains(&line), "{line} is missing in\n{text}");
    }
}

#[test]
fn a_name_that_is_right_gets_no_other_one() {
    let registry = Plugins::new().discover();
    for name in ["rocm", "ROCm", "GPU"] {
        let error = registry.select(Some(name)).unwrap_err().to_string();
        // Found without a device where the plugin was built beside this program, else not found.
        assert!(error.contains(&format!("`{name}`")), "{error}");
        assert!(!error.contains("did you mean"), "{error}");
    }
    let error = registry.select(Some("rcom")).unwrap_err().to_string();
    assert!(
        error.starts_with("backend `rcom` was not found; did you mean `rocm`?\n"),
        "{error}"
    );
}

#[test]
fn a_backend_that_cannot_be_opened_is_an_error_and_no_fallback() {
    let zoo = Plugins::new();
    let broken = zoo.add(
        "broken",
        &["-DOPEN_FAILS=\"panicked: index out of bounds\""],
    );
    let empty = zoo.add("empty", &["-DDEVICES=0"]);
    let absurd = zoo.add("absurd", &["-DCOUNT=4000000000u"]);
    let registry = zoo.discover();
    for (name, path, expected) in [
        (
            "broken",
            &broken,
            "cannot be opened: panicked: index out of bounds",
        ),
        ("empty", &empty, "has no usable device"),
        (
            "absurd",
            &absurd,
            "gave a bad answer to device_count: 4000000000 devices",
        ),
    ] {
        let error = registry.select(Some(name)).unwrap_err().to_string();
        let line = format!("{} ({name} 1.0.0): ", path.display());
        assert!(error.contains(&line) && error.contains(expected), "{error}");
    }
}

#[test]
fn the_alias_gpu_is_whichever_gpu_has_a_device() {
    let zoo = Plugins::new();
    zoo.add("nogpu", &["-DKIND=2", "-DDEVICES=0"]);
    let live = zoo.add("livegpu", &["-DKIND=2"]);
    let registry = zoo.discover();
    for name in [Some("GPU"), Some("gpu"), None] {
        assert_eq!(registry.select(name).unwrap().path(), Some(live.as_path()));
    }
    // A second one with devices makes the alias ambiguous, unless it has the higher priority.
    zoo.add("aliased", &["-DALIASES=\"npu,GPU\""]);
    let error = zoo.discover().select(None).unwrap_err();
    assert!(matches!(error, Error::BackendAmbiguous { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("(aliased 1.0.0)") && text.contains("(livegpu 1.0.0)"),
        "{text}"
    );
    assert_eq!(
        zoo.discover().select(Some("NPU")).unwrap().name(),
        "aliased"
    );
    let best = zoo.add("bestgpu", &["-DKIND=2", "-DPRIORITY=1"]);
    assert_eq!(
        zoo.discover().select(Some("GPU")).unwrap().path(),
        Some(best.as_path())
    );
}

#[test]
fn the_alias_without_a_gpu_is_an_error_that_names_those_without_devices() {
    let zoo = Plugins::new();
    zoo.add("nogpu", &["-DKIND=2", "-DDEVICES=0"]);
    let error = zoo.discover().select(Some("GPU")).unwrap_err().to_string();
    assert!(
        error.starts_with("backend `GPU` cannot be used\n"),
        "{error}"
    );
    assert!(
        error.contains("(nogpu 1.0.0): has no usable device"),
        "{error}"
    );
}

#[test]
fn without_a_name_and_a_gpu_the_cpu_is_taken_with_one_warning_that_says_why() {
    let zoo = Plugins::new();
    let nogpu = zoo.add("nogpu", &["-DKIND=2", "-DDEVICES=0"]);
    let log = Log::default();
    let registry = zoo.discover();
    let backend = log.during(|| registry.select(None).unwrap());
    assert_eq!(backend.name(), "cpu");
    let warnings = log.lines("WARN");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let why = format!("{} (nogpu 1.0.0) has no usable device", nogpu.display());
    assert!(
        warnings[0].contains("no GPU is usable") && warnings[0].contains(&why),
        "{warnings:?}"
    );
}

#[test]
fn a_plugin_reads_the_configuration_but_no_secret() {
    let zoo = Plugins::new();
    zoo.add("reader", &[]);
    let mut config = Config {
        plugins: zoo.config(),
        backend: "reader".into(),
        ..Config::default()
    };
    config.mesh.token = Secret::from("hunter2".to_owned());
    let backend = Backend::open(&config).unwrap();
    assert_eq!(backend.devices()[0].info().name, "auto");
}

#[test]
fn a_plugins_log_and_its_asynchronous_failures_reach_the_host() {
    let zoo = Plugins::new();
    zoo.add("talker", &[]);
    let backend = zoo.discover().select(Some("talker")).unwrap();
    let device = backend.device(0).unwrap();
    assert!(device.take_async_error().is_none());
    let log = Log::default();
    log.during(|| device.synchronize().unwrap());
    let warnings = log.lines("WARN");
    assert!(warnings[0].contains("the fan is off") && warnings[0].contains("module=\"zoo\""));
    let (error, count) = device.take_async_error().unwrap();
    assert_eq!(
        error.to_string(),
        "asynchronous work failed on talker:0: a page was lost (data loss, native code 77)"
    );
    assert_eq!(count, 2);
    assert!(device.take_async_error().is_none());
}

#[test]
fn the_originals_names_work_on_one_backend_of_the_process() {
    let zoo = Plugins::new();
    zoo.add("other", &[]);
    let cpu = cpu_built_in();
    original::register("MY_BACKEND", cpu.clone()).unwrap();
    original::register("my_backend", cpu.clone()).unwrap();
    let other = zoo.discover().select(Some("other")).unwrap();
    let error = original::register("My_Backend", other).unwrap_err();
    assert!(matches!(error, Error::NameTaken { .. }), "{error}");
    // The original's default name: with STEPMESH_BACKEND unset, `get` finds it before any plugin.
    original::register("GPU", cpu.clone()).unwrap();
    assert!(
        std::env::var_os("STEPMESH_BACKEND").is_none(),
        "unset STEPMESH_BACKEND for the tests"
    );
    assert!(original::get().unwrap().is_same(&cpu));

    original::set_device(0).unwrap();
    assert_eq!(original::get_device_id().unwrap(), 0);
    assert_eq!(original::get_device().unwrap().to_string(), "cpu:0");
    assert!(matches!(
        original::set_device(9999),
        Err(Error::NoSuchDevice { .. })
    ));
    let buffer = original::alloc(4096).unwrap();
    buffer.write_bytes(0, b"seen").unwrap();
    original::free(buffer).unwrap();
    original::free(None).unwrap();
    let event = original::create_event().unwrap();
    original::record_event(&event, None).unwrap();
    original::sync_event(&event).unwrap();
    let stream = cpu.device(0).unwrap().create_stream().unwrap();
    original::record_event(&event, Some(&stream)).unwrap();
    original::sync_event(&event).unwrap();
    original::free_event(event).unwrap();
}

/// What the calling thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn during<T>(&self, run: impl FnOnce() -> T) -> T {
        let subscriber = tracing_subscriber::fmt()
            .with_writer(self.clone())
            .with_ansi(false)
            .with_max_level(tracing::Level::WARN)
            .finish();
        tracing::subscriber::with_default(subscriber, run)
    }

    fn lines(&self, level: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines()
            .filter(|line| line.contains(level))
            .map(str::to_owned)
            .collect()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// As many as the design asks for.
const THREADS: usize = 32;
