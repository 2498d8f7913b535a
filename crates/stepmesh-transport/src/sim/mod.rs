//! The simulated network of the tests: in one process, seeded, with faults and virtual time.
//!
//! - [`network`]: the network itself: clock, datagrams under way, faults, kills and pauses.
//! - [`fabric`]: one node's [`Fabric`](crate::fabric::Fabric), a [`link`](crate::link) over the
//!   network's datagrams.
//! - [`options`]: what can be set, and what is counted.
//! - [`trace`]: what happened, for the debugging of a seed that failed.
//!
//! Equal seeds, options and calls give equal traces, bit for bit, as long as one thread drives
//! the network and its fabrics. Time stands still but for
//! [`advance_ns`](network::SimNetwork::advance_ns) and [`step`](network::SimNetwork::step):
//!
//! ```
//! # use stepmesh_transport::error::Error;
//! use std::time::Duration;
//! use stepmesh_transport::fabric::{EventSink, Fabric, PeerId};
//! use stepmesh_transport::sim::network::SimNetwork;
//! use stepmesh_transport::sim::options::{Faults, SimOptions};
//!
//! #[derive(Default)]
//! struct Connected(Option<PeerId>);
//!
//! impl EventSink for Connected {
//!     fn connected(&mut self, peer: PeerId, _hello: &[u8]) {
//!         self.0 = Some(peer);
//!     }
//! #   fn accepted(&mut self, _: PeerId, _: &[u8]) {}
//! #   fn message(&mut self, _: PeerId, _: &[u8]) {}
//! #   fn sent(&mut self, _: PeerId, _: u64) {}
//! #   fn closed(&mut self, _: PeerId, _: Error) {}
//! }
//!
//! let network = SimNetwork::new(7, SimOptions::default());
//! network.set_faults(Faults { loss: 0.3, ..Faults::default() });
//! let mut worker = network.fabric("worker");
//! let mut server = network.fabric("server");
//! let mut sink = Connected::default();
//! let peer = worker.connect(&server.address(), b"hi", Duration::from_secs(1))?;
//! while sink.0.is_none() {
//!     worker.poll(network.now_ns(), &mut sink);
//!     server.poll(network.now_ns(), &mut Connected::default());
//!     network.step(1_000_000);
//! }
//! assert_eq!(sink.0, Some(peer));
//! # Ok::<(), Error>(())
//! ```

pub mod fabric;
pub mod network;
pub mod options;
pub mod trace;

#[expect(unsafe_code, reason = "copies between datagrams and raw memory")]
mod placement;
mod regions;
mod state;
