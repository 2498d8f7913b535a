//! The arithmetic of pages, and what is said where the driver is missing.

use rustix::ioctl::Ioctl as _;

use super::*;

#[test]
fn whole_pages_cover_every_range() {
    const PAGE: u64 = 4096;
    for offset in [0, 1, 4095, 4096, 4097, 8191, 12_345] {
        for len_bytes in [1, 4095, 4096, 4097, 8192, 9000] {
            let pages = whole_pages(offset, len_bytes, PAGE).unwrap();
            assert!(pages.start.is_multiple_of(PAGE) && pages.len_bytes.is_multiple_of(PAGE));
            assert_eq!(pages.start + pages.skip, offset);
            assert!(pages.skip < PAGE);
            let left = pages.len_bytes - pages.skip;
            assert!(
                left >= len_bytes && left < len_bytes + PAGE,
                "{offset} {len_bytes}"
            );
        }
    }
    let pages = whole_pages(4097, 4096, PAGE).unwrap();
    assert_eq!((pages.start, pages.len_bytes, pages.skip), (4096, 8192, 1));
}

#[test]
fn ranges_past_the_end_have_no_pages() {
    assert_eq!(whole_pages(u64::MAX, 1, 4096), None);
    assert_eq!(whole_pages(4095, u64::MAX, 4096), None);
    assert_eq!(whole_pages(0, u64::MAX - 1, 4096), None);
}

#[test]
fn the_request_is_the_kernels() {
    let create = Create(UdmabufCreate {
        memfd: 0,
        flags: 0,
        offset: 0,
        size: 0,
    });
    // _IOW('u', 0x42, struct udmabuf_create), 24 bytes long.
    assert_eq!(create.opcode(), 0x4018_7542);
}

#[test]
fn a_driver_that_cannot_be_opened_is_named_with_the_kernels_reason() {
    let file = stepmesh_plugin::software::memory_file("test", 4096).unwrap();
    for (errno, code) in [
        (Errno::NOENT, Code::Unimplemented),
        (Errno::ACCESS, Code::Unavailable),
    ] {
        let driver = Driver(Err(errno));
        assert!(!driver.is_there());
        let error = driver.export(&file, 0, 100, 4096).unwrap_err();
        assert_eq!(error.code(), code);
        assert_eq!(error.native_code(), i64::from(errno.raw_os_error()));
        let message = error.message();
        assert!(message.contains("/dev/udmabuf"), "{message}");
        assert!(message.contains(&errno.to_string()), "{message}");
    }
}
