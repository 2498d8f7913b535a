//! The fabrics under test, and what only their tests need.

use std::env;
use std::net::Ipv6Addr;

use stepmesh_transport::doorbell::Doorbell;
use stepmesh_transport::fabric::Fabric;
use stepmesh_transport::shm::{Reach, ShmFabric, ShmOptions};
use stepmesh_transport::tcp::{TcpFabric, TcpOptions};

use crate::node::{Bytes, MESSAGE_LEN_MAX, SHORT, Seal};

/// The fabrics that keep the same contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setup {
    /// Memory that the peer maps.
    ShmMapped,
    /// Memory that the kernel writes.
    ShmProcess,
    /// Memory that is bounced.
    ShmBounce,
    /// Rings and memory in files of a directory.
    ShmDir,
    /// Loopback.
    Tcp4,
    /// Loopback of the other family.
    Tcp6,
    /// With kernel buffers so small that large things take many turns.
    TcpNarrow,
}

impl Setup {
    /// These run anywhere; what a test holds on to while it runs.
    #[expect(
        clippy::unnecessary_wraps,
        reason = "other crates' fabrics need a device"
    )]
    pub(crate) fn take_turn(self, _: &str) -> Option<Self> {
        Some(self)
    }

    pub(crate) fn fabric(self) -> Box<dyn Fabric> {
        let shm_reaching = |reach| -> Box<dyn Fabric> {
            Box::new(shm(ShmOptions {
                reach,
                ..shm_options()
            }))
        };
        let tcp_with = |options| -> Box<dyn Fabric> { Box::new(TcpFabric::new(options).unwrap()) };
        match self {
            Self::ShmMapped => shm_reaching(Reach::Map),
            Self::ShmProcess => shm_reaching(Reach::Process),
            Self::ShmBounce => shm_reaching(Reach::Bounce),
            Self::ShmDir => Box::new(shm(ShmOptions {
                dir: Some(env::temp_dir()),
                ..shm_options()
            })),
            Self::Tcp4 => tcp_with(tcp_options()),
            Self::Tcp6 => tcp_with(TcpOptions {
                bind: Ipv6Addr::LOCALHOST.into(),
                ..tcp_options()
            }),
            Self::TcpNarrow => tcp_with(TcpOptions {
                send_buffer_bytes: 32768,
                recv_buffer_bytes: 32768,
                ..tcp_options()
            }),
        }
    }

    pub(crate) fn memory(self, len: usize) -> Bytes {
        match self {
            Self::ShmMapped => Bytes::mappable(len, Seal::Yes),
            Self::ShmDir => {
                let file = tempfile::tempfile().unwrap();
                file.set_len(len as u64).unwrap();
                Bytes::of_file(file.into(), len)
            }
            _ => Bytes::plain(len),
        }
    }
}

/// Small enough to fill in a test.
pub(crate) fn shm_options() -> ShmOptions {
    ShmOptions {
        ring_len_bytes: 65536,
        message_len_bytes_max: MESSAGE_LEN_MAX,
        handshake_timeout: SHORT,
        ..ShmOptions::default()
    }
}

pub(crate) fn tcp_options() -> TcpOptions {
    TcpOptions {
        message_len_bytes_max: MESSAGE_LEN_MAX,
        handshake_timeout: SHORT,
        ..TcpOptions::default()
    }
}

pub(crate) fn shm(options: ShmOptions) -> ShmFabric {
    ShmFabric::new(options, Doorbell::new().unwrap()).unwrap()
}

/// A count in the form that travels.
pub(crate) fn count_bytes(count: usize) -> [u8; 4] {
    u32::try_from(count).unwrap().to_le_bytes()
}

/// Says that something could not be tested here, or fails if `STEPMESH_REQUIRE` names it.
pub(crate) fn report_absent(name: &str, what: &str, reason: &str) {
    let required = env::var("STEPMESH_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|other| other == name),
        "{what}: {reason}"
    );
    eprintln!("ABSENT ({name}): {what} was not tested: {reason}");
}
