//! What happens to an adapter from outside: it is deleted, its port goes down and comes back, it gets
//! other addresses and another MTU. Only in a guest, whose network is nobody else's.

use std::path::Path;
use std::process::{Child, Command};

use stepmesh_rdma::select::{Adapter, Location, Options, System, choose};
use stepmesh_transport::fabric::{Chain, Write};

use crate::node::{Bytes, Event, Pair, pattern};
use crate::support::{Setup, report_absent, wait_until};

/// The adapter is deleted in the middle of a transfer. The driver in software waits for its users, others
/// take the device away at once: the transfer ends well or by name, everything can be put away, there is
/// no adapter then, and a fabric on the one that comes back works.
#[test]
fn an_adapter_that_is_deleted_under_load_can_be_put_away_and_comes_back() {
    let Some((_turn, link)) = SoftwareLink::take("an adapter that is deleted under load") else {
        return;
    };
    let mut transfer = Transfer::start();
    let mut deleting = link.delete();
    match transfer.end() {
        Ok(()) => {}
        Err(reason) => assert!(
            reason.contains("Broken") || reason.contains("PeerClosed"),
            "{reason}"
        ),
    }
    drop(transfer);
    wait_until("the deletion", || deleting.try_wait().unwrap().is_some());
    assert!(deleting.wait().unwrap().success());
    assert!(link.candidate().is_none(), "it is still there");
    link.add();
    Pair::new(Setup::One).assert_alive();
}

#[test]
fn a_port_that_stays_down_ends_its_connections_by_name_and_works_again_once_it_is_up() {
    let Some((_turn, link)) = SoftwareLink::take("a port that stays down") else {
        return;
    };
    let mut transfer = Transfer::start();
    let down = link.down();
    // What was on its way when it went down may have come through.
    let ended = transfer.end().and_then(|()| {
        transfer.post();
        transfer.end()
    });
    let reason = ended.unwrap_err();
    assert!(reason.contains("Broken"), "{reason}");
    drop(down);
    wait_until("the port", || link.candidate().is_some());
    // On the same fabrics, which were told of both, once the other side knows of the end too.
    let Transfer { mut pair, .. } = transfer;
    wait_until("the end at the other side", || {
        pair.poll();
        let is_closed = |event: &Event| matches!(event, Event::Closed(..));
        pair.b.events.0.iter().any(is_closed)
    });
    Pair::connect(pair.a.fabric, pair.b.fabric).assert_alive();
}

/// The driver in software refuses what is posted meanwhile; others send it again until it is up.
#[test]
fn connections_that_were_idle_while_the_port_was_down_go_on() {
    let Some((_turn, link)) = SoftwareLink::take("a port that comes back") else {
        return;
    };
    let mut pair = Pair::new(Setup::One);
    let down = link.down();
    pair.poll();
    drop(down);
    wait_until("the port", || link.candidate().is_some());
    pair.assert_alive();
}

#[test]
fn one_more_address_changes_nothing_and_the_loss_of_ours_ends_connections_that_can_be_made_anew() {
    let Some((_turn, link)) = SoftwareLink::take("other addresses") else {
        return;
    };
    let ours = link.address();
    let mut pair = Pair::new(Setup::One);
    let other = link.add_address(OTHER_ADDRESS);
    pair.assert_alive();
    let lost = link.remove_address(&ours);
    wait_until("the end on both sides", || {
        pair.poll();
        let is_closed = |event: &Event| matches!(event, Event::Closed(..));
        pair.a.events.0.iter().any(is_closed) && pair.b.events.0.iter().any(is_closed)
    });
    let reason = format!("{:?}", (&pair.a.events.0, &pair.b.events.0));
    assert!(reason.contains("address of the port"), "{reason}");
    let mut pair = Pair::connect(pair.a.fabric, pair.b.fabric);
    pair.assert_alive();
    drop(pair);
    drop(lost);
    drop(other);
    wait_until("our address", || link.has_address(&ours));
}

#[test]
fn connections_are_made_with_the_mtu_that_the_port_has_then() {
    let Some((_turn, link)) = SoftwareLink::take("another MTU") else {
        return;
    };
    let pair = Pair::new(Setup::One);
    let before = mtu_of(&pair);
    let narrow = link.mtu("1500");
    let mut pair = Pair::connect(pair.a.fabric, pair.b.fabric);
    pair.assert_alive();
    let after = mtu_of(&pair);
    assert!(after == "B1024" && after != before, "{before} {after}");
    drop(narrow);
    let mut pair = Pair::connect(pair.a.fabric, pair.b.fabric);
    pair.assert_alive();
    assert_eq!(mtu_of(&pair), before);
}

/// A transfer that is on its way.
struct Transfer {
    pair: Pair,
    source: Bytes,
    target: Bytes,
    write: Write,
}

impl Transfer {
    fn start() -> Self {
        let setup = Setup::One;
        let mut pair = Pair::new(setup);
        let (source, target) = (setup.memory(LEN), setup.memory(LEN));
        source.fill(
            pattern(1)
                .take(1 << 16)
                .collect::<Vec<_>>()
                .into_iter()
                .cycle(),
        );
        let local = pair.a.fabric.register(source.memory()).unwrap();
        let (_, remote) = pair.share_b(target.memory());
        let write = Write {
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            len_bytes: LEN as u64,
        };
        let mut transfer = Self {
            pair,
            source,
            target,
            write,
        };
        transfer.post();
        transfer
    }

    fn post(&mut self) {
        let chain = Chain {
            writes: &[self.write],
            message: b"load",
            token: 1,
        };
        let pair = &mut self.pair;
        pair.a.fabric.post(pair.b_of_a, &chain).unwrap();
        pair.poll();
    }

    /// Waits for its end: it arrived as it was sent, or why not.
    fn end(&mut self) -> Result<(), String> {
        let mut end = None;
        let pair = &mut self.pair;
        wait_until("the end of the transfer", || {
            pair.poll();
            let arrived = |event: &Event| match event {
                Event::Message(_, message) => Some(Ok(message.clone())),
                _ => None,
            };
            // The sender is told why; the other may only see that it is gone.
            let failed = |event: &Event| match event {
                Event::Closed(_, reason) => Some(Err(format!("{reason:?}"))),
                _ => None,
            };
            end = end.take().or_else(|| pair.b.take(arrived));
            end = end.take().or_else(|| pair.a.take(failed));
            end.is_some()
        });
        let message = end.unwrap()?;
        assert_eq!(message, b"load");
        assert!(self.target.to_vec() == self.source.to_vec());
        Ok(())
    }
}

/// Soft-RoCE on a network interface of a guest.
struct SoftwareLink {
    adapter: String,
    interface: String,
}

/// Makes a change undone.
struct Undo(Vec<Vec<String>>);

impl SoftwareLink {
    fn take(what: &str) -> Option<(impl Drop, Self)> {
        let turn = Setup::One.take_turn(what)?;
        let found = Self::find();
        if found.is_none() {
            report_absent(what, "the adapter is not in software, or not a guest's");
        }
        Some((turn, found?))
    }

    fn find() -> Option<Self> {
        let is_guest = Path::new("/run/stepmesh/guest.env").exists();
        let adapters = Adapter::all(&System::this());
        let adapter = adapters
            .into_iter()
            .find(|adapter| is_guest && adapter.name.starts_with("rxe"))?;
        let gids = &adapter.ports.first()?.gids;
        let interface = gids.iter().find_map(|gid| gid.interface.clone())?;
        Some(Self {
            adapter: adapter.name,
            interface,
        })
    }

    /// Ends when nobody uses the adapter any more.
    fn delete(&self) -> Child {
        let mut command = Command::new("rdma");
        command.args(["link", "delete", &self.adapter]);
        command.spawn().unwrap()
    }

    fn add(&self) {
        let link = ["link", "add", &self.adapter];
        run(
            "rdma",
            &[&link[..], &["type", "rxe", "netdev", &self.interface]].concat(),
        );
        wait_until("the adapter", || self.candidate().is_some());
    }

    /// The address that a fabric would choose on it now.
    fn candidate(&self) -> Option<String> {
        let adapters = Adapter::all(&System::this());
        let choice = choose(&adapters, &Location::default(), &Options::default());
        let mut candidates = choice.candidates.iter();
        let ours = candidates.find(|candidate| candidate.adapter == self.adapter)?;
        Some(ours.gid.to_string())
    }

    #[must_use]
    fn down(&self) -> Undo {
        let set = ["link", "set", &self.interface];
        run("ip", &[&set[..], &["down"]].concat());
        Undo::ip(&[&[&set[..], &["up"]].concat()])
    }

    #[must_use]
    fn mtu(&self, mtu: &str) -> Undo {
        let path = format!("/sys/class/net/{}/mtu", self.interface);
        let before = std::fs::read_to_string(path).unwrap();
        let set = ["link", "set", &self.interface, "mtu"];
        run("ip", &[&set[..], &[mtu]].concat());
        Undo::ip(&[&[&set[..], &[before.trim()]].concat()])
    }

    /// The address with its prefix, as `ip` takes it.
    fn address(&self) -> String {
        let mut command = Command::new("ip");
        command.args(["-4", "-o", "addr", "show", "dev", &self.interface]);
        let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let mut words = output.split_whitespace().skip_while(|word| *word != "inet");
        words.nth(1).unwrap().to_owned()
    }

    #[must_use]
    fn add_address(&self, address: &str) -> Undo {
        let end = [address, "dev", &self.interface];
        run("ip", &[&["addr", "add"][..], &end].concat());
        wait_until("the address", || self.has_address(address));
        Undo::ip(&[&[&["addr", "del"][..], &end].concat()])
    }

    #[must_use]
    fn remove_address(&self, address: &str) -> Undo {
        let end = [address, "dev", &self.interface];
        run("ip", &[&["addr", "del"][..], &end].concat());
        Undo::ip(&[&[&["addr", "add"][..], &end].concat()])
    }

    /// Whether the adapter lists it among its GIDs, which it does some time later.
    fn has_address(&self, address: &str) -> bool {
        let bare = address.split('/').next().unwrap();
        let adapters = Adapter::all(&System::this());
        let ours = adapters
            .iter()
            .filter(|adapter| adapter.name == self.adapter);
        let mut gids = ours
            .flat_map(|adapter| &adapter.ports)
            .flat_map(|port| &port.gids);
        gids.any(|gid| gid.to_string().contains(bare))
    }
}

impl Undo {
    fn ip(lines: &[&[&str]]) -> Self {
        let owned = |line: &&[&str]| line.iter().map(|word| (*word).to_owned()).collect();
        Self(lines.iter().map(owned).collect())
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        for line in &self.0 {
            let status = Command::new("ip").args(line).status();
            // A failure is the next test's as well, which says so.
            eprintln!("ip {}: {status:?}", line.join(" "));
        }
    }
}

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status().unwrap();
    assert!(status.success(), "{program} {args:?}: {status}");
}

/// What the fabric says about its port.
fn mtu_of(pair: &Pair) -> String {
    let text = format!("{:?}", pair.a.fabric);
    let (_, rest) = text.split_once("mtu: ").unwrap();
    rest.split([',', ' ']).next().unwrap().to_owned()
}

/// Long enough to be on its way when something is done to the adapter.
const LEN: usize = 16 << 20;

/// In another network than the guest's own, so that it is none of its secondary addresses.
const OTHER_ADDRESS: &str = "10.77.0.1/24";
