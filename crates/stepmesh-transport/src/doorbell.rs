//! The doorbell of an engine: how peers on the same host, and other threads of this process, wake
//! a thread that sleeps because nothing was happening.
