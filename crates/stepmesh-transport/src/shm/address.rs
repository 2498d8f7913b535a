//! The address of a shm fabric: which boot of which host, and a name in the abstract namespace.

#![forbid(unsafe_code)]

use std::fs;
use std::io;

use crate::fabric::Address;
use crate::wire::Reader;

/// Where a fabric listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShmAddress {
    /// The kernel's id of this boot: memory is shared within it only.
    pub(super) boot: [u8; 16],
    /// Random, so that nobody can take the name first.
    pub(super) name: [u8; 16],
}

impl ShmAddress {
    /// A new name on this host.
    pub(super) fn random() -> io::Result<Self> {
        let mut name = [0; 16];
        let filled = rustix::rand::getrandom(&mut name, rustix::rand::GetRandomFlags::empty())?;
        if filled != name.len() {
            return Err(io::Error::other("the kernel gave too few random bytes"));
        }
        let boot = boot_id()?;
        Ok(Self { boot, name })
    }

    pub(super) fn encode(&self) -> Address {
        Address([&TAG[..], &self.boot, &self.name].concat())
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.array()? != TAG {
            return None;
        }
        let (boot, name) = (reader.array()?, reader.array()?);
        reader.end()?;
        Some(Self { boot, name })
    }

    /// The name of the socket.
    pub(super) fn socket_name(&self) -> Vec<u8> {
        [&b"stepmesh/"[..], &self.name].concat()
    }
}

fn boot_id() -> io::Result<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    parse_boot_id(&text).ok_or_else(|| io::Error::other("the kernel's boot id is no UUID"))
}

fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
    if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let number = u128::from_str_radix(&digits, 16).ok()?;
    Some(number.to_be_bytes())
}

/// Fabric and version of the address.
const TAG: [u8; 4] = *b"shm1";

#[cfg(test)]
mod tests;
