//! The functions of libibverbs, found by name when they are first needed. What they return is made
//! into results in `result`; nothing else calls them.
#![expect(unsafe_code, reason = "opens a library and names its functions")]

use std::ffi::{OsStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::sync::OnceLock;

use libloading::os::unix;
use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_mr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
};

use crate::Error;

/// What happens to registered memory when the process forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForkSupport {
    /// The kernel (5.12 or newer) gives a child copies of pinned pages: nothing has to be done.
    Unneeded,
    /// The library keeps registered pages out of children. It does so by whole pages: memory in huge
    /// pages can be registered only with `RDMAV_HUGEPAGES_SAFE=1` in the environment, at the price
    /// of a slower registration of all memory.
    Enabled {
        /// Whether that name was set when the library was loaded.
        huge_pages: bool,
    },
    /// The library refused, for it was already in use: a child that writes to memory that is
    /// registered would take its pages away from the device.
    Failed {
        /// The number of the system's error.
        errno: i32,
    },
}

/// How forks are handled. The library is loaded by this.
///
/// # Errors
/// The library is missing or unusable.
pub fn fork_support() -> Result<ForkSupport, Error> {
    Ok(functions()?.fork_support)
}

/// The library, loaded by the first call; the answer is kept for the life of the process.
pub(super) fn functions() -> Result<&'static Functions, Error> {
    static FUNCTIONS: OnceLock<Result<Functions, Error>> = OnceLock::new();
    let loaded = FUNCTIONS.get_or_init(|| Functions::load(LIBRARY));
    loaded.as_ref().map_err(Clone::clone)
}

/// An event as the kernel gives it. The type of rdma-sys has an enum in it, which a newer kernel's
/// number would make invalid.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawAsyncEvent {
    /// A pointer to the object, or a port number in its first four bytes.
    pub(super) element: *mut c_void,
    pub(super) event_type: c_int,
}

macro_rules! functions {
    (
        required { $(fn $required:ident($($arg:ty),* $(,)?) $(-> $out:ty)?;)* }
        optional { $(fn $optional:ident($($oarg:ty),* $(,)?) $(-> $oout:ty)?;)* }
    ) => {
        /// The functions by their own names; those that older libraries lack are optional.
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $required: unsafe extern "C" fn($($arg),*) $(-> $out)?,)*
            $(pub(super) $optional: Option<unsafe extern "C" fn($($oarg),*) $(-> $oout)?>,)*
            fork_support: ForkSupport,
            /// Opened with RTLD_NODELETE; kept because the functions come from it.
            _library: unix::Library,
        }

        impl Functions {
            fn of(library: unix::Library) -> Result<Self, Error> {
                Ok(Self {
                    $($required: {
                        // SAFETY: the header infiniband/verbs.h declares it so.
                        let symbol = unsafe { library.get(concat!(stringify!($required), "\0")) };
                        match symbol {
                            Ok(symbol) => *symbol,
                            Err(_) => return Err(missing(stringify!($required))),
                        }
                    },)*
                    $($optional: {
                        // SAFETY: the header infiniband/verbs.h declares it so.
                        let symbol = unsafe { library.get(concat!(stringify!($optional), "\0")) };
                        symbol.ok().map(|symbol| *symbol)
                    },)*
                    fork_support: ForkSupport::Unneeded,
                    _library: library,
                })
            }
        }
    };
}

functions! {
    required {
        fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(*mut *mut ibv_device);
        fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(*mut ibv_context) -> c_int;
        fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        fn ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        fn ibv_get_async_event(*mut ibv_context, *mut RawAsyncEvent) -> c_int;
        fn ibv_ack_async_event(*mut RawAsyncEvent);
        fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
        fn ibv_create_cq(
            *mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int,
        ) -> *mut ibv_cq;
        fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
        fn ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        fn ibv_destroy_qp(*mut ibv_qp) -> c_int;
        fn ibv_fork_init() -> c_int;
    }
    optional {
        // rdma-core 28: takes the optional access flags and drops those that the kernel lacks.
        fn ibv_reg_mr_iova2(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        // rdma-core 34.
        fn ibv_reg_dmabuf_mr(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
        // rdma-core 35.
        fn ibv_is_fork_initialized() -> c_int;
    }
}

/// The functions of libmlx5 that are used where the adapter is one of theirs.
#[derive(Debug)]
pub(super) struct Mlx5 {
    // rdma-core 55.
    pub(super) mlx5dv_reg_dmabuf_mr: Option<RegDirectDmabuf>,
    pub(super) mlx5dv_get_data_direct_sysfs_path:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut c_char, usize) -> c_int>,
    // rdma-core 27.
    pub(super) mlx5dv_modify_qp_lag_port: Option<unsafe extern "C" fn(*mut ibv_qp, u8) -> c_int>,
    /// The struct is `MLX5DV_CONTEXT_WORDS` words or fewer, of which it fills what the mask asks for.
    pub(super) mlx5dv_query_device:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut u64) -> c_int>,
    _library: unix::Library,
}

type RegDirectDmabuf =
    unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int, c_int) -> *mut ibv_mr;

/// The library of Mellanox adapters, if there is one: loaded by the first call.
pub(super) fn mlx5() -> Option<&'static Mlx5> {
    static MLX5: OnceLock<Option<Mlx5>> = OnceLock::new();
    MLX5.get_or_init(Mlx5::load).as_ref()
}

impl Mlx5 {
    fn load() -> Option<Self> {
        // SAFETY: the provider that libibverbs itself loads where there is such an adapter.
        let library = unsafe { unix::Library::open(Some(OsStr::new(LIBMLX5)), FLAGS) }.ok()?;
        // SAFETY: the header infiniband/mlx5dv.h declares it so; the same for the next three.
        let reg_dmabuf_mr = unsafe { library.get("mlx5dv_reg_dmabuf_mr\0") };
        // SAFETY: as above.
        let data_direct = unsafe { library.get("mlx5dv_get_data_direct_sysfs_path\0") };
        // SAFETY: as above.
        let lag_port = unsafe { library.get("mlx5dv_modify_qp_lag_port\0") };
        // SAFETY: as above.
        let query_device = unsafe { library.get("mlx5dv_query_device\0") };
        Some(Self {
            mlx5dv_reg_dmabuf_mr: reg_dmabuf_mr.ok().map(|symbol| *symbol),
            mlx5dv_get_data_direct_sysfs_path: data_direct.ok().map(|symbol| *symbol),
            mlx5dv_modify_qp_lag_port: lag_port.ok().map(|symbol| *symbol),
            mlx5dv_query_device: query_device.ok().map(|symbol| *symbol),
            _library: library,
        })
    }
}

impl Functions {
    fn load(name: &str) -> Result<Self, Error> {
        // SAFETY: the constructors of libibverbs run, which every user of verbs runs at start.
        let library = unsafe { unix::Library::open(Some(OsStr::new(name)), FLAGS) };
        let library = library.map_err(|error| refused(&error))?;
        let mut functions = Self::of(library)?;
        functions.fork_support = functions.prepare_for_forks();
        tracing::debug!(fork_support = ?functions.fork_support, "loaded {LIBRARY}");
        Ok(functions)
    }

    /// Before the first registration, as the library wants it.
    fn prepare_for_forks(&self) -> ForkSupport {
        if let Some(is_initialized) = self.ibv_is_fork_initialized {
            // SAFETY: takes nothing; may be called at any time.
            if unsafe { is_initialized() } == IBV_FORK_UNNEEDED {
                return ForkSupport::Unneeded;
            }
        }
        // SAFETY: takes nothing; an error when the library is in use already.
        let errno = unsafe { (self.ibv_fork_init)() };
        if errno == 0 {
            let huge_pages = std::env::var_os("RDMAV_HUGEPAGES_SAFE").is_some();
            return ForkSupport::Enabled { huge_pages };
        }
        // Some versions return -1 and set errno.
        let last = io::Error::last_os_error().raw_os_error().unwrap_or(errno);
        let errno = if errno < 0 { last } else { errno };
        tracing::warn!(
            errno,
            "forks are not guarded: a child may take registered pages away"
        );
        ForkSupport::Failed { errno }
    }
}

/// Tells a library that is not installed from one that is broken.
fn refused(error: &libloading::Error) -> Error {
    let source = std::error::Error::source(error);
    let answer = source.map_or_else(|| error.to_string(), ToString::to_string);
    if answer.contains("No such file") {
        Error::LibraryNotFound { answer }
    } else {
        Error::LibraryUnusable { reason: answer }
    }
}

fn missing(function: &str) -> Error {
    let reason = format!("it has no {function}");
    Error::LibraryUnusable { reason }
}

/// A string in a struct of the library; what is not UTF-8 is replaced.
pub(super) fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars
        .iter()
        .map(|char| char.to_ne_bytes()[0])
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The name with the version of its ABI, which has not changed since 2005.
const LIBRARY: &str = "libibverbs.so.1";

/// The name with the version of its ABI.
/// Words of `struct mlx5dv_context`, of which newer versions have more than the 19 of today.
pub(super) const MLX5DV_CONTEXT_WORDS: usize = 64;

/// Where its `comp_mask` is, in words; the same in all versions, as for the next.
pub(super) const MLX5DV_CONTEXT_MASK: usize = 2;

/// Where its `num_lag_ports` is, in the lowest byte of a word.
pub(super) const MLX5DV_CONTEXT_LAG_PORTS: usize = 12;

/// Asks for that number: `MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS`.
pub(super) const MLX5DV_MASK_LAG_PORTS: u64 = 1 << 9;

const LIBMLX5: &str = "libmlx5.so.1";

/// Never unloaded, and of no concern to other libraries.
const FLAGS: c_int = unix::RTLD_NOW | unix::RTLD_LOCAL | libc::RTLD_NODELETE;

/// Of `enum ibv_fork_status`.
const IBV_FORK_UNNEEDED: c_int = 2;

#[cfg(test)]
mod tests {
    //! What is answered where the library is not, or is not one.

    use super::{Error, Functions};

    #[test]
    fn a_name_that_the_loader_does_not_find_is_a_library_not_found() {
        let error = Functions::load("libibverbs-absent.so.1").unwrap_err();
        assert!(matches!(error, Error::LibraryNotFound { .. }), "{error}");
    }

    #[test]
    fn a_library_without_the_functions_is_unusable_and_the_function_is_named() {
        let error = Functions::load("libc.so.6").unwrap_err();
        assert!(error.to_string().contains("ibv_get_device_list"), "{error}");
    }
}
