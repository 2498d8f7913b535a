//! The options of an instance. The grammar of faults lives in the faults module.
#![forbid(unsafe_code)]

use std::time::Duration;

use stepmesh_plugin::compute::OpKind;
use stepmesh_plugin::software::{page_len, to_addr, to_u64};
use stepmesh_plugin::{Error, Host, Result};

/// What an instance is told.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) device_count: u32,
    pub(crate) memory_len_bytes: u64,
    pub(crate) stream_delay: Duration,
    pub(crate) faults: String,
    /// Threads that execute graphs; 0: as many as the process may run on.
    pub(crate) threads: usize,
    /// Whether adapters' writes are seen only after a flush.
    pub(crate) rdma_unordered: bool,
    /// Operations of graphs that the devices do not do.
    pub(crate) lacks: Vec<OpKind>,
}

impl Options {
    /// Reads them from the host's configuration.
    pub(crate) fn read(host: &Host) -> Result<Self> {
        let number = |key, default, max| match host.config(key) {
            Some(text) => parse_number(key, &text, max),
            None => Ok(default),
        };
        let device_count = number("sim.devices", DEVICES, DEVICES_MAX)?;
        let memory_len_bytes = number("sim.memory_len_bytes", MEMORY_LEN, MEMORY_LEN_MAX)?;
        let delay_us = number("sim.stream_delay_us", 0, STREAM_DELAY_US_MAX)?;
        Ok(Self {
            device_count: u32::try_from(device_count).unwrap_or(u32::MAX),
            // A file cannot be mapped by halves of pages, nor if it is empty.
            memory_len_bytes: memory_len_bytes.max(1).next_multiple_of(to_u64(page_len())),
            stream_delay: Duration::from_micros(delay_us),
            faults: host.config("sim.faults").unwrap_or_default(),
            threads: to_addr(number("sim.threads", 0, THREADS_MAX)?),
            rdma_unordered: number("sim.rdma_unordered", 0, 1)? == 1,
            lacks: match host.config("sim.lacks") {
                Some(text) => parse_ops("sim.lacks", &text)?,
                None => Vec::new(),
            },
        })
    }
}

fn parse_number(key: &str, text: &str, max: u64) -> Result<u64> {
    let number = text.trim().parse().ok().filter(|number| *number <= max);
    number.ok_or_else(|| {
        Error::invalid_argument(format!(
            "configuration key `{key}` = `{text}`: allowed is a whole number up to {max}"
        ))
    })
}

fn parse_ops(key: &str, text: &str) -> Result<Vec<OpKind>> {
    let names = text
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let find = |name: &str| {
        let known = OpKind::ALL.iter().find(|kind| kind.name() == name);
        known.copied().ok_or_else(|| {
            Error::invalid_argument(format!(
                "configuration key `{key}`: `{name}` is no operation; allowed are names such as \
                 `exp`, separated by commas"
            ))
        })
    };
    names.map(find).collect()
}

/// Devices: two, so that a test finds out what it mixes up.
const DEVICES: u64 = 2;
/// More devices than any host has.
const DEVICES_MAX: u64 = 64;
/// Memory of a device: enough for tests, and small enough to run out of.
const MEMORY_LEN: u64 = 1 << 30;
/// The largest memory: 64 devices of it fit into the address space of a process.
const MEMORY_LEN_MAX: u64 = 1 << 40;
/// A minute: longer than any test waits.
const STREAM_DELAY_US_MAX: u64 = 60_000_000;
/// More threads than any host's cores.
const THREADS_MAX: u64 = 1024;
