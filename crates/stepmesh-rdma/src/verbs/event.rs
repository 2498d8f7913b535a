//! Asynchronous events of a device: what happened to it, its ports and what was made of it.
#![expect(unsafe_code, reason = "follows the pointer in an event")]

use rdma_sys::ibv_qp;

use super::sys::RawAsyncEvent;

/// Something that happened outside of any work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue ran over or broke: its queue pairs are lost.
    CompletionQueueError,
    /// A queue pair broke: it is in the error state.
    QueuePairFatal {
        /// Its number.
        qp_num: u32,
    },
    /// A peer sent a request that the transport refuses: the queue pair is in the error state.
    QueuePairRequestError {
        /// Its number.
        qp_num: u32,
    },
    /// A peer sent a request for memory that it may not touch.
    QueuePairAccessError {
        /// Its number.
        qp_num: u32,
    },
    /// A packet came before the queue pair was ready to send.
    CommunicationEstablished {
        /// Its number.
        qp_num: u32,
    },
    /// Something else about a queue pair: its sends are drained, its path migrated, it got its last
    /// receive.
    QueuePairOther {
        /// Its number.
        qp_num: u32,
        /// The number of the event in `enum ibv_event_type`.
        event: i32,
    },
    /// The device is broken or was taken away: everything on it is lost.
    DeviceFatal,
    /// A port can be used.
    PortActive {
        /// Its number.
        port: u8,
    },
    /// A port's link went down.
    PortError {
        /// Its number.
        port: u8,
    },
    /// The table of GIDs changed: an address was added or taken away, and indices may have moved.
    GidChange {
        /// The port.
        port: u8,
    },
    /// The port has another LID: paths to it must be set up anew.
    LidChange {
        /// The port.
        port: u8,
    },
    /// Something else about a port: partition keys, the subnet manager.
    PortOther {
        /// Its number.
        port: u8,
        /// The number of the event in `enum ibv_event_type`.
        event: i32,
    },
    /// An event that this library does not know, or of a kind of object that it never makes.
    Unknown(i32),
}

impl AsyncEvent {
    /// # Safety
    /// The event was read and not acknowledged yet: then what it is about is alive.
    pub(super) unsafe fn of(raw: RawAsyncEvent) -> Self {
        let event = raw.event_type;
        // SAFETY: the caller's promise; the kernel writes such a pointer for such an event.
        let qp_num = || unsafe { (*raw.element.cast::<ibv_qp>()).qp_num };
        let port = || port_of(raw);
        match event {
            CQ_ERROR => Self::CompletionQueueError,
            QP_FATAL => Self::QueuePairFatal { qp_num: qp_num() },
            QP_REQUEST_ERROR => Self::QueuePairRequestError { qp_num: qp_num() },
            QP_ACCESS_ERROR => Self::QueuePairAccessError { qp_num: qp_num() },
            COMMUNICATION_ESTABLISHED => Self::CommunicationEstablished { qp_num: qp_num() },
            SQ_DRAINED | PATH_MIGRATED | PATH_MIGRATION_ERROR | LAST_WQE_REACHED => {
                let qp_num = qp_num();
                Self::QueuePairOther { qp_num, event }
            }
            DEVICE_FATAL => Self::DeviceFatal,
            PORT_ACTIVE => Self::PortActive { port: port() },
            PORT_ERROR => Self::PortError { port: port() },
            GID_CHANGE => Self::GidChange { port: port() },
            LID_CHANGE => Self::LidChange { port: port() },
            PKEY_CHANGE | SM_CHANGE | CLIENT_REREGISTER => {
                let port = port();
                Self::PortOther { port, event }
            }
            other => Self::Unknown(other),
        }
    }
}

/// The port is an `int` at the start of the union that otherwise holds a pointer.
fn port_of(raw: RawAsyncEvent) -> u8 {
    let bytes = raw.element.addr().to_ne_bytes();
    let port = i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    u8::try_from(port).unwrap_or(0)
}

// The numbers of `enum ibv_event_type`: as numbers, because the kernel may know more than the enum.
const CQ_ERROR: i32 = 0;
const QP_FATAL: i32 = 1;
const QP_REQUEST_ERROR: i32 = 2;
const QP_ACCESS_ERROR: i32 = 3;
const COMMUNICATION_ESTABLISHED: i32 = 4;
const SQ_DRAINED: i32 = 5;
const PATH_MIGRATED: i32 = 6;
const PATH_MIGRATION_ERROR: i32 = 7;
const DEVICE_FATAL: i32 = 8;
const PORT_ACTIVE: i32 = 9;
const PORT_ERROR: i32 = 10;
const LID_CHANGE: i32 = 11;
const PKEY_CHANGE: i32 = 12;
const SM_CHANGE: i32 = 13;
const LAST_WQE_REACHED: i32 = 16;
const CLIENT_REREGISTER: i32 = 17;
const GID_CHANGE: i32 = 18;

#[cfg(test)]
mod tests {
    //! What is made of numbers that a kernel may give.

    use std::ptr;

    use super::{AsyncEvent, RawAsyncEvent};

    fn event(event_type: i32, port: usize) -> AsyncEvent {
        let element = ptr::without_provenance_mut(port);
        let raw = RawAsyncEvent {
            element,
            event_type,
        };
        // SAFETY: none of the events of these tests is about an object.
        unsafe { AsyncEvent::of(raw) }
    }

    #[test]
    fn an_event_of_a_port_names_the_port() {
        assert_eq!(event(18, 2), AsyncEvent::GidChange { port: 2 });
        assert_eq!(event(10, 1), AsyncEvent::PortError { port: 1 });
    }

    #[test]
    fn an_event_of_a_later_kernel_is_unknown_and_keeps_its_number() {
        assert_eq!(event(4711, 0), AsyncEvent::Unknown(4711));
    }
}
