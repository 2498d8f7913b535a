//! Drives the cpu backend through its table, as a host does, and looks at its library file.

mod event;
mod ipc;
mod library;
mod lifecycle;
mod mem_event;
mod memory;
mod rdma;
mod stream;
mod support;
