//! The layout of every struct, as a table that a review sees change.

use core::fmt::Write as _;
use core::mem::offset_of;

use expect_test::expect_file;
use stepmesh_abi::note::{SmNoteDesc, SmNoteHeader};
use stepmesh_abi::{
    SmBackendApi, SmDeviceInfo, SmError, SmHdr, SmHostApi, SmIpcHandle, SmIpcV1, SmOpenArgs,
    SmPluginInfo, SmPtrAttr, SmStr,
};

macro_rules! layout {
    ($out:ident, $ty:ty, $($field:ident)+) => {
        writeln!($out, "{} {}", stringify!($ty), size_of::<$ty>()).unwrap();
        $(writeln!($out, "  {} {}", offset_of!($ty, $field), stringify!($field)).unwrap();)+
    };
}

#[test]
fn layout_is_that_of_version_1_0() {
    let mut out = String::new();
    layout!(out, SmHdr, struct_size abi_major abi_minor);
    layout!(out, SmStr, ptr len pad0);
    layout!(out, SmError, struct_size code native_code flags msg_len msg);
    layout!(out, SmPluginInfo, hdr name version vendor build_id);
    layout!(out, SmOpenArgs, hdr flags);
    layout!(out, SmDeviceInfo, hdr ordinal physical_ordinal name arch torch_device_type pci_bdf uuid
        numa_node torch_index dlpack_type dlpack_id vendor_id device_id cc_major cc_minor total_mem
        page_granularity dmabuf_granularity integrated rdma_write_ordering flush_options pad0);
    layout!(out, SmPtrAttr, hdr kind device base size alloc_id flags reserved);
    layout!(out, SmIpcHandle, hdr kind fd offset len flags pad0 bytes);
    layout!(out, SmIpcV1, hdr export_memory import_memory close_import);
    layout!(out, SmNoteHeader, name_len desc_len note_type owner);
    layout!(out, SmNoteDesc, struct_size abi_major abi_min_minor abi_max_minor exported_symbols kind
        pointer_width panic_strategy sanitizer flags priority plugin_name_len aliases_len
        version_len target_len reserved);
    layout!(out, SmHostApi, hdr ctx log_enabled log get_config current_stream report_async_error
        trace_begin trace_end process_exiting alloc free monotonic_ns);
    layout!(out, SmBackendApi, hdr info probe open quiesce close device_count device_info mem_info
        capabilities set_current_device get_current_device device_sync alloc free alloc_async
        free_async host_register host_unregister pointer_attributes stream_create stream_destroy
        stream_sync stream_query stream_wait_event memcpy_async memcpy_sync memset_async
        event_create event_destroy event_record event_query event_sync event_elapsed
        launch_host_func last_error health get_extension);
    expect_file!["layout.txt"].assert_eq(&out);
}

#[test]
fn every_struct_is_a_multiple_of_eight_bytes() {
    let sizes = [
        size_of::<SmError>(),
        size_of::<SmPluginInfo>(),
        size_of::<SmOpenArgs>(),
        size_of::<SmDeviceInfo>(),
        size_of::<SmPtrAttr>(),
        size_of::<SmIpcHandle>(),
        size_of::<SmIpcV1>(),
        size_of::<SmHostApi>(),
        size_of::<SmBackendApi>(),
    ];
    assert!(sizes.iter().all(|size| size % 8 == 0), "{sizes:?}");
}

#[test]
fn an_empty_table_names_its_first_missing_slot() {
    let info = SmPluginInfo::new("x", "1", "", "");
    assert_eq!(
        SmBackendApi::new(core::ptr::null()).missing_required_slot(),
        Some("info")
    );
    assert_eq!(
        SmBackendApi::new(&raw const info).missing_required_slot(),
        Some("probe")
    );
}
