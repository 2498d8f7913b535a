//! The functions of `sys` with results in place of statuses, still unsafe: what a pointer must point
//! to is the caller's to know. Also the calls that go through a context's table of operations, which
//! the header of libibverbs has as inline functions.
//!
//! # Safety
//! Of every function here: pointers are of live objects of the library, which nobody destroys during
//! the call. A destroying function ends the object's life when it succeeds, and needs every object
//! that hangs from it to be gone.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_wc,
};

use super::sys::{self, Functions, RawAsyncEvent};
use crate::VerbsError;

/// A verb that failed, before it is known what it was done to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) verb: &'static str,
    pub(super) errno: i32,
}

pub(super) type Answer<T> = Result<T, Failure>;

impl Failure {
    fn last(verb: &'static str) -> Self {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self { verb, errno }
    }

    pub(super) fn unsupported(verb: &'static str) -> Self {
        let errno = libc::EOPNOTSUPP;
        Self { verb, errno }
    }

    pub(super) fn on(self, object: impl Into<String>) -> VerbsError {
        let Self { verb, errno } = self;
        let object = object.into();
        VerbsError {
            verb,
            errno,
            object,
        }
    }
}

/// The devices, as the library's own array, or nothing where the kernel knows no verbs.
pub(super) unsafe fn device_list(
    functions: &Functions,
) -> Answer<Option<(NonNull<*mut ibv_device>, usize)>> {
    let mut count: c_int = 0;
    // SAFETY: `count` is a local.
    let list = unsafe { (functions.ibv_get_device_list)(&raw mut count) };
    let Some(list) = NonNull::new(list) else {
        let failure = Failure::last("ibv_get_device_list");
        return match failure.errno {
            libc::ENOSYS => Ok(None),
            _ => Err(failure),
        };
    };
    Ok(Some((list, usize::try_from(count).unwrap_or(0))))
}

pub(super) unsafe fn open_device(
    functions: &Functions,
    device: NonNull<ibv_device>,
) -> Answer<NonNull<ibv_context>> {
    // SAFETY: the contract of this module.
    let context = unsafe { (functions.ibv_open_device)(device.as_ptr()) };
    NonNull::new(context).ok_or_else(|| Failure::last("ibv_open_device"))
}

pub(super) unsafe fn close_device(
    functions: &Functions,
    context: NonNull<ibv_context>,
) -> Answer<()> {
    // SAFETY: the contract of this module.
    let status = unsafe { (functions.ibv_close_device)(context.as_ptr()) };
    check("ibv_close_device", status)
}

pub(super) unsafe fn query_device(
    functions: &Functions,
    context: NonNull<ibv_context>,
) -> Answer<ibv_device_attr> {
    let mut attributes = MaybeUninit::<ibv_device_attr>::zeroed();
    // SAFETY: the contract of this module; the library fills the struct.
    let status = unsafe { (functions.ibv_query_device)(context.as_ptr(), attributes.as_mut_ptr()) };
    check("ibv_query_device", status)?;
    // SAFETY: integers and arrays of them, for which zeros are valid, and which were filled.
    Ok(unsafe { attributes.assume_init() })
}

pub(super) unsafe fn query_port(
    functions: &Functions,
    context: NonNull<ibv_context>,
    port: u8,
) -> Answer<ibv_port_attr> {
    let mut attributes = MaybeUninit::<ibv_port_attr>::zeroed();
    let out = attributes.as_mut_ptr();
    // SAFETY: the contract of this module. The function fills the head of the struct that the first
    // release had; the fields after it stay zero, which the header's inline function does as well.
    let status = unsafe { (functions.ibv_query_port)(context.as_ptr(), port, out) };
    check("ibv_query_port", status)?;
    // SAFETY: integers, for which zeros are valid.
    Ok(unsafe { attributes.assume_init() })
}

/// The next event of a context whose descriptor does not block; nothing when there is none.
pub(super) unsafe fn async_event(
    functions: &Functions,
    context: NonNull<ibv_context>,
) -> Answer<Option<RawAsyncEvent>> {
    let mut event = RawAsyncEvent {
        element: ptr::null_mut(),
        event_type: 0,
    };
    // SAFETY: the contract of this module; `event` is a local of the layout that the kernel fills.
    let status = unsafe { (functions.ibv_get_async_event)(context.as_ptr(), &raw mut event) };
    if status == 0 {
        return Ok(Some(event));
    }
    none_yet("ibv_get_async_event")
}

pub(super) unsafe fn ack_async_event(functions: &Functions, mut event: RawAsyncEvent) {
    // SAFETY: the contract of this module.
    unsafe { (functions.ibv_ack_async_event)(&raw mut event) };
}

pub(super) unsafe fn alloc_pd(
    functions: &Functions,
    context: NonNull<ibv_context>,
) -> Answer<NonNull<ibv_pd>> {
    // SAFETY: the contract of this module.
    let domain = unsafe { (functions.ibv_alloc_pd)(context.as_ptr()) };
    NonNull::new(domain).ok_or_else(|| Failure::last("ibv_alloc_pd"))
}

pub(super) unsafe fn dealloc_pd(functions: &Functions, domain: NonNull<ibv_pd>) -> Answer<()> {
    // SAFETY: the contract of this module.
    let status = unsafe { (functions.ibv_dealloc_pd)(domain.as_ptr()) };
    check("ibv_dealloc_pd", status)
}

/// Registers a range at its own address. Optional access flags go through the call that drops what
/// the kernel does not know.
pub(super) unsafe fn reg_mr(
    functions: &Functions,
    domain: NonNull<ibv_pd>,
    address: u64,
    len_bytes: usize,
    access: c_int,
) -> Answer<NonNull<ibv_mr>> {
    let pointer = usize::try_from(address).map_or(ptr::null_mut(), |address| {
        ptr::with_exposed_provenance_mut::<c_void>(address)
    });
    let optional = access & OPTIONAL_ACCESS;
    let (verb, region) = match functions.ibv_reg_mr_iova2 {
        Some(reg_mr) if optional != 0 => {
            let access = access.cast_unsigned();
            // SAFETY: the contract of this module.
            let region = unsafe { reg_mr(domain.as_ptr(), pointer, len_bytes, address, access) };
            ("ibv_reg_mr_iova2", region)
        }
        _ => {
            let access = access & !OPTIONAL_ACCESS;
            // SAFETY: the contract of this module.
            let region =
                unsafe { (functions.ibv_reg_mr)(domain.as_ptr(), pointer, len_bytes, access) };
            ("ibv_reg_mr", region)
        }
    };
    NonNull::new(region).ok_or_else(|| Failure::last(verb))
}

/// A range of a dma-buf, and the address by which peers and work requests name its first byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct DmabufRange {
    pub(super) fd: c_int,
    pub(super) offset: u64,
    pub(super) len_bytes: usize,
    pub(super) iova: u64,
    /// Of the device's PCIe window, by the direct verbs of mlx5.
    pub(super) is_direct: bool,
}

pub(super) unsafe fn reg_dmabuf_mr(
    functions: &Functions,
    domain: NonNull<ibv_pd>,
    range: DmabufRange,
    access: c_int,
) -> Answer<NonNull<ibv_mr>> {
    let DmabufRange {
        fd,
        offset,
        len_bytes,
        iova,
        is_direct,
    } = range;
    let domain = domain.as_ptr();
    let (verb, region) = if is_direct {
        let verb = "mlx5dv_reg_dmabuf_mr";
        let register = sys::mlx5().and_then(|mlx5| mlx5.mlx5dv_reg_dmabuf_mr);
        let register = register.ok_or_else(|| Failure::unsupported(verb))?;
        let direct = MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT;
        // SAFETY: the contract of this module; other makes of adapters are refused by the library.
        let region = unsafe { register(domain, offset, len_bytes, iova, fd, access, direct) };
        (verb, region)
    } else {
        let verb = "ibv_reg_dmabuf_mr";
        let register = functions.ibv_reg_dmabuf_mr;
        let register = register.ok_or_else(|| Failure::unsupported(verb))?;
        // SAFETY: the contract of this module.
        let region = unsafe { register(domain, offset, len_bytes, iova, fd, access) };
        (verb, region)
    };
    NonNull::new(region).ok_or_else(|| Failure::last(verb))
}

/// Whether the adapter reaches devices' PCIe windows by itself (mlx5's data direct).
pub(super) unsafe fn has_data_direct(context: NonNull<ibv_context>) -> bool {
    let Some(mlx5) = sys::mlx5() else {
        return false;
    };
    let Some(path_of) = mlx5.mlx5dv_get_data_direct_sysfs_path else {
        return false;
    };
    let mut path = [0; 256];
    // SAFETY: the contract of this module; the library writes no more than the room, and refuses
    // other makes of adapters.
    let status = unsafe { path_of(context.as_ptr(), path.as_mut_ptr(), path.len()) };
    status == 0 && mlx5.mlx5dv_reg_dmabuf_mr.is_some()
}

/// How many ports a bonded adapter has.
pub(super) unsafe fn lag_ports(context: NonNull<ibv_context>) -> Answer<u8> {
    let verb = "mlx5dv_query_device";
    let query = sys::mlx5().and_then(|mlx5| mlx5.mlx5dv_query_device);
    let query = query.ok_or_else(|| Failure::unsupported(verb))?;
    let mut words = [0_u64; sys::MLX5DV_CONTEXT_WORDS];
    words[sys::MLX5DV_CONTEXT_MASK] = sys::MLX5DV_MASK_LAG_PORTS;
    // SAFETY: the contract of this module; the words are more than the struct has, and the library
    // refuses other makes of adapters.
    let status = unsafe { query(context.as_ptr(), words.as_mut_ptr()) };
    check(verb, status)?;
    let is_known = words[sys::MLX5DV_CONTEXT_MASK] & sys::MLX5DV_MASK_LAG_PORTS != 0;
    let [ports, ..] = words[sys::MLX5DV_CONTEXT_LAG_PORTS].to_ne_bytes();
    Ok(if is_known { ports } else { 0 })
}

pub(super) unsafe fn modify_qp_lag_port(queue_pair: NonNull<ibv_qp>, port: u8) -> Answer<()> {
    let verb = "mlx5dv_modify_qp_lag_port";
    let modify = sys::mlx5().and_then(|mlx5| mlx5.mlx5dv_modify_qp_lag_port);
    let modify = modify.ok_or_else(|| Failure::unsupported(verb))?;
    // SAFETY: the contract of this module; other makes of adapters are refused by the library.
    let status = unsafe { modify(queue_pair.as_ptr(), port) };
    check(verb, status)
}

pub(super) unsafe fn dereg_mr(functions: &Functions, region: NonNull<ibv_mr>) -> Answer<()> {
    // SAFETY: the contract of this module.
    let status = unsafe { (functions.ibv_dereg_mr)(region.as_ptr()) };
    check("ibv_dereg_mr", status)
}

pub(super) unsafe fn create_comp_channel(
    functions: &Functions,
    context: NonNull<ibv_context>,
) -> Answer<NonNull<ibv_comp_channel>> {
    // SAFETY: the contract of this module.
    let channel = unsafe { (functions.ibv_create_comp_channel)(context.as_ptr()) };
    NonNull::new(channel).ok_or_else(|| Failure::last("ibv_create_comp_channel"))
}

pub(super) unsafe fn destroy_comp_channel(
    functions: &Functions,
    channel: NonNull<ibv_comp_channel>,
) -> Answer<()> {
    // SAFETY: the contract of this module.
    let status = unsafe { (functions.ibv_destroy_comp_channel)(channel.as_ptr()) };
    check("ibv_destroy_comp_channel", status)
}

/// Reads one event of a channel whose descriptor does not block, and acknowledges it: whether there
/// was one. The queue cannot be destroyed in between, for that waits until its events are
/// acknowledged.
pub(super) unsafe fn take_cq_event(
    functions: &Functions,
    channel: NonNull<ibv_comp_channel>,
) -> Answer<bool> {
    let mut queue = ptr::null_mut();
    let mut user = ptr::null_mut();
    // SAFETY: the contract of this module; the outputs are locals.
    let status =
        unsafe { (functions.ibv_get_cq_event)(channel.as_ptr(), &raw mut queue, &raw mut user) };
    if status != 0 {
        return Ok(none_yet::<()>("ibv_get_cq_event")?.is_some());
    }
    // SAFETY: the queue of an event that is not acknowledged yet is alive.
    unsafe { (functions.ibv_ack_cq_events)(queue, 1) };
    Ok(true)
}

pub(super) unsafe fn create_cq(
    functions: &Functions,
    context: NonNull<ibv_context>,
    depth: c_int,
    channel: Option<NonNull<ibv_comp_channel>>,
) -> Answer<NonNull<ibv_cq>> {
    let channel = channel.map_or(ptr::null_mut(), NonNull::as_ptr);
    let user = ptr::null_mut();
    // Vector 0 exists on every device.
    // SAFETY: the contract of this module.
    let queue = unsafe { (functions.ibv_create_cq)(context.as_ptr(), depth, user, channel, 0) };
    NonNull::new(queue).ok_or_else(|| Failure::last("ibv_create_cq"))
}

pub(super) unsafe fn destroy_cq(functions: &Functions, queue: NonNull<ibv_cq>) -> Answer<()> {
    // SAFETY: the contract of this module.
    let status = unsafe { (functions.ibv_destroy_cq)(queue.as_ptr()) };
    check("ibv_destroy_cq", status)
}

pub(super) unsafe fn create_qp(
    functions: &Functions,
    domain: NonNull<ibv_pd>,
    attributes: &mut ibv_qp_init_attr,
) -> Answer<NonNull<ibv_qp>> {
    // SAFETY: the contract of this module; the library writes the real capacities back.
    let queue_pair = unsafe { (functions.ibv_create_qp)(domain.as_ptr(), attributes) };
    NonNull::new(queue_pair).ok_or_else(|| Failure::last("ibv_create_qp"))
}

pub(super) unsafe fn modify_qp(
    functions: &Functions,
    queue_pair: NonNull<ibv_qp>,
    attributes: &mut ibv_qp_attr,
    mask: c_int,
) -> Answer<()> {
    // SAFETY: the contract of this module.
    let status = unsafe { (functions.ibv_modify_qp)(queue_pair.as_ptr(), attributes, mask) };
    check("ibv_modify_qp", status)
}

pub(super) unsafe fn destroy_qp(functions: &Functions, queue_pair: NonNull<ibv_qp>) -> Answer<()> {
    // SAFETY: the contract of this module.
    let status = unsafe { (functions.ibv_destroy_qp)(queue_pair.as_ptr()) };
    check("ibv_destroy_qp", status)
}

/// Fills the head of `completions`; how many.
#[inline]
pub(super) unsafe fn poll_cq(
    queue: NonNull<ibv_cq>,
    completions: &mut [MaybeUninit<ibv_wc>],
) -> Answer<usize> {
    let verb = "ibv_poll_cq";
    // SAFETY: the contract of this module.
    let context = unsafe { (*queue.as_ptr()).context };
    // SAFETY: a live queue's context is alive; its table is filled when the device is opened.
    let poll_cq = unsafe { (*context).ops.poll_cq };
    let poll_cq = poll_cq.ok_or_else(|| Failure::unsupported(verb))?;
    let room = c_int::try_from(completions.len()).unwrap_or(c_int::MAX);
    // SAFETY: the contract of this module; there is room for as many as are asked for.
    let count = unsafe { poll_cq(queue.as_ptr(), room, completions.as_mut_ptr().cast()) };
    usize::try_from(count).map_err(|_negative| Failure {
        verb,
        // The providers do not say why: the queue ran over or its memory is corrupt.
        errno: libc::EOVERFLOW,
    })
}

#[inline]
pub(super) unsafe fn req_notify_cq(queue: NonNull<ibv_cq>) -> Answer<()> {
    let verb = "ibv_req_notify_cq";
    // SAFETY: the contract of this module.
    let context = unsafe { (*queue.as_ptr()).context };
    // SAFETY: as in `poll_cq`.
    let req_notify_cq = unsafe { (*context).ops.req_notify_cq };
    let req_notify_cq = req_notify_cq.ok_or_else(|| Failure::unsupported(verb))?;
    // Not only solicited completions: the mesh marks none.
    // SAFETY: the contract of this module.
    let status = unsafe { req_notify_cq(queue.as_ptr(), 0) };
    check(verb, status)
}

/// Posts a linked list. When it fails, the first request that was not taken is returned with it.
#[inline]
pub(super) unsafe fn post_send(
    queue_pair: NonNull<ibv_qp>,
    list: NonNull<ibv_send_wr>,
) -> Result<(), (Failure, *mut ibv_send_wr)> {
    let verb = "ibv_post_send";
    // SAFETY: the contract of this module.
    let context = unsafe { (*queue_pair.as_ptr()).context };
    // SAFETY: as in `poll_cq`.
    let post_send = unsafe { (*context).ops.post_send };
    let post_send = post_send.ok_or_else(|| (Failure::unsupported(verb), list.as_ptr()))?;
    let mut refused = list.as_ptr();
    // SAFETY: the contract of this module; the list ends with a null.
    let status = unsafe { post_send(queue_pair.as_ptr(), list.as_ptr(), &raw mut refused) };
    check(verb, status).map_err(|failure| (failure, refused))
}

/// As `post_send`, for receives.
#[inline]
pub(super) unsafe fn post_recv(
    queue_pair: NonNull<ibv_qp>,
    list: NonNull<ibv_recv_wr>,
) -> Result<(), (Failure, *mut ibv_recv_wr)> {
    let verb = "ibv_post_recv";
    // SAFETY: the contract of this module.
    let context = unsafe { (*queue_pair.as_ptr()).context };
    // SAFETY: as in `poll_cq`.
    let post_recv = unsafe { (*context).ops.post_recv };
    let post_recv = post_recv.ok_or_else(|| (Failure::unsupported(verb), list.as_ptr()))?;
    let mut refused = list.as_ptr();
    // SAFETY: the contract of this module; the list ends with a null.
    let status = unsafe { post_recv(queue_pair.as_ptr(), list.as_ptr(), &raw mut refused) };
    check(verb, status).map_err(|failure| (failure, refused))
}

/// Verbs answer with 0, with an errno, or (old providers) with -1 and `errno`.
#[inline]
fn check(verb: &'static str, status: c_int) -> Answer<()> {
    match status {
        0 => Ok(()),
        -1 => Err(Failure::last(verb)),
        errno => Err(Failure {
            verb,
            errno: errno.saturating_abs(),
        }),
    }
}

/// After a read from a descriptor that does not block.
fn none_yet<T>(verb: &'static str) -> Answer<Option<T>> {
    let failure = Failure::last(verb);
    match failure.errno {
        libc::EAGAIN | libc::EINTR => Ok(None),
        _ => Err(failure),
    }
}

/// `IBV_ACCESS_OPTIONAL_RANGE`: flags that a kernel may ignore.
const OPTIONAL_ACCESS: c_int = 0x3ff0_0000;

/// Of `enum mlx5dv_reg_dmabuf_access`.
const MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT: c_int = 1;
