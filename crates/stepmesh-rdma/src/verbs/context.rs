//! An open device, and what it says of itself and its ports. Its asynchronous events are named in
//! `event`.
#![expect(unsafe_code, reason = "holds a context of libibverbs")]

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{ibv_context, ibv_mtu, ibv_port_state};

use super::device::DeviceHandle;
use super::event::AsyncEvent;
use super::ledger::Kind;
use super::result::{self, Failure};
use super::sys::{self, Functions};
use crate::VerbsError;
use crate::select::{self, Gid};

/// An open device. Everything that is made of it holds on to it.
pub struct Context {
    raw: NonNull<ibv_context>,
    name: Arc<str>,
    functions: &'static Functions,
}

/// What a device can do. The depths are upper bounds that a driver may lower again when a queue is
/// made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// The version of its firmware.
    pub firmware: String,
    /// The PCI vendor.
    pub vendor_id: u32,
    /// The vendor's number of the part.
    pub vendor_part_id: u32,
    /// How many ports there are; they are numbered from 1.
    pub port_count: u8,
    /// Length of the largest memory region, in bytes.
    pub region_len_bytes_max: u64,
    /// How many memory regions there may be.
    pub region_count_max: u32,
    /// How many queue pairs there may be.
    pub queue_pair_count_max: u32,
    /// How many requests a queue of a queue pair may hold.
    pub queue_depth_max: u32,
    /// How many completion queues there may be.
    pub completion_queue_count_max: u32,
    /// How many completions a completion queue may hold.
    pub completion_queue_depth_max: u32,
}

/// The state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttributes {
    /// Whether it can be used.
    pub state: PortState,
    /// Ethernet or InfiniBand.
    pub link_layer: LinkLayer,
    /// The largest packet that the device can send.
    pub mtu_max: Mtu,
    /// The largest packet that the link takes now.
    pub mtu_active: Mtu,
    /// The address in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// How many GIDs its table has room for.
    pub gid_table_len: u32,
    /// The longest message, in bytes.
    pub message_len_bytes_max: u32,
}

/// Whether a port can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No link.
    Down,
    /// A link, not yet configured by a subnet manager.
    Initializing,
    /// Configured, not yet usable.
    Armed,
    /// Usable.
    Active,
    /// Usable, the link is being mended.
    ActiveDeferred,
    /// A state that this library does not know.
    Unknown(u32),
}

/// What a port's packets travel in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// Of a device that does not say; these are InfiniBand.
    Unspecified,
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// A link layer that this library does not know.
    Unknown(u8),
}

/// The size of a packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Context {
    /// Opens a device.
    ///
    /// # Errors
    /// `ibv_open_device` failed: no permission for the device's file, no provider, or the device is
    /// gone; or its event queue could not be made non-blocking.
    pub fn open(device: &DeviceHandle) -> Result<Arc<Self>, VerbsError> {
        let functions = device.functions();
        // SAFETY: the handle keeps the device alive.
        let raw = unsafe { result::open_device(functions, device.raw()) };
        let raw = raw.map_err(|failure| failure.on(device.name()))?;
        Kind::Context.made();
        let name = device.shared_name();
        let context = Self {
            raw,
            name,
            functions,
        };
        let object = || format!("the event queue of {}", context.name);
        set_non_blocking(context.async_raw_fd()).map_err(|failure| failure.on(object()))?;
        Ok(Arc::new(context))
    }

    /// The name of the device.
    #[must_use]
    pub fn device_name(&self) -> &str {
        &self.name
    }

    /// What the device can do.
    ///
    /// # Errors
    /// `ibv_query_device` failed: the device is gone.
    pub fn device_attributes(&self) -> Result<DeviceAttributes, VerbsError> {
        // SAFETY: `self` keeps the context open.
        let raw = unsafe { result::query_device(self.functions, self.raw) };
        let raw = raw.map_err(|failure| failure.on(&*self.name))?;
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        Ok(DeviceAttributes {
            firmware: sys::text(&raw.fw_ver),
            vendor_id: raw.vendor_id,
            vendor_part_id: raw.vendor_part_id,
            port_count: raw.phys_port_cnt,
            region_len_bytes_max: raw.max_mr_size,
            region_count_max: count(raw.max_mr),
            queue_pair_count_max: count(raw.max_qp),
            queue_depth_max: count(raw.max_qp_wr),
            completion_queue_count_max: count(raw.max_cq),
            completion_queue_depth_max: count(raw.max_cqe),
        })
    }

    /// The state of a port; ports are numbered from 1.
    ///
    /// # Errors
    /// `ibv_query_port` failed: no such port, or the device is gone.
    pub fn port_attributes(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        // SAFETY: `self` keeps the context open.
        let raw = unsafe { result::query_port(self.functions, self.raw, port) };
        let raw = raw.map_err(|failure| failure.on(format!("port {port} of {}", self.name)))?;
        Ok(PortAttributes {
            state: PortState::of(raw.state),
            link_layer: LinkLayer::of(raw.link_layer),
            mtu_max: Mtu::of(raw.max_mtu),
            mtu_active: Mtu::of(raw.active_mtu),
            lid: raw.lid,
            gid_table_len: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            message_len_bytes_max: raw.max_msg_sz,
        })
    }

    /// The GIDs of a port as they are now, without the empty entries of its table; see
    /// [`select`](crate::select) for which to use.
    #[must_use]
    pub fn gid_table(&self, port: u8) -> Vec<Gid> {
        select::Port::read(&select::System::this(), &self.name, port).gids
    }

    /// Whether the adapter reaches devices' PCIe windows by itself, so that dma-bufs of them can be
    /// registered (mlx5's data direct).
    #[must_use]
    pub fn has_direct_dmabuf(&self) -> bool {
        // SAFETY: `self` keeps the context open.
        unsafe { result::has_data_direct(self.raw) }
    }

    /// How many ports a bonded adapter has; 0 or 1 when it is not bonded.
    ///
    /// # Errors
    /// `mlx5dv_query_device` failed: the adapter is of another make, or there is no libmlx5.
    pub fn lag_ports(&self) -> Result<u8, VerbsError> {
        // SAFETY: `self` keeps the context open.
        let ports = unsafe { result::lag_ports(self.raw) };
        ports.map_err(|failure| failure.on(&*self.name))
    }

    /// The descriptor that becomes readable when there is an asynchronous event. It does not block.
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library closes it with the context, which the borrow keeps open.
        unsafe { BorrowedFd::borrow_raw(self.async_raw_fd()) }
    }

    /// The next asynchronous event, acknowledged, or nothing when there is none now.
    ///
    /// # Errors
    /// `ibv_get_async_event` failed: the device is gone.
    pub fn next_async_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        // SAFETY: `self` keeps the context open; its descriptor does not block.
        let raw = unsafe { result::async_event(self.functions, self.raw) };
        let raw = raw.map_err(|failure| failure.on(&*self.name))?;
        let Some(raw) = raw else { return Ok(None) };
        // SAFETY: read just now and not acknowledged yet.
        let event = unsafe { AsyncEvent::of(raw) };
        // SAFETY: the same event, acknowledged once.
        unsafe { result::ack_async_event(self.functions, raw) };
        tracing::debug!(device = &*self.name, ?event, "asynchronous event");
        Ok(Some(event))
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.functions
    }

    /// Open while `self` lives.
    pub(super) fn raw(&self) -> NonNull<ibv_context> {
        self.raw
    }

    /// Whether a failure to destroy something is none: the kernel has already taken everything down
    /// because the device went away. That is asked once more, for broken firmware also answers so.
    pub(super) fn took_it_down(&self, failure: Failure) -> bool {
        // SAFETY: `self` keeps the context open.
        let asks = || unsafe { result::query_device(self.functions, self.raw) };
        failure.errno == libc::EIO && asks().is_err_and(|failure| is_gone(failure.errno))
    }

    fn async_raw_fd(&self) -> RawFd {
        // SAFETY: `self` keeps the context open, and the field never changes.
        unsafe { (*self.raw.as_ptr()).async_fd }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: whatever was made of it holds an `Arc` of `self`, so nothing is left.
        match unsafe { result::close_device(self.functions, self.raw) } {
            Ok(()) => Kind::Context.destroyed(),
            Err(failure) => {
                let error = failure.on(&*self.name);
                tracing::warn!(%error, "a device could not be closed");
            }
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.name).finish()
    }
}

// SAFETY: verbs are thread safe (rdma-core's providers lock each object; contexts are never
// single-threaded ones here), and the fields never change.
unsafe impl Send for Context {}
// SAFETY: as for `Send`.
unsafe impl Sync for Context {}

impl PortState {
    fn of(raw: ibv_port_state::Type) -> Self {
        match raw {
            ibv_port_state::IBV_PORT_DOWN => Self::Down,
            ibv_port_state::IBV_PORT_INIT => Self::Initializing,
            ibv_port_state::IBV_PORT_ARMED => Self::Armed,
            ibv_port_state::IBV_PORT_ACTIVE => Self::Active,
            ibv_port_state::IBV_PORT_ACTIVE_DEFER => Self::ActiveDeferred,
            other => Self::Unknown(other),
        }
    }
}

impl LinkLayer {
    fn of(raw: u8) -> Self {
        match raw {
            0 => Self::Unspecified,
            1 => Self::InfiniBand,
            2 => Self::Ethernet,
            other => Self::Unknown(other),
        }
    }
}

impl Mtu {
    /// The largest that is not above `len_bytes`, or the smallest there is.
    #[must_use]
    pub fn at_most(len_bytes: u32) -> Self {
        let mut fitting = Self::B256;
        for mtu in [Self::B512, Self::B1024, Self::B2048, Self::B4096] {
            if mtu.len_bytes() <= len_bytes {
                fitting = mtu;
            }
        }
        fitting
    }

    /// In bytes.
    #[must_use]
    pub fn len_bytes(self) -> u32 {
        match self {
            Self::B256 => 256,
            Self::B512 => 512,
            Self::B1024 => 1024,
            Self::B2048 => 2048,
            Self::B4096 => 4096,
        }
    }

    /// What is not known counts as the smallest, which every device takes.
    fn of(raw: ibv_mtu::Type) -> Self {
        match raw {
            ibv_mtu::IBV_MTU_512 => Self::B512,
            ibv_mtu::IBV_MTU_1024 => Self::B1024,
            ibv_mtu::IBV_MTU_2048 => Self::B2048,
            ibv_mtu::IBV_MTU_4096 => Self::B4096,
            _ => Self::B256,
        }
    }

    pub(super) fn raw(self) -> ibv_mtu::Type {
        match self {
            Self::B256 => ibv_mtu::IBV_MTU_256,
            Self::B512 => ibv_mtu::IBV_MTU_512,
            Self::B1024 => ibv_mtu::IBV_MTU_1024,
            Self::B2048 => ibv_mtu::IBV_MTU_2048,
            Self::B4096 => ibv_mtu::IBV_MTU_4096,
        }
    }
}

/// Of a descriptor that the library owns and keeps open.
pub(super) fn set_non_blocking(fd: RawFd) -> result::Answer<()> {
    let failed = || {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        let verb = "fcntl";
        Failure { verb, errno }
    };
    // SAFETY: reads flags; a number that is no open descriptor is an error.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(failed());
    }
    // SAFETY: sets a flag of the descriptor's own; the same.
    let status = unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
    if status < 0 {
        return Err(failed());
    }
    Ok(())
}

fn is_gone(errno: i32) -> bool {
    matches!(errno, libc::EIO | libc::ENODEV | libc::ENXIO)
}
