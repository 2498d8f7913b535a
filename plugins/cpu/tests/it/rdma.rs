//! Memory for network adapters through the table: what the host is told instead of a dma-buf, and of
//! memory that ends.

use std::ffi::c_void;
use std::ptr::null;
use std::sync::Mutex;

use stepmesh_plugin::abi::SmRdmaV1;
use stepmesh_plugin::abi::error::{SM_INVALID_ARGUMENT, SM_UNIMPLEMENTED};
use stepmesh_plugin::abi::extension::SM_EXTENSION_RDMA_V1;

use crate::support::{Answer, Backend, REQUIRED};

fn table(b: &Backend) -> &'static SmRdmaV1 {
    let (mut table, mut version) = (null(), 0);
    let name = SM_EXTENSION_RDMA_V1;
    let len = u32::try_from(name.len()).expect("short");
    let get = b.api.get_extension.expect("the kit fills this slot");
    let (out, out_version) = (&raw mut table, &raw mut version);
    // SAFETY: an open instance, a static name and local out pointers.
    let found = b.call(|s, e| unsafe { get(s, name.as_ptr().cast(), len, 1, out, out_version, e) });
    assert_eq!((found, version), (Ok(()), 1));
    // SAFETY: the table is static.
    unsafe { &*table.cast::<SmRdmaV1>() }
}

fn export(b: &Backend, ptr: u64, size: u64, mapping: u32) -> Answer<i32> {
    let (mut fd, mut offset, mut len) = (-1, 0, 0);
    let (out, at, of) = (&raw mut fd, &raw mut offset, &raw mut len);
    let export = table(b).dmabuf_export.expect(REQUIRED);
    // SAFETY: an open instance and local out pointers.
    b.call(|s, e| unsafe { export(s, 0, ptr, size, mapping, out, at, of, e) })?;
    Ok(fd)
}

fn watch(b: &Backend, ended: Option<&'static Mutex<Vec<u64>>>) -> Answer<()> {
    let set = table(b).set_invalidate_callback.expect(REQUIRED);
    let func = ended.map(|_| note as _);
    let ctx = ended.map_or(null(), std::ptr::from_ref);
    // SAFETY: an open instance; the context is static and what the function takes.
    b.call(|s, e| unsafe { set(s, func, ctx.cast_mut().cast(), e) })
}

unsafe extern "C" fn note(ctx: *mut c_void, alloc_id: u64) {
    // SAFETY: `watch` passed a static.
    let ended = unsafe { &*ctx.cast::<Mutex<Vec<u64>>>() };
    ended
        .lock()
        .expect("no test panics under it")
        .push(alloc_id);
}

#[test]
fn an_export_names_plain_registration_as_the_way() {
    let b = Backend::open();
    let ptr = b.alloc(10_000).unwrap();
    let refused = export(&b, ptr, 10_000, 0).unwrap_err();
    assert_eq!(refused.code, SM_UNIMPLEMENTED);
    assert!(refused.message.contains("ibv_reg_mr"), "{refused:?}");
    for (size, mapping) in [(0, 0), (u64::MAX, 0), (100, 2)] {
        let refused = export(&b, ptr, size, mapping).unwrap_err();
        assert_eq!(refused.code, SM_INVALID_ARGUMENT, "{size} {mapping}");
    }
    let close = table(&b).dmabuf_close.expect(REQUIRED);
    for fd in [-1, i32::MAX] {
        // SAFETY: an open instance; no such descriptor is open.
        let refused = b.call(|s, e| unsafe { close(s, fd, e) }).unwrap_err();
        assert_eq!(refused.code, SM_INVALID_ARGUMENT);
    }
    b.free(ptr).unwrap();
}

#[test]
fn memory_that_ends_is_told_once_and_a_refused_free_is_not() {
    static ENDED: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    let b = Backend::open();
    let (small, large) = (b.alloc(100).unwrap(), b.alloc(1 << 20).unwrap());
    let ids = [small, large].map(|ptr| b.attributes(ptr).alloc_id);
    watch(&b, Some(&ENDED)).unwrap();
    b.free(small + 1).unwrap_err();
    assert!(ENDED.lock().unwrap().is_empty());
    b.free(small).unwrap();
    b.free(large).unwrap();
    b.free(0).unwrap();
    assert_eq!(*ENDED.lock().unwrap(), ids);
    watch(&b, None).unwrap();
    let ptr = b.alloc(100).unwrap();
    b.free(ptr).unwrap();
    assert_eq!(ENDED.lock().unwrap().len(), 2);
}
