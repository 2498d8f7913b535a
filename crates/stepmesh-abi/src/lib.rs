//! The C ABI between the StepMesh host and its accelerator backends.
#![no_std]
