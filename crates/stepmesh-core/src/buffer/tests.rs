//! Memory of others as buffers.
#![expect(unsafe_code, reason = "vouches for memory")]

use std::sync::Arc;

use crate::{Error, MemoryKind, fake};

#[test]
fn wrapped_host_memory_is_used_in_place_and_its_owner_let_go() {
    let device = fake::backend().device(0).unwrap();
    let owner = Arc::new(vec![7u8; 64]);
    let address = owner.as_ptr().expose_provenance() as u64;
    // SAFETY: the vector is the owner, and nobody else touches its bytes.
    let buffer = unsafe { device.wrap(address, 64, Arc::clone(&owner) as _) }.unwrap();
    assert_eq!((buffer.device_ptr(), buffer.alloc_id()), (address, 0));
    assert_eq!(buffer.kind(), MemoryKind::HostPageable);
    assert_eq!(buffer.host_bytes().unwrap()[63], 7);
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(buffer);
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn wrapped_memory_of_the_backend_keeps_its_kind_and_is_not_freed_twice() {
    let device = fake::backend().device(0).unwrap();
    let owner = Arc::new(device.alloc(128).unwrap());
    let inside = owner.device_ptr() + 64;
    let keep = || Arc::clone(&owner) as Arc<_>;
    // SAFETY: the buffer is the owner, and the range lies inside of it.
    let buffer = unsafe { device.wrap(inside, 64, keep()) }.unwrap();
    assert_eq!(buffer.kind(), MemoryKind::Device);
    assert_eq!(buffer.alloc_id(), owner.alloc_id());
    assert!(
        buffer.host_bytes().is_none(),
        "the fake's memory is the device's"
    );
    buffer.write_bytes(0, &[5; 64]).unwrap();
    drop(buffer);
    let mut bytes = [0; 64];
    owner.read_bytes(64, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 64]);

    // SAFETY: refused before it is used.
    let outside = unsafe { device.wrap(inside, 65, keep()) };
    assert!(matches!(outside, Err(Error::InvalidArgument { .. })));
    // SAFETY: as above.
    let nowhere = unsafe { device.wrap(0, 1, keep()) };
    assert!(matches!(nowhere, Err(Error::InvalidArgument { .. })));
}
