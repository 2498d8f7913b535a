//! Adapters and their ports, as the files below /sys/class/infiniband tell. Which of them to use is
//! decided in `choice`.

use serde::Serialize;

use super::gid::{self, Gid};
use super::pci::Location;
use super::system::System;

/// A verbs device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Adapter {
    /// Its name, for example `mlx5_0`.
    pub name: String,
    /// What it says it is, for example `MT4129`.
    pub model: Option<String>,
    /// The version of its firmware.
    pub firmware: Option<String>,
    /// Where it sits; unknown for one in software.
    pub location: Location,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A port of an adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it can be used.
    pub state: PortState,
    /// Ethernet or InfiniBand.
    pub link_layer: LinkLayer,
    /// What the link carries, in Gbit/s, rounded down; 0 when it does not say.
    pub rate_gbps: u32,
    /// Its addresses, without the empty entries of its table.
    pub gids: Vec<Gid>,
}

/// Whether a port can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// It can.
    Active,
    /// It cannot; the kernel's word for why.
    Other(String),
}

/// What a port's packets travel in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// Another, in the kernel's words.
    Other(String),
}

impl Adapter {
    /// All of a machine, by name. A machine without verbs has none.
    #[must_use]
    pub fn all(system: &System) -> Vec<Self> {
        let names = system.names(ADAPTERS);
        names.iter().map(|name| Self::read(system, name)).collect()
    }

    /// One of a machine; it has no ports if there is none of this name.
    #[must_use]
    pub fn read(system: &System, name: &str) -> Self {
        let dir = format!("{ADAPTERS}/{name}");
        let numbers = system.names(&format!("{dir}/ports"));
        let ports = numbers.iter().filter_map(|number| {
            let number = number.parse().ok()?;
            Some(Port::read(system, name, number))
        });
        Self {
            name: name.to_owned(),
            model: system.text(&format!("{dir}/hca_type")),
            firmware: system.text(&format!("{dir}/fw_ver")),
            location: Location::of_folder(system, &format!("{dir}/device")),
            ports: ports.collect(),
        }
    }
}

impl Port {
    /// A port of a machine, as it is now.
    #[must_use]
    pub fn read(system: &System, adapter: &str, number: u8) -> Self {
        let dir = format!("{ADAPTERS}/{adapter}/ports/{number}");
        let text = |file: &str| system.text(&format!("{dir}/{file}"));
        Self {
            number,
            state: PortState::parse(&text("state").unwrap_or_default()),
            link_layer: LinkLayer::parse(&text("link_layer").unwrap_or_default()),
            rate_gbps: rate_gbps(&text("rate").unwrap_or_default()),
            gids: gid::read(system, &dir),
        }
    }
}

impl PortState {
    /// The file has a number and a word: `4: ACTIVE`.
    fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some(("4", _)) => Self::Active,
            Some((_, word)) => Self::Other(word.trim().to_owned()),
            None => Self::Other("UNKNOWN".to_owned()),
        }
    }
}

impl LinkLayer {
    fn parse(text: &str) -> Self {
        match text {
            "InfiniBand" => Self::InfiniBand,
            "Ethernet" => Self::Ethernet,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// Of `400 Gb/sec (4X NDR)` or `2.5 Gb/sec (1X SDR)`.
fn rate_gbps(text: &str) -> u32 {
    let number = text.split_whitespace().next().unwrap_or_default();
    let whole = number.split('.').next().unwrap_or_default();
    whole.parse().unwrap_or(0)
}

const ADAPTERS: &str = "/sys/class/infiniband";
