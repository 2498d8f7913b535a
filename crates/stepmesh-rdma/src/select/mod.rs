//! Which adapter, port and GID to use, with a reason for each that is not. It reads files of the
//! kernel and compares; no device is opened.
//!
//! - `adapter`: adapters and their ports, as the files below /sys/class/infiniband tell.
//! - `gid`: the addresses of a port, and which of them to use.
//! - `pci`: how far an accelerator is from an adapter.
//! - `choice`: the ports in the order in which they suit a device, and the report of it.

#![forbid(unsafe_code)]

pub use adapter::{Adapter, LinkLayer, Port, PortState};
pub use choice::{Candidate, Choice, Options, PortVerdict, choose};
pub use gid::{Family, Gid, GidChoice, GidKind, GidRules, GidVerdict, choose_gid};
pub use pci::{Distance, Location, Proximity};
pub use system::System;

mod adapter;
mod choice;
mod gid;
mod pci;
mod system;

#[cfg(test)]
mod tests;
