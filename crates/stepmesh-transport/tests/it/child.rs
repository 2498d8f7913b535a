//! Peers in processes of their own: this test program, started again with a role in its environment.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use stepmesh_transport::doorbell::{Doorbell, SleepMode};
use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{Address, Chain, Fabric, PeerId, PostError};
use stepmesh_transport::shm::{ShmFabric, ShmOptions};
use stepmesh_transport::tcp::TcpFabric;

use crate::node::{Event, LONG, Node, SHORT};
use crate::support::{report_absent, shm_options, tcp_options};

/// A child with a role; killed when the test ends.
struct Role(Child);

impl Role {
    fn start(role: &str, argument: &str) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "child::a_child_plays_its_role_and_nothing_without_one",
                "--nocapture",
            ])
            .env(ROLE, role)
            .env(ARGUMENT, argument)
            .stdout(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the child does. Every loop in it ends when its parent closes the connection.
#[test]
fn a_child_plays_its_role_and_nothing_without_one() {
    let argument = env::var(ARGUMENT).unwrap_or_default();
    match env::var(ROLE).as_deref() {
        Err(_) => assert_eq!(argument, ""),
        Ok("echo-futex") => echo(&argument, SleepMode::Futex),
        Ok("echo-descriptors") => echo(&argument, SleepMode::Descriptors),
        Ok("flood") => flood(&argument),
        Ok("full-dir") => full_dir(&argument),
        Ok(other) => panic!("no role {other}"),
    }
}

fn echo(address: &str, mode: SleepMode) {
    let doorbell = Doorbell::new().unwrap();
    let (mut node, peer) = connect(address, &doorbell);
    loop {
        sleep(&mut node, &doorbell, mode);
        while let Some(event) = (!node.events.0.is_empty()).then(|| node.events.0.remove(0)) {
            match event {
                Event::Message(_, message) => post(&mut node, peer, &message),
                Event::Closed(..) => return,
                _ => {}
            }
        }
    }
}

fn flood(address: &str) {
    let (mut node, peer) = connect(address, &Doorbell::new().unwrap());
    loop {
        node.poll();
        if node
            .take(|event| matches!(event, Event::Closed(..)).then_some(()))
            .is_some()
        {
            return;
        }
        let chain = Chain {
            writes: &[],
            message: &[3; 3000],
            token: 0,
        };
        let _ = node.fabric.post(peer, &chain);
    }
}

fn full_dir(dir: &str) {
    let options = ShmOptions {
        dir: Some(dir.into()),
        ring_len_bytes: 1 << 20,
        ..shm_options()
    };
    match ShmFabric::new(options, Doorbell::new().unwrap()) {
        Err(error @ Error::NoSpace { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains(dir) && text.contains("free some there"),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
}

fn connect(address: &str, doorbell: &Doorbell) -> (Node, PeerId) {
    let bytes: Vec<u8> = (0..address.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&address[at..at + 2], 16).unwrap())
        .collect();
    let fabric: Box<dyn Fabric> = if bytes.starts_with(b"shm") {
        Box::new(ShmFabric::new(shm_options(), doorbell.clone()).unwrap())
    } else {
        Box::new(TcpFabric::new(tcp_options()).unwrap())
    };
    let mut node = Node::new(fabric);
    let peer = node
        .fabric
        .connect(&Address(bytes), b"child", LONG)
        .unwrap();
    node.wait(|event| matches!(event, Event::Connected(..)).then_some(()));
    (node, peer)
}

fn post(node: &mut Node, peer: PeerId, message: &[u8]) {
    let chain = Chain {
        writes: &[],
        message,
        token: 0,
    };
    loop {
        match node.fabric.post(peer, &chain) {
            Ok(_) | Err(PostError::Failed(_)) => return,
            Err(PostError::Full) => node.poll(),
        }
    }
}

/// Sleeps until something happens, as an engine does: look, announce, look again, sleep.
fn sleep(node: &mut Node, doorbell: &Doorbell, mode: SleepMode) {
    loop {
        let ticket = doorbell.prepare(mode);
        node.poll();
        if !node.events.0.is_empty() {
            return;
        }
        // On the futex alone the end of the connection would not wake anyone.
        let timeout = if mode == SleepMode::Futex {
            SHORT
        } else {
            LONG
        };
        let descriptors: Vec<_> = node.fabric.wait_fd().into_iter().collect();
        ticket.sleep(&descriptors, timeout).unwrap();
    }
}

fn hex(address: &Address) -> String {
    address.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn accept(node: &mut Node) -> PeerId {
    node.wait(|event| match event {
        Event::Accepted(peer, hello) if hello == b"child" => Some(*peer),
        _ => None,
    })
}

fn fabrics(doorbell: &Doorbell) -> [Box<dyn Fabric>; 2] {
    [
        Box::new(ShmFabric::new(shm_options(), doorbell.clone()).unwrap()),
        Box::new(TcpFabric::new(tcp_options()).unwrap()),
    ]
}

#[test]
fn two_processes_wake_each_other() {
    for role in ["echo-futex", "echo-descriptors"] {
        let doorbell = Doorbell::new().unwrap();
        for fabric in fabrics(&doorbell) {
            let mode = match (role, fabric.kind().to_string().as_str()) {
                ("echo-futex", "shm") => SleepMode::Futex,
                _ => SleepMode::Descriptors,
            };
            if mode == SleepMode::Descriptors && role == "echo-futex" {
                continue;
            }
            let mut node = Node::new(fabric);
            let _child = Role::start(role, &hex(&node.fabric.address()));
            let peer = accept(&mut node);
            for round in 0..200_u32 {
                post(&mut node, peer, &round.to_le_bytes());
                while node.events.0.is_empty() {
                    sleep(&mut node, &doorbell, mode);
                }
                assert_eq!(node.wait_message(), round.to_le_bytes());
            }
        }
    }
}

#[test]
fn a_killed_process_is_noticed_and_others_go_on() {
    let doorbell = Doorbell::new().unwrap();
    for fabric in fabrics(&doorbell) {
        let mut node = Node::new(fabric);
        let address = hex(&node.fabric.address());
        let _other = Role::start("echo-descriptors", &address);
        let other = accept(&mut node);
        let mut victim = Role::start("flood", &address);
        let dead = accept(&mut node);
        // In the middle of its pushing.
        for _ in 0..10 {
            assert_eq!(node.wait_message(), [3; 3000]);
        }
        victim.kill();
        let reason = node.wait(|event| match event {
            Event::Closed(peer, reason) if *peer == dead => Some(format!("{reason:?}")),
            _ => None,
        });
        assert!(reason.contains("PeerClosed"), "{reason}");
        node.events
            .0
            .retain(|event| !matches!(event, Event::Message(peer, _) if *peer == dead));
        post(&mut node, other, b"alive");
        assert_eq!(node.wait_message(), b"alive");
        assert!(node.events.0.is_empty(), "{:?}", node.events.0);
    }
}

#[test]
fn a_death_wakes_a_sleeper_without_a_ring() {
    let doorbell = Doorbell::new().unwrap();
    for fabric in fabrics(&doorbell) {
        let mut node = Node::new(fabric);
        let mut child = Role::start("echo-futex", &hex(&node.fabric.address()));
        accept(&mut node);
        child.kill();
        sleep(&mut node, &doorbell, SleepMode::Descriptors);
        assert!(
            matches!(node.events.0[..], [Event::Closed(..)]),
            "{:?}",
            node.events.0
        );
    }
}

#[test]
fn a_full_directory_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display();
    let may_mount = Command::new("unshare").args(["-rm", "true"]).output();
    if !may_mount
        .as_ref()
        .is_ok_and(|output| output.status.success())
    {
        let reason = format!("no private mount: {may_mount:?}");
        return report_absent("mount", "a full directory", &reason);
    }
    let test = env::current_exe().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=64k none {path} && exec {} --exact \
         child::a_child_plays_its_role_and_nothing_without_one --nocapture",
        test.display()
    );
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", &script])
        .env(ROLE, "full-dir")
        .env(ARGUMENT, path.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors: Vec<_> = BufReader::new(&output.stderr[..])
        .lines()
        .map_while(Result::ok)
        .collect();
    assert!(output.status.success(), "{text} {errors:?}");
    assert!(text.contains("1 passed"), "{text}");
}

const ROLE: &str = "STEPMESH_TEST_ROLE";

const ARGUMENT: &str = "STEPMESH_TEST_ARGUMENT";
