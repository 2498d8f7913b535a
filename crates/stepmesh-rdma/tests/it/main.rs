//! The crate from outside: that no program needs libibverbs to start, and verbs over a real device.
//! Without a device the latter are reported as not tested, or fail where `STEPMESH_REQUIRE` names
//! `rdma`. Run them in a guest with a device by `cargo xtask vm run`.

#![cfg(feature = "rdma")]

#[cfg(test)]
mod churn;
#[cfg(test)]
mod connection;
#[cfg(test)]
mod fabric;
#[cfg(test)]
mod failure;
#[cfg(test)]
mod links;
#[cfg(test)]
mod needed;
#[cfg(test)]
#[allow(dead_code, reason = "the tests of other fabrics use more of it")]
#[path = "../../../stepmesh-transport/tests/it/node.rs"]
mod node;
#[cfg(test)]
mod registration;
#[cfg(test)]
#[path = "../../../stepmesh-transport/tests/it/suite.rs"]
mod suite;
#[cfg(test)]
mod support;
#[cfg(test)]
mod transfers;
