//! What can go wrong with verbs, and what helps. Errors of the fabric are those of the transport.

use std::io;

/// Why there are no verbs, or which of them failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library is not installed, where the loader of programs looks.
    #[error(
        "libibverbs.so.1 not found ({answer}); install it with its providers (Debian and Ubuntu: \
         libibverbs1 ibverbs-providers, Fedora and RHEL: libibverbs)"
    )]
    LibraryNotFound {
        /// The loader's own words.
        answer: String,
    },
    /// The library is there, but cannot be used.
    #[error("libibverbs.so.1 cannot be used: {reason}; install that of rdma-core 28 or newer")]
    LibraryUnusable {
        /// The loader's own words, or the function that is missing.
        reason: String,
    },
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// A verb that failed: which, why, on what, and what helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{verb} failed for {object}: {}{}", io::Error::from_raw_os_error(*.errno), Remedy(.verb, *.errno))]
pub struct VerbsError {
    /// The function of libibverbs, for example `ibv_reg_mr`.
    pub verb: &'static str,
    /// The number of the system's error.
    pub errno: i32,
    /// What it was done to, with the name of the device.
    pub object: String,
}

/// A list of which the device took only the head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{taken} work requests were taken, then {error}")]
pub struct PostError {
    /// How many of the list were taken: they will be executed, and complete if they are signalled.
    pub taken: usize,
    /// Why the next was refused.
    pub error: VerbsError,
}

impl VerbsError {
    /// What helps, as a clause; empty when nothing general can be said.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        remedy(self.verb, self.errno)
    }

    /// Whether the device is gone: unplugged, or its link was deleted.
    #[must_use]
    pub fn is_device_gone(&self) -> bool {
        matches!(self.errno, libc::EIO | libc::ENODEV | libc::ENXIO)
    }

    /// Whether the device, its driver or the library cannot do this at all.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self.errno,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT | libc::ENOTTY
        )
    }
}

/// The remedy with what separates it from the sentence before, or nothing.
struct Remedy<'a>(&'a str, i32);

impl std::fmt::Display for Remedy<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match remedy(self.0, self.1) {
            "" => Ok(()),
            text => write!(f, "; {text}"),
        }
    }
}

fn remedy(verb: &str, errno: i32) -> &'static str {
    let registers = verb.starts_with("ibv_reg_");
    let posts = verb.starts_with("ibv_post_");
    match errno {
        libc::ENOMEM | libc::EAGAIN if registers => {
            "raise the limit of locked memory (ulimit -l unlimited, LimitMEMLOCK=infinity in a \
             unit, --ulimit memlock=-1 in a container)"
        }
        libc::ENOMEM if posts => "the queue is full: wait for completions first",
        libc::ENOMEM => "the device or the limit of locked memory (ulimit -l) has no room for it",
        libc::EFAULT if registers => {
            "the address is not mapped, or is a device's and no driver offers it to adapters (load \
             nvidia-peermem, or use dma-buf)"
        }
        libc::EINVAL if registers => {
            "the range or the access is not one that the device takes; memory in huge pages needs \
             RDMAV_HUGEPAGES_SAFE=1 where forks are guarded"
        }
        libc::EINVAL if verb == "ibv_modify_qp" => {
            "the path does not fit the port: compare GID index, MTU and state of both ends \
             (stepmesh rdma explain)"
        }
        libc::EPERM | libc::EACCES => {
            "the device's file in /dev/infiniband must be readable and writable for this user"
        }
        libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT | libc::ENOTTY => {
            "the device, its driver or the kernel cannot do this"
        }
        libc::ENODEV | libc::ENXIO | libc::EIO => "the device is gone or broken: see dmesg",
        libc::EMFILE | libc::ENFILE => "raise the limit of open files (ulimit -n)",
        libc::EBUSY => "something that hangs from it is still alive",
        libc::ETIMEDOUT => "the other end's address could not be resolved: check the route and ARP",
        libc::ENETUNREACH | libc::EHOSTUNREACH => {
            "there is no route between the two GIDs: choose GIDs of one network"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests;
