//! The functions in the table, one for each slot: check the arguments, call the method. The guard
//! around them lives in the instance module.

pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod lifecycle;
pub(crate) mod memory;
pub(crate) mod stream;
