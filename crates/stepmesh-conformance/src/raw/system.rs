//! What the checks ask of the C library and the kernel that the standard library does not offer.
#![expect(unsafe_code, reason = "calls of the C library")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How a forked child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkEnd {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// Not within the limit; it was killed.
    Timeout,
}

/// Runs `work` in a forked child and ends that with the code that it returns, without destructors.
pub(crate) fn in_fork(work: impl FnOnce() -> i32, limit: Duration) -> io::Result<ForkEnd> {
    // SAFETY: the child runs only `work` and `_exit`. Other threads are gone in it; what `work` does
    // beyond that is what the check is about.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = work();
            // SAFETY: ends the child at once; takes no pointer.
            unsafe { libc::_exit(code) }
        }
        pid => wait(pid, limit),
    }
}

fn wait(pid: libc::pid_t, limit: Duration) -> io::Result<ForkEnd> {
    let until = Instant::now() + limit;
    loop {
        let mut status = 0;
        // SAFETY: waits for a child of our own, with a local for the status.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        if waited == -1 {
            return Err(io::Error::last_os_error());
        }
        if waited == pid {
            return Ok(if libc::WIFSIGNALED(status) {
                ForkEnd::Signal(libc::WTERMSIG(status))
            } else {
                ForkEnd::Code(libc::WEXITSTATUS(status))
            });
        }
        if Instant::now() >= until {
            // SAFETY: a child of our own that was not waited for yet, so the number is still its.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            let mut status = 0;
            // SAFETY: as above.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            return Ok(ForkEnd::Timeout);
        }
        std::thread::sleep(WAIT_STEP);
    }
}

/// Takes over a descriptor that a plugin gave; `None` if it is not open.
pub(crate) fn owned_fd(fd: i32) -> Option<OwnedFd> {
    // SAFETY: asks for flags; takes no pointer, and any number is fine.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    // SAFETY: open, as was just seen; by the ABI it is the caller's, and nobody else closes it.
    (flags != -1).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Handler and flags of every signal.
pub(crate) fn signal_actions() -> Vec<(usize, i32)> {
    (1..=SIGNALS)
        .map(|signal| {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: asks only; writes to the local, which is large enough.
            unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
            // SAFETY: zeroed above, and all zero is a valid action.
            let action = unsafe { action.assume_init() };
            (action.sa_sigaction, action.sa_flags)
        })
        .collect()
}

/// Name of the process's locale.
pub(crate) fn locale() -> String {
    // SAFETY: asks only; the answer is a string of the C library's or null.
    let name = unsafe { libc::setlocale(libc::LC_ALL, std::ptr::null()) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: not null, and a string that stays until the locale changes, which no other thread
    // does here.
    unsafe { std::ffi::CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}

/// Writes out what C code of this process has buffered for its standard output.
pub(crate) fn flush_c_streams() {
    // SAFETY: null means every stream.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Runs a function while the process exits, after `main` has returned.
pub(crate) fn at_exit(work: impl FnOnce() + Send + 'static) {
    extern "C" fn run() {
        let work = WORK.lock().map_or(None, |mut work| work.take());
        if let Some(work) = work {
            work();
        }
    }
    type Work = Option<Box<dyn FnOnce() + Send>>;
    static WORK: Mutex<Work> = Mutex::new(None);
    if let Ok(mut slot) = WORK.lock() {
        *slot = Some(Box::new(work));
    }
    // SAFETY: `run` is of this program and stays mapped.
    unsafe { libc::atexit(run) };
}

/// Ends the process from any thread, with its exit handlers.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: takes no pointer. Whether the plugin survives it is what the check is about.
    unsafe { libc::exit(code) }
}

/// Ends the process without its exit handlers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: takes no pointer.
    unsafe { libc::_exit(code) }
}

/// Sends a signal to this process.
pub(crate) fn raise(signal: i32) {
    // SAFETY: takes no pointer; the process is our own.
    unsafe { libc::raise(signal) };
}

/// Signals of Linux, real-time ones included.
const SIGNALS: i32 = 64;
/// How often a forked child is looked at.
const WAIT_STEP: Duration = Duration::from_millis(2);
