//! What crosses the boundary through pointers: errors, out values and sized structs. The pointers
//! are claims of the caller; the contract of the table says what they are.
#![expect(unsafe_code, reason = "reads and writes through the caller's pointers")]

use std::cell::RefCell;

use stepmesh_abi::error::SM_ERROR_FIXED_LEN;
use stepmesh_abi::{SmError, SmHdr};

use crate::{Error, Result};

/// Where a slot puts its answer.
pub(crate) trait Out: Copy {
    /// The answer.
    type Value;

    /// Refuses a null pointer and a struct without room for its header, before any work is done.
    ///
    /// # Safety
    /// - Every pointer is null or valid as the slot's documentation says.
    unsafe fn check(self) -> Result<()>;

    /// Writes the answer.
    ///
    /// # Safety
    /// - [`Out::check`] passed, and the pointers are still valid.
    unsafe fn write(self, value: Self::Value);
}

impl Out for () {
    type Value = ();

    unsafe fn check(self) -> Result<()> {
        Ok(())
    }

    unsafe fn write(self, (): ()) {}
}

/// An out pointer to a number or a pointer.
#[derive(Debug)]
pub(crate) struct Value<T>(pub(crate) *mut T);

impl<T> Clone for Value<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Value<T> {}

impl<T: Copy> Out for Value<T> {
    type Value = T;

    unsafe fn check(self) -> Result<()> {
        if self.0.is_null() {
            return Err(Error::invalid_argument("an out pointer is null"));
        }
        Ok(())
    }

    unsafe fn write(self, value: T) {
        // SAFETY: not null by `check`, valid for a `T` by the trait's contract.
        unsafe { self.0.write_unaligned(value) }
    }
}

/// Several out pointers.
impl<A: Out, B: Out> Out for (A, B) {
    type Value = (A::Value, B::Value);

    unsafe fn check(self) -> Result<()> {
        // SAFETY: this method's contract is that of both parts.
        unsafe { self.0.check()? };
        // SAFETY: as above.
        unsafe { self.1.check() }
    }

    unsafe fn write(self, value: Self::Value) {
        // SAFETY: this method's contract is that of both parts.
        unsafe { self.0.write(value.0) };
        // SAFETY: as above.
        unsafe { self.1.write(value.1) };
    }
}

/// An out pointer to a struct that starts with an [`SmHdr`] in which the caller put its size.
#[derive(Debug)]
pub(crate) struct Struct<T>(pub(crate) *mut T);

impl<T> Clone for Struct<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Struct<T> {}

impl<T: Copy> Out for Struct<T> {
    type Value = T;

    unsafe fn check(self) -> Result<()> {
        if self.0.is_null() {
            return Err(Error::invalid_argument("an out struct is null"));
        }
        // SAFETY: not null, and at least a header by the trait's contract.
        let size = unsafe { struct_size(self.0) };
        if size < size_of::<SmHdr>() {
            let message = format!("an out struct says it has {size} bytes; set hdr.struct_size");
            return Err(Error::invalid_argument(message));
        }
        Ok(())
    }

    unsafe fn write(self, value: T) {
        // SAFETY: not null by `check`, and at least a header by the trait's contract.
        let hdr = unsafe { self.0.cast::<SmHdr>().read_unaligned() };
        let len = to_len(hdr.struct_size).min(size_of::<T>());
        let mut filled = SmHdr::of::<T>();
        // The header says how much of the caller's struct was filled in.
        filled.struct_size = u32::try_from(len).unwrap_or(0);
        let from = (&raw const value).cast::<u8>();
        // SAFETY: `len` is within both structs (the smaller of the two sizes), which are distinct:
        // one is a local.
        unsafe { from.copy_to_nonoverlapping(self.0.cast::<u8>(), len) };
        // SAFETY: `check` saw room for a header.
        unsafe { self.0.cast::<SmHdr>().write_unaligned(filled) };
    }
}

/// Reads as much of the caller's struct as both sides know into `own`, in whole words.
///
/// # Safety
/// - `from` is valid for the `hdr.struct_size` bytes that it starts with saying.
/// - Any mix of whole words of a caller's `T` and of `own` is a valid `T`.
pub(crate) unsafe fn read_sized<T>(from: *const T, own: &mut T) -> Result<()> {
    // SAFETY: a caller's struct has at least a header.
    let size = unsafe { struct_size(from) };
    if size < size_of::<SmHdr>() {
        let message = format!("a struct says it has {size} bytes; set hdr.struct_size");
        return Err(Error::invalid_argument(message));
    }
    let len = size.min(size_of::<T>()) / WORD_LEN * WORD_LEN;
    let to = std::ptr::from_mut(own).cast::<u8>();
    // SAFETY: `len` is within the caller's struct and within `own`, which are distinct.
    unsafe { from.cast::<u8>().copy_to_nonoverlapping(to, len) };
    Ok(())
}

/// # Safety
/// - `from` is valid for a header.
unsafe fn struct_size<T>(from: *const T) -> usize {
    // SAFETY: this function's contract.
    to_len(unsafe { from.cast::<u32>().read_unaligned() })
}

fn to_len(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Tells the caller and the thread's `last_error` why a slot failed, and gives the slot's answer.
///
/// # Safety
/// - `err` is null or valid for the `struct_size` bytes that it starts with saying.
pub(crate) unsafe fn fail(err: *mut SmError, error: &Error) -> i32 {
    let full = error_struct(error);
    // A thread that is past its thread locals keeps none.
    let _ = LAST_ERROR.try_with(|last| last.replace(Some(full)));
    // SAFETY: this function's contract.
    unsafe { write_error(err, error) };
    full.code
}

/// The calling thread's last error, or an empty one.
pub(crate) fn last_error() -> SmError {
    LAST_ERROR
        .try_with(|last| *last.borrow())
        .ok()
        .flatten()
        .unwrap_or_default()
}

/// Writes an error within the caller's size; too small a struct stays as it is.
///
/// # Safety
/// - `err` is null or valid for the `struct_size` bytes that it starts with saying.
pub(crate) unsafe fn write_error(err: *mut SmError, error: &Error) {
    if err.is_null() {
        return;
    }
    // SAFETY: not null, and an error starts with its size.
    let size = unsafe { err.cast::<u32>().read_unaligned() };
    let Some(cap) = to_len(size).checked_sub(SM_ERROR_FIXED_LEN) else {
        return;
    };
    let mut full = error_struct(error);
    full.set_message_within(error.message(), cap);
    let len = SM_ERROR_FIXED_LEN - SIZE_FIELD_LEN + full.message_len();
    let from = (&raw const full).cast::<u8>();
    // SAFETY: the size field is within the local.
    let from = unsafe { from.add(SIZE_FIELD_LEN) };
    // SAFETY: the caller's struct has at least the fixed part, checked above.
    let to = unsafe { err.cast::<u8>().add(SIZE_FIELD_LEN) };
    // SAFETY: the fixed part and the cut message fit in the caller's `size` bytes and in the local;
    // the two are distinct.
    unsafe { from.copy_to_nonoverlapping(to, len) };
}

/// Copies the thread's last error to the caller and gives its code.
///
/// # Safety
/// - `err` is null or valid for the `struct_size` bytes that it starts with saying.
pub(crate) unsafe fn copy_last_error(err: *mut SmError) -> i32 {
    let last = last_error();
    let bytes = last.message_bytes();
    let message = String::from_utf8_lossy(&bytes[..last.message_len()]);
    let error = Error::new(stepmesh_abi::Code::from_raw(last.code), message)
        .with_flags(last.flags)
        .with_native_code(last.native_code);
    // SAFETY: this function's contract.
    unsafe { write_error(err, &error) };
    last.code
}

/// The error as the ABI's struct, cut to its full size.
pub(crate) fn error_struct(error: &Error) -> SmError {
    let mut out = SmError::with_message(error.code().raw(), error.message());
    out.flags |= error.flags();
    out.native_code = error.native_code();
    out
}

thread_local! {
    static LAST_ERROR: RefCell<Option<SmError>> = const { RefCell::new(None) };
}

/// Fields of the ABI's tables are whole words, so a prefix never holds half a pointer.
const WORD_LEN: usize = 8;
/// Bytes of an error's size field, which is the caller's to write.
const SIZE_FIELD_LEN: usize = 4;
