//! `stepmesh.compute.v1`: graphs of tensor operations that a plugin compiles and executes. Here are
//! the structs, the table and the numbers; what each operation means is written at its number.
//!
//! # Values
//! A value is a dense tensor, row-major, of a type (`SM_DTYPE_*`) and a shape of at most
//! [`SM_COMPUTE_RANK_MAX`] dimensions; rank 0 is a scalar, a dimension of 0 is an empty value. Every
//! node has one value, output 0. There is no implicit broadcasting and no implicit conversion: where
//! an operation says "alike", its operands have equal types and equal shapes.
//!
//! # Arithmetic
//! - f32, f64: IEEE 754, to nearest even. f16, bf16: computed in f32 at least, then rounded once; a
//!   plugin that fuses nodes may keep the wider value from one node to the next, and may contract a
//!   product and a sum. Subnormal results may be 0.
//! - i32, i64, u8: two's complement, wrapping. bool: one byte, 0 or 1; what another byte in an
//!   argument gives is unspecified, but no access out of bounds. fp8 is for storage: parameters,
//!   constants, casts and operations that only move elements.
//! - NaN: an operation with a NaN operand gives NaN unless its text says otherwise; which one, and
//!   its sign, is unspecified. So is the sign of a zero that `max`, `min` and sums give.
//! - Sums (`sum`, `mean`, `matmul`, norms, softmax) of f16, bf16 and f32 accumulate in f32 at least,
//!   of f64 in f64, in any order; of integers in their own type.
//! - `exp`, `log`, `pow`, `tanh` and what is made of them are approximations; docs/abi.md has the
//!   bounds by which a plugin is judged.
//!
//! # Limits
//! Nodes: [`SM_COMPUTE_NODES_MAX`]. Bytes of one value: 2^62, and what `alloc` gives. Bytes of one
//! constant: [`SM_COMPUTE_CONSTANT_MAX`]. Operands of a node, and parameters and results of a graph:
//! [`SM_COMPUTE_OPERANDS_MAX`]. Beyond, or malformed in any other way: `SM_INVALID_ARGUMENT`, naming
//! the node. A plugin trusts no count, index, rank or attribute. An op, type or attribute that it
//! lacks or does not know is `SM_UNIMPLEMENTED`, naming op and type.

use core::ffi::{c_char, c_void};
use core::marker::{PhantomData, PhantomPinned};

use crate::backend::SmBackend;
use crate::error::SmError;
use crate::header::{SmHdr, SmStr};

/// A reference to a value: an output of an earlier node. Its layout is fixed for good.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmValue {
    /// Index of the node in the graph; for an operand, less than that of the node it belongs to.
    pub node: u32,
    /// Which output of it; 0.
    pub output: u32,
}

/// A donation: the caller of `execute` may pass the address of the parameter's argument as that of
/// the result, which then replaces it. Both have the same type and shape, and each is in one alias
/// at most. Its layout is fixed for good.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmAlias {
    /// Number of the parameter.
    pub param: u32,
    /// Number of the result.
    pub result: u32,
}

/// An attribute of a node. Each key is there once at most. Its layout is fixed for good: a new kind
/// is a new number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmAttr {
    /// `SM_ATTR_*`.
    pub key: u32,
    /// `SM_ATTR_KIND_*`: which of the fields below has the value; the others are zero.
    pub kind: u32,
    /// With `SM_ATTR_KIND_INT`.
    pub int_value: i64,
    /// With `SM_ATTR_KIND_FLOAT`.
    pub float_value: f64,
    /// With `SM_ATTR_KIND_INTS`: `const int64_t*`; with `SM_ATTR_KIND_BYTES`: `const uint8_t*`.
    pub data: *const c_void,
    /// Numbers, or bytes, at `data`.
    pub data_len: u64,
}

/// A node of a graph. All nodes of an array have the same `hdr.struct_size`, which is the distance
/// from one to the next.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmNode {
    /// Size and version.
    pub hdr: SmHdr,
    /// `SM_OP_*`.
    pub op: u32,
    /// `SM_DTYPE_*` of the value.
    pub dtype: u32,
    /// Dimensions of the value.
    pub rank: u32,
    /// Number of operands.
    pub n_operands: u32,
    /// Extents; zero beyond the rank.
    pub dims: [u64; 8],
    /// The operands; may be null when there are none.
    pub operands: *const SmValue,
    /// The attributes; may be null when there are none.
    pub attrs: *const SmAttr,
    /// Number of attributes.
    pub n_attrs: u32,
    /// Zero.
    pub pad0: u32,
    /// Where in the user's program the node comes from (`src/model.rs:42`), for messages; or empty.
    pub location: SmStr,
}

/// A graph. Nodes are in topological order: operands come before those who use them. The plugin
/// copies what it needs; nothing of it is read after `compile`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmGraph {
    /// Size and version.
    pub hdr: SmHdr,
    /// For messages and dumps; may be empty.
    pub name: SmStr,
    /// The nodes.
    pub nodes: *const SmNode,
    /// Indices of the parameters' nodes by their number; each `SM_OP_PARAMETER` is in it once.
    pub params: *const u32,
    /// The results by their number. A value may be in it twice, and may be a parameter.
    pub results: *const SmValue,
    /// The donations.
    pub aliases: *const SmAlias,
    /// Number of nodes.
    pub n_nodes: u32,
    /// Number of parameters.
    pub n_params: u32,
    /// Number of results; at least one.
    pub n_results: u32,
    /// Number of donations.
    pub n_aliases: u32,
}

/// How to compile.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmCompileOptions {
    /// Size and version.
    pub hdr: SmHdr,
    /// `SM_COMPILE_*` flags; an unknown one is `SM_INVALID_ARGUMENT`.
    pub flags: u32,
    /// Host threads that an execution may use; 0 is the plugin's choice.
    pub threads_max: u32,
}

impl SmCompileOptions {
    /// The defaults.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            hdr: SmHdr::of::<Self>(),
            flags: 0,
            threads_max: 0,
        }
    }
}

impl Default for SmCompileOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Type and shape of a parameter or a result. An array has the step `hdr.struct_size`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmTensorInfo {
    /// Size and version.
    pub hdr: SmHdr,
    /// `SM_DTYPE_*`.
    pub dtype: u32,
    /// Dimensions.
    pub rank: u32,
    /// Extents; zero beyond the rank.
    pub dims: [u64; 8],
    /// Bytes that the argument or the result has.
    pub len_bytes: u64,
    /// The other side of its donation (number of the result or of the parameter); -1 without one.
    pub alias: i32,
    /// Zero.
    pub pad0: u32,
}

/// What is known about an executable. Filled up to the smaller of the plugin's size and the
/// caller's `hdr.struct_size`; the arrays are the plugin's and live as long as the executable.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmExecutableInfo {
    /// Size set by the caller.
    pub hdr: SmHdr,
    /// The parameters by their number.
    pub params: *const SmTensorInfo,
    /// The results by their number.
    pub results: *const SmTensorInfo,
    /// Number of parameters.
    pub n_params: u32,
    /// Number of results.
    pub n_results: u32,
    /// Device memory that one execution takes for intermediate values, in bytes; 0 if unknown.
    pub scratch_len_bytes: u64,
}

impl SmExecutableInfo {
    /// An empty struct with the size set, ready to be passed to `executable_info`.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            hdr: SmHdr::of::<Self>(),
            params: core::ptr::null(),
            results: core::ptr::null(),
            n_params: 0,
            n_results: 0,
            scratch_len_bytes: 0,
        }
    }
}

impl Default for SmExecutableInfo {
    fn default() -> Self {
        Self::new()
    }
}

/// Tells where serialised executables can be used: where the bytes are equal.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmFingerprint {
    /// Size set by the caller.
    pub hdr: SmHdr,
    /// Depends on the plugin's build and on the kind of device, not on the process or the time.
    pub bytes: [u8; 32],
}

impl SmFingerprint {
    /// An empty struct with the size set, ready to be passed to `fingerprint`.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            hdr: SmHdr::of::<Self>(),
            bytes: [0; 32],
        }
    }
}

impl Default for SmFingerprint {
    fn default() -> Self {
        Self::new()
    }
}

/// A compiled graph. Opaque to the host; made by `compile` and `deserialize`, given back to
/// `executable_destroy`.
#[repr(C)]
pub struct SmExecutable {
    opaque: [u8; 0],
    marker: PhantomData<(*mut u8, PhantomPinned)>,
}

impl core::fmt::Debug for SmExecutable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SmExecutable")
    }
}

/// `stepmesh.compute.v1`. Every function is required and of class A, but for `executable_destroy`.
/// The table lives as long as the plugin, that is, as long as the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SmComputeV1 {
    /// Size and version of the plugin's table.
    pub hdr: SmHdr,
    /// Whether the device does `op` for `dtype`: 1 or 0. The type is that of the value; of the
    /// operand for `compare` and `argmax`. A cast needs a yes for both of its types. A plugin
    /// compiles whatever graph is made of nodes to which it said yes. Unknown numbers are 0.
    pub supported_ops: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            op: u32,
            dtype: u32,
            supported: *mut u32,
            err: *mut SmError,
        ) -> i32,
    >,
    /// Compiles a graph for a device; may take long. Null options are the defaults. Success is never
    /// null. A failure leaves nothing behind.
    pub compile: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            graph: *const SmGraph,
            options: *const SmCompileOptions,
            out: *mut *mut SmExecutable,
            err: *mut SmError,
        ) -> i32,
    >,
    /// Executes in stream order, asynchronously: returns once the work is queued. The stream is of
    /// the executable's device.
    ///
    /// `args` and `outs` are addresses by number, each of the `len_bytes` that `executable_info`
    /// says, aligned to the size of an element, and reachable by the device; 0 is fine for an empty
    /// value. Arguments are only read, and may overlap each other. A result overlaps nothing but,
    /// exactly, the argument of its donation. Both arrays are read before the call returns; the
    /// memory stays valid until the stream is done. A wrong count, a null or a misaligned address is
    /// `SM_INVALID_ARGUMENT`. A failure later on is the stream's, as that of a copy would be.
    ///
    /// One executable may execute on several streams at once.
    pub execute: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            executable: *mut SmExecutable,
            args: *const u64,
            n_args: u32,
            outs: *const u64,
            n_outs: u32,
            stream_dev: u32,
            stream: u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// What is known about an executable.
    pub executable_info: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            executable: *mut SmExecutable,
            out: *mut SmExecutableInfo,
            err: *mut SmError,
        ) -> i32,
    >,
    /// Text for people (`SM_COMPUTE_TEXT_*`): UTF-8, no NUL. `len` becomes the length of the whole;
    /// as much of it as fits in `cap` bytes is written, so 0 asks for the length. A form that there
    /// is not is `SM_UNIMPLEMENTED`, an unknown number `SM_INVALID_ARGUMENT`.
    pub executable_text: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            executable: *mut SmExecutable,
            form: u32,
            buf: *mut c_char,
            cap: u64,
            len: *mut u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// The executable as bytes, which `deserialize` takes wherever the fingerprint is the same.
    /// `len` and `cap` as for `executable_text`; a part of them is of no use. Two calls for one
    /// executable give the same bytes. `SM_UNIMPLEMENTED` if the plugin cannot.
    pub serialize: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            executable: *mut SmExecutable,
            buf: *mut u8,
            cap: u64,
            len: *mut u64,
            err: *mut SmError,
        ) -> i32,
    >,
    /// Makes an executable of such bytes, which are hostile until checked: `SM_FAILED_PRECONDITION`
    /// if they are of another fingerprint, `SM_DATA_LOSS` if they were cut or changed.
    pub deserialize: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            bytes: *const u8,
            len: u64,
            out: *mut *mut SmExecutable,
            err: *mut SmError,
        ) -> i32,
    >,
    /// Where serialised executables of this device can be used.
    pub fingerprint: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            dev: u32,
            out: *mut SmFingerprint,
            err: *mut SmError,
        ) -> i32,
    >,
    /// Class H. Ends an executable; executions in flight are still done. Null is fine. Served after
    /// `quiesce` too.
    pub executable_destroy: Option<
        unsafe extern "C" fn(
            s: *mut SmBackend,
            executable: *mut SmExecutable,
            err: *mut SmError,
        ) -> i32,
    >,
}

/// Most dimensions of a value.
pub const SM_COMPUTE_RANK_MAX: u32 = 8;
/// Most nodes of a graph: ten times what a tensor library traces before it cuts a graph by itself.
pub const SM_COMPUTE_NODES_MAX: u32 = 1 << 20;
/// Most operands of a node, and most parameters, results and donations of a graph.
pub const SM_COMPUTE_OPERANDS_MAX: u32 = 1 << 16;
/// Most bytes of a constant; larger ones are parameters, so that they need not be copied.
pub const SM_COMPUTE_CONSTANT_MAX: u64 = 1 << 26;
/// Most bytes of a name and of a location that are kept; the rest is cut.
pub const SM_COMPUTE_TEXT_MAX: u32 = 1024;

/// Type: 32-bit float.
pub const SM_DTYPE_F32: u32 = 1;
/// Type: IEEE 16-bit float.
pub const SM_DTYPE_F16: u32 = 2;
/// Type: the upper half of an f32.
pub const SM_DTYPE_BF16: u32 = 3;
/// Type: 64-bit float.
pub const SM_DTYPE_F64: u32 = 4;
/// Type: signed, 32 bits.
pub const SM_DTYPE_I32: u32 = 5;
/// Type: signed, 64 bits.
pub const SM_DTYPE_I64: u32 = 6;
/// Type: unsigned, 8 bits.
pub const SM_DTYPE_U8: u32 = 7;
/// Type: one byte, 0 or 1.
pub const SM_DTYPE_BOOL: u32 = 8;
/// Type: 8-bit float of 4 exponent and 3 mantissa bits (bias 7), no infinities, NaN is 0x7f and
/// 0xff, greatest 448 ("e4m3fn").
pub const SM_DTYPE_F8_E4M3: u32 = 9;
/// Type: 8-bit float of 5 exponent and 2 mantissa bits (bias 15), with infinities and NaN, greatest
/// finite 57344.
pub const SM_DTYPE_F8_E5M2: u32 = 10;

/// Kind of an attribute: `int_value`.
pub const SM_ATTR_KIND_INT: u32 = 1;
/// Kind of an attribute: `float_value`.
pub const SM_ATTR_KIND_FLOAT: u32 = 2;
/// Kind of an attribute: signed 64-bit numbers at `data`.
pub const SM_ATTR_KIND_INTS: u32 = 3;
/// Kind of an attribute: bytes at `data`.
pub const SM_ATTR_KIND_BYTES: u32 = 4;

/// Attribute (bytes): the elements of a constant.
pub const SM_ATTR_DATA: u32 = 1;
/// Attribute (int): `SM_COMPARE_*`.
pub const SM_ATTR_DIRECTION: u32 = 2;
/// Attribute (int): a dimension, from 0.
pub const SM_ATTR_DIM: u32 = 3;
/// Attribute (ints): dimensions, from 0.
pub const SM_ATTR_DIMS: u32 = 4;
/// Attribute (int, 0 or 1): the last two dimensions of the first operand are exchanged.
pub const SM_ATTR_TRANSPOSE_A: u32 = 5;
/// Attribute (int, 0 or 1): the last two dimensions of the second operand are exchanged.
pub const SM_ATTR_TRANSPOSE_B: u32 = 6;
/// Attribute (float): what is added under a root.
pub const SM_ATTR_EPSILON: u32 = 7;
/// Attribute (ints): first index of each dimension.
pub const SM_ATTR_STARTS: u32 = 8;
/// Attribute (ints): the index after the last, of each dimension.
pub const SM_ATTR_LIMITS: u32 = 9;
/// Attribute (ints): steps of each dimension.
pub const SM_ATTR_STRIDES: u32 = 10;

/// Direction: equal.
pub const SM_COMPARE_EQ: u32 = 0;
/// Direction: not equal; the only one that is true for NaN.
pub const SM_COMPARE_NE: u32 = 1;
/// Direction: less.
pub const SM_COMPARE_LT: u32 = 2;
/// Direction: less or equal.
pub const SM_COMPARE_LE: u32 = 3;
/// Direction: greater.
pub const SM_COMPARE_GT: u32 = 4;
/// Direction: greater or equal.
pub const SM_COMPARE_GE: u32 = 5;

/// Option: the same arguments give the same bits, each time and with any number of threads.
pub const SM_COMPILE_DETERMINISTIC: u32 = 1 << 0;
/// Option: `matmul` of f32 may round its operands to 10 bits of mantissa (tensor cores' TF32).
pub const SM_COMPILE_ALLOW_TF32: u32 = 1 << 1;

/// Text: the graph as it is executed, with what was fused.
pub const SM_COMPUTE_TEXT_PLAN: u32 = 1;
/// Text: the source of the generated kernels.
pub const SM_COMPUTE_TEXT_SOURCE: u32 = 2;

// Numbers of operations are never used again. "Floats" are f32, f16, bf16, f64; "numbers" are floats
// and i32, i64, u8; "any" includes bool and fp8.

/// Any. An argument of the graph; no operands, no attributes.
pub const SM_OP_PARAMETER: u32 = 1;
/// Any. `SM_ATTR_DATA`: all elements, row-major, little-endian; or one element, which all are. A
/// bool is 0 or 1.
pub const SM_OP_CONSTANT: u32 = 2;
/// Any to any, the shape stays. Between floats (fp8 too): to nearest even; what is too large is an
/// infinity, or NaN in e4m3. Float to integer: towards zero, what is out of range is the nearest
/// bound, NaN is 0. Integer to float: to nearest even, rounded once. Integer to integer: the low
/// bits. To bool: whether it is not zero (NaN is true). From bool: 0 or 1.
pub const SM_OP_CAST: u32 = 3;

/// Numbers. Two operands alike: a + b.
pub const SM_OP_ADD: u32 = 16;
/// Numbers. Two operands alike: a - b.
pub const SM_OP_SUB: u32 = 17;
/// Numbers. Two operands alike: a * b.
pub const SM_OP_MUL: u32 = 18;
/// Numbers. Two operands alike: a / b. Integers are cut towards zero; by 0 it is -1 (all bits set),
/// the least number by -1 is the least number.
pub const SM_OP_DIV: u32 = 19;
/// Numbers. Two operands alike: a to the power of b. Floats as C's `pow`: x^0 and 1^x are 1, also for
/// NaN. Integers wrap; with b < 0 it is 1 for a = 1, 1 or -1 for a = -1 (b even or odd), else 0.
pub const SM_OP_POW: u32 = 20;
/// Numbers and bool. Two operands alike: the greater; NaN if one is NaN; or, for bool.
pub const SM_OP_MAX: u32 = 21;
/// Numbers and bool. Two operands alike: the lesser; NaN if one is NaN; and, for bool.
pub const SM_OP_MIN: u32 = 22;

/// Numbers. One operand: -x.
pub const SM_OP_NEG: u32 = 32;
/// Floats. One operand: e^x.
pub const SM_OP_EXP: u32 = 33;
/// Floats. One operand: natural logarithm; NaN below 0, -inf at 0.
pub const SM_OP_LOG: u32 = 34;
/// Floats. One operand: square root; NaN below 0.
pub const SM_OP_SQRT: u32 = 35;
/// Floats. One operand: 1 / sqrt(x); infinite at 0.
pub const SM_OP_RSQRT: u32 = 36;
/// Floats. One operand: hyperbolic tangent.
pub const SM_OP_TANH: u32 = 37;
/// Floats. One operand: 1 / (1 + e^-x).
pub const SM_OP_SIGMOID: u32 = 38;
/// Numbers. One operand: max(x, 0).
pub const SM_OP_RELU: u32 = 39;
/// Floats. One operand: x * sigmoid(x); at -inf 0 or NaN.
pub const SM_OP_SILU: u32 = 40;
/// Floats. One operand: x/2 * (1 + erf(x / sqrt 2)); at -inf 0 or NaN.
pub const SM_OP_GELU_ERF: u32 = 41;
/// Floats. One operand: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))); at -inf 0 or NaN.
pub const SM_OP_GELU_TANH: u32 = 42;

/// Numbers and bool. Two operands alike; `SM_ATTR_DIRECTION`. The value is bool of their shape.
/// With NaN only `SM_COMPARE_NE` is true; false is less than true.
pub const SM_OP_COMPARE: u32 = 48;
/// Any but fp8. Operands: condition (bool), and two alike of the same shape: the first of the two
/// where the condition is true, else the second.
pub const SM_OP_SELECT: u32 = 49;
/// Numbers. Three operands alike x, low, high: min(max(x, low), high).
pub const SM_OP_CLAMP: u32 = 50;

/// Numbers. One operand; `SM_ATTR_DIMS`, ascending: those are summed and are gone from the shape. Of
/// no elements it is 0. The type stays: integers wrap.
pub const SM_OP_SUM: u32 = 64;
/// Floats. As `sum`, divided by the number of elements; of none it is NaN.
pub const SM_OP_MEAN: u32 = 65;
/// Numbers and bool. As `sum`, the greatest; NaN if one is NaN. Of no elements it is -inf, the least
/// number, or false.
pub const SM_OP_REDUCE_MAX: u32 = 66;
/// Numbers. One operand; `SM_ATTR_DIM`, which is not empty and is gone from the shape. The value is
/// i64: the first index of the greatest; NaN counts as greatest.
pub const SM_OP_ARGMAX: u32 = 67;

/// Numbers. Operands of equal type and equal rank, 2 or more: batch dimensions, which are equal, then
/// `[m, k]` and `[k, n]`; with `SM_ATTR_TRANSPOSE_A` `[k, m]`, with `SM_ATTR_TRANSPOSE_B` `[n, k]`
/// (both default to 0). The value is the batch dimensions, then `[m, n]`; 0 when k is 0.
pub const SM_OP_MATMUL: u32 = 80;

/// Floats. One operand; `SM_ATTR_DIM`: e^(x - greatest) over its sum along the dimension. NaN all
/// along it where one is NaN or infinite, or all are -inf; -inf beside a finite one is 0.
pub const SM_OP_SOFTMAX: u32 = 96;
/// Floats. Operands: x; then optionally weight; then optionally bias, both of x's type and of the
/// shape of x from `SM_ATTR_DIM` on; `SM_ATTR_EPSILON`. Over the dimensions from `SM_ATTR_DIM` on:
/// (x - mean) / sqrt(variance + epsilon) * weight + bias, with the variance of the whole population.
pub const SM_OP_LAYER_NORM: u32 = 97;
/// Floats. Operands: x; then optionally weight, as for `layer_norm`. Over the dimensions from
/// `SM_ATTR_DIM` on: x / sqrt(mean of x^2 + epsilon) * weight.
pub const SM_OP_RMS_NORM: u32 = 98;

/// Any. One operand of as many elements: the same elements in another shape.
pub const SM_OP_RESHAPE: u32 = 112;
/// Any. One operand; `SM_ATTR_DIMS`, each once: dimension i of the value is dimension `dims[i]`.
pub const SM_OP_TRANSPOSE: u32 = 113;
/// Any. One operand; `SM_ATTR_DIMS`, ascending: dimension i of the operand is dimension `dims[i]` of
/// the value, as long or 1; along it, and along the others, elements repeat.
pub const SM_OP_BROADCAST: u32 = 114;
/// Any. One operand; `SM_ATTR_STARTS`, `SM_ATTR_LIMITS`, `SM_ATTR_STRIDES`, one for each dimension:
/// 0 <= start <= limit <= extent, stride >= 1. The value has ceil((limit - start) / stride).
pub const SM_OP_SLICE: u32 = 115;
/// Any. One or more operands of equal type, and equal shape but for `SM_ATTR_DIM`: one after another.
pub const SM_OP_CONCAT: u32 = 116;

/// Any. Operands: data; indices (i32 or i64); `SM_ATTR_DIM`. The shape is that of data with the
/// dimension replaced by the shape of the indices: the slices of data that they name. An index out
/// of range is taken to the nearest bound. The dimension is not empty unless there are no indices.
pub const SM_OP_GATHER: u32 = 128;
/// Numbers. Operands: data; indices (i32 or i64) of rank 1; updates of data's type, and shape but for
/// `SM_ATTR_DIM`, which has one for each index. The value is data, with each slice of updates added
/// to the slice that its index names, in any order; f16 and bf16 may be rounded after each addition.
/// An index out of range is left out.
pub const SM_OP_INDEX_ADD: u32 = 129;

/// Floats. Operands: seed and offset, i64 of rank 0. Uniform in [0, 1), bit for bit:
///
/// Block b is Philox 4x32-10 of the counter (low and high half of b, 0, 0) and the key (low and high
/// half of the seed), four words w0..w3. Element i, in row-major order, is of block offset + i/4
/// (wrapping) and word w = w(i mod 4): f32 (w >> 8) * 2^-24, f16 (w >> 21) * 2^-11, bf16
/// (w >> 24) * 2^-8. For f64 it is of block offset + i/2, with the two words from w(2 (i mod 2)) on,
/// the first the lower half of x: (x >> 11) * 2^-53.
pub const SM_OP_RNG_UNIFORM: u32 = 144;
/// Floats. Operands and blocks as for `rng_uniform`. Normal, mean 0, deviation 1, by Box and Muller:
/// sqrt(-2 ln u) * cos(2 pi v) for even i, sin for odd. For f32, and f16 and bf16 rounded from it,
/// with w the pair of words from w(2 ((i mod 4) / 2)) on: u = ((w0 >> 8) + 1) * 2^-24,
/// v = (w1 >> 8) * 2^-24. For f64, of block offset + i/2: x of w0, w1 and y of w2, w3, the first the
/// lower half: u = ((x >> 11) + 1) * 2^-53, v = (y >> 11) * 2^-53.
pub const SM_OP_RNG_NORMAL: u32 = 145;

const _: () = assert!(size_of::<SmValue>() == 8);
const _: () = assert!(size_of::<SmAlias>() == 8);
const _: () = assert!(size_of::<SmAttr>() == 40);
const _: () = assert!(size_of::<SmNode>() == 128);
const _: () = assert!(size_of::<SmGraph>() == 72);
const _: () = assert!(size_of::<SmCompileOptions>() == 16);
const _: () = assert!(size_of::<SmTensorInfo>() == 96);
const _: () = assert!(size_of::<SmExecutableInfo>() == 40);
const _: () = assert!(size_of::<SmFingerprint>() == 40);
const _: () = assert!(size_of::<SmComputeV1>() == 80);
