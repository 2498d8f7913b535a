//! The protocol: state machines without sockets or threads.
//!
//! They are given fabrics, a clock and calls, and change state; the engine around them, or a test
//! with a simulated network, decides when.

pub(crate) mod ended;
pub(crate) mod fabrics;
pub(crate) mod hello;
pub(crate) mod link;
pub(crate) mod server;
mod staging;
mod visible;
pub(crate) mod wire;
pub(crate) mod worker;

#[cfg(test)]
mod tests;
