//! Bytes that an adapter wrote straight into a device's memory. That they have arrived says the message
//! behind them, to the host; a device may see them later, unless it orders such writes or is told to
//! flush them. So they are flushed once for each request, before anybody is given them.

use stepmesh_core::abi::device::{SM_CAP_FLUSH_RDMA, SM_RDMA_ORDERING_NONE};
use stepmesh_core::{Buffer, Device, FlushScope, Rdma};

use crate::error::Error;

/// The devices that adapters have written to.
#[derive(Debug, Default)]
pub(super) struct Visibility {
    devices: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    device: Device,
    /// What flushes; none where nothing has to be done, or can be.
    flush: Option<Rdma>,
    /// Something arrived since the last flush.
    is_due: bool,
}

impl Visibility {
    /// Notes that a fabric wrote into this buffer by itself.
    #[inline]
    pub(super) fn arrived(&mut self, buffer: &Buffer) {
        // Only adapters write to memory that the host does not reach.
        if !buffer.is_host_accessible() {
            self.arrived_at(buffer.device());
        }
    }

    /// Makes all of it visible to the devices that it is on.
    ///
    /// # Errors
    /// The backend refused; then nobody may look at it.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        for known in &mut self.devices {
            if std::mem::take(&mut known.is_due)
                && let Some(rdma) = &known.flush
            {
                let flushed = rdma.flush_writes(FlushScope::Owner);
                flushed.map_err(Error::backend("flushing what an adapter wrote"))?;
            }
        }
        Ok(())
    }

    fn arrived_at(&mut self, device: &Device) {
        let same = |known: &&mut Known| {
            known.device.ordinal() == device.ordinal()
                && known.device.backend().is_same(device.backend())
        };
        if let Some(known) = self.devices.iter_mut().find(same) {
            known.is_due = true;
            return;
        }
        self.devices.push(Known {
            device: device.clone(),
            flush: flush_of(device),
            is_due: true,
        });
    }
}

/// What flushes a device's memory, if it needs that and can.
fn flush_of(device: &Device) -> Option<Rdma> {
    if device.info().rdma_write_ordering != SM_RDMA_ORDERING_NONE {
        return None;
    }
    let can = device
        .capabilities()
        .is_ok_and(|has| has.contains(SM_CAP_FLUSH_RDMA));
    if !can {
        // As with HIP, which has no such call.
        tracing::debug!(
            backend = device.backend().name(),
            device = device.ordinal(),
            "the backend cannot flush what adapters write"
        );
        return None;
    }
    device.rdma()
}
