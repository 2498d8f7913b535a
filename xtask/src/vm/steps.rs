//! Commands that one guest runs one after another, each with a time limit and a log of its own. A
//! guest that dies in the middle takes nothing away from what had ended before.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, Result};

use super::{Lab, guest::Output, script};

/// One command.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) command: Command,
    pub(super) limit: Duration,
}

/// How a step ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: u8,
    pub(super) took: Duration,
    /// Where everything lies that it printed.
    pub(super) log: PathBuf,
}

impl Ended {
    pub(super) fn log_text(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Runs the steps in one guest and tells each on its end. The answer is as long as `steps`; what
/// has not ended is `None`, and then the second part says why.
pub(super) fn run(
    lab: &Lab,
    dir_name: &str,
    steps: &[Step],
    mut on_end: impl FnMut(&Step, &Ended),
) -> Result<(Vec<Option<Ended>>, Result<()>)> {
    let dir = lab.site.out_dir.join(dir_name);
    write(&dir, steps).with_context(|| format!("cannot write {}", dir.display()))?;
    let mut command = Command::new("sh");
    command.arg(dir.join("steps.sh")).arg(&dir);
    let limits: Duration = steps.iter().map(|step| step.limit + KILL_GRACE).sum();
    let output = Output::Streams(Box::new(io::stdout()), Box::new(io::stderr()));
    let mut guest = lab.boot(&lab.machine(limits), &command, output)?;

    let mut ended: Vec<Option<Ended>> = steps.iter().map(|_| None).collect();
    loop {
        // Before the notes are read: all that it wrote is there once it has ended.
        let polled = guest.poll();
        for (number, end) in read_ended(&dir) {
            if let (Some(step), Some(slot @ None)) = (steps.get(number), ended.get_mut(number)) {
                on_end(step, slot.insert(end));
            }
        }
        match polled {
            Ok(None) => thread::sleep(POLL_PERIOD),
            Ok(Some(_)) => return Ok((ended, Ok(()))),
            Err(error) => return Ok((ended, Err(error))),
        }
    }
}

fn write(dir: &Path, steps: &[Step]) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(dir)?,
    }
    fs::write(dir.join("steps.sh"), STEPS_SCRIPT)?;
    for (number, step) in steps.iter().enumerate() {
        fs::write(
            dir.join(format!("{number}.sh")),
            script::of_command(&step.command),
        )?;
        let limit = format!("{}\n", step.limit.as_secs());
        fs::write(dir.join(format!("{number}.limit")), limit)?;
    }
    Ok(())
}

fn read_ended(dir: &Path) -> Vec<(usize, Ended)> {
    let notes = fs::read_to_string(dir.join("ended")).unwrap_or_default();
    notes
        .lines()
        .filter_map(|line| parse_note(line, dir))
        .collect()
}

fn parse_note(line: &str, dir: &Path) -> Option<(usize, Ended)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [number, status, start, end] = words[..] else {
        return None;
    };
    let seconds = end.parse::<f64>().ok()? - start.parse::<f64>().ok()?;
    let ended = Ended {
        status: status.parse().ok()?,
        took: Duration::try_from_secs_f64(seconds).ok()?,
        log: dir.join(format!("{number}.log")),
    };
    Some((number.parse().ok()?, ended))
}

const STEPS_SCRIPT: &str = include_str!("steps.sh");

/// What steps.sh gives a step that is out of time before it is killed, and some more.
const KILL_GRACE: Duration = Duration::from_secs(10);

/// Short beside a step.
const POLL_PERIOD: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    //! The steps' script runs here as it does in a guest.

    use super::{Command, Duration, Step, read_ended, write};

    #[test]
    fn each_step_has_its_log_its_status_and_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("steps");
        let step = |script: &str, limit_s| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir("/usr");
            let (name, limit) = (script.to_owned(), Duration::from_secs(limit_s));
            Step {
                name,
                command,
                limit,
            }
        };
        let steps = [
            step("pwd; exit 3", 60),
            step("sleep 60", 1),
            step("echo x >&2", 60),
        ];
        write(&dir, &steps).unwrap();
        let status = Command::new("sh")
            .arg(dir.join("steps.sh"))
            .arg(&dir)
            .status();
        assert!(status.unwrap().success());
        let ended = read_ended(&dir);
        let statuses: Vec<_> = ended
            .iter()
            .map(|(number, end)| (*number, end.status))
            .collect();
        assert_eq!(statuses, [(0, 3), (1, 124), (2, 0)]);
        assert_eq!(ended[0].1.log_text(), "/usr\n");
        assert_eq!(ended[2].1.log_text(), "x\n");
    }
}
