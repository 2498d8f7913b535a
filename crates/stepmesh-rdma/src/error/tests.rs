//! What users read when a verb fails.

use super::{Error, VerbsError};

fn message(verb: &'static str, errno: i32) -> String {
    let object = "4096 bytes at 0x1000 on rxe0".to_owned();
    VerbsError {
        verb,
        errno,
        object,
    }
    .to_string()
}

#[test]
fn a_failed_registration_names_verb_range_device_errno_and_remedy() {
    let message = message("ibv_reg_mr", libc::ENOMEM);
    for part in [
        "ibv_reg_mr",
        "4096 bytes at 0x1000 on rxe0",
        "os error 12",
        "ulimit -l",
    ] {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
}

#[test]
fn the_same_number_means_different_things_to_different_verbs() {
    assert!(message("ibv_post_send", libc::ENOMEM).contains("queue is full"));
    assert!(message("ibv_reg_mr", libc::EFAULT).contains("nvidia-peermem"));
    assert!(message("ibv_modify_qp", libc::EINVAL).contains("GID"));
}

#[test]
fn a_number_without_a_remedy_ends_with_the_systems_words() {
    assert!(message("ibv_open_device", libc::EDOM).ends_with("(os error 33)"));
}

#[test]
fn a_missing_library_is_said_in_the_words_that_users_search_for() {
    let answer = "cannot open shared object file".to_owned();
    let message = Error::LibraryNotFound { answer }.to_string();
    assert!(
        message.starts_with("libibverbs.so.1 not found"),
        "{message}"
    );
    assert!(message.contains("ibverbs-providers"), "{message}");
}
