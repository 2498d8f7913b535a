//! Options of a verbs fabric, and their bounds.

#![forbid(unsafe_code)]

use std::time::Duration;

use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::FabricKind;
use stepmesh_transport::tcp::TcpOptions;

use super::ring::{self, LINE_LEN_BYTES, LINES_MAX, LINES_MIN};
use super::wire::QUEUE_PAIRS_MAX;
use crate::select;

/// Options of an `RdmaFabric`, which the feature `rdma` brings.
#[derive(Clone, Debug)]
pub struct RdmaOptions {
    /// Which adapters, ports and GIDs may be used.
    pub select: select::Options,
    /// Where the device sits whose memory travels: the nearest adapter is chosen.
    pub near: select::Location,
    /// Which of several adapters that are equally near: processes with different numbers spread over
    /// them.
    pub ordinal: u32,
    /// Queue pairs of each connection, 1 to 16; the smaller number of both sides counts. More than
    /// one spread large tensors over the ports of a bonded adapter, or over its engines.
    pub queue_pairs: usize,
    /// Whether the queue pairs of a connection are spread over the ports of a bonded adapter in turn,
    /// instead of by the adapter itself. Adapters of mlx5 only; others are left alone.
    pub spread_ports: bool,
    /// Work requests that each queue pair may have outstanding, 16 to 16384. A chain needs one for
    /// each write and one for its message.
    pub send_depth: usize,
    /// Length of the ring in which messages of a peer arrive, in bytes: a power of two from 4 KiB to
    /// 16 MiB. Each 256 bytes of it cost a receive of each queue pair.
    pub ring_len_bytes: usize,
    /// The largest packet, in bytes; zero: what the ports of both sides have.
    pub mtu_len_bytes: u32,
    /// The traffic class of packets (`DSCP << 2`).
    pub traffic_class: u8,
    /// The service level, or priority.
    pub service_level: u8,
    /// How long an acknowledgement may take: 4.096 µs times two to the power of this, 1 to 31.
    pub timeout: u8,
    /// How often to send again without one, 0 to 7.
    pub retry_count: u8,
    /// How often to send again to a receiver that is not ready, 0 to 6; 7 is for ever.
    pub rnr_retry: u8,
    /// Longest message, in bytes.
    pub message_len_bytes_max: usize,
    /// Most regions of this process, and of each peer.
    pub regions_max: usize,
    /// The control connections: where to listen, how many peers, how long a handshake may take, and
    /// when a silent host counts as gone.
    pub control: TcpOptions,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            select: select::Options::default(),
            near: select::Location::default(),
            ordinal: 0,
            queue_pairs: 1,
            spread_ports: false,
            send_depth: 512,
            ring_len_bytes: 128 << 10,
            mtu_len_bytes: 0,
            traffic_class: 0,
            service_level: 0,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 6,
            message_len_bytes_max: 16384,
            regions_max: 65536,
            control: TcpOptions::default(),
        }
    }
}

impl RdmaOptions {
    /// Lines of the message ring: what is asked for, or as many as the longest message needs.
    pub(super) fn ring_lines(&self) -> u32 {
        let asked = u32::try_from(self.ring_len_bytes / LINE_LEN_BYTES).unwrap_or(LINES_MAX);
        let needed = ring::lines_for(self.message_len_bytes_max).saturating_mul(2);
        let needed = needed.checked_next_power_of_two().unwrap_or(u32::MAX);
        asked.max(needed).clamp(LINES_MIN, LINES_MAX)
    }

    pub(super) fn handshake_timeout(&self) -> Duration {
        self.control.handshake_timeout
    }

    /// Checks everything that no device is needed for.
    pub(super) fn check(&self) -> Result<(), Error> {
        let invalid = |option, value: &dyn std::fmt::Display, reason: &str| {
            Err(Error::InvalidOption {
                fabric: FabricKind::Rdma,
                option,
                value: value.to_string(),
                reason: reason.to_owned(),
            })
        };
        if !(1..=QUEUE_PAIRS_MAX).contains(&self.queue_pairs) {
            return invalid("queue_pairs", &self.queue_pairs, "it is 1 to 16");
        }
        if !(SEND_DEPTH_MIN..=SEND_DEPTH_MAX).contains(&self.send_depth) {
            return invalid("send_depth", &self.send_depth, "it is 16 to 16384");
        }
        let lines = self.ring_len_bytes / LINE_LEN_BYTES;
        if !self.ring_len_bytes.is_power_of_two()
            || lines < LINES_MIN as usize
            || lines > LINES_MAX as usize
        {
            let reason = "it is a power of two from 4096 to 16777216";
            return invalid("ring_len_bytes", &self.ring_len_bytes, reason);
        }
        let longest = ring::message_len_bytes_max(LINES_MAX);
        if self.message_len_bytes_max > longest {
            let reason = format!("the most is {longest}");
            return invalid(
                "message_len_bytes_max",
                &self.message_len_bytes_max,
                &reason,
            );
        }
        if !(1..=31).contains(&self.timeout) {
            let reason = "it is 1 to 31; 0 would wait for ever";
            return invalid("timeout", &self.timeout, reason);
        }
        if self.retry_count > 7 || self.rnr_retry > 7 {
            let retries = self.retry_count.max(self.rnr_retry);
            return invalid("retry_count or rnr_retry", &retries, "it is 0 to 7");
        }
        if self.service_level > 15 {
            return invalid("service_level", &self.service_level, "it is 0 to 15");
        }
        Ok(())
    }
}

/// A chain of a few writes and its message, with credit to spare.
const SEND_DEPTH_MIN: usize = 16;

/// What every adapter that we know takes.
const SEND_DEPTH_MAX: usize = 16384;

#[cfg(test)]
mod tests {
    //! What is refused before a device is looked for.

    use super::RdmaOptions;

    #[test]
    fn the_defaults_are_valid_and_a_ring_grows_with_the_longest_message() {
        let options = RdmaOptions::default();
        options.check().unwrap();
        assert_eq!(options.ring_lines(), 512);
        let long = RdmaOptions {
            message_len_bytes_max: 1 << 20,
            ..options
        };
        assert_eq!(long.ring_lines(), 16384);
        long.check().unwrap();
    }

    #[test]
    fn impossible_options_are_refused_by_name() {
        let good = RdmaOptions::default;
        for (name, options) in [
            (
                "queue_pairs",
                RdmaOptions {
                    queue_pairs: 0,
                    ..good()
                },
            ),
            (
                "queue_pairs",
                RdmaOptions {
                    queue_pairs: 17,
                    ..good()
                },
            ),
            (
                "send_depth",
                RdmaOptions {
                    send_depth: 15,
                    ..good()
                },
            ),
            (
                "ring_len_bytes",
                RdmaOptions {
                    ring_len_bytes: 5000,
                    ..good()
                },
            ),
            (
                "ring_len_bytes",
                RdmaOptions {
                    ring_len_bytes: 2048,
                    ..good()
                },
            ),
            (
                "message_len_bytes_max",
                RdmaOptions {
                    message_len_bytes_max: 1 << 24,
                    ..good()
                },
            ),
            (
                "timeout",
                RdmaOptions {
                    timeout: 0,
                    ..good()
                },
            ),
            (
                "retry_count",
                RdmaOptions {
                    retry_count: 8,
                    ..good()
                },
            ),
            (
                "service_level",
                RdmaOptions {
                    service_level: 16,
                    ..good()
                },
            ),
        ] {
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
