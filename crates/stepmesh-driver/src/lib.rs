//! What the StepMesh backends of GPU vendors share: a whole backend over the calls of a driver.
//!
//! A plugin brings a [`Driver`]: each call of the vendor's under a neutral name, and what its numbers
//! mean. [`Accelerator`] makes a backend of it. So a reader finds the vendor's functions in one file,
//! `driver.rs` of the plugin, and what a backend does with them here.
//!
//! Choices:
//! - A vendor's library is opened by name when it is needed and never linked, and its functions are
//!   looked up one by one ([`functions!`]): a plugin loads on any machine, and what an old driver
//!   lacks is `SM_UNIMPLEMENTED` where it is asked for.
//! - A status of a driver stays a number. It is named in the message and kept as the native code.
//! - Devices are made ready when they are first used, each for itself, and the calling thread's
//!   current device is what it was when a call returns, also when it failed.
//! - The table of allocations is ours: it knows what was asked for, refuses what a driver could only
//!   get wrong, and has its own numbers. What it does not know, such as a framework's tensors, the
//!   driver is asked about.
//! - A fault that breaks a device's context is remembered: from then on the device is lost, every call
//!   on it says why, and giving back and destroying succeed.
//! - Waits poll, because drivers have waits without a bound only.
//! - Graphs are compiled to code by the vendor's compiler, which is a library of its own, as the one of
//!   products is. Where one is missing its operations are not supported, and who asks is told why.
//! - Executions of graphs share scratch memory and an event for each stream, so that one costs no
//!   allocation. One that is captured has memory of its own, and its code stays until the instance ends:
//!   nobody tells when the last graph of it goes.
//!
//! # Threads
//! Everything may be called from any thread.
//!
//! # What it does not do
//! It knows no vendor. It maps no memory by itself: there is no `stepmesh.vmm.v1`, for nothing here
//! needs addresses apart from memory.
#![deny(unsafe_code)]

pub use backend::Accelerator;
pub use compute::Executable;
pub use driver::{Absent, Driver, Exported, Facts, Kernel, PointerFacts};
pub use event::{Event, MemEvent};
pub use failure::{Answer, Failure, Kind};
pub use library::Library;
pub use toolkit::{
    Blas, Compiler, Element, FunctionLaunch, Gemm, Matrix, Sums, Toolkit, Uncompiled,
};

mod backend;
mod buffer;
mod compute;
mod driver;
mod event;
mod extensions;
mod failure;
mod host_funcs;
mod info;
mod library;
mod memory;
mod shared;
mod stream;
mod toolkit;
mod wait;
mod words;
