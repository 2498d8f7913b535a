//! The verbs fabric: the mesh's contract kept by an adapter. Tensors go as one-sided writes straight
//! from and to registered memory, messages as one more write, with immediate, into a ring in the
//! receiver's memory.
//!
//! Parts: `rdma` (the fabric itself), `wire` (frames of the control connection), `handshake` (how a
//! connection comes about), `half` (queue pairs and message memory), `peer` (what arrives), `post`
//! (what is sent), `ring`, `stripe` and `window` (the counting, without devices), `regions` (registered
//! memory), `adapter` (the open port), `lag` (the
//! ports of a bonded one), `counters` (for those who measure).
//!
//! The control connection is TCP, with the bounds and the hardening of the `tcp` fabric, which it is.
//! It stays open: the end of a process closes it, whatever its adapter does.
//!
//! Keys of regions are the adapter's. It refuses what lies outside of a region and what was
//! deregistered, and stops only the connection that tried; it does not tell apart to which of the
//! connected peers a region was shared.
#![cfg_attr(
    not(feature = "rdma"),
    allow(dead_code, reason = "what needs no device is tested without the rest")
)]

pub use counters::Counters;
pub use options::RdmaOptions;
#[cfg(feature = "rdma")]
pub use rdma::RdmaFabric;

#[cfg(feature = "rdma")]
mod adapter;
mod address;
mod counters;
#[cfg(feature = "rdma")]
mod half;
#[cfg(feature = "rdma")]
mod handshake;
mod lag;
mod options;
mod pages;
#[cfg(feature = "rdma")]
mod peer;
#[cfg(feature = "rdma")]
mod post;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(feature = "rdma")]
mod regions;
mod ring;
mod stripe;
mod window;
mod wire;

/// Most writes in a chain: a batch of the mesh has a few tensors, and a bound keeps one post short.
#[cfg(feature = "rdma")]
const WRITES_MAX: usize = 256;
