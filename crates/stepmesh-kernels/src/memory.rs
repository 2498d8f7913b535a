//! The memory that a plan reads and writes, and the only code of this crate that touches it through
//! addresses. Which step touches what lives in the plan; matrix products call into `gemm` here.
#![expect(unsafe_code, reason = "reads and writes memory by its address")]

use gemm::Parallelism;
use pulp::bytemuck::Pod;

/// A range of memory: an argument, an output or a part of the workspace.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    addr: usize,
    len_bytes: usize,
}

/// Numbers that any bytes are a value of.
pub(crate) trait Element: Copy + Send + Sync + 'static {}

impl Element for u8 {}
impl Element for u16 {}
impl Element for i32 {}
impl Element for i64 {}
impl Element for f32 {}
impl Element for f64 {}

/// A matrix within a region, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub(crate) region: Region,
    pub(crate) start: usize,
    pub(crate) row_stride: usize,
    pub(crate) column_stride: usize,
}

/// Numbers that `gemm` multiplies.
pub(crate) trait Multiply: Element {
    const ONE: Self;
}

impl Multiply for f32 {
    const ONE: Self = 1.0;
}

impl Multiply for f64 {
    const ONE: Self = 1.0;
}

impl Region {
    /// No memory.
    pub const EMPTY: Self = Self {
        addr: 1,
        len_bytes: 0,
    };

    /// A range of this process's memory.
    ///
    /// # Safety
    /// - The range is valid for reading, and for writing if a plan writes to it, as long as a run
    ///   uses the region or a copy of it.
    /// - No one else writes to it meanwhile, or reads what a plan writes; regions of one run overlap
    ///   only where the plan was compiled for it.
    #[must_use]
    pub unsafe fn new(addr: usize, len_bytes: usize) -> Self {
        Self { addr, len_bytes }
    }

    /// Regions of addresses with their lengths.
    ///
    /// # Safety
    /// - As [`Region::new`], for each.
    #[must_use]
    pub unsafe fn list(addresses: &[u64], lens: &[usize]) -> Vec<Self> {
        let region = |(address, len): (&u64, &usize)| {
            let address = usize::try_from(*address).unwrap_or(usize::MAX);
            // SAFETY: this function's contract.
            unsafe { Self::new(address, *len) }
        };
        addresses.iter().zip(lens).map(region).collect()
    }

    /// The region of a slice, for as long as the borrow that the caller keeps.
    #[must_use]
    pub(crate) fn of<T: Element>(memory: &mut [T]) -> Self {
        Self {
            addr: memory.as_mut_ptr().expose_provenance(),
            len_bytes: size_of_val(memory),
        }
    }

    /// The region of a slice that no plan writes to.
    pub(crate) fn read_only<T: Element>(memory: &[T]) -> Self {
        Self {
            addr: memory.as_ptr().expose_provenance(),
            len_bytes: size_of_val(memory),
        }
    }

    /// Bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// First address.
    pub(crate) fn addr(&self) -> usize {
        self.addr
    }

    /// A part; empty where it is not within.
    pub(crate) fn part(&self, offset_bytes: usize, len_bytes: usize) -> Self {
        let end = offset_bytes.checked_add(len_bytes);
        if end.is_none_or(|end| end > self.len_bytes) {
            debug_assert!(false, "a part of a region lies outside of it");
            return Self::EMPTY;
        }
        Self {
            addr: self.addr + offset_bytes,
            len_bytes,
        }
    }

    /// Reads elements that lie `stride` apart, from the one at `start`, and converts each.
    #[inline(always)]
    pub(crate) fn read<T: Element, U>(
        &self,
        start: usize,
        stride: usize,
        to: &mut [U],
        convert: impl Fn(T) -> U,
    ) {
        if !self.holds::<T>(start, stride, to.len()) {
            return;
        }
        let from = std::ptr::with_exposed_provenance::<T>(self.addr);
        // SAFETY: `start` is within the region, as `holds` saw.
        let from = unsafe { from.add(start) };
        if stride == 1 {
            for (idx, slot) in to.iter_mut().enumerate() {
                // SAFETY: within the region, as `holds` saw.
                let at = unsafe { from.add(idx) };
                // SAFETY: valid for reading by `new`'s contract; any bytes are a `T`.
                *slot = convert(unsafe { at.read_unaligned() });
            }
            return;
        }
        for (idx, slot) in to.iter_mut().enumerate() {
            // SAFETY: within the region, as `holds` saw.
            let at = unsafe { from.add(idx * stride) };
            // SAFETY: valid for reading by `new`'s contract; any bytes are a `T`.
            *slot = convert(unsafe { at.read_unaligned() });
        }
    }

    /// Converts elements and writes them `stride` apart, to the one at `start` first.
    ///
    /// Tasks that run at one time write to different elements: each kernel's plan says which.
    #[inline(always)]
    pub(crate) fn write<T: Element, U: Copy>(
        &self,
        start: usize,
        stride: usize,
        from: &[U],
        convert: impl Fn(U) -> T,
    ) {
        if !self.holds::<T>(start, stride, from.len()) {
            return;
        }
        let to = std::ptr::with_exposed_provenance_mut::<T>(self.addr);
        // SAFETY: `start` is within the region, as `holds` saw.
        let to = unsafe { to.add(start) };
        if stride == 1 {
            for (idx, value) in from.iter().enumerate() {
                // SAFETY: within the region, as `holds` saw.
                let at = unsafe { to.add(idx) };
                // SAFETY: valid for writing, and written by no one else, by `new`'s contract.
                unsafe { at.write_unaligned(convert(*value)) };
            }
            return;
        }
        for (idx, value) in from.iter().enumerate() {
            // SAFETY: within the region, as `holds` saw.
            let at = unsafe { to.add(idx * stride) };
            // SAFETY: valid for writing, and written by no one else, by `new`'s contract.
            unsafe { at.write_unaligned(convert(*value)) };
        }
    }

    /// Reads what lies at an element as one value of several.
    #[inline(always)]
    pub(crate) fn read_block<T: Element, U: Pod>(&self, start: usize) -> U {
        if !self.holds::<T>(start, 1, size_of::<U>() / size_of::<T>()) {
            return U::zeroed();
        }
        let from = std::ptr::with_exposed_provenance::<T>(self.addr);
        // SAFETY: `start` is within the region, as `holds` saw.
        let from = unsafe { from.add(start) };
        // SAFETY: as long as `holds` saw; valid for reading by `new`'s contract; any bytes are a `U`.
        unsafe { from.cast::<U>().read_unaligned() }
    }

    /// Writes a value of several elements, to the one at `start` first.
    #[inline(always)]
    pub(crate) fn write_block<T: Element, U: Pod>(&self, start: usize, block: U) {
        if !self.holds::<T>(start, 1, size_of::<U>() / size_of::<T>()) {
            return;
        }
        let to = std::ptr::with_exposed_provenance_mut::<T>(self.addr);
        // SAFETY: `start` is within the region, as `holds` saw.
        let to = unsafe { to.add(start) };
        // SAFETY: as long as `holds` saw; valid for writing, and written by no one else, by `new`'s
        // contract.
        unsafe { to.cast::<U>().write_unaligned(block) };
    }

    /// Has the processor bring elements that are wanted soon into its nearest cache; nothing where the
    /// region is so small that a cache holds it, and what lies outside is left out.
    #[inline(always)]
    pub(crate) fn prefetch<T: Element>(&self, start: usize, count: usize) {
        if self.len_bytes < CACHED_LEN_BYTES {
            return;
        }
        let first = self.len_bytes.min(start * size_of::<T>());
        let end = self.len_bytes.min(first + count * size_of::<T>());
        for offset in (first..end).step_by(LINE_LEN_BYTES) {
            fetch(std::ptr::with_exposed_provenance(self.addr + offset));
        }
    }

    /// Copies bytes from another region; ranges may overlap.
    pub(crate) fn copy_from(&self, offset: usize, from: &Self, from_offset: usize, len: usize) {
        if !self.holds::<u8>(offset, 1, len) || !from.holds::<u8>(from_offset, 1, len) {
            return;
        }
        let source = std::ptr::with_exposed_provenance::<u8>(from.addr);
        // SAFETY: within the region, as `holds` saw.
        let source = unsafe { source.add(from_offset) };
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.addr);
        // SAFETY: within the region, as `holds` saw.
        let to = unsafe { to.add(offset) };
        // SAFETY: both are valid for `len` bytes by `new`'s contract and `holds`.
        unsafe { to.copy_from(source, len) };
    }

    /// Whether so many elements lie within. A plan never asks for others; this is what stands
    /// between a fault in one and other people's memory.
    #[inline(always)]
    fn holds<T>(&self, start: usize, stride: usize, count: usize) -> bool {
        if count == 0 {
            return false;
        }
        let last = (count - 1)
            .checked_mul(stride)
            .and_then(|span| span.checked_add(start));
        let holds = last.is_some_and(|last| last < self.len_bytes / size_of::<T>());
        debug_assert!(holds, "element {last:?} of {} bytes", self.len_bytes);
        holds
    }
}

/// The processor's hint, on those that have one in stable Rust.
#[inline(always)]
fn fetch(line: *const i8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction (SSE); it is a hint, which reads nothing
        // and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

impl Matrix {
    fn holds<T>(&self, rows: usize, columns: usize) -> bool {
        let down = (rows - 1).checked_mul(self.row_stride);
        let across = (columns - 1).checked_mul(self.column_stride);
        let last = down
            .zip(across)
            .and_then(|(down, across)| down.checked_add(across)?.checked_add(self.start));
        let holds = last.is_some_and(|last| last < self.region.len_bytes / size_of::<T>());
        debug_assert!(holds, "a matrix lies outside of its region");
        holds
    }

    fn pointer<T>(&self) -> *mut T {
        let first = std::ptr::with_exposed_provenance_mut::<T>(self.region.addr);
        first.wrapping_add(self.start)
    }

    fn strides(&self) -> Option<(isize, isize)> {
        let row = isize::try_from(self.row_stride).ok()?;
        Some((row, isize::try_from(self.column_stride).ok()?))
    }
}

/// `to = left × right`, or that added to it, with `to` of `rows` × `columns`, on the calling thread.
pub(crate) fn multiply<T: Multiply>(
    to: Matrix,
    adds: bool,
    left: Matrix,
    right: Matrix,
    (rows, columns, depth): (usize, usize, usize),
) {
    if rows == 0 || columns == 0 {
        return;
    }
    let (Some(to_strides), Some(left_strides), Some(right_strides)) =
        (to.strides(), left.strides(), right.strides())
    else {
        return;
    };
    let has_operands = depth == 0
        || (left.holds::<T>(rows, depth)
            && right.holds::<T>(depth, columns)
            && is_aligned::<T>(&left)
            && is_aligned::<T>(&right));
    if !(to.holds::<T>(rows, columns) && is_aligned::<T>(&to) && has_operands) {
        return;
    }
    // SAFETY: all three matrices lie within their regions and are aligned, as checked above; the
    // regions are valid by the contract of `Region::new`; `to` overlaps no operand, because the
    // plan gives a product's result memory that no operand has.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            depth,
            to.pointer::<T>(),
            to_strides.1,
            to_strides.0,
            adds,
            left.pointer::<T>(),
            left_strides.1,
            left_strides.0,
            right.pointer::<T>(),
            right_strides.1,
            right_strides.0,
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// Whether elements lie as the processor wants them; a caller's buffer need not.
pub(crate) fn is_aligned<T>(matrix: &Matrix) -> bool {
    matrix.region.addr().is_multiple_of(align_of::<T>())
}

/// Below this a region is taken to be in the caches of a core, where fetching ahead only costs.
const CACHED_LEN_BYTES: usize = 512 << 10;
/// Bytes of a cache line of x86-64.
const LINE_LEN_BYTES: usize = 64;
