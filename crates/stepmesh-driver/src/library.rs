//! A vendor's library: found by name when it is needed, and its functions one by one. What a function
//! does is the vendor's; which of them serves which call is told by the plugin's `driver.rs`.
#![expect(unsafe_code, reason = "opens libraries and names their functions")]

use std::ffi::{CStr, OsStr, c_void};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use libloading::os::unix;

/// An open library. It is never unloaded, so its functions stay callable when this is dropped.
#[derive(Debug)]
pub struct Library {
    library: unix::Library,
    name: &'static str,
}

impl Library {
    /// Opens the first of several names that the loader finds, in order.
    ///
    /// # Errors
    /// What the loader answered to each name, as text.
    pub fn open(names: &[&'static str]) -> Result<Self, String> {
        let flags = unix::RTLD_NOW | unix::RTLD_LOCAL | RTLD_NODELETE;
        let mut answers = String::from("looked for");
        for (idx, name) in names.iter().enumerate() {
            // SAFETY: constructors of a vendor's library run; that they may is why it is installed.
            match unsafe { unix::Library::open(Some(OsStr::new(name)), flags) } {
                Ok(library) => return Ok(Self { library, name }),
                Err(error) => {
                    let error = loader_answer(&error);
                    let comma = if idx == 0 { "" } else { "," };
                    // Writing to a string cannot fail.
                    let _ = write!(answers, "{comma} {name}: {error}");
                }
            }
        }
        Err(answers)
    }

    /// The name by which it was found.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The address of a function, if there is one of this name.
    #[must_use]
    pub fn address(&self, name: &CStr) -> Option<*const c_void> {
        // SAFETY: the symbol is only looked at as an address.
        let symbol = unsafe { self.library.get::<*const c_void>(name.to_bytes_with_nul()) };
        let address = symbol.ok()?.into_raw().cast_const();
        (!address.is_null()).then_some(address)
    }

    /// The file of a function, as the loader knows it.
    #[must_use]
    pub fn file_of(&self, function: &CStr) -> Option<PathBuf> {
        let address = self.address(function)?;
        let mut info = libc::Dl_info {
            dli_fname: std::ptr::null(),
            dli_fbase: std::ptr::null_mut(),
            dli_sname: std::ptr::null(),
            dli_saddr: std::ptr::null_mut(),
        };
        // SAFETY: `info` is a local; any address may be asked about.
        let found = unsafe { libc::dladdr(address, &raw mut info) };
        if found == 0 || info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the loader's own NUL-terminated name of a library that is never unloaded.
        let name = unsafe { CStr::from_ptr(info.dli_fname) };
        Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    }
}

/// The loader's own words, without what the library around it adds.
fn loader_answer(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    let text = source.map_or_else(|| error.to_string(), ToString::to_string);
    // The loader repeats the name that it was asked for.
    match text.split_once(": ") {
        Some((_, answer)) => answer.to_owned(),
        None => text,
    }
}

/// Makes a struct of a vendor's functions, each looked up by its own name. A function that the
/// library does not have answers [`Failure::Missing`](crate::Failure::Missing) when it is called;
/// nothing panics. Each returns the vendor's status, of which 0 is success; a status stays a number,
/// because a newer driver may know more of them than its bindings do.
///
/// ```text
/// stepmesh_driver::functions! {
///     /// The functions of libcuda.
///     pub(crate) struct Functions {
///         fn cuInit(flags: c_uint);
///     }
/// }
/// ```
#[macro_export]
macro_rules! functions {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $(fn $function:ident($($arg:ident: $type:ty),* $(,)?);)*
        }
    ) => {
        $(#[$meta])*
        #[expect(non_snake_case, reason = "the vendor's names")]
        #[derive(Debug)]
        $vis struct $name {
            $($function: Option<unsafe extern "C" fn($($type),*) -> i32>,)*
        }

        #[expect(non_snake_case, reason = "the vendor's names")]
        // Which of these a plugin needs, the macro cannot know.
        #[allow(
            dead_code,
            clippy::missing_safety_doc,
            clippy::too_many_arguments,
            reason = "the vendor's signatures, of which some are only asked for; its documentation \
                      says what is safe"
        )]
        impl $name {
            /// Looks up each function; what is missing is found out when it is called.
            $vis fn of(library: &$crate::Library) -> Self {
                Self {
                    $($function: {
                        let name = concat!(stringify!($function), "\0");
                        let name = ::std::ffi::CStr::from_bytes_with_nul(name.as_bytes());
                        let address = name.ok().and_then(|name| library.address(name));
                        // SAFETY: the vendor's header gives the function of this name this type.
                        address.map(|address| unsafe {
                            ::std::mem::transmute::<
                                *const ::std::ffi::c_void,
                                unsafe extern "C" fn($($type),*) -> i32,
                            >(address)
                        })
                    },)*
                }
            }

            /// Whether the library has a function of this name.
            $vis fn has(&self, name: &str) -> bool {
                match name {
                    $(stringify!($function) => self.$function.is_some(),)*
                    _ => false,
                }
            }

            $(
                $vis unsafe fn $function(&self, $($arg: $type),*) -> $crate::Answer<()> {
                    let call = stringify!($function);
                    let Some(function) = self.$function else {
                        return Err($crate::Failure::Missing { call });
                    };
                    // SAFETY: this function's contract, which is the vendor's.
                    let status = unsafe { function($($arg),*) };
                    if status == 0 {
                        Ok(())
                    } else {
                        Err($crate::Failure::Status { call, status })
                    }
                }
            )*
        }
    };
}

/// Keeps the library when its handle is closed. Its value on Linux, which libloading does not name.
const RTLD_NODELETE: i32 = libc::RTLD_NODELETE;
