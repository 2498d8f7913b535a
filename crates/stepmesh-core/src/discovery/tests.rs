//! Preference between plugins and the small matchers. Files are judged in tests/it.

use super::{matches_glob, version_key};

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
