//! What members and the scheduler say to each other: postcard messages over a fabric's connection.

use serde::{Deserialize, Serialize};
use stepmesh_transport::fabric::{Address, FabricKind};

use crate::protocol::wire::WireError;
use crate::role::{Member, Role, Roles};

/// From a member to the scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToScheduler {
    /// I want to take part.
    Join(Join),
    /// I am alive.
    Heartbeat,
    /// I have arrived at the barrier. `number` counts this member's barriers.
    Barrier {
        number: u64,
        roles: Roles,
        timeout_ms: u64,
    },
    /// I am leaving on purpose.
    Leave,
}

/// A member that wants to take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Join {
    pub(crate) role: Role,
    /// The rank it asks for.
    pub(crate) rank: Option<u32>,
    pub(crate) place: Place,
}

/// Where a member is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The host's name, for messages.
    pub(crate) host: String,
    pub(crate) process: u32,
    pub(crate) addresses: Vec<WireAddress>,
}

/// An address of one fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireAddress {
    fabric: u8,
    bytes: Vec<u8>,
}

/// From the scheduler to a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromScheduler {
    /// You cannot take part.
    Rejected { reason: String },
    /// Everybody is here.
    Formed(Formed),
    /// The barrier is complete.
    BarrierDone { number: u64 },
    /// The barrier will not complete.
    BarrierFailed { number: u64, reason: String },
    /// A member is gone.
    Lost { member: Member, reason: String },
    /// A rank that was lost is taken again.
    Joined { entry: Entry },
    /// I am alive.
    Heartbeat,
    /// The scheduler ends.
    Shutdown { reason: String },
}

/// The mesh as it stands when everybody is here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Formed {
    /// Who you are.
    pub(crate) you: Member,
    /// Tells this mesh from others.
    pub(crate) mesh: u64,
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    pub(crate) group_size: u32,
    /// The members that the receiver has to do with.
    pub(crate) entries: Vec<Entry>,
}

/// A member and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) member: Member,
    pub(crate) place: Place,
}

impl WireAddress {
    pub(crate) fn new(kind: FabricKind, address: &Address) -> Self {
        let fabric = FABRIC_CODES.iter().find(|(of, _)| *of == kind);
        Self {
            fabric: fabric.map_or(u8::MAX, |(_, code)| *code),
            bytes: address.0.clone(),
        }
    }

    /// The fabric and the address, or `None` for a fabric that this version does not know.
    pub(crate) fn known(&self) -> Option<(FabricKind, Address)> {
        let (kind, _) = FABRIC_CODES.iter().find(|(_, code)| *code == self.fabric)?;
        Some((*kind, Address(self.bytes.clone())))
    }
}

/// Writes a message.
pub(crate) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // These types have no form that postcard cannot write.
    postcard::to_stdvec(message).unwrap_or_default()
}

/// Reads a message and refuses what follows it.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, WireError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(WireError("a control message with something behind it")),
        Err(_) => Err(WireError("a malformed control message")),
    }
}

/// The numbers that travel. Never reused.
const FABRIC_CODES: [(FabricKind, u8); 4] = [
    (FabricKind::Shm, 1),
    (FabricKind::Tcp, 2),
    (FabricKind::Rdma, 3),
    (FabricKind::Sim, 4),
];

#[cfg(test)]
mod tests {
    use super::{FromScheduler, ToScheduler, decode, encode};
    use crate::role::Roles;

    #[test]
    fn messages_come_back_and_garbage_does_not() {
        let barrier = ToScheduler::Barrier {
            number: 3,
            roles: Roles::ALL,
            timeout_ms: 5,
        };
        let bytes = encode(&barrier);
        assert_eq!(decode::<ToScheduler>(&bytes), Ok(barrier));
        for cut in 0..bytes.len() {
            assert!(
                decode::<ToScheduler>(&bytes[..cut]).is_err(),
                "cut at {cut}"
            );
        }
        let mut longer = bytes;
        longer.push(0);
        decode::<ToScheduler>(&longer).unwrap_err();
        decode::<FromScheduler>(b"GET / HTTP/1.1").unwrap_err();
    }
}
