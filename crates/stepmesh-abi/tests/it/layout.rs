//! The layout of every struct, as a table that a review sees change: it is the compiler's in Rust and
//! in C, has every field, and only ever grows.

use core::fmt::Write as _;
use core::mem::offset_of;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use expect_test::expect_file;
use stepmesh_abi::note::{SmNoteDesc, SmNoteHeader};
use stepmesh_abi::{
    SmAlias, SmAttr, SmCompileOptions, SmComputeV1, SmExecutableInfo, SmFingerprint, SmGraph,
    SmNode, SmTensorInfo, SmValue,
};
use stepmesh_abi::{
    SmBackendApi, SmDeviceInfo, SmError, SmGraphV1, SmHdr, SmHostApi, SmIpcHandle, SmIpcV1,
    SmMemEventV1, SmOpenArgs, SmPluginInfo, SmPtrAttr, SmRdmaCaps, SmRdmaV1, SmStr,
};

macro_rules! layout {
    ($out:ident, $ty:ty, $($field:ident)+) => {
        writeln!($out, "{} {}", stringify!($ty), size_of::<$ty>()).unwrap();
        $(writeln!($out, "  {} {}", offset_of!($ty, $field), stringify!($field)).unwrap();)+
    };
}

#[test]
fn the_layout_is_the_committed_one() {
    expect_file!["layout.txt"].assert_eq(&layout());
}

/// What a plugin of version 1.0 was built with holds for good: each of its structs is still there,
/// at least as long, and each field where it was.
#[test]
fn a_later_version_only_appends() {
    let (first, now) = (table(FIRST), table(&layout()));
    for (name, old) in &first {
        let new = now.get(name).unwrap_or_else(|| panic!("{name} is gone"));
        assert!(new.len_bytes >= old.len_bytes, "{name} has become shorter");
        let kept = new.fields.get(..old.fields.len());
        assert_eq!(kept, Some(&*old.fields), "{name}: only append");
        for (field, offset) in &new.fields[old.fields.len()..] {
            assert!(*offset >= old.len_bytes, "{name}.{field} is in older bytes");
        }
    }
    let last = table("S 16\n  0 a\n  8 b\n");
    assert_eq!(last["S"].fields, [("a".into(), 0), ("b".into(), 8)]);
}

#[test]
fn the_table_has_every_field_of_the_header() {
    let table = table(&layout());
    let mut structs = 0;
    for text in header().split("typedef struct ").skip(1) {
        let Some((name, rest)) = text.split_once(" {") else {
            continue;
        };
        let body = rest.split("\n}").next().unwrap();
        let known: Vec<_> = table[name].fields.iter().map(|field| &*field.0).collect();
        assert_eq!(fields_of(body), known, "{name}");
        structs += 1;
    }
    assert_eq!(structs, table.len());
}

#[test]
fn a_c_compiler_lays_the_structs_out_alike() {
    let mut program = String::from("#include <stddef.h>\n#include \"stepmesh_backend.h\"\n");
    for (name, of) in table(&layout()) {
        let len_bytes = of.len_bytes;
        writeln!(
            program,
            "_Static_assert(sizeof({name}) == {len_bytes}, \"size of {name}\");"
        )
        .unwrap();
        for (field, offset) in of.fields {
            writeln!(
                program,
                "_Static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");"
            )
            .unwrap();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("layout.c");
    fs::write(&source, program).unwrap();
    let output = Command::new("cc")
        .args(["-std=c11", "-fsyntax-only", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg(source)
        .output()
        .expect("this test needs a C compiler");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

/// A line for each struct with its size, then one for each field with its offset.
fn layout() -> String {
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
    layout!(out, SmMemEventV1, hdr create destroy arm poll_addr query);
    layout!(out, SmRdmaCaps, hdr mappings memory_kinds flush_scopes write_ordering
        dmabuf_granularity flags pad0);
    layout!(out, SmGraphV1, hdr capture_state write_flag wait_flag seq_add_one);
    layout!(out, SmRdmaV1, hdr dmabuf_export dmabuf_close rdma_caps flush_rdma_writes
        set_sync_memops set_invalidate_callback);
    layout!(out, SmValue, node output);
    layout!(out, SmAlias, param result);
    layout!(out, SmAttr, key kind int_value float_value data data_len);
    layout!(out, SmNode, hdr op dtype rank n_operands dims operands attrs n_attrs pad0 location);
    layout!(out, SmGraph, hdr name nodes params results aliases n_nodes n_params n_results
        n_aliases);
    layout!(out, SmCompileOptions, hdr flags threads_max);
    layout!(out, SmTensorInfo, hdr dtype rank dims len_bytes alias pad0);
    layout!(out, SmExecutableInfo, hdr params results n_params n_results scratch_len_bytes);
    layout!(out, SmFingerprint, hdr bytes);
    layout!(out, SmComputeV1, hdr supported_ops compile execute executable_info executable_text
        serialize deserialize fingerprint executable_destroy);
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
    out
}

struct Layout {
    len_bytes: usize,
    fields: Vec<(String, usize)>,
}

fn table(text: &str) -> BTreeMap<String, Layout> {
    let mut structs: Vec<(String, Layout)> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (first, second) = (words.next().unwrap(), words.next().unwrap());
        if line.starts_with(' ') {
            let fields = &mut structs.last_mut().unwrap().1.fields;
            fields.push((second.into(), first.parse().unwrap()));
        } else {
            let len_bytes = second.parse().unwrap();
            let fields = Vec::new();
            structs.push((first.into(), Layout { len_bytes, fields }));
        }
    }
    structs.into_iter().collect()
}

fn header() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/stepmesh_backend.h");
    fs::read_to_string(path).unwrap()
}

/// Names of the fields in the body of a struct of the header.
fn fields_of(body: &str) -> Vec<String> {
    let lines = body.lines().map(str::trim);
    let code: String = lines.filter(|line| !line.starts_with("//")).collect();
    let name = |declaration: &str| {
        let declared = match declaration.split_once("(*") {
            Some((_, function)) => function.split(')').next(),
            None => declaration.split('[').next(),
        };
        let word = declared.unwrap().rsplit([' ', '*']).next().unwrap();
        word.to_owned()
    };
    code.split(';')
        .filter(|text| !text.is_empty())
        .map(name)
        .collect()
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
        size_of::<SmMemEventV1>(),
        size_of::<SmRdmaCaps>(),
        size_of::<SmGraphV1>(),
        size_of::<SmRdmaV1>(),
        size_of::<SmAttr>(),
        size_of::<SmNode>(),
        size_of::<SmGraph>(),
        size_of::<SmCompileOptions>(),
        size_of::<SmTensorInfo>(),
        size_of::<SmExecutableInfo>(),
        size_of::<SmFingerprint>(),
        size_of::<SmComputeV1>(),
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

/// The layout as version 1.0 was first published with it. Never edited.
const FIRST: &str = include_str!("layout-1.0.txt");
