//! What scenarios have in common: a backend that is open, and its memory and streams.

use std::sync::atomic::AtomicU64;

use stepmesh_backend_rocm::RocmBackend;
use stepmesh_plugin::abi::Code;
use stepmesh_plugin::{
    AllocKind, AllocRequest, Backend as _, CopyRequest, Direction, Error, Host, Stream,
};

pub(crate) fn open() -> RocmBackend {
    RocmBackend::open(Host::absent()).expect("the simulated driver has devices")
}

/// The error of opening where there is no device, and that probing finds none.
pub(crate) fn refused() -> Error {
    let probe = RocmBackend::probe(&Host::absent()).expect("no runtime is no error of probe");
    assert_eq!((probe.device_count, probe.score), (0, 0));
    let error = RocmBackend::open(Host::absent()).expect_err("there is no device");
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.message().starts_with("no ROCm device: "), "{error}");
    error
}

pub(crate) fn alloc(backend: &RocmBackend, device: u32, len_bytes: u64) -> Result<u64, Error> {
    alloc_of(backend, device, len_bytes, AllocKind::Device)
}

pub(crate) fn alloc_of(
    backend: &RocmBackend,
    device: u32,
    len_bytes: u64,
    kind: AllocKind,
) -> Result<u64, Error> {
    let request = AllocRequest {
        len_bytes,
        align_bytes: 64,
        kind,
        rdma: false,
        shareable: false,
    };
    backend.alloc(device, &request)
}

pub(crate) fn stream(backend: &RocmBackend, device: u32) -> Stream {
    let raw = backend.stream_create(device, 0, true).unwrap();
    Stream { device, raw }
}

/// Copies within one device.
///
/// # Safety
/// - As [`stepmesh_plugin::Backend::memcpy_async`].
pub(crate) unsafe fn copy(
    backend: &RocmBackend,
    (to, from, len_bytes): (u64, u64, u64),
    stream: Stream,
) -> Result<(), Error> {
    let request = CopyRequest {
        dst: to,
        src: from,
        len_bytes,
        direction: Direction::DeviceToDevice,
        dst_device: stream.device,
        src_device: stream.device,
    };
    // SAFETY: this function's contract.
    unsafe { backend.memcpy_async(&request, stream) }
}

/// Words of 8 bytes in pinned memory that lives until the process ends.
#[derive(Clone, Copy)]
pub(crate) struct Words(u64);

impl Words {
    pub(crate) fn new(backend: &RocmBackend) -> Self {
        let words = Self(alloc_of(backend, 0, WORDS_LEN, AllocKind::HostPinned).unwrap());
        (0..WORDS_LEN / 8).for_each(|idx| {
            words
                .word(idx)
                .store(0, std::sync::atomic::Ordering::Release)
        });
        words
    }

    pub(crate) fn at(self, idx: u64) -> u64 {
        self.0 + idx * 8
    }

    pub(crate) fn word(self, idx: u64) -> &'static AtomicU64 {
        let at = usize::try_from(self.at(idx)).unwrap();
        // SAFETY: within pinned memory that is never freed, and used as atomics only.
        unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(at)) }
    }
}

/// What ends at once if it ends at all.
pub(crate) const LONG_NS: u64 = 20_000_000_000;
const WORDS_LEN: u64 = 4096;
