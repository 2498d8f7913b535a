//! Where devices sit and how far they are from each other: what a transfer between an accelerator and
//! an adapter has to pass.

use std::path::Path;

use serde::Serialize;

use super::system::System;

/// Where a device sits in the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Location {
    /// Its PCI address, `0000:3b:00.0`; none for a device in software.
    pub pci_address: Option<String>,
    /// Its NUMA node, where the kernel knows it.
    pub numa_node: Option<u32>,
    /// From the root of the PCI tree down to the device: the host bridge, the root port, switches,
    /// the device.
    #[serde(skip)]
    pub pci_path: Vec<String>,
}

/// How far two devices are from each other; less is nearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Proximity {
    /// Below one PCIe switch, or on one board.
    SameSwitch,
    /// Below one root port, with several switches between them.
    SameRootPort,
    /// Below one host bridge: through the processor, not through its interconnect.
    SameHostBridge,
    /// Of one NUMA node: through the interconnect within a processor.
    SameNumaNode,
    /// Nobody knows: one of them is in software, or no device was named.
    Unknown,
    /// Of different NUMA nodes: through the interconnect between processors.
    OtherNumaNode,
}

/// How far, and over how many links of PCIe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Distance {
    /// The kind of way.
    pub proximity: Proximity,
    /// PCIe links on it, up one branch and down the other.
    pub hops: u32,
}

impl Location {
    /// Of the device with a PCI address, which may be written in capitals or without its domain.
    /// Unknown if the machine has none.
    #[must_use]
    pub fn of_pci(system: &System, address: &str) -> Self {
        let lower = address.to_ascii_lowercase();
        let address = match lower.matches(':').count() {
            1 => format!("0000:{lower}"),
            _ => lower,
        };
        Self::of_folder(system, &format!("/sys/bus/pci/devices/{address}"))
    }

    /// Of no device in particular, on a NUMA node.
    #[must_use]
    pub fn of_numa_node(numa_node: Option<u32>) -> Self {
        Self {
            numa_node,
            ..Self::default()
        }
    }

    /// Whether nothing is known about it.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.pci_path.is_empty() && self.numa_node.is_none()
    }

    /// Of the device to whose folder `path` leads.
    pub(super) fn of_folder(system: &System, path: &str) -> Self {
        let Some(folder) = system.resolved(path) else {
            return Self::default();
        };
        let pci_path = pci_path(&folder);
        // -1 stands for a machine without nodes.
        let numa_node = system
            .text(&format!("{path}/numa_node"))
            .and_then(|text| text.parse().ok());
        let pci_address = (pci_path.len() > 1)
            .then(|| pci_path.last().cloned())
            .flatten();
        Self {
            pci_address,
            numa_node,
            pci_path,
        }
    }

    /// How far another device is.
    #[must_use]
    pub fn distance(&self, other: &Self) -> Distance {
        let (ours, theirs) = (&self.pci_path, &other.pci_path);
        let pairs = ours.iter().zip(theirs);
        let shared = pairs.take_while(|(one, two)| one == two).count();
        let (up, down) = (ours.len() - shared, theirs.len() - shared);
        let hops = u32::try_from(up + down).unwrap_or(u32::MAX);
        let proximity = match (shared, self.numa_node, other.numa_node) {
            // From a switch to a device: its downstream port and the device itself.
            (2.., _, _) if up <= 2 && down <= 2 => Proximity::SameSwitch,
            (2.., _, _) => Proximity::SameRootPort,
            (1, _, _) => Proximity::SameHostBridge,
            (_, Some(one), Some(two)) if one == two => Proximity::SameNumaNode,
            (_, Some(_), Some(_)) => Proximity::OtherNumaNode,
            _ => Proximity::Unknown,
        };
        // A way through a processor has no length in links.
        let hops = if shared == 0 { 0 } else { hops };
        Distance { proximity, hops }
    }
}

impl Proximity {
    /// In words, for a report.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SameSwitch => "same PCIe switch",
            Self::SameRootPort => "same root port",
            Self::SameHostBridge => "same host bridge",
            Self::SameNumaNode => "same NUMA node",
            Self::Unknown => "distance unknown",
            Self::OtherNumaNode => "other NUMA node",
        }
    }
}

/// The parts of a folder in /sys/devices from the host bridge on: `pci0000:16`, `0000:16:01.0`, ….
fn pci_path(folder: &Path) -> Vec<String> {
    let parts = folder.iter().filter_map(|part| part.to_str());
    parts
        .skip_while(|part| !part.starts_with("pci"))
        .take_while(|part| part.starts_with("pci") || is_pci_address(part))
        .map(str::to_owned)
        .collect()
}

/// `0000:3b:00.0`.
fn is_pci_address(part: &str) -> bool {
    part.matches(':').count() == 2 && part.contains('.')
}
