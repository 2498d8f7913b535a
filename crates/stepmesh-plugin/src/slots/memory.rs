//! Slots that allocate, copy and ask about memory.
#![expect(unsafe_code, reason = "functions of the C table")]

use std::ffi::c_void;

use stepmesh_abi::memory::SM_REGISTER_READ_ONLY;
use stepmesh_abi::{SmBackend, SmError, SmPtrAttr};

use crate::boundary::{Struct, Value};
use crate::instance::{Instance, Phase, slot};
use crate::request::known_bits;
use crate::{AllocRequest, Backend, CopyRequest, Direction, Error, FillRequest, Result, Stream};

pub(crate) unsafe extern "C" fn alloc<B: Backend>(
    s: *mut SmBackend,
    dev: u32,
    size: u64,
    align: u64,
    kind: u32,
    flags: u32,
    ptr: *mut u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let dev = i.check_device(dev)?;
        let request = AllocRequest::from_raw(size, align, kind, flags)?;
        if size == 0 {
            Ok(0)
        } else {
            i.backend.alloc(dev, &request)
        }
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "alloc", Phase::Open, Value(ptr), work) }
}

pub(crate) unsafe extern "C" fn free<B: Backend>(
    s: *mut SmBackend,
    dev: u32,
    ptr: u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let dev = i.check_device(dev)?;
        if ptr == 0 {
            return Ok(());
        }
        // SAFETY: the table's contract: no work on the memory is in flight, and its use ends here.
        unsafe { i.backend.free(dev, ptr) }
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "free", Phase::Ending, (), work) }
}

pub(crate) unsafe extern "C" fn alloc_async<B: Backend>(
    s: *mut SmBackend,
    dev: u32,
    size: u64,
    stream_dev: u32,
    stream: u64,
    ptr: *mut u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let dev = i.check_device(dev)?;
        let stream = Stream::from_raw(i.check_device(stream_dev)?, stream)?;
        if size == 0 {
            Ok(0)
        } else {
            i.backend.alloc_async(dev, size, stream)
        }
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "alloc_async", Phase::Open, Value(ptr), work) }
}

pub(crate) unsafe extern "C" fn free_async<B: Backend>(
    s: *mut SmBackend,
    dev: u32,
    ptr: u64,
    stream_dev: u32,
    stream: u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let dev = i.check_device(dev)?;
        let stream = Stream::from_raw(i.check_device(stream_dev)?, stream)?;
        if ptr == 0 {
            return Ok(());
        }
        // SAFETY: the table's contract: the memory's use ends where the stream gets there.
        unsafe { i.backend.free_async(dev, ptr, stream) }
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "free_async", Phase::Open, (), work) }
}

pub(crate) unsafe extern "C" fn host_register<B: Backend>(
    s: *mut SmBackend,
    ptr: *mut c_void,
    size: u64,
    flags: u32,
    dptr: *mut u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        known_bits("register flags", flags, SM_REGISTER_READ_ONLY)?;
        if ptr.is_null() || size == 0 {
            return Err(Error::invalid_argument("host_register of an empty range"));
        }
        let ptr = u64::try_from(ptr.expose_provenance()).unwrap_or(u64::MAX);
        let read_only = flags & SM_REGISTER_READ_ONLY != 0;
        // SAFETY: the table's contract: the range is mapped until it is unregistered.
        unsafe { i.backend.host_register(ptr, size, read_only) }
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "host_register", Phase::Open, Value(dptr), work) }
}

pub(crate) unsafe extern "C" fn host_unregister<B: Backend>(
    s: *mut SmBackend,
    ptr: *mut c_void,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        i.backend
            .host_unregister(u64::try_from(ptr.addr()).unwrap_or(u64::MAX))
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "host_unregister", Phase::Ending, (), work) }
}

pub(crate) unsafe extern "C" fn pointer_attributes<B: Backend>(
    s: *mut SmBackend,
    ptr: u64,
    out: *mut SmPtrAttr,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| i.backend.pointer_attributes(ptr);
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "pointer_attributes", Phase::Open, Struct(out), work) }
}

pub(crate) unsafe extern "C" fn memcpy_async<B: Backend>(
    s: *mut SmBackend,
    dst: u64,
    src: u64,
    size: u64,
    dir: u32,
    dst_dev: u32,
    src_dev: u32,
    stream_dev: u32,
    stream: u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let stream = Stream::from_raw(i.check_device(stream_dev)?, stream)?;
        let request = copy_request(i, [dst, src, size], dir, dst_dev, src_dev)?;
        // SAFETY: the table's contract: both ranges are valid, apart, and not used otherwise until
        // the stream did the copy.
        unsafe { i.backend.memcpy_async(&request, stream) }
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "memcpy_async", Phase::Open, (), work) }
}

pub(crate) unsafe extern "C" fn memcpy_sync<B: Backend>(
    s: *mut SmBackend,
    dst: u64,
    src: u64,
    size: u64,
    dir: u32,
    dst_dev: u32,
    src_dev: u32,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let request = copy_request(i, [dst, src, size], dir, dst_dev, src_dev)?;
        // SAFETY: the table's contract: both ranges are valid, apart, and not used otherwise
        // meanwhile.
        unsafe { i.backend.memcpy_sync(&request) }
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "memcpy_sync", Phase::Open, (), work) }
}

pub(crate) unsafe extern "C" fn memset_async<B: Backend>(
    s: *mut SmBackend,
    dst: u64,
    value: u32,
    width: u32,
    size: u64,
    stream_dev: u32,
    stream: u64,
    err: *mut SmError,
) -> i32 {
    let work = |i: &Instance<B>| {
        let stream = Stream::from_raw(i.check_device(stream_dev)?, stream)?;
        let request = FillRequest::from_raw(dst, value, width, size)?;
        if size != 0 && dst == 0 {
            return Err(Error::invalid_argument("memset_async of address 0"));
        }
        // SAFETY: the table's contract: the range is valid and not used otherwise until the stream
        // filled it.
        unsafe { i.backend.memset_async(&request, stream) }
    };
    // SAFETY: the table's contract for the instance, out pointers and `err`.
    unsafe { slot::<B, _>(s, err, "memset_async", Phase::Open, (), work) }
}

fn copy_request<B: Backend>(
    i: &Instance<B>,
    [dst, src, len_bytes]: [u64; 3],
    dir: u32,
    dst_dev: u32,
    src_dev: u32,
) -> Result<CopyRequest> {
    let direction = CopyRequest::direction_from_raw(dir)?;
    if len_bytes != 0 && (dst == 0 || src == 0) {
        let message =
            format!("a copy of {len_bytes} bytes from {src:#x} to {dst:#x}: null address");
        return Err(Error::invalid_argument(message));
    }
    // A host side has no device; its argument is not looked at.
    let (to_device, from_device) = match direction {
        Direction::Auto => (false, false),
        Direction::HostToDevice => (true, false),
        Direction::DeviceToHost => (false, true),
        Direction::DeviceToDevice | Direction::PeerToPeer => (true, true),
    };
    let dst_device = if to_device {
        i.check_device(dst_dev)?
    } else {
        dst_dev
    };
    let src_device = if from_device {
        i.check_device(src_dev)?
    } else {
        src_dev
    };
    Ok(CopyRequest {
        dst,
        src,
        len_bytes,
        direction,
        dst_device,
        src_device,
    })
}
