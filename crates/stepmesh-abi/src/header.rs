//! The header that starts every struct of the ABI, the version numbers, and the string view.
//! What the structs mean lives with each of them.

use core::ffi::c_char;

/// The first field of every struct that crosses the boundary (except [`crate::SmError`], which
/// carries its size alone).
///
/// `struct_size` is always `sizeof` of the struct as the writer knows it. The reader uses the
/// smaller of that and its own `sizeof`; a field beyond it is absent and has its default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmHdr {
    /// Bytes of the whole struct, this header included, as its writer knows it.
    pub struct_size: u32,
    /// Major version of the ABI that the writer was built with.
    pub abi_major: u16,
    /// Minor version of the ABI that the writer was built with.
    pub abi_minor: u16,
}

impl SmHdr {
    /// The header of a `T` written by this build.
    #[must_use]
    pub const fn of<T>() -> Self {
        let size = size_of::<T>();
        assert!(
            size <= u32::MAX as usize,
            "an ABI struct is far smaller than 4 GiB"
        );
        #[expect(clippy::cast_possible_truncation, reason = "checked on the line above")]
        let struct_size = size as u32;
        Self {
            struct_size,
            abi_major: SM_ABI_MAJOR,
            abi_minor: SM_ABI_MINOR,
        }
    }
}

/// A string in a struct: pointer and length, UTF-8, without a terminating NUL.
///
/// The pointer may be null when the length is 0. The text lives as long as its owner says; readers
/// copy it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmStr {
    /// First byte, or null when `len` is 0.
    pub ptr: *const c_char,
    /// Length in bytes.
    pub len: u32,
    /// Zero.
    pub pad0: u32,
}

impl SmStr {
    /// A view of static text.
    ///
    /// # Panics
    /// When the text is 4 GiB or longer; in a constant that is a compile error.
    #[must_use]
    pub const fn of(text: &'static str) -> Self {
        assert!(
            text.len() <= u32::MAX as usize,
            "text is too long for the ABI"
        );
        #[expect(clippy::cast_possible_truncation, reason = "checked on the line above")]
        let len = text.len() as u32;
        Self {
            ptr: text.as_ptr().cast(),
            len,
            pad0: 0,
        }
    }
}

/// Major version of the ABI. It is part of the entry symbol's name, so a library of another major
/// is never called by mistake.
pub const SM_ABI_MAJOR: u16 = 1;
/// Minor version of the ABI: counts appended fields and slots. Any two minors work together.
pub const SM_ABI_MINOR: u16 = 0;

const _: () = assert!(size_of::<SmHdr>() == 8 && align_of::<SmHdr>() == 4);
const _: () = assert!(size_of::<SmStr>() == 16);
