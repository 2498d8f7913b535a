//! Tests of both state machines together, over the simulated network and in virtual time.

mod adapter;
mod faults;
mod requests;
mod world;
