//! Two guests on one network, of which the second is killed in the middle: what only two hosts can
//! show. What runs in them, and what must hold then, is written in pair.sh.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    Lab,
    guest::{Guest, Machine, Network, Output},
    steps::Ended,
};

/// Runs the scenario with this `stepmesh` program.
pub(super) fn run(lab: &Lab, stepmesh: &Command) -> Result<Ended> {
    let start = Instant::now();
    let dir = lab.site.out_dir.join("pair");
    prepare(&dir).with_context(|| format!("cannot write {}", dir.display()))?;
    let port = free_port().context("no free port for the guests' network")?;
    let mut first = boot(lab, stepmesh, &dir, 1, Network::Listens(port))?;
    // The second machine connects when it starts, and only then.
    while !is_listening(port)? {
        ensure!(
            first.poll()?.is_none(),
            "the first guest ended before it listened"
        );
        thread::sleep(POLL_PERIOD);
    }
    let mut second = boot(lab, stepmesh, &dir, 2, Network::Connects(port))?;
    while !dir.join("working").exists() {
        if let Some(status) = first.poll()? {
            return Ok(ended(start, &dir, status));
        }
        if let Some(status) = second.poll()? {
            bail!("the second guest ended by itself with {status}");
        }
        thread::sleep(POLL_PERIOD);
    }
    drop(second);
    fs::write(dir.join("killed"), "").context("cannot tell the first guest")?;
    let status = first.wait()?;
    Ok(ended(start, &dir, status))
}

fn boot(lab: &Lab, stepmesh: &Command, dir: &Path, index: u8, network: Network) -> Result<Guest> {
    let machine = Machine {
        // Two machines on what one has otherwise.
        cpus: lab.machine.cpus.div_ceil(2),
        index,
        network,
        ..lab.machine(LIMIT)
    };
    let mut command = Command::new("sh");
    command
        .arg("pair.sh")
        .arg(stepmesh.get_program())
        .arg(index.to_string());
    command.envs(
        stepmesh
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let log = |stream: &str| {
        let path = dir.join(format!("guest-{index}.{stream}"));
        File::create(&path).with_context(|| format!("cannot write {}", path.display()))
    };
    let output = Output::Streams(Box::new(log("out")?), Box::new(log("err")?));
    lab.boot(&machine, command.current_dir(dir), output)
}

fn prepare(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(dir)?,
    }
    fs::write(dir.join("pair.sh"), SCRIPT)
}

fn ended(start: Instant, dir: &Path, status: u8) -> Ended {
    Ended {
        status,
        took: start.elapsed(),
        log: dir.join("guest-1.out"),
    }
}

fn free_port() -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

/// Whether somebody listens on this port of 127.0.0.1. Asked of the kernel: a connection would be
/// taken for the other guest.
fn is_listening(port: u16) -> Result<bool> {
    let sockets = fs::read_to_string("/proc/net/tcp").context("cannot read /proc/net/tcp")?;
    let address = format!("0100007F:{port:04X}");
    Ok(sockets.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(1) == Some(&address.as_str()) && words.get(3) == Some(&LISTEN)
    }))
}

const SCRIPT: &str = include_str!("pair.sh");

/// The state of a socket that listens, as /proc/net/tcp writes it.
const LISTEN: &str = "0A";

/// Several times what it takes.
const LIMIT: Duration = Duration::from_secs(240);

/// Short beside a boot.
const POLL_PERIOD: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    //! Finding out whether somebody listens.

    use super::{Ipv4Addr, TcpListener, is_listening};

    #[test]
    fn a_listening_port_is_seen_without_touching_it() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listening(port).unwrap());
        drop(listener);
        assert!(!is_listening(port).unwrap());
    }
}
