//! The promises of a fabric, kept by the simulated one under every fault: see `harness` for what is
//! checked at each event. Everything runs in virtual time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends there")]

mod death;
mod faults;
mod harness;
mod hostile;
mod properties;
mod restart;
mod window;
