//! Makes an unreliable network of datagrams reliable, as a state machine: no sockets, clocks or
//! threads live here, and no memory is touched; time comes in as an argument, packets go out
//! through a closure.
//!
//! - [`packet`]: the header of every packet, and how it is read from hostile bytes.
//! - [`chain`]: the body of a data packet: one chain, writes and message.
//! - [`connection`]: one connection: sequence numbers, cumulative and selective acknowledgements,
//!   retransmission with back-off, in-order delivery, bounded windows, keep-alives, death.
//! - [`endpoint`]: all connections of one node: handshake, generations, refusal of strangers.
//!
//! # Why a chain travels as one unit
//!
//! A network that duplicates, reorders or delays packets cannot place one-sided writes as they
//! come: a late copy of a write would overwrite a slot that is already in use for something else.
//! The bytes of a chain are therefore placed by the receiving side, after the check for
//! duplicates and only in their turn: nothing of a chain is in memory before the message of the
//! chain before it was delivered. That makes the reuse of slots as safe as on a reliable
//! connection, at the price of holding early chains in a bounded buffer.
//!
//! # What an acknowledgement means
//!
//! The cumulative acknowledgement counts units that were *delivered*, not units that arrived. The
//! sender may therefore read the source of a unit again for each retransmission and needs no copy:
//! the source is given back to its owner only once the bytes are in the peer's memory.
//!
//! # What is trusted
//!
//! Every field of a packet is checked. The network is trusted to name the true sender of a packet
//! (the simulated one does); one that does not needs authentication below this layer.

#![forbid(unsafe_code)]

pub mod chain;
pub mod connection;
pub mod endpoint;
pub mod options;
pub mod packet;

mod receive;
mod round_trip;
mod send;

#[cfg(test)]
mod tests;
