//! The C side: everything unsafe of this crate. The modules here wrap the plugin's table, the host's
//! table and what the checks need of the system in functions with checked arguments.
//!
//! A plugin under test is code that nobody has vouched for. Calling it is sound as far as it keeps
//! the ABI; whether it does is the question, so it is only ever called in a process that was started
//! for this and may die of it. The comments at the calls therefore say what this side guarantees.

pub(crate) mod compute;
pub(crate) mod error_arg;
pub(crate) mod extensions;
pub(crate) mod failure;
pub(crate) mod guard;
pub(crate) mod host;
pub(crate) mod memory;
pub(crate) mod plugin;
pub(crate) mod progress;
pub(crate) mod rdma;
pub(crate) mod session;
pub(crate) mod system;
