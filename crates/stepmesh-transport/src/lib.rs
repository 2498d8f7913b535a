//! The fabrics of StepMesh: shared memory, TCP and a simulated network.

#![deny(unsafe_code)]

pub mod doorbell;
pub mod error;
pub mod fabric;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod link;
#[expect(unsafe_code, reason = "states what a caller promises about raw memory")]
pub mod memory;
pub mod news;
#[expect(unsafe_code, reason = "maps memory that other processes share")]
mod segment;
pub mod shm;
pub mod sim;
pub mod table;
pub mod tcp;
pub mod wire;
