//! Processes of the program under test: each writes to files, has a bound, and does not outlive the
//! test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A scheduler, and a folder for those who join it.
pub(crate) struct Mesh {
    pub(crate) scheduler: Process,
    pub(crate) dir: TempDir,
    settings: Vec<(String, String)>,
    joined: std::cell::Cell<u32>,
}

/// A process of the program.
pub(crate) struct Process {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// How a process ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) name: String,
    /// `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Mesh {
    /// A scheduler that waits for so many; `settings` are configuration keys for all.
    pub(crate) fn new(workers: u32, servers: u32, settings: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port_file = dir.path().join("port");
        let mut args = vec!["scheduler".into(), "--port".into(), "0".into()];
        args.extend(["--workers".into(), workers.to_string()]);
        args.extend(["--servers".into(), servers.to_string()]);
        args.extend(["--port-file".into(), port_file.display().to_string()]);
        let mut settings: Vec<_> = settings
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let mut command = program(&settings);
        let mut scheduler = Process::start(dir.path(), "scheduler", command.args(args));
        let port = wait_for("the port file", || {
            scheduler.must_run();
            fs::read_to_string(&port_file).ok()
        });
        settings.push(("mesh.scheduler_port".into(), port.trim().into()));
        Self {
            scheduler,
            dir,
            settings,
            joined: 0.into(),
        }
    }

    /// Starts a server or a worker.
    pub(crate) fn start(&self, args: &[&str]) -> Process {
        self.start_with(&[], args)
    }

    /// The same with settings of its own.
    pub(crate) fn start_with(&self, settings: &[(&str, &str)], args: &[&str]) -> Process {
        self.joined.set(self.joined.get() + 1);
        let name = format!("{}-{}", args[0], self.joined.get());
        let mut command = program(&self.settings);
        for (key, value) in settings {
            command.arg("-o").arg(format!("{key}={value}"));
        }
        Process::start(self.dir.path(), &name, command.args(args))
    }

    /// The port of the scheduler.
    pub(crate) fn port(&self) -> &str {
        &self.settings.last().unwrap().1
    }

    /// The scheduler ends well once everybody has gone.
    pub(crate) fn ends(mut self) {
        self.scheduler.ends_with(0);
    }
}

impl Process {
    pub(crate) fn start(dir: &Path, name: &str, command: &mut Command) -> Self {
        let stdout = dir.join(format!("{name}.out"));
        let stderr = dir.join(format!("{name}.err"));
        let child = command
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        Self {
            name: name.into(),
            child,
            stdout,
            stderr,
        }
    }

    /// Waits until it has said `text`, on either stream.
    pub(crate) fn says(&mut self, text: &str) {
        let what = format!("{} to say `{text}`", self.name);
        wait_for(&what, || {
            let said = self.said();
            if said.0.contains(text) || said.1.contains(text) {
                return Some(());
            }
            self.must_run();
            None
        });
    }

    /// Waits until it has ended.
    pub(crate) fn end(&mut self) -> Ended {
        let status = {
            let start = Instant::now();
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    break status;
                }
                if start.elapsed() > DEADLINE {
                    let (stdout, stderr) = self.said();
                    panic!("{} does not end; it said:\n{stdout}\n{stderr}", self.name);
                }
                thread::sleep(POLL_PERIOD);
            }
        };
        let (stdout, stderr) = self.said();
        Ended {
            name: self.name.clone(),
            code: status.code(),
            stdout,
            stderr,
        }
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<Ended> {
        self.child.try_wait().unwrap()?;
        Some(self.end())
    }

    /// Waits until it has ended with this code.
    pub(crate) fn ends_with(&mut self, code: i32) -> Ended {
        let ended = self.end();
        assert_eq!(
            ended.code,
            Some(code),
            "{} said:\n{}\n{}",
            ended.name,
            ended.stdout,
            ended.stderr
        );
        ended
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn must_run(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            let (stdout, stderr) = self.said();
            panic!(
                "{} ended too early: {status}\n{stdout}\n{stderr}",
                self.name
            );
        }
    }

    fn said(&self) -> (String, String) {
        (
            fs::read_to_string(&self.stdout).unwrap(),
            fs::read_to_string(&self.stderr).unwrap(),
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().unwrap();
    }
}

impl Ended {
    /// The line that tells the error; there is exactly one.
    pub(crate) fn error(&self) -> &str {
        let mut errors = self.stderr.lines().filter(|l| l.starts_with("error: "));
        let error = errors
            .next()
            .unwrap_or_else(|| panic!("no error: {self:?}"));
        assert_eq!(errors.next(), None, "{self:?}");
        error
    }

    /// Every text is in the error.
    pub(crate) fn tells(&self, texts: &[&str]) {
        for text in texts {
            assert!(
                self.stderr.contains(text),
                "`{text}` is not told: {}",
                self.stderr
            );
        }
        self.error();
    }
}

/// The program with nothing of this process's environment but these settings.
pub(crate) fn program(settings: &[(String, String)]) -> Command {
    let mut command = Command::new(program_path());
    command.env_clear().env("STEPMESH_BACKEND", "cpu");
    command.env("RUST_BACKTRACE", "1");
    for (key, value) in settings {
        let name = format!("STEPMESH_{}", key.replace('.', "_").to_uppercase());
        command.env(name, value);
    }
    command
}

/// The program of this build; or another build of it, by which the same tests run where one without
/// optimisation is too slow (`cargo xtask vm test`).
fn program_path() -> PathBuf {
    let other = std::env::var_os("STEPMESH_TEST_PROGRAM");
    other.map_or_else(|| env!("CARGO_BIN_EXE_stepmesh").into(), PathBuf::from)
}

/// The way between hosts: TCP, or the one that STEPMESH_TRANSPORT_KIND names, by which the same tests
/// run over an adapter (`cargo xtask vm test`).
pub(crate) fn network() -> String {
    std::env::var("STEPMESH_TRANSPORT_KIND").unwrap_or_else(|_| "tcp".into())
}

/// Runs the program to its end, in a folder of its own.
pub(crate) fn run(args: &[&str]) -> Ended {
    run_with(&[], args)
}

/// The same with environment variables.
pub(crate) fn run_with(env: &[(&str, &str)], args: &[&str]) -> Ended {
    let dir = tempfile::tempdir().unwrap();
    let mut command = program(&[]);
    command
        .current_dir(dir.path())
        .args(args)
        .envs(env.iter().copied());
    Process::start(dir.path(), "stepmesh", &mut command).end()
}

/// The layer that comes with the source.
pub(crate) fn layer() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../stepmesh/examples/data/minilm-ffn0.safetensors");
    path.to_str().unwrap().into()
}

fn wait_for<T>(what: &str, mut is_there: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = is_there() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "waited too long for {what}");
        thread::sleep(POLL_PERIOD);
    }
}

/// Far beyond what anything here takes on a busy machine; only a hang gets there.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);

/// Short beside the life of a process.
const POLL_PERIOD: Duration = Duration::from_millis(5);
