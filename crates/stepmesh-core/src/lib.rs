//! The StepMesh host: finds, loads and drives accelerator backends.
#![deny(unsafe_code)]

pub mod config;

mod error;
mod names;
mod secure;

pub use error::Error;
pub use stepmesh_abi as abi;
