//! What a backend without hardware of its own needs to behave like one that has it: streams and
//! events done by threads, and host memory to stand for a device's.
//!
//! `plugins/cpu` and `plugins/sim` are made of it. A backend brings an [`Engine`], which does copies
//! and fills; [`Streams`] brings the order:
//! - work of a stream runs in order on a thread of its own, which starts with the first of it;
//! - an [`Event`] recorded on an idle stream is done at once, without a thread being woken;
//! - work that fails fails its stream: copies and fills behind it are left out, for they may use
//!   what it did not make; events recorded behind it, and streams that wait for those, fail with the
//!   same error; functions of the host's run all the same. The next synchronisation returns the
//!   error, and the stream is as good as new;
//! - every queue has a limit, and ending has a bound, after which work is dropped and its waiters
//!   get an error.
//!
//! # Threads
//! Everything may be used from any thread.
//!
//! # What it does not do
//! It keeps no table of allocations: that is [`Allocations`](crate::Allocations).

pub use event::Event;
pub use free_ranges::FreeRanges;
pub use mem_event::MemEvent;
pub use memory::{
    Mapping, copy, file_len, fill, memory_file, page_len, retry_interrupted, seal_size, to_addr,
    to_u64,
};
pub use os::OsContext;
pub use stream::{Engine, OrderedStream, Worker};
pub use streams::Streams;

mod event;
mod free_ranges;
mod mem_event;
mod memory;
mod os;
mod queue;
mod stream;
mod streams;

#[cfg(test)]
mod tests;
