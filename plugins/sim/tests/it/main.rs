//! Drives the simulated accelerator by its trait, through its table as a host does, and through
//! stepmesh-core.

mod copy;
mod faults;
mod host;
mod memory;
mod native;
mod support;
mod touch;
