//! Where a queue pair's other end is, and how its packets travel. Which port and GID to choose is told
//! in `select`.

use super::context::Mtu;

/// One end of a connection, as its owner tells the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The number of its queue pair, 24 bits.
    pub qp_num: u32,
    /// The number of the first packet that it sends, 24 bits.
    pub psn: u32,
    /// Its address in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// The address of its port, in network byte order; all zero for none, which does within an
    /// InfiniBand subnet.
    pub gid: [u8; 16],
}

/// How a queue pair's packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathOptions {
    /// This side's port, from 1.
    pub port: u8,
    /// This side's GID in the table of the port. It must be of the type of the peer's.
    pub gid_index: u8,
    /// The number of the first packet that this side sends, 24 bits: what the peer was told.
    pub local_psn: u32,
    /// The size of a packet's payload: not more than either side's port has active.
    pub mtu: Mtu,
    /// The traffic class of the IP header (`DSCP << 2`), by which switches choose a queue.
    pub traffic_class: u8,
    /// The service level: the priority in an InfiniBand subnet, or of the VLAN tag.
    pub service_level: u8,
    /// How long to wait for an acknowledgement: 4.096 µs times two to the power of this, 1 to 31.
    /// 0 waits for ever and is refused.
    pub timeout: u8,
    /// How often to send again without an acknowledgement, up to 7.
    pub retry_count: u8,
    /// How often to send again to a receiver that has no receive posted, up to 6; 7 is for ever.
    pub rnr_retry: u8,
    /// How long a sender waits before it tries such a receiver again, by the table of the InfiniBand
    /// specification: 1 is 10 µs, 12 is 0.64 ms, 31 is 491.52 ms, 0 is 655.36 ms.
    pub min_rnr_timer: u8,
    /// Through how many routers a packet may go.
    pub hop_limit: u8,
}

impl Default for PathOptions {
    fn default() -> Self {
        Self {
            port: 1,
            gid_index: 0,
            local_psn: 0,
            mtu: Mtu::B1024,
            traffic_class: 0,
            service_level: 0,
            // 67 ms, and with 7 retries at least half a second: a switch that reroutes is outlived,
            // a dead peer is found within the two seconds of `timeouts.peer_dead_ms`.
            timeout: 14,
            retry_count: 7,
            // Credits see to it that receives are posted; a stopped process is waited for in vain.
            rnr_retry: 6,
            min_rnr_timer: 12,
            hop_limit: 64,
        }
    }
}
