//! The address of a tcp fabric: an IP address and a port in the form that travels.

#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};

use crate::fabric::Address;
use crate::wire::Reader;

pub(super) fn encode(address: SocketAddr) -> Address {
    let mut out = TAG.to_vec();
    out.extend(address.port().to_le_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend(ip.octets());
        }
    }
    Address(out)
}

pub(super) fn decode(bytes: &[u8]) -> Option<SocketAddr> {
    let mut reader = Reader(bytes);
    if reader.array()? != TAG {
        return None;
    }
    let port = u16::from_le_bytes(reader.array()?);
    let ip = match reader.array()? {
        [4] => IpAddr::from(reader.array::<4>()?),
        [6] => IpAddr::from(reader.array::<16>()?),
        _ => return None,
    };
    reader.end()?;
    (port != 0).then_some(SocketAddr::new(ip, port))
}

/// Fabric and version of the address.
const TAG: [u8; 4] = *b"tcp1";

#[cfg(test)]
mod tests;
