//! Whether the process has rights that its user has not. Decides nothing; callers do.
#![expect(unsafe_code, reason = "getauxval is the only source of AT_SECURE")]

/// True in a set-user-id or set-group-id process and in one with file capabilities.
pub(crate) fn is_secure_process() -> bool {
    // SAFETY: getauxval reads a value the kernel gave at exec; it takes no pointer and cannot fault.
    let at_secure = unsafe { libc::getauxval(libc::AT_SECURE) };
    at_secure != 0 || user_id() != effective_user_id()
}

/// The user whose rights count for opening files.
pub(crate) fn effective_user_id() -> u32 {
    // SAFETY: geteuid takes nothing and always succeeds.
    unsafe { libc::geteuid() }
}

fn user_id() -> u32 {
    // SAFETY: getuid takes nothing and always succeeds.
    unsafe { libc::getuid() }
}
