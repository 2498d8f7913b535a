//! Feeds the judge of the same name in `fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = stepmesh_transport::fuzzing::shm(bytes);
});
