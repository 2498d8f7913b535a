//! Ports in the order in which they suit a device, and why others do not.

use std::cmp::Reverse;

use serde::Serialize;

use super::adapter::{Adapter, LinkLayer, Port, PortState};
use super::gid::{Gid, GidRules, GidVerdict, choose_gid};
use super::pci::{Distance, Location};
use super::system::counting_key;

/// Which ports may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Only adapters (`mlx5_0`) or ports (`mlx5_0:1`) that one of these names; `*` is any text. Empty:
    /// all.
    pub include: Vec<String>,
    /// None that one of these names.
    pub exclude: Vec<String>,
    /// What is asked of their GIDs.
    pub gid: GidRules,
}

/// A port that can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// The adapter.
    pub adapter: String,
    /// The port.
    pub port: u8,
    /// The address to use.
    pub gid: Gid,
    /// What the link carries, in Gbit/s.
    pub rate_gbps: u32,
    /// How far it is from the device.
    pub distance: Distance,
}

/// What became of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortVerdict {
    /// The adapter.
    pub adapter: String,
    /// What it says it is.
    pub model: Option<String>,
    /// The adapter's PCI address.
    pub pci_address: Option<String>,
    /// The adapter's NUMA node.
    pub numa_node: Option<u32>,
    /// The port.
    pub port: u8,
    /// Ethernet or InfiniBand.
    pub link_layer: LinkLayer,
    /// What the link carries, in Gbit/s.
    pub rate_gbps: u32,
    /// How far it is from the device.
    pub distance: Distance,
    /// Its place in the order, from 1; none if it cannot be used.
    pub rank: Option<usize>,
    /// Why it cannot be used, or is not the first.
    pub reason: Option<String>,
    /// Its addresses.
    pub gids: Vec<GidVerdict>,
}

/// The ports for a device, best first, and what became of each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// The device.
    pub device: Location,
    /// The ports that can be used, best first.
    pub candidates: Vec<Candidate>,
    /// Every port of the machine, by name.
    pub ports: Vec<PortVerdict>,
}

impl Choice {
    /// The ports that are as good as the first.
    #[must_use]
    pub fn best(&self) -> &[Candidate] {
        let same = |candidate: &&Candidate| {
            let first = &self.candidates[0];
            candidate.distance == first.distance && candidate.rate_gbps == first.rate_gbps
        };
        let count = self.candidates.iter().take_while(same).count();
        &self.candidates[..count]
    }

    /// One of the best, such that devices that share several equal ports use different ones.
    #[must_use]
    pub fn for_ordinal(&self, ordinal: u32) -> Option<&Candidate> {
        let best = self.best();
        let index = usize::try_from(ordinal).ok()?.checked_rem(best.len())?;
        best.get(index)
    }

    /// Why there is no port to use, in one line; nothing if there is one.
    #[must_use]
    pub fn absence(&self) -> Option<String> {
        if !self.candidates.is_empty() {
            return None;
        }
        if self.ports.is_empty() {
            return Some("no RDMA device: none in /sys/class/infiniband".into());
        }
        let each = self.ports.iter().map(|verdict| {
            let reason = verdict.reason.as_deref().unwrap_or("unknown");
            format!("{}:{}: {reason}", verdict.adapter, verdict.port)
        });
        let each: Vec<String> = each.collect();
        Some(format!("no RDMA port can be used: {}", each.join("; ")))
    }
}

/// Puts the ports in order for a device: fast before slow (less than half of the fastest), near before
/// far, and by name.
#[must_use]
pub fn choose(adapters: &[Adapter], device: &Location, options: &Options) -> Choice {
    let mut candidates = Vec::new();
    let mut ports = Vec::new();
    for adapter in adapters {
        for port in &adapter.ports {
            let (verdict, candidate) = judge(adapter, port, device, options);
            ports.push(verdict);
            candidates.extend(candidate);
        }
    }
    let fastest = candidates.iter().map(|candidate| candidate.rate_gbps).max();
    let fastest = fastest.unwrap_or(0);
    candidates.sort_by_cached_key(|candidate: &Candidate| {
        let Candidate {
            rate_gbps,
            distance,
            ..
        } = *candidate;
        let name = counting_key(&candidate.adapter);
        let is_slow = is_slow(rate_gbps, fastest);
        (is_slow, distance, Reverse(rate_gbps), name, candidate.port)
    });
    for verdict in &mut ports {
        rank(verdict, &candidates, fastest);
    }
    Choice {
        device: device.clone(),
        candidates,
        ports,
    }
}

fn judge(
    adapter: &Adapter,
    port: &Port,
    device: &Location,
    options: &Options,
) -> (PortVerdict, Option<Candidate>) {
    let choice = choose_gid(&port.gids, &port.link_layer, &options.gid);
    let distance = device.distance(&adapter.location);
    let refusal = refusal(adapter, port, options);
    let reason = refusal.or_else(|| {
        let has_gid = choice.chosen.is_some();
        (!has_gid).then(|| match port.gids.is_empty() {
            true => "its table of GIDs is empty: give its interface an address".to_owned(),
            false => "none of its GIDs will do".to_owned(),
        })
    });
    let usable = choice.chosen.filter(|_| reason.is_none());
    let candidate = usable.map(|gid| Candidate {
        adapter: adapter.name.clone(),
        port: port.number,
        gid,
        rate_gbps: port.rate_gbps,
        distance,
    });
    let verdict = PortVerdict {
        adapter: adapter.name.clone(),
        model: adapter.model.clone(),
        pci_address: adapter.location.pci_address.clone(),
        numa_node: adapter.location.numa_node,
        port: port.number,
        link_layer: port.link_layer.clone(),
        rate_gbps: port.rate_gbps,
        distance,
        rank: None,
        reason,
        gids: choice.verdicts,
    };
    (verdict, candidate)
}

/// Why a port cannot be used, whatever its GIDs are.
fn refusal(adapter: &Adapter, port: &Port, options: &Options) -> Option<String> {
    let names = |pattern: &String| {
        let with_port = format!("{}:{}", adapter.name, port.number);
        matches_pattern(pattern, &adapter.name) || matches_pattern(pattern, &with_port)
    };
    if let Some(pattern) = options.exclude.iter().find(|pattern| names(pattern)) {
        return Some(format!("excluded by `{pattern}`"));
    }
    if !options.include.is_empty() && !options.include.iter().any(names) {
        return Some(format!("not among `{}`", options.include.join(", ")));
    }
    match &port.state {
        PortState::Active => None,
        PortState::Other(state) => Some(format!(
            "its state is {state}: bring its interface up, or start the subnet manager"
        )),
    }
}

fn rank(verdict: &mut PortVerdict, candidates: &[Candidate], fastest: u32) {
    let of_this = |candidate: &Candidate| {
        candidate.adapter == verdict.adapter && candidate.port == verdict.port
    };
    let Some(index) = candidates.iter().position(of_this) else {
        return;
    };
    verdict.rank = Some(index + 1);
    let first = &candidates[0];
    verdict.reason = if index == 0 {
        None
    } else if is_slow(verdict.rate_gbps, fastest) {
        Some(format!("slower than half of {fastest} Gbit/s"))
    } else if verdict.distance != first.distance {
        let name = &first.adapter;
        Some(format!(
            "farther than {name} ({})",
            first.distance.proximity.as_str()
        ))
    } else if verdict.rate_gbps != first.rate_gbps {
        Some(format!("slower than {}", first.adapter))
    } else {
        Some(format!("as good as {}", first.adapter))
    };
}

/// Data goes at the speed of the slower end: a port for management that happens to be near is no
/// match for one that was bought for this.
fn is_slow(rate_gbps: u32, fastest: u32) -> bool {
    rate_gbps.saturating_mul(2) < fastest
}

/// `*` matches any text, everything else itself.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            let places = (0..=rest.len()).filter(|place| rest.is_char_boundary(*place));
            places
                .into_iter()
                .any(|place| matches_pattern(tail, &rest[place..]))
        }),
    }
}
