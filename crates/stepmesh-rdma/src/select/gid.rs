//! The addresses of a port (GIDs) and which of them to use. A connection works only between GIDs of
//! one kind and one family, on an interface that has a route to the other.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Serialize;

use super::adapter::LinkLayer;
use super::system::System;

/// An entry of a port's table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gid {
    /// Where in the table.
    pub index: u8,
    /// The address; one of IPv4 is mapped into IPv6.
    pub address: Ipv6Addr,
    /// What packets with it are like.
    pub kind: GidKind,
    /// The network interface that it is of, on Ethernet.
    pub interface: Option<String>,
}

/// What packets with a GID are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// `RoCE` version 1: an Ethernet type of its own, which no router forwards.
    RoceV1,
    /// `RoCE` version 2: UDP over IP.
    RoceV2,
    /// Something that this library does not know.
    Unknown,
}

/// The family of the address in a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// IPv4, mapped.
    V4,
    /// IPv6 that is good beyond the link.
    V6,
    /// IPv6 of the link only.
    V6LinkLocal,
}

/// What is asked of a GID. What is not asked is left to the order of preference: `RoCE` v2 before v1,
/// IPv4 before IPv6 before link-local, a low index before a high one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GidRules {
    /// Exactly this entry.
    pub index: Option<u8>,
    /// Only this family.
    pub family: Option<Family>,
    /// Only of this network interface.
    pub interface: Option<String>,
    /// Only this address.
    pub address: Option<IpAddr>,
    /// Takes `RoCE` v1 where there is no v2.
    pub allow_roce_v1: bool,
}

/// What became of a GID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GidVerdict {
    /// The entry.
    #[serde(flatten)]
    pub gid: Gid,
    /// Why it is not used; nothing if it is.
    pub rejected: Option<String>,
}

/// The GID to use, and what became of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidChoice {
    /// The one to use, if any will do.
    pub chosen: Option<Gid>,
    /// All, in the order of the table.
    pub verdicts: Vec<GidVerdict>,
}

impl Gid {
    /// The family of its address.
    #[must_use]
    pub fn family(&self) -> Family {
        if self.ipv4().is_some() {
            Family::V4
        } else if self.address.is_unicast_link_local() {
            Family::V6LinkLocal
        } else {
            Family::V6
        }
    }

    /// The address as IPv4, if it is a mapped one.
    #[must_use]
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.address.to_ipv4_mapped()
    }

    /// The address as it goes on the wire and into an `Endpoint`.
    #[must_use]
    pub fn octets(&self) -> [u8; 16] {
        self.address.octets()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ipv4() {
            Some(address) => write!(f, "{address}"),
            None => write!(f, "{}", self.address),
        }
    }
}

impl GidKind {
    /// In words, for a report.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Unknown => "unknown",
        }
    }
}

impl Family {
    fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
            Self::V6LinkLocal => "link-local IPv6",
        }
    }
}

/// The entries of a port's table that hold an address. `dir` is the port's folder.
pub(super) fn read(system: &System, dir: &str) -> Vec<Gid> {
    let link_layer = system.text(&format!("{dir}/link_layer"));
    let is_ethernet = link_layer.as_deref() == Some("Ethernet");
    let names = system.names(&format!("{dir}/gids"));
    let entry = |name: &String| {
        let index: u8 = name.parse().ok()?;
        let address: Ipv6Addr = system.text(&format!("{dir}/gids/{name}"))?.parse().ok()?;
        // An entry without an address, or with the prefix of the subnet alone.
        let has_interface_part = address.segments()[4..].iter().any(|part| *part != 0);
        if !has_interface_part {
            return None;
        }
        let kind = system.text(&format!("{dir}/gid_attrs/types/{name}"));
        Some(Gid {
            index,
            address,
            kind: kind_of(kind.as_deref(), is_ethernet),
            interface: system.text(&format!("{dir}/gid_attrs/ndevs/{name}")),
        })
    };
    names.iter().filter_map(entry).collect()
}

fn kind_of(text: Option<&str>, is_ethernet: bool) -> GidKind {
    match text {
        Some("RoCE v2") => GidKind::RoceV2,
        // One name for both; the link layer tells them apart.
        Some("IB/RoCE v1") if is_ethernet => GidKind::RoceV1,
        Some("IB/RoCE v1") => GidKind::InfiniBand,
        // Kernels before 4.5 have no types.
        None if !is_ethernet => GidKind::InfiniBand,
        _ => GidKind::Unknown,
    }
}

/// Chooses a GID of a port.
#[must_use]
pub fn choose_gid(gids: &[Gid], link_layer: &LinkLayer, rules: &GidRules) -> GidChoice {
    let refusals: Vec<Option<String>> = gids
        .iter()
        .map(|gid| refusal(gid, link_layer, rules))
        .collect();
    let allowed = gids.iter().zip(&refusals);
    let allowed = allowed.filter(|(_, refusal)| refusal.is_none());
    let chosen = allowed
        .min_by_key(|(gid, _)| preference(gid))
        .map(|(gid, _)| gid);
    let verdicts = gids.iter().zip(refusals).map(|(gid, refusal)| GidVerdict {
        gid: gid.clone(),
        rejected: refusal.or_else(|| behind(gid, chosen?)),
    });
    GidChoice {
        verdicts: verdicts.collect(),
        chosen: chosen.cloned(),
    }
}

/// Why a GID cannot be used at all.
fn refusal(gid: &Gid, link_layer: &LinkLayer, rules: &GidRules) -> Option<String> {
    match (link_layer, gid.kind) {
        (LinkLayer::Ethernet, GidKind::RoceV1) if !rules.allow_roce_v1 => {
            return Some("RoCE v1 cannot be routed, and peers use v2".into());
        }
        (LinkLayer::Ethernet, GidKind::RoceV1 | GidKind::RoceV2)
        | (LinkLayer::InfiniBand, GidKind::InfiniBand) => {}
        (_, kind) => {
            return Some(format!(
                "its type ({}) does not fit the link",
                kind.as_str()
            ));
        }
    }
    if rules.index.is_some_and(|index| index != gid.index) {
        return Some(format!("GID index {} is asked for", rules.index?));
    }
    if let Some(family) = rules.family.filter(|family| *family != gid.family()) {
        let (ours, asked) = (gid.family().as_str(), family.as_str());
        return Some(format!("it is {ours}, {asked} is asked for"));
    }
    if let Some(interface) = &rules.interface
        && *link_layer == LinkLayer::Ethernet
        && gid.interface.as_ref() != Some(interface)
    {
        let ours = gid.interface.as_deref().unwrap_or("no interface");
        return Some(format!("it is of {ours}, {interface} is asked for"));
    }
    let address = gid.ipv4().map_or(IpAddr::V6(gid.address), IpAddr::V4);
    if let Some(asked) = rules.address.filter(|asked| *asked != address) {
        return Some(format!("address {asked} is asked for"));
    }
    None
}

/// Less is better.
fn preference(gid: &Gid) -> (bool, u8, u8) {
    let family = match gid.family() {
        Family::V4 => 0,
        Family::V6 => 1,
        Family::V6LinkLocal => 2,
    };
    // The families mean nothing on InfiniBand, where all are of the subnet's prefix.
    let family = if gid.kind == GidKind::InfiniBand {
        0
    } else {
        family
    };
    (gid.kind == GidKind::RoceV1, family, gid.index)
}

/// Why another one was chosen though this could be used.
fn behind(gid: &Gid, chosen: &Gid) -> Option<String> {
    if gid.index == chosen.index {
        return None;
    }
    let index = chosen.index;
    let (ours, best) = (preference(gid), preference(chosen));
    Some(if ours.0 != best.0 {
        format!("RoCE v1: index {index} is RoCE v2")
    } else if ours.1 != best.1 {
        let (family, better) = (gid.family().as_str(), chosen.family().as_str());
        format!("{family}: index {index} is {better}")
    } else {
        format!("as good as index {index}, which comes first")
    })
}
