//! The control plane: how members find each other, wait for each other and learn of deaths.
//!
//! It has its own TCP connections, to the scheduler only, and carries no tensors.

pub(crate) mod member;
pub(crate) mod scheduler;
pub(crate) mod wire;

#[cfg(test)]
mod tests;
