//! Ranges of memory that a slot may be given: of an allocation, or of a buffer of the host's. They
//! are checked against what they are part of; that it still lives is the check's business.
#![expect(
    unsafe_code,
    reason = "reads and writes host memory through its address"
)]

/// Memory of the plugin's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) dev: u32,
    pub(crate) ptr: u64,
    pub(crate) len_bytes: u64,
}

/// A buffer of the host's. Leaked: work of a plugin on it may outlive everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostBuffer {
    start: *mut u8,
    len_bytes: usize,
}

// SAFETY: the buffer is leaked and belongs to no thread; who reads it has waited for those who write.
unsafe impl Send for HostBuffer {}
// SAFETY: as for `Send`.
unsafe impl Sync for HostBuffer {}

/// Part of an allocation or of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) dev: Option<u32>,
    pub(crate) addr: u64,
    pub(crate) len_bytes: u64,
}

impl Allocation {
    pub(crate) fn all(&self) -> Range {
        self.at(0, self.len_bytes)
    }

    /// A part; cut to what is there.
    pub(crate) fn at(&self, offset: u64, len_bytes: u64) -> Range {
        let offset = offset.min(self.len_bytes);
        Range {
            dev: Some(self.dev),
            addr: self.ptr + offset,
            len_bytes: len_bytes.min(self.len_bytes - offset),
        }
    }
}

impl HostBuffer {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let leaked = Box::leak(bytes.to_vec().into_boxed_slice());
        Self {
            len_bytes: leaked.len(),
            start: leaked.as_mut_ptr(),
        }
    }

    pub(crate) fn zeroed(len_bytes: usize) -> Self {
        Self::new(&vec![0; len_bytes])
    }

    pub(crate) fn all(&self) -> Range {
        self.at(0, self.len_bytes)
    }

    /// A part; cut to what is there.
    pub(crate) fn at(&self, offset: usize, len_bytes: usize) -> Range {
        let offset = offset.min(self.len_bytes);
        let len = len_bytes.min(self.len_bytes - offset);
        Range {
            dev: None,
            addr: wide(self.start.expose_provenance() + offset),
            len_bytes: wide(len),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// What is there now; the work that writes it is done.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        // SAFETY: leaked, initialised and never freed; the check has waited for its writers.
        unsafe { std::slice::from_raw_parts(self.start, self.len_bytes) }.to_vec()
    }
}

impl Range {
    /// Reads memory of which the plugin says that the host may touch it.
    pub(crate) fn read_as_host(&self) -> Vec<u8> {
        let from = std::ptr::with_exposed_provenance::<u8>(narrow(self.addr));
        let mut out = vec![0; narrow(self.len_bytes)];
        // SAFETY: the plugin said that the host may access these bytes; if that is a lie, this
        // process dies of it, which is the verdict.
        unsafe { from.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        out
    }

    /// Writes memory of which the plugin says that the host may touch it.
    /// The shorter of the two says how much.
    pub(crate) fn write_as_host(&self, bytes: &[u8]) {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(narrow(self.addr));
        let len = narrow(self.len_bytes).min(bytes.len());
        // SAFETY: as for `read_as_host`; the plugin's memory is not this slice.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), len) };
    }
}

/// Addresses and lengths of the ABI have 64 bits.
pub(crate) fn wide(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// The other way round; the checks use no length that does not fit.
pub(crate) fn narrow(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
