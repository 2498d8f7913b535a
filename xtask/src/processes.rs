//! Child processes that belong together: each writes to files of its own, the first to fail ends
//! the wait, and none outlives the group. What they run is the caller's business.

use std::{
    fs::{self, File},
    io,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::workspace::shown;

/// A flag that Ctrl-C and SIGTERM set, instead of ending this program.
pub(crate) fn watch_for_interrupt() -> Result<Arc<AtomicBool>> {
    let is_interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_interrupted))
            .context("cannot watch for Ctrl-C")?;
    }
    Ok(is_interrupted)
}

/// A group of processes with a deadline. Dropping it ends those that still run.
#[derive(Debug)]
pub(crate) struct Processes {
    members: Vec<Process>,
    dir: PathBuf,
    deadline: Instant,
    is_interrupted: Arc<AtomicBool>,
}

impl Processes {
    /// An empty group that writes below `dir`, which must exist, and is over after `limit`.
    ///
    /// From here on Ctrl-C and SIGTERM end the group instead of this program.
    pub(crate) fn new(dir: PathBuf, limit: Duration) -> Result<Self> {
        let is_interrupted = watch_for_interrupt()?;
        Ok(Self {
            members: Vec::new(),
            dir,
            deadline: Instant::now() + limit,
            is_interrupted,
        })
    }

    /// Starts `command` under a name that is unique in the group.
    pub(crate) fn start(&mut self, name: &str, command: &mut Command) -> Result<()> {
        let stdout_path = self.dir.join(format!("{name}.out"));
        let stderr_path = self.dir.join(format!("{name}.err"));
        let create = |path: &PathBuf| {
            File::create(path).with_context(|| format!("cannot write {}", path.display()))
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(create(&stdout_path)?)
            .stderr(create(&stderr_path)?)
            .spawn()
            .with_context(|| format!("cannot start `{}`", shown(command)))?;
        let name = name.to_owned();
        self.members.push(Process {
            name,
            child,
            status: None,
            stdout_path,
            stderr_path,
        });
        Ok(())
    }

    /// Waits until `is_done`, which is asked again and again. An error when a process has failed,
    /// when the time is up, or on Ctrl-C.
    pub(crate) fn wait_until<T>(
        &mut self,
        what: &str,
        mut is_done: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        loop {
            self.check_members()?;
            if let Some(done) = is_done()? {
                return Ok(done);
            }
            self.pause(what)?;
        }
    }

    /// Waits until every process has ended well.
    pub(crate) fn wait_for_end(&mut self) -> Result<()> {
        loop {
            self.check_members()?;
            let running = self
                .members
                .iter()
                .filter(|process| process.status.is_none());
            let running: Vec<&str> = running.map(|process| process.name.as_str()).collect();
            if running.is_empty() {
                return Ok(());
            }
            let what = format!("the end of {}", running.join(", "));
            self.pause(&what)?;
        }
    }

    /// What the process of this name wrote to its standard output.
    pub(crate) fn stdout_of(&self, name: &str) -> Result<String> {
        let process = self.members.iter().find(|process| process.name == name);
        let process = process.with_context(|| format!("no process `{name}` was started"))?;
        fs::read_to_string(&process.stdout_path)
            .with_context(|| format!("cannot read what {name} printed"))
    }

    fn check_members(&mut self) -> Result<()> {
        for process in &mut self.members {
            if let Some(status) = process.poll()?
                && !status.success()
            {
                bail!(
                    "{} failed: {status}\n{}",
                    process.name,
                    process.last_words()
                );
            }
        }
        Ok(())
    }

    fn pause(&self, what: &str) -> Result<()> {
        if self.is_interrupted.load(Ordering::Relaxed) {
            bail!("interrupted while waiting for {what}");
        }
        if Instant::now() >= self.deadline {
            let running = self
                .members
                .iter()
                .filter(|process| process.status.is_none());
            let words =
                running.map(|process| format!("{}:\n{}", process.name, process.last_words()));
            bail!(
                "out of time while waiting for {what}\n{}",
                words.collect::<Vec<_>>().join("\n")
            );
        }
        thread::sleep(POLL_PERIOD);
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        // On Ctrl-C the terminal has signalled the children too: those that end cleanly may.
        let grace_end = Instant::now() + GRACE;
        let is_interrupted = self.is_interrupted.load(Ordering::Relaxed);
        for process in &mut self.members {
            while is_interrupted && process.is_running() && Instant::now() < grace_end {
                thread::sleep(POLL_PERIOD);
            }
            if process.is_running()
                && let Err(error) = process.child.kill().and_then(|()| process.child.wait())
            {
                eprintln!("cannot end {}: {error}", process.name);
            }
        }
    }
}

#[derive(Debug)]
struct Process {
    name: String,
    child: Child,
    status: Option<ExitStatus>,
    stdout_path: PathBuf,
    stderr_path: PathBuf,
}

impl Process {
    fn poll(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    fn is_running(&mut self) -> bool {
        matches!(self.poll(), Ok(None))
    }

    /// The end of its standard error, indented.
    fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.stderr_path).unwrap_or_else(|error| error.to_string());
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(LAST_WORDS_LINES)..];
        if last.is_empty() {
            "  (it said nothing)".into()
        } else {
            format!("  {}", last.join("\n  "))
        }
    }
}

/// Short beside the life of a process, long beside a system call.
const POLL_PERIOD: Duration = Duration::from_millis(20);

/// How long processes may take to end after Ctrl-C: twice `timeouts.close_ms`.
const GRACE: Duration = Duration::from_secs(4);

/// Enough for an error with its causes, short enough for a screen.
const LAST_WORDS_LINES: usize = 30;

#[cfg(test)]
mod tests {
    //! Groups of shells that end well, fail, and stay.

    use super::{Duration, Processes};
    use std::{fs, process::Command};

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_is_kept_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut group = Processes::new(dir.path().into(), Duration::from_secs(60)).unwrap();
        group.start("a", &mut shell("echo one")).unwrap();
        group.start("b", &mut shell("echo two")).unwrap();
        group.wait_for_end().unwrap();
        assert_eq!(group.stdout_of("b").unwrap(), "two\n");
        assert!(
            group
                .stdout_of("c")
                .unwrap_err()
                .to_string()
                .contains("`c`")
        );
    }

    #[test]
    fn the_first_failure_ends_the_wait_and_says_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let mut group = Processes::new(dir.path().into(), Duration::from_secs(60)).unwrap();
        group.start("stays", &mut shell("exec sleep 60")).unwrap();
        group
            .start("fails", &mut shell("echo why >&2; exit 3"))
            .unwrap();
        let error = group.wait_for_end().unwrap_err().to_string();
        assert!(
            error.contains("fails failed") && error.contains("why"),
            "{error}"
        );
    }

    #[test]
    fn the_deadline_ends_the_wait_and_the_processes() {
        let dir = tempfile::tempdir().unwrap();
        let pid_file = dir.path().join("pid");
        let mut group = Processes::new(dir.path().into(), Duration::from_millis(300)).unwrap();
        let script = format!("echo $$ > {}; exec sleep 60", pid_file.display());
        group.start("stays", &mut shell(&script)).unwrap();
        let error = group.wait_for_end().unwrap_err().to_string();
        assert!(error.contains("the end of stays"), "{error}");
        let pid = fs::read_to_string(pid_file).unwrap();
        drop(group);
        assert!(!fs::exists(format!("/proc/{}", pid.trim())).unwrap());
    }
}
