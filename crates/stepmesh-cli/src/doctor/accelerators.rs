//! Accelerators on PCI: their drivers, their windows, and how adapters get at their memory.

use super::host::bytes_text;
use super::system::System;
use super::{Finding, State};

pub(super) fn examine(system: &System) -> Vec<Finding> {
    let devices: Vec<PciDevice> = system
        .names("/sys/bus/pci/devices")
        .iter()
        .filter_map(|address| PciDevice::read(system, address))
        .collect();
    if devices.is_empty() {
        return vec![Finding::ok(AREA, "PCI", "no accelerator of a known maker")];
    }
    let mut findings: Vec<Finding> = devices.iter().flat_map(PciDevice::findings).collect();
    if devices.iter().any(|device| device.vendor == NVIDIA) {
        findings.extend(nvidia(system));
    }
    findings
}

/// An accelerator on PCI.
#[derive(Debug)]
struct PciDevice {
    address: String,
    vendor: &'static Vendor,
    device_id: String,
    driver: Option<String>,
    numa_node: Option<String>,
    /// The largest window to its memory.
    window_len_bytes: u64,
}

/// A maker of accelerators.
#[derive(Debug, PartialEq, Eq)]
struct Vendor {
    id: &'static str,
    name: &'static str,
    driver: &'static str,
}

impl PciDevice {
    /// `None` for what is no accelerator.
    fn read(system: &System, address: &str) -> Option<Self> {
        let file = |name: &str| format!("/sys/bus/pci/devices/{address}/{name}");
        let class = system.text(&file("class"))?;
        if !CLASSES.iter().any(|known| class.starts_with(known)) {
            return None;
        }
        let vendor_id = system.text(&file("vendor"))?;
        let vendor = VENDORS.iter().find(|vendor| vendor.id == vendor_id)?;
        let resources = system.text(&file("resource")).unwrap_or_default();
        Some(Self {
            address: address.into(),
            vendor,
            device_id: system.text(&file("device")).unwrap_or_default(),
            driver: system.link_name(&file("driver")),
            numa_node: system.text(&file("numa_node")).filter(|node| node != "-1"),
            window_len_bytes: resources
                .lines()
                .filter_map(range_len_bytes)
                .max()
                .unwrap_or(0),
        })
    }

    fn findings(&self) -> Vec<Finding> {
        let Vendor { name, driver, .. } = self.vendor;
        let node = match &self.numa_node {
            Some(node) => format!(", NUMA node {node}"),
            None => String::new(),
        };
        let found = format!(
            "{name} {}{node}, driver {}",
            self.device_id,
            match &self.driver {
                Some(driver) => driver,
                None => "none",
            }
        );
        let finding = Finding::ok(AREA, &*self.address, found);
        let bound = match self.driver.as_deref() {
            None => finding.at(
                State::Bad,
                format!("modprobe {driver}, or install the driver"),
            ),
            // Handed to a virtual machine: not this host's to use.
            Some("vfio-pci") => finding.at(
                State::Warn,
                format!("it is given to a guest; bind it to {driver} to use it here"),
            ),
            Some(_) => finding,
        };
        let len = bytes_text(self.window_len_bytes);
        let window = Finding::ok(AREA, "", format!("largest window (BAR) {len}"));
        let window = if self.window_len_bytes < WINDOW_BYTES_ENOUGH {
            window.at(
                State::Warn,
                "adapters reach only what fits the window: Above 4G Decoding and Resizable BAR in \
                 the firmware's setup",
            )
        } else {
            window
        };
        vec![bound, window]
    }
}

/// The length of a line `start end flags` of a PCI device's `resource`.
fn range_len_bytes(line: &str) -> Option<u64> {
    let mut numbers = line
        .split_whitespace()
        .map(|number| u64::from_str_radix(number.trim_start_matches("0x"), 16));
    let (start, end) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    if end == 0 {
        return None;
    }
    end.checked_sub(start)?.checked_add(1)
}

/// Which of the two ways to NVIDIA's memory is open.
fn nvidia(system: &System) -> Vec<Finding> {
    let version = system.text("/proc/driver/nvidia/version");
    let line = version
        .as_deref()
        .and_then(|text| text.lines().next())
        .unwrap_or("not loaded");
    let is_open = line.contains("Open Kernel Module");
    let has_peermem = ["nvidia_peermem", "nv_peer_mem"]
        .iter()
        .any(|module| system.has(&format!("/sys/module/{module}")));
    let driver = Finding::ok(AREA, "NVIDIA driver", line);
    let way = match (is_open, has_peermem) {
        (true, true) => "dma-buf (open kernel module), and nvidia-peermem",
        (true, false) => "dma-buf (open kernel module)",
        (false, true) => "nvidia-peermem",
        (false, false) => "none: device memory is staged through the host",
    };
    let way = Finding::ok(AREA, "adapters' way in", way);
    vec![
        driver,
        if is_open || has_peermem {
            way
        } else {
            way.at(
                State::Warn,
                "modprobe nvidia-peermem, or install the driver's open kernel module",
            )
        },
    ]
}

const AREA: &str = "accelerators";
/// Displays and 3D controllers, and processing accelerators.
const CLASSES: [&str; 3] = ["0x0300", "0x0302", "0x1200"];
const NVIDIA: &Vendor = &Vendor {
    id: "0x10de",
    name: "NVIDIA",
    driver: "nvidia",
};
const VENDORS: [&Vendor; 2] = [
    NVIDIA,
    &Vendor {
        id: "0x1002",
        name: "AMD",
        driver: "amdgpu",
    },
];
/// The windows of cards without a resizable one are 256 MiB.
const WINDOW_BYTES_ENOUGH: u64 = 1 << 30;

#[cfg(test)]
mod tests;
