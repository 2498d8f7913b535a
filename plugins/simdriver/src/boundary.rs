//! The C side of the libraries: how arguments are read and answers written, and what each call has in
//! common. The functions themselves are in the libraries.
#![expect(unsafe_code, reason = "reads and writes through pointers of C callers")]

use std::ffi::{CStr, c_char, c_void};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::code::{self, HEAD_LEN, Image, MAGIC};
use crate::driver::existing;
use crate::faults::{Effect, Faults};
use crate::{Answer, Status};

/// Where a call writes an answer.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes it; a null pointer is refused.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn set(self, value: T) -> Answer<()> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the C function passed a place of this type.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// What is there, for places that are read too.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn get(self) -> Answer<T>
    where
        T: Copy,
    {
        Values(self.0.cast_const()).get(0)
    }

    /// Writes it if the caller wants to know.
    pub fn set_if_wanted(self, value: T) {
        // Null says that it does not.
        let _ = self.set(value);
    }

    /// The place as one of another type, for calls whose answer has many.
    #[must_use]
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// Values that a call reads.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Values<T>(*const T);

impl<T: Copy> Values<T> {
    /// The same place as one of values of another type, for calls that say the type elsewhere.
    #[must_use]
    pub fn cast<U>(self) -> Values<U> {
        Values(self.0.cast())
    }

    /// The value at an index; null is refused.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn get(self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let at = self.0.wrapping_add(index);
        // SAFETY: not null, and the caller of the C function passed as many values as it said.
        Ok(unsafe { at.read() })
    }
}

/// Where a call writes text.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct OutText(*mut c_char);

impl OutText {
    /// Writes as much as fits, and a NUL.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null or no room.
    pub fn set(self, text: &str, capacity: i32) -> Answer<()> {
        let capacity = usize::try_from(capacity).unwrap_or(0);
        if self.0.is_null() || capacity == 0 {
            return Err(Status::INVALID_VALUE);
        }
        let len = text.floor_char_boundary(capacity - 1);
        // SAFETY: the caller of the C function passed room for `capacity` bytes.
        let room = unsafe { std::slice::from_raw_parts_mut(self.0.cast::<u8>(), len + 1) };
        let (last, all) = room.split_last_mut().ok_or(Status::INVALID_VALUE)?;
        all.copy_from_slice(text.as_bytes().get(..len).unwrap_or_default());
        *last = 0;
        Ok(())
    }
}

impl OutText {
    /// Writes bytes for which the caller was told how much room they take.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null.
    pub fn put(self, bytes: &[u8]) -> Answer<()> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the C function passed room for what it asked about.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.cast::<u8>(), bytes.len()) };
        Ok(())
    }
}

/// NUL-terminated text that a call reads.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Text(*const c_char);

impl Text {
    /// The text.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null.
    pub fn get(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and NUL-terminated by the C function's contract.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// The image of a module.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct ImageAt(*const u8);

impl ImageAt {
    /// The image, whose length it tells itself: text by its NUL, and a library by a number.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null, `INVALID_IMAGE` for what is none.
    pub(crate) fn get(self) -> Answer<Image> {
        let bytes = Values(self.0);
        // As far as it is the same, there is another byte.
        let is_library = MAGIC
            .iter()
            .enumerate()
            .all(|(idx, byte)| bytes.get(idx) == Ok(*byte));
        if !is_library {
            return Ok(Image::Text(Text(self.0.cast()).get()?));
        }
        let mut head = Vec::new();
        for idx in 0..HEAD_LEN {
            head.push(bytes.get(MAGIC.len() + idx)?);
        }
        let (key, len) = code::head(&head).ok_or(Status::INVALID_IMAGE)?;
        let start = self.0.wrapping_add(MAGIC.len() + HEAD_LEN);
        // SAFETY: the caller of the C function passed a whole image, which says how long it is.
        let library = unsafe { std::slice::from_raw_parts(start, len) };
        Ok(Image::Library {
            key,
            bytes: library.to_vec(),
        })
    }
}

/// The parameters of a kernel.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Params(*mut *mut c_void);

impl Params {
    /// The first `count` parameters, of 8 bytes each.
    ///
    /// # Errors
    /// `INVALID_VALUE` for null.
    pub fn words(self, count: usize) -> Answer<Vec<u64>> {
        let pointers = Values(self.0.cast_const());
        let word = |idx| Values(pointers.get(idx)?.cast::<u64>().cast_const()).get(0);
        (0..count).map(word).collect()
    }
}

/// Closes a descriptor that a caller gives back.
pub fn close(fd: i32) {
    if fd >= 0 {
        // SAFETY: not -1, and the caller of the C function hands it over.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

/// What each call has in common: its fault, if one was asked for, and that nothing unwinds into C.
#[must_use]
pub fn call(name: &str, work: impl FnOnce() -> Answer<()>) -> i32 {
    match Faults::of_process().count(name, None) {
        Some(Effect::Status(status)) => return status,
        Some(Effect::Sticky(status)) => {
            if let Some(driver) = existing() {
                driver.break_all(Status(status));
            }
            return status;
        }
        // Work stands still, not calls.
        Some(Effect::Stuck) | None => {}
    }
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => 0,
        Ok(Err(status)) => status.0,
        Err(_) => Status::UNKNOWN.0,
    }
}

/// Makes the functions of a library. Each body is the work of [`call`].
#[macro_export]
macro_rules! api {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block
    )*) => {$(
        $(#[$meta])*
        // SAFETY: the vendor's name is what this library stands in for; it is loaded by tests only.
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> i32 {
            $crate::call(stringify!($name), || $body)
        }
    )*};
}

/// Makes functions that give static text with a NUL at its end.
#[macro_export]
macro_rules! text_api {
    ($(fn $name:ident($arg:ident: $type:ty) $body:block)*) => {$(
        // SAFETY: the vendor's name is what this library stands in for; it is loaded by tests only.
        #[unsafe(no_mangle)]
        extern "C" fn $name($arg: $type) -> *const u8 {
            let text: &'static str = $body;
            text.as_ptr()
        }
    )*};
}
