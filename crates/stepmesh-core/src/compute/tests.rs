//! A plugin that says what cannot be true of its executables.

use std::ffi::{c_char, c_void};

use stepmesh_abi::compute::{SM_DTYPE_F32, SM_OP_NEG, SmExecutable};
use stepmesh_abi::error::SM_OK;
use stepmesh_abi::{
    SmBackend, SmBackendApi, SmCompileOptions, SmComputeV1, SmError, SmExecutableInfo,
    SmFingerprint, SmGraph, SmHdr, SmHostApi, SmTensorInfo,
};
use stepmesh_graph::{CompileOptions, DType, Graph, GraphBuilder, Op, OpKind, Shape, TextForm};

use crate::config::PluginsConfig;
use crate::{Device, Error, Registry, StaticPlugin, fake};

/// What is wrong with the plugin's answers.
const NOTHING: u32 = 0;
const NULL_EXECUTABLE: u32 = 1;
const NULL_PARAMS: u32 = 2;
const TOO_MANY: u32 = 3;
const RANK: u32 = 4;
const DTYPE: u32 = 5;
const LENGTH: u32 = 6;
const ONE_SIDED: u32 = 7;
const NO_RESULTS: u32 = 8;
const OTHER_SHAPE: u32 = 9;
const SHORT_ITEM: u32 = 10;
const MAYBE: u32 = 11;
const LONG_TEXT: u32 = 12;
const GROWING_TEXT: u32 = 13;

const fn table<const LIE: u32>() -> SmComputeV1 {
    SmComputeV1 {
        hdr: SmHdr::of::<SmComputeV1>(),
        supported_ops: Some(supported_ops::<LIE>),
        compile: Some(compile::<LIE>),
        execute: Some(execute),
        executable_info: Some(info::<LIE>),
        executable_text: Some(text::<LIE>),
        serialize: Some(serialize),
        deserialize: Some(deserialize),
        fingerprint: Some(fingerprint),
        executable_destroy: Some(destroy),
    }
}

unsafe extern "C" fn supported_ops<const LIE: u32>(
    _: *mut SmBackend,
    _: u32,
    _: u32,
    _: u32,
    out: *mut u32,
    _: *mut SmError,
) -> i32 {
    // SAFETY: the host's out pointer.
    unsafe { *out = if LIE == MAYBE { 2 } else { 1 } };
    SM_OK
}

unsafe extern "C" fn compile<const LIE: u32>(
    _: *mut SmBackend,
    _: u32,
    graph: *const SmGraph,
    _: *const SmCompileOptions,
    out: *mut *mut SmExecutable,
    _: *mut SmError,
) -> i32 {
    // SAFETY: the host's graph.
    let graph = unsafe { &*graph };
    assert_eq!((graph.n_nodes, graph.n_params, graph.n_results), (2, 1, 1));
    // SAFETY: its two nodes.
    let nodes = unsafe { std::slice::from_raw_parts(graph.nodes, 2) };
    assert_eq!(
        (nodes[1].op, nodes[1].dims[0], nodes[1].n_operands),
        (SM_OP_NEG, 2, 1)
    );
    // SAFETY: the one operand of the second.
    assert_eq!(unsafe { *nodes[1].operands }.node, 0);
    let made = if LIE == NULL_EXECUTABLE {
        std::ptr::null_mut()
    } else {
        std::ptr::dangling_mut::<u64>().cast()
    };
    // SAFETY: the host's out pointer.
    unsafe { *out = made };
    SM_OK
}

fn tensor() -> SmTensorInfo {
    SmTensorInfo {
        hdr: SmHdr::of::<SmTensorInfo>(),
        dtype: SM_DTYPE_F32,
        rank: 1,
        dims: [2, 0, 0, 0, 0, 0, 0, 0],
        len_bytes: 8,
        alias: -1,
        pad0: 0,
    }
}

unsafe extern "C" fn info<const LIE: u32>(
    _: *mut SmBackend,
    _: *mut SmExecutable,
    out: *mut SmExecutableInfo,
    _: *mut SmError,
) -> i32 {
    let mut param = tensor();
    match LIE {
        RANK => param.rank = 9,
        DTYPE => param.dtype = 99,
        LENGTH => param.len_bytes = 9,
        ONE_SIDED => param.alias = 0,
        SHORT_ITEM => param.hdr.struct_size = 8,
        OTHER_SHAPE => (param.dims[0], param.len_bytes) = (3, 12),
        _ => {}
    }
    // Leaked, as a static array of a plugin's lives for good.
    let [params, results] = [param, tensor()].map(|tensor| &raw const *Box::leak(Box::new(tensor)));
    // SAFETY: the host's out struct.
    let out = unsafe { &mut *out };
    (out.params, out.n_params) = (params, 1);
    (out.results, out.n_results) = (results, 1);
    match LIE {
        NULL_PARAMS => out.params = std::ptr::null(),
        TOO_MANY => out.n_results = u32::MAX,
        NO_RESULTS => out.n_results = 0,
        _ => {}
    }
    SM_OK
}

unsafe extern "C" fn text<const LIE: u32>(
    _: *mut SmBackend,
    _: *mut SmExecutable,
    _: u32,
    _: *mut c_char,
    cap: u64,
    len: *mut u64,
    _: *mut SmError,
) -> i32 {
    let said = match LIE {
        LONG_TEXT => 1 << 40,
        GROWING_TEXT => cap + 1,
        _ => 0,
    };
    // SAFETY: the host's out pointer.
    unsafe { *len = said };
    SM_OK
}

unsafe extern "C" fn execute(
    _: *mut SmBackend,
    _: *mut SmExecutable,
    _: *const u64,
    _: u32,
    _: *const u64,
    _: u32,
    _: u32,
    _: u64,
    _: *mut SmError,
) -> i32 {
    SM_OK
}

unsafe extern "C" fn serialize(
    _: *mut SmBackend,
    _: *mut SmExecutable,
    _: *mut u8,
    _: u64,
    _: *mut u64,
    _: *mut SmError,
) -> i32 {
    SM_OK
}

unsafe extern "C" fn deserialize(
    _: *mut SmBackend,
    _: u32,
    _: *const u8,
    _: u64,
    _: *mut *mut SmExecutable,
    _: *mut SmError,
) -> i32 {
    SM_OK
}

unsafe extern "C" fn fingerprint(
    _: *mut SmBackend,
    _: u32,
    _: *mut SmFingerprint,
    _: *mut SmError,
) -> i32 {
    SM_OK
}

unsafe extern "C" fn destroy(_: *mut SmBackend, _: *mut SmExecutable, _: *mut SmError) -> i32 {
    SM_OK
}

unsafe extern "C" fn get_extension<const LIE: u32>(
    _: *mut SmBackend,
    name: *const c_char,
    len: u32,
    _: u32,
    out: *mut *const c_void,
    version: *mut u32,
    _: *mut SmError,
) -> i32 {
    // SAFETY: the host's text.
    let name = unsafe { std::slice::from_raw_parts(name.cast::<u8>(), len as usize) };
    if name != b"stepmesh.compute.v1" {
        return stepmesh_abi::error::SM_NOT_FOUND;
    }
    let table: &'static SmComputeV1 = const { &table::<LIE>() };
    // SAFETY: the host's out pointer.
    unsafe { *out = (&raw const *table).cast() };
    // SAFETY: as above.
    unsafe { *version = 1 };
    SM_OK
}

unsafe extern "C" fn query<const LIE: u32>(
    _: *const SmHostApi,
    _: *mut SmError,
) -> *const SmBackendApi {
    Box::leak(Box::new(SmBackendApi {
        get_extension: Some(get_extension::<LIE>),
        ..fake::api()
    }))
}

fn device<const LIE: u32>() -> Device {
    // SAFETY: `query` follows the contract.
    let plugin = unsafe { StaticPlugin::new(query::<LIE>) };
    let registry = Registry::discover_with(&PluginsConfig::default(), &[plugin]);
    registry.select(Some("fake")).unwrap().device(0).unwrap()
}

fn graph() -> Graph {
    let mut graph = GraphBuilder::new("neg");
    let x = graph
        .parameter(DType::F32, Shape::new(&[2]).unwrap())
        .unwrap();
    let y = graph.node(Op::Neg, &[x]).unwrap();
    graph.build(&[y]).unwrap()
}

/// Compiling must end in a bad answer.
fn lies<const LIE: u32>() {
    let compute = device::<LIE>().compute().unwrap();
    let error = compute
        .compile(&graph(), &CompileOptions::default())
        .unwrap_err();
    assert!(matches!(error, Error::BadAnswer { .. }), "{LIE}: {error}");
}

#[test]
fn a_true_answer_is_believed() {
    let compute = device::<NOTHING>().compute().unwrap();
    compute
        .compile(&graph(), &CompileOptions::default())
        .unwrap();
}

#[test]
fn answers_about_an_executable_are_checked() {
    lies::<NULL_EXECUTABLE>();
    lies::<NULL_PARAMS>();
    lies::<TOO_MANY>();
    lies::<RANK>();
    lies::<DTYPE>();
    lies::<LENGTH>();
    lies::<ONE_SIDED>();
    lies::<NO_RESULTS>();
    lies::<OTHER_SHAPE>();
    lies::<SHORT_ITEM>();
}

#[test]
fn an_answer_between_yes_and_no_is_a_bad_one() {
    let compute = device::<MAYBE>().compute().unwrap();
    let error = compute.supports(OpKind::Neg, DType::F32).unwrap_err();
    assert!(matches!(error, Error::BadAnswer { .. }), "{error}");
}

#[test]
fn texts_without_end_are_not_believed() {
    let text = |compute: super::Compute| {
        let executable = compute
            .compile(&graph(), &CompileOptions::default())
            .unwrap();
        executable.text(TextForm::Plan).unwrap_err()
    };
    for error in [
        text(device::<LONG_TEXT>().compute().unwrap()),
        text(device::<GROWING_TEXT>().compute().unwrap()),
    ] {
        assert!(matches!(error, Error::BadAnswer { .. }), "{error}");
    }
}

#[test]
fn a_backend_without_the_extension_has_no_compute() {
    let device = fake::backend().device(0).unwrap();
    assert!(device.compute().is_none());
}
