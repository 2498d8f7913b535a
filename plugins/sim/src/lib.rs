//! A simulated accelerator for tests: what passes on it does not rely on device memory being the
//! host's.
//!
//! Choices:
//! - The memory of a device is one file, mapped twice: at an address that no one may touch, which is
//!   what `alloc` hands out, and at one that the backend works through. A host that dereferences a
//!   device pointer dies at once, and so does one that uses it after `free`: the address is never
//!   given to anything else.
//! - A device has as much memory as it was told; beyond that an allocation is out of memory, and the
//!   next smaller one may work. Its pages are taken when they are written, so a large device costs
//!   nothing.
//! - Copies are checked more strictly than a real device could: each range must lie within one live
//!   allocation, and the direction and the devices must be what the addresses say.
//! - Pinned memory is ordinary host memory in a file of its own, which other processes can map.
//! - For network adapters, memory is exported as a dma-buf by `/dev/udmabuf`, if the process may open
//!   that; if not, an export says so, and the capability is not set. There is no other mapping than
//!   the default one, and nothing to flush, unless the option `rdma_unordered` says so: then what an
//!   adapter writes (`adapter_write`) is not seen before a flush.
//! - Graphs are compiled and run by `stepmesh-kernels`, as cpu's are, on the device's bytes.
//! - Faults come by the count of operations or by time, see [`Faults`](#faults).
//!
//! # Options
//! Below `[options.sim]` in the configuration, read when an instance is opened:
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `devices` | 2 | number of devices, 0 to 64 |
//! | `memory_len_bytes` | 1 GiB | memory of each device, rounded up to pages |
//! | `stream_delay_us` | 0 | what each copy, fill and graph of a stream takes at least |
//! | `threads` | 0 | threads that execute graphs; 0: as many as the process may run on |
//! | `rdma_unordered` | 0 | 1: the device sees an adapter's writes only after a flush |
//! | `lacks` | | operations of graphs that it does not do, such as `exp,argmax` |
//! | `faults` | | what goes wrong, and when |
//!
//! # Faults
//! `sim.faults` is a list of `SITE[.DEVICE]:EFFECT@WHEN[+]`, separated by commas, such as
//! `alloc:oom@3, copy:fail@10+, device.1:lost@100ms, stream:stuck@2`.
//!
//! | fault | what counts | what happens |
//! |---|---|---|
//! | `alloc:oom` | allocations of any kind | the allocation is out of memory |
//! | `copy:fail` | copies | the copy fails; in a stream, so does the stream until it is synchronized |
//! | `stream:stuck` | copies, fills and graphs of streams | the stream stands still until the device is lost or the instance ends |
//! | `device:lost` | all of these | the device is lost for good: nothing but freeing and destroying works |
//!
//! `@3` is the third operation after `open`, `@100ms` the first one 100 ms or more after it; with `+`
//! all later ones too. Each device counts its own. A fault without a device is one of each device. By
//! time a device is lost without an operation.
//!
//! # Threads
//! Everything may be called from any thread. A stream starts its thread with its first work.
//!
//! # What it does not do
//! Device memory cannot be exported to other processes, but as a dma-buf. There is no managed memory and no
//! stream-ordered allocation. No alias and no default selection ever finds this backend: its kind is
//! no GPU, and it must be named.
#![deny(unsafe_code)]

mod adapter;
mod backend;
mod compute;
mod device;
mod dmabuf;
mod engine;
mod faults;
mod memory;
mod options;

pub use adapter::adapter_write;
pub use backend::Sim;
pub use compute::Compiled;
pub use device::{Event, MemEvent};

stepmesh_plugin::static_backend!(Sim);
#[cfg(feature = "plugin")]
stepmesh_plugin::export_backend!(Sim);
