//! One virtual machine that runs one command: started, watched, and never left behind. It sees the
//! host's files read-only, so that programs built here run there unchanged; what it has of its own
//! is a kernel, and by that an RDMA device. What runs in it is the caller's business.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{image::Image, script};
use crate::needs::Presence;

/// What a guest is made of, and how long it may live.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) cpus: u32,
    pub(super) memory_mib: u32,
    /// Bounds the command, from the end of the boot.
    pub(super) limit: Duration,
    /// Its number in its network: it has the address 10.10.0.`index`.
    pub(super) index: u8,
    pub(super) network: Network,
}

/// What the guest's RDMA device sits on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    /// A pair of virtual devices in the guest: it talks to itself.
    Own,
    /// A wire to another guest of this host, which is let in at this port of 127.0.0.1.
    Listens(u16),
    /// The other end of that wire.
    Connects(u16),
}

/// Where the guest's files lie on this host.
#[derive(Debug, Clone)]
pub(super) struct Site {
    /// Holds the folder of each run.
    pub(super) runs_dir: PathBuf,
    /// What guests may write, at the same path as here.
    pub(super) out_dir: PathBuf,
    /// Folders that must stay visible even below one that the guest has for itself, as /tmp.
    pub(super) kept_dirs: Vec<PathBuf>,
}

/// Where the command's output goes.
pub(super) enum Output {
    /// To these writers as it comes.
    Streams(Box<dyn Write + Send>, Box<dyn Write + Send>),
    /// To this program's own terminal, which is also the command's input.
    Terminal,
}

/// A running guest. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Guest {
    qemu: Child,
    run_dir: PathBuf,
    copies: Vec<JoinHandle<()>>,
    started: Instant,
    limit: Duration,
    /// When the command was started.
    up: Option<Instant>,
    exit_code: Option<u8>,
    is_interrupted: Arc<AtomicBool>,
}

impl Guest {
    /// Starts a machine that boots, runs `command`, and ends. Its environment is that of `command`
    /// and what [`script::is_inherited`] takes from this process.
    pub(super) fn boot(
        image: &Image,
        site: &Site,
        machine: &Machine,
        command: &Command,
        output: Output,
        is_interrupted: Arc<AtomicBool>,
    ) -> Result<Self> {
        let run_dir = site
            .runs_dir
            .join(format!("{}-{}", process::id(), machine.index));
        let is_terminal = matches!(output, Output::Terminal);
        write_run_dir(&run_dir, site, machine, command, is_terminal)
            .with_context(|| format!("cannot write {}", run_dir.display()))?;
        let mut qemu = qemu(image, site, machine, &run_dir, is_terminal);
        if let Output::Streams(..) = &output {
            qemu.stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
        }
        let mut child = qemu
            .spawn()
            .with_context(|| format!("cannot start `{QEMU}`: run `cargo xtask setup`"))?;
        let mut copies = Vec::new();
        if let Output::Streams(to_stdout, to_stderr) = output {
            copies.extend(child.stdout.take().map(|from| copy(from, to_stdout)));
            copies.extend(child.stderr.take().map(|from| copy(from, to_stderr)));
        }
        Ok(Self {
            qemu: child,
            run_dir,
            copies,
            started: Instant::now(),
            limit: machine.limit,
            up: None,
            exit_code: None,
            is_interrupted,
        })
    }

    /// Waits for the command's end and returns its exit status.
    pub(super) fn wait(&mut self) -> Result<u8> {
        loop {
            if let Some(code) = self.poll()? {
                return Ok(code);
            }
            thread::sleep(POLL_PERIOD);
        }
    }

    /// The command's exit status, once the machine has ended with it. An error when the machine
    /// ended without one, when the time is up, and on Ctrl-C.
    pub(super) fn poll(&mut self) -> Result<Option<u8>> {
        if self.exit_code.is_some() {
            return Ok(self.exit_code);
        }
        // Before the state is read: what the guest wrote before its end is there then.
        let ended = self.qemu.try_wait().context("cannot wait for the guest")?;
        let state = fs::read_to_string(self.run_dir.join("state")).unwrap_or_default();
        if self.up.is_none() && !state.is_empty() {
            self.up = Some(Instant::now());
        }
        if let Some(status) = ended {
            self.join_copies();
            let code = state
                .trim()
                .strip_prefix("exit ")
                .and_then(|code| code.parse().ok());
            let Some(code) = code else {
                let stage = if self.up.is_some() {
                    "died"
                } else {
                    "did not boot"
                };
                bail!("the guest {stage} (QEMU: {status}){}", self.console_tail());
            };
            self.exit_code = Some(code);
            return Ok(self.exit_code);
        }
        if self.is_interrupted.load(Ordering::Relaxed) {
            bail!("interrupted; the guest was ended");
        }
        let (since, limit, what) = match self.up {
            Some(up) => (up, self.limit, "the command's end"),
            None => (self.started, BOOT_LIMIT, "the guest's boot"),
        };
        if since.elapsed() >= limit {
            bail!(
                "out of time: {what} did not come within {} s{}",
                limit.as_secs(),
                self.console_tail()
            );
        }
        Ok(None)
    }

    fn join_copies(&mut self) {
        for copy in self.copies.drain(..) {
            // A writer that panicked has said so itself.
            copy.join().ok();
        }
    }

    /// The last lines of the guest's console, as a continuation of an error.
    fn console_tail(&self) -> String {
        let bytes = fs::read(self.run_dir.join("console")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim_end)
            .filter(|l| !l.is_empty())
            .collect();
        if lines.is_empty() {
            return "; its console is empty".into();
        }
        let last = &lines[lines.len().saturating_sub(CONSOLE_LINES)..];
        format!("; the end of its console:\n  {}", last.join("\n  "))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if matches!(self.qemu.try_wait(), Ok(None))
            && let Err(error) = self.qemu.kill().and_then(|()| self.qemu.wait())
        {
            eprintln!("cannot end the guest: {error}");
        }
        self.join_copies();
        if let Err(error) = fs::remove_dir_all(&self.run_dir) {
            eprintln!("cannot remove {}: {error}", self.run_dir.display());
        }
    }
}

/// Whether the emulator, which is installed, can be started.
pub(super) fn emulator() -> Presence {
    match Command::new(QEMU).arg("--version").output() {
        Ok(output) if output.status.success() => Presence::Present,
        Ok(output) => Presence::Broken(format!("`{QEMU} --version`: {}", output.status)),
        Err(error) => Presence::Broken(format!("`{QEMU}`: {error}")),
    }
}

/// Writes what the guest finds in /run/stepmesh.
fn write_run_dir(
    run_dir: &Path,
    site: &Site,
    machine: &Machine,
    command: &Command,
    has_terminal: bool,
) -> io::Result<()> {
    fs::create_dir_all(run_dir)?;
    fs::create_dir_all(&site.out_dir)?;
    fs::write(run_dir.join("guest.sh"), GUEST_SCRIPT)?;
    fs::write(run_dir.join("command.sh"), script::of_command(command))?;
    let mut settings = script::Assignments::default();
    settings.set("GUEST_INDEX", machine.index.to_string());
    settings.set("GUEST_OUT_DIR", &site.out_dir);
    settings.set("GUEST_MTU", MTU.to_string());
    settings.set("GUEST_HAS_TERMINAL", if has_terminal { "1" } else { "" });
    fs::write(run_dir.join("guest.env"), settings.into_bytes())?;
    fs::write(
        run_dir.join("keep"),
        script::kept_below(&GUEST_DIRS, &site.kept_dirs),
    )
}

fn qemu(
    image: &Image,
    site: &Site,
    machine: &Machine,
    run_dir: &Path,
    has_terminal: bool,
) -> Command {
    // The kernel ends the machine with this process, however this process ends.
    let mut qemu = Command::new("setpriv");
    qemu.args(["--pdeathsig", "KILL", QEMU]);
    qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max"]);
    qemu.args([
        "-smp",
        &machine.cpus.to_string(),
        "-m",
        &format!("{}M", machine.memory_mib),
    ]);
    qemu.args([
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
    ]);
    qemu.arg("-kernel")
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&image.initramfs);
    qemu.args(["-append", KERNEL_ARGS]);
    qemu.args([
        "-chardev",
        &format!("file,id=console,path={}", escaped(&run_dir.join("console"))),
    ]);
    qemu.args(["-serial", "chardev:console"]);
    qemu.args(["-device", "virtio-serial-pci"]);
    if has_terminal {
        qemu.args(["-chardev", "stdio,id=terminal,signal=off"]);
        qemu.args(["-device", "virtconsole,nr=0,chardev=terminal"]);
    } else {
        // Not `stdio`: when its input ends, as that of no terminal does, its output is closed too.
        for (number, stream) in [(1, "stdout"), (2, "stderr")] {
            qemu.args(["-chardev", &format!("file,id={stream},path=/dev/{stream}")]);
            let port = format!("virtserialport,nr={number},chardev={stream}");
            qemu.args(["-device", &port]);
        }
    }
    let shares = [
        ("host", Path::new("/"), "on"),
        ("out", &*site.out_dir, "off"),
        ("run", run_dir, "off"),
    ];
    for (tag, path, readonly) in shares {
        let path = escaped(path);
        qemu.args([
            "-fsdev",
            &format!(
                "local,id={tag},path={path},security_model=none,readonly={readonly},multidevs=remap"
            ),
        ]);
        qemu.args([
            "-device",
            &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
        ]);
    }
    let wire = match machine.network {
        Network::Own => None,
        Network::Listens(port) => Some(format!("listen=127.0.0.1:{port}")),
        Network::Connects(port) => Some(format!("connect=127.0.0.1:{port}")),
    };
    if let Some(wire) = wire {
        // No ROM: nobody boots from this device.
        let mac = format!("52:54:00:00:00:{:02x}", machine.index);
        qemu.args(["-netdev", &format!("socket,id=wire,{wire}"), "-device"]);
        qemu.arg(format!("virtio-net-pci,netdev=wire,mac={mac},romfile="));
    }
    qemu
}

/// QEMU's options are lists with commas; a comma in a value is written twice.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// Copies until `from` ends, in pieces as they come.
fn copy(mut from: impl io::Read + Send + 'static, mut to: Box<dyn Write + Send>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        let mut is_open = true;
        // A reader that went away must not stop the guest: the rest is read and dropped.
        while let Ok(len) = from.read(&mut buffer)
            && len > 0
        {
            is_open = is_open
                && to
                    .write_all(&buffer[..len])
                    .and_then(|()| to.flush())
                    .is_ok();
        }
    })
}

const QEMU: &str = "qemu-system-x86_64";

/// Programs that start it, and that make the device in it from the host's files.
pub(super) const TOOLS: [&str; 4] = [QEMU, "setpriv", "ip", "rdma"];

const GUEST_SCRIPT: &str = include_str!("guest.sh");

/// A panic restarts the machine at once, and `-no-reboot` makes that its end. The time-stamp counter
/// is that of the host for all processors, which the kernel does not believe unless it is told: it
/// would read the time from QEMU's HPET, some microseconds and the lock of all devices each time.
const KERNEL_ARGS: &str = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off tsc=reliable";

/// Folders that the guest has for itself and in which a checkout may lie.
const GUEST_DIRS: [&str; 3] = ["/tmp", "/run", "/dev/shm"];

/// Room for the largest RDMA path MTU, 4096 bytes, with its headers.
const MTU: u32 = 4500;

/// Twenty times what a boot takes on an idle machine.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Short beside a boot, long beside a system call.
const POLL_PERIOD: Duration = Duration::from_millis(20);

/// A panic's trace fits.
const CONSOLE_LINES: usize = 40;
