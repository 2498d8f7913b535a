//! Preference between plugins and the small matchers. Files are judged in tests/it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::{Reason, judge_all_as, matches_glob, version_key};
use crate::config::PluginsConfig;

/// What the kernel says of a set-user-id process is given to the judge as a fact, so that the rule
/// can be tried without being one.
#[test]
fn a_process_with_more_rights_than_its_user_trusts_no_file_that_others_may_write() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().canonicalize().unwrap();
    let path = directory.join("libstepmesh_backend_open.so");
    fs::write(&path, "not even a library").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    let config = PluginsConfig {
        path: vec![directory.clone()],
        trust: true,
        ..PluginsConfig::default()
    };
    let reason = |is_secure| {
        let mut judged = judge_all_as(&config, std::slice::from_ref(&directory), is_secure);
        judged.pop().unwrap().verdict.unwrap_err()
    };
    let secure = reason(true);
    assert!(matches!(secure, Reason::Untrusted { .. }), "{secure}");
    // Trusted, it is looked into.
    let ordinary = reason(false);
    assert!(
        ordinary.to_string().contains("is not a shared library"),
        "{ordinary}"
    );
}

#[test]
fn globs_match_without_regard_to_case() {
    for (glob, text, expected) in [
        ("*", "", true),
        ("cuda", "CUDA", true),
        ("*rocm*", "libstepmesh_backend_rocm.so", true),
        ("lib*_?pu.so", "libstepmesh_backend_cpu.so", true),
        ("a*b*c", "a-b-b-c", true),
        ("a*b*c", "a-b-b-d", false),
        ("?", "", false),
        ("cuda", "cuda2", false),
    ] {
        assert_eq!(matches_glob(glob, text), expected, "{glob} {text}");
    }
}

#[test]
fn versions_compare_by_number_and_a_prerelease_is_older() {
    let newer = |a, b| version_key(a) > version_key(b);
    assert!(newer("1.10.0", "1.9.9"));
    assert!(newer("1.0.0", "1.0.0-rc.1"));
    assert!(newer("1.0.1", "1.0.0+build.7"));
    assert!(newer("0.2", "garbage"));
}
