//! The fabric over a real device: the contract of all fabrics, with one and with many queue pairs, and
//! with queues so short that they are always full.

use std::process::{Child, Command};

use stepmesh_rdma::select::{Adapter, Location, Options, System, choose};
use stepmesh_transport::fabric::{Chain, Write};

use crate::node::{Event, Pair, pattern};
use crate::suite::suite;
use crate::support::{Setup, report_absent, wait_until};

suite! {
    one_queue_pair: Setup::One;
    eight_queue_pairs: Setup::Eight;
    short_queues: Setup::Short;
}

/// Memory that comes and goes as fast as a program can: each piece is allocated, pushed once, and
/// freed.
#[test]
fn memory_that_comes_and_goes_is_pushed_and_let_go() {
    let Some(_turn) = Setup::One.take_turn("memory that comes and goes") else {
        return;
    };
    let mut pair = Pair::new(Setup::One);
    let target = Setup::One.memory(LEN);
    let (_, remote) = pair.share_b(target.memory());
    for round in 0..CHURN_ROUNDS {
        let source = Setup::One.memory(LEN);
        let sent = round.to_le_bytes().repeat(LEN / 8);
        source.fill(sent.iter().copied());
        let local = pair.a.fabric.register(source.memory()).unwrap();
        let write = Write {
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            len_bytes: LEN as u64,
        };
        pair.post(&[write], b"new");
        pair.a.fabric.deregister(local).unwrap();
        assert_eq!(source.owners(), 1, "the fabric still holds it");
        assert_eq!(pair.b.wait_message(), b"new");
        assert!(target.to_vec() == sent, "round {round}");
    }
}

/// The adapter is deleted in the middle of a transfer. The driver in software waits for its users, others
/// take the device away at once: the transfer ends well or by name, everything can be put away, there is
/// no adapter then, and a fabric on the one that comes back works.
#[test]
fn an_adapter_that_is_deleted_under_load_can_be_put_away_and_comes_back() {
    let what = "an adapter that is deleted under load";
    let Some(_turn) = Setup::One.take_turn(what) else {
        return;
    };
    let Some(link) = SoftwareLink::find() else {
        return report_absent(what, "the adapter is none in software that may be deleted");
    };
    let mut pair = Pair::new(Setup::One);
    let (source, target) = (Setup::One.memory(LOAD_LEN), Setup::One.memory(LOAD_LEN));
    source.fill(pattern(1));
    let local = pair.a.fabric.register(source.memory()).unwrap();
    let (_, remote) = pair.share_b(target.memory());
    let write = Write {
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        len_bytes: LOAD_LEN as u64,
    };
    let chain = Chain {
        writes: &[write],
        message: b"load",
        token: 1,
    };
    pair.a.fabric.post(pair.b_of_a, &chain).unwrap();
    pair.poll();
    let mut deleting = link.delete();
    let mut end = None;
    wait_until("the end of the transfer", || {
        pair.poll();
        end = end.take().or_else(|| {
            pair.b.take(|event| match event {
                Event::Message(_, message) => Some(Ok(message.clone())),
                Event::Closed(_, reason) => Some(Err(format!("{reason:?}"))),
                _ => None,
            })
        });
        end.is_some()
    });
    match end.unwrap() {
        Ok(message) => {
            assert_eq!(message, b"load");
            assert!(target.to_vec() == source.to_vec());
        }
        Err(reason) => assert!(
            reason.contains("Broken") || reason.contains("PeerClosed"),
            "{reason}"
        ),
    }
    drop(pair);
    wait_until("the deletion", || deleting.try_wait().unwrap().is_some());
    assert!(deleting.wait().unwrap().success());
    link.add();
    Pair::new(Setup::One).assert_alive();
}

/// Soft-RoCE on a network interface, which an administrator can delete and add again.
struct SoftwareLink {
    adapter: String,
    interface: String,
}

impl SoftwareLink {
    fn find() -> Option<Self> {
        let adapters = Adapter::all(&System::this());
        let adapter = adapters
            .into_iter()
            .find(|adapter| adapter.name.starts_with("rxe"))?;
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
        let interface = ["type", "rxe", "netdev", &self.interface];
        let mut command = Command::new("rdma");
        command.args(["link", "add", &self.adapter]).args(interface);
        let status = command.status().unwrap();
        assert!(status.success(), "{command:?}: {status}");
        wait_until("the adapter", || {
            let options = Options::default();
            let adapters = Adapter::all(&System::this());
            choose(&adapters, &Location::default(), &options)
                .absence()
                .is_none()
        });
    }
}

/// Bytes of a piece that comes and goes.
const LEN: usize = 4096;

/// More registrations than any table of ours keeps at once, few enough for an emulated guest.
const CHURN_ROUNDS: u64 = 2_000;

/// Long enough to be on its way when the adapter is taken away.
const LOAD_LEN: usize = 8 << 20;
