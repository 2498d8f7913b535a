/*
 * The C ABI between the StepMesh host and its accelerator backends. docs/abi.md explains it.
 * A plugin needs this header only; it links nothing of StepMesh.
 */


#ifndef STEPMESH_BACKEND_H
#define STEPMESH_BACKEND_H

/* Generated from crates/stepmesh-abi by `cargo xtask abi`. Do not edit. */

#include <stdint.h>

/* Opaque handles. */
typedef struct SmBackend SmBackend;
typedef struct SmEvent SmEvent;
typedef struct SmMemEvent SmMemEvent;
typedef struct SmExecutable SmExecutable;


// Bytes of the plugin's table in version 1.0; a plugin's table is never smaller.
#define SM_BACKEND_API_LEN_V1_0 304

// Most dimensions of a value.
#define SM_COMPUTE_RANK_MAX 8

// Most nodes of a graph: ten times what a tensor library traces before it cuts a graph by itself.
#define SM_COMPUTE_NODES_MAX (1 << 20)

// Most operands of a node, and most parameters, results and donations of a graph.
#define SM_COMPUTE_OPERANDS_MAX (1 << 16)

// Most bytes of a constant; larger ones are parameters, so that they need not be copied.
#define SM_COMPUTE_CONSTANT_MAX (1 << 26)

// Most bytes of a name and of a location that are kept; the rest is cut.
#define SM_COMPUTE_TEXT_MAX 1024

// Type: 32-bit float.
#define SM_DTYPE_F32 1

// Type: IEEE 16-bit float.
#define SM_DTYPE_F16 2

// Type: the upper half of an f32.
#define SM_DTYPE_BF16 3

// Type: 64-bit float.
#define SM_DTYPE_F64 4

// Type: signed, 32 bits.
#define SM_DTYPE_I32 5

// Type: signed, 64 bits.
#define SM_DTYPE_I64 6

// Type: unsigned, 8 bits.
#define SM_DTYPE_U8 7

// Type: one byte, 0 or 1.
#define SM_DTYPE_BOOL 8

// Type: 8-bit float of 4 exponent and 3 mantissa bits (bias 7), no infinities, NaN is 0x7f and
// 0xff, greatest 448 ("e4m3fn").
#define SM_DTYPE_F8_E4M3 9

// Type: 8-bit float of 5 exponent and 2 mantissa bits (bias 15), with infinities and NaN, greatest
// finite 57344.
#define SM_DTYPE_F8_E5M2 10

// Kind of an attribute: `int_value`.
#define SM_ATTR_KIND_INT 1

// Kind of an attribute: `float_value`.
#define SM_ATTR_KIND_FLOAT 2

// Kind of an attribute: signed 64-bit numbers at `data`.
#define SM_ATTR_KIND_INTS 3

// Kind of an attribute: bytes at `data`.
#define SM_ATTR_KIND_BYTES 4

// Attribute (bytes): the elements of a constant.
#define SM_ATTR_DATA 1

// Attribute (int): `SM_COMPARE_*`.
#define SM_ATTR_DIRECTION 2

// Attribute (int): a dimension, from 0.
#define SM_ATTR_DIM 3

// Attribute (ints): dimensions, from 0.
#define SM_ATTR_DIMS 4

// Attribute (int, 0 or 1): the last two dimensions of the first operand are exchanged.
#define SM_ATTR_TRANSPOSE_A 5

// Attribute (int, 0 or 1): the last two dimensions of the second operand are exchanged.
#define SM_ATTR_TRANSPOSE_B 6

// Attribute (float): what is added under a root.
#define SM_ATTR_EPSILON 7

// Attribute (ints): first index of each dimension.
#define SM_ATTR_STARTS 8

// Attribute (ints): the index after the last, of each dimension.
#define SM_ATTR_LIMITS 9

// Attribute (ints): steps of each dimension.
#define SM_ATTR_STRIDES 10

// Direction: equal.
#define SM_COMPARE_EQ 0

// Direction: not equal; the only one that is true for NaN.
#define SM_COMPARE_NE 1

// Direction: less.
#define SM_COMPARE_LT 2

// Direction: less or equal.
#define SM_COMPARE_LE 3

// Direction: greater.
#define SM_COMPARE_GT 4

// Direction: greater or equal.
#define SM_COMPARE_GE 5

// Option: the same arguments give the same bits, each time and with any number of threads.
#define SM_COMPILE_DETERMINISTIC (1 << 0)

// Option: `matmul` of f32 may round its operands to 10 bits of mantissa (tensor cores' TF32).
#define SM_COMPILE_ALLOW_TF32 (1 << 1)

// Text: the graph as it is executed, with what was fused.
#define SM_COMPUTE_TEXT_PLAN 1

// Text: the source of the generated kernels.
#define SM_COMPUTE_TEXT_SOURCE 2

// Any. An argument of the graph; no operands, no attributes.
#define SM_OP_PARAMETER 1

// Any. `SM_ATTR_DATA`: all elements, row-major, little-endian; or one element, which all are. A
// bool is 0 or 1.
#define SM_OP_CONSTANT 2

// Any to any, the shape stays. Between floats (fp8 too): to nearest even; what is too large is an
// infinity, or NaN in e4m3. Float to integer: towards zero, what is out of range is the nearest
// bound, NaN is 0. Integer to float: to nearest even, rounded once. Integer to integer: the low
// bits. To bool: whether it is not zero (NaN is true). From bool: 0 or 1.
#define SM_OP_CAST 3

// Numbers. Two operands alike: a + b.
#define SM_OP_ADD 16

// Numbers. Two operands alike: a - b.
#define SM_OP_SUB 17

// Numbers. Two operands alike: a * b.
#define SM_OP_MUL 18

// Numbers. Two operands alike: a / b. Integers are cut towards zero; by 0 it is -1 (all bits set),
// the least number by -1 is the least number.
#define SM_OP_DIV 19

// Numbers. Two operands alike: a to the power of b. Floats as C's `pow`: x^0 and 1^x are 1, also for
// NaN. Integers wrap; with b < 0 it is 1 for a = 1, 1 or -1 for a = -1 (b even or odd), else 0.
#define SM_OP_POW 20

// Numbers and bool. Two operands alike: the greater; NaN if one is NaN; or, for bool.
#define SM_OP_MAX 21

// Numbers and bool. Two operands alike: the lesser; NaN if one is NaN; and, for bool.
#define SM_OP_MIN 22

// Numbers. One operand: -x.
#define SM_OP_NEG 32

// Floats. One operand: e^x.
#define SM_OP_EXP 33

// Floats. One operand: natural logarithm; NaN below 0, -inf at 0.
#define SM_OP_LOG 34

// Floats. One operand: square root; NaN below 0.
#define SM_OP_SQRT 35

// Floats. One operand: 1 / sqrt(x); infinite at 0.
#define SM_OP_RSQRT 36

// Floats. One operand: hyperbolic tangent.
#define SM_OP_TANH 37

// Floats. One operand: 1 / (1 + e^-x).
#define SM_OP_SIGMOID 38

// Numbers. One operand: max(x, 0).
#define SM_OP_RELU 39

// Floats. One operand: x * sigmoid(x); at -inf 0 or NaN.
#define SM_OP_SILU 40

// Floats. One operand: x/2 * (1 + erf(x / sqrt 2)); at -inf 0 or NaN.
#define SM_OP_GELU_ERF 41

// Floats. One operand: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))); at -inf 0 or NaN.
#define SM_OP_GELU_TANH 42

// Numbers and bool. Two operands alike; `SM_ATTR_DIRECTION`. The value is bool of their shape.
// With NaN only `SM_COMPARE_NE` is true; false is less than true.
#define SM_OP_COMPARE 48

// Any but fp8. Operands: condition (bool), and two alike of the same shape: the first of the two
// where the condition is true, else the second.
#define SM_OP_SELECT 49

// Numbers. Three operands alike x, low, high: min(max(x, low), high).
#define SM_OP_CLAMP 50

// Numbers. One operand; `SM_ATTR_DIMS`, ascending: those are summed and are gone from the shape. Of
// no elements it is 0. The type stays: integers wrap.
#define SM_OP_SUM 64

// Floats. As `sum`, divided by the number of elements; of none it is NaN.
#define SM_OP_MEAN 65

// Numbers and bool. As `sum`, the greatest; NaN if one is NaN. Of no elements it is -inf, the least
// number, or false.
#define SM_OP_REDUCE_MAX 66

// Numbers. One operand; `SM_ATTR_DIM`, which is not empty and is gone from the shape. The value is
// i64: the first index of the greatest; NaN counts as greatest.
#define SM_OP_ARGMAX 67

// Numbers. Operands of equal type and equal rank, 2 or more: batch dimensions, which are equal, then
// `[m, k]` and `[k, n]`; with `SM_ATTR_TRANSPOSE_A` `[k, m]`, with `SM_ATTR_TRANSPOSE_B` `[n, k]`
// (both default to 0). The value is the batch dimensions, then `[m, n]`; 0 when k is 0.
#define SM_OP_MATMUL 80

// Floats. One operand; `SM_ATTR_DIM`: e^(x - greatest) over its sum along the dimension. NaN all
// along it where one is NaN or infinite, or all are -inf; -inf beside a finite one is 0.
#define SM_OP_SOFTMAX 96

// Floats. Operands: x; then optionally weight; then optionally bias, both of x's type and of the
// shape of x from `SM_ATTR_DIM` on; `SM_ATTR_EPSILON`. Over the dimensions from `SM_ATTR_DIM` on:
// (x - mean) / sqrt(variance + epsilon) * weight + bias, with the variance of the whole population.
#define SM_OP_LAYER_NORM 97

// Floats. Operands: x; then optionally weight, as for `layer_norm`. Over the dimensions from
// `SM_ATTR_DIM` on: x / sqrt(mean of x^2 + epsilon) * weight.
#define SM_OP_RMS_NORM 98

// Any. One operand of as many elements: the same elements in another shape.
#define SM_OP_RESHAPE 112

// Any. One operand; `SM_ATTR_DIMS`, each once: dimension i of the value is dimension `dims[i]`.
#define SM_OP_TRANSPOSE 113

// Any. One operand; `SM_ATTR_DIMS`, ascending: dimension i of the operand is dimension `dims[i]` of
// the value, as long or 1; along it, and along the others, elements repeat.
#define SM_OP_BROADCAST 114

// Any. One operand; `SM_ATTR_STARTS`, `SM_ATTR_LIMITS`, `SM_ATTR_STRIDES`, one for each dimension:
// 0 <= start <= limit <= extent, stride >= 1. The value has ceil((limit - start) / stride).
#define SM_OP_SLICE 115

// Any. One or more operands of equal type, and equal shape but for `SM_ATTR_DIM`: one after another.
#define SM_OP_CONCAT 116

// Any. Operands: data; indices (i32 or i64); `SM_ATTR_DIM`. The shape is that of data with the
// dimension replaced by the shape of the indices: the slices of data that they name. An index out
// of range is taken to the nearest bound. The dimension is not empty unless there are no indices.
#define SM_OP_GATHER 128

// Numbers. Operands: data; indices (i32 or i64) of rank 1; updates of data's type, and shape but for
// `SM_ATTR_DIM`, which has one for each index. The value is data, with each slice of updates added
// to the slice that its index names, in any order; f16 and bf16 may be rounded after each addition.
// An index out of range is left out.
#define SM_OP_INDEX_ADD 129

// Floats. Operands: seed and offset, i64 of rank 0. Uniform in [0, 1), bit for bit:
//
// Block b is Philox 4x32-10 of the counter (low and high half of b, 0, 0) and the key (low and high
// half of the seed), four words w0..w3. Element i, in row-major order, is of block offset + i/4
// (wrapping) and word w = w(i mod 4): f32 (w >> 8) * 2^-24, f16 (w >> 21) * 2^-11, bf16
// (w >> 24) * 2^-8. For f64 it is of block offset + i/2, with the two words from w(2 (i mod 2)) on,
// the first the lower half of x: (x >> 11) * 2^-53.
#define SM_OP_RNG_UNIFORM 144

// Floats. Operands and blocks as for `rng_uniform`. Normal, mean 0, deviation 1, by Box and Muller:
// sqrt(-2 ln u) * cos(2 pi v) for even i, sin for odd. For f32, and f16 and bf16 rounded from it,
// with w the pair of words from w(2 ((i mod 4) / 2)) on: u = ((w0 >> 8) + 1) * 2^-24,
// v = (w1 >> 8) * 2^-24. For f64, of block offset + i/2: x of w0, w1 and y of w2, w3, the first the
// lower half: u = ((x >> 11) + 1) * 2^-53, v = (y >> 11) * 2^-53.
#define SM_OP_RNG_NORMAL 145

// Capability: `alloc` knows `SM_MEMORY_HOST_PINNED`.
#define SM_CAP_PINNED_HOST (1 << 0)

// Capability: `alloc` knows `SM_MEMORY_MANAGED`.
#define SM_CAP_MANAGED (1 << 1)

// Capability: pinned host memory has a device address.
#define SM_CAP_MAPPED_HOST (1 << 2)

// Capability: host and device share one address space, so a pointer tells its device.
#define SM_CAP_UVA (1 << 3)

// Capability: `alloc_async` and `free_async` are stream-ordered.
#define SM_CAP_STREAM_ORDERED_ALLOC (1 << 4)

// Capability: devices of this backend reach each other's memory.
#define SM_CAP_PEER_ACCESS (1 << 5)

// Capability: device memory can be exported as a dma-buf with the default mapping.
#define SM_CAP_DMABUF_DEFAULT (1 << 6)

// Capability: device memory can be exported as a dma-buf with the PCIe mapping.
#define SM_CAP_DMABUF_PCIE (1 << 7)

// Capability: a NIC registers device addresses as they are, because a peer-memory kernel module lets
// it or because they are the host's own.
#define SM_CAP_PEERMEM (1 << 8)

// Capability: `set_sync_memops` of `stepmesh.rdma.v1` works.
#define SM_CAP_SYNC_MEMOPS (1 << 9)

// Capability: `flush_rdma_writes` of `stepmesh.rdma.v1` works.
#define SM_CAP_FLUSH_RDMA (1 << 10)

// Capability: device memory can be exported through `stepmesh.ipc.v1`. The extension alone, without
// this bit, may serve pinned memory only.
#define SM_CAP_IPC (1 << 11)

// Capability: events measure time.
#define SM_CAP_TIMING (1 << 12)

// Capability: `launch_host_func` runs in stream order.
#define SM_CAP_HOST_FUNC (1 << 13)

// Capability: the slots used on the data path may be called while a stream is captured.
#define SM_CAP_GRAPH_CAPTURE_SAFE (1 << 14)

// Capability: `stepmesh.vmm.v1` is there.
#define SM_CAP_VMM (1 << 15)

// Capability: `stepmesh.memevent.v1` is there.
#define SM_CAP_MEMEVENT (1 << 16)

// Capability: several instances may use the device at once.
#define SM_CAP_CONCURRENT_CONTEXTS (1 << 17)

// Capability: `stepmesh.lazy.v1` is there.
#define SM_CAP_LAZY (1 << 18)

// Capability: `probe` may be called before a fork without harm to the child.
#define SM_CAP_FORK_SAFE_PROBE (1 << 19)

// DLPack device type of host memory.
#define SM_DLPACK_CPU 1

// DLPack device type of CUDA device memory.
#define SM_DLPACK_CUDA 2

// DLPack device type of ROCm device memory.
#define SM_DLPACK_ROCM 10

// Write ordering: RDMA writes are not ordered for anyone; flush first.
#define SM_RDMA_ORDERING_NONE 0

// Write ordering: ordered as the owning device sees them.
#define SM_RDMA_ORDERING_OWNER 1

// Write ordering: ordered as every device sees them.
#define SM_RDMA_ORDERING_ALL_DEVICES 2

// Flush option: the host can flush RDMA writes.
#define SM_FLUSH_HOST (1 << 0)

// Flush option: a stream can flush RDMA writes.
#define SM_FLUSH_MEMOPS (1 << 1)

// Health: the device works.
#define SM_HEALTH_OK 0

// Health: the device works but reports errors.
#define SM_HEALTH_DEGRADED 1

// Health: the device is gone or must be reset.
#define SM_HEALTH_LOST 2

// Success. The numbers are those of gRPC and absl (PJRT and IREE use them too), so that layers
// above map one to one.
#define SM_OK 0

// The operation was cancelled, typically by closing its instance.
#define SM_CANCELLED 1

// A failure of unknown kind.
#define SM_UNKNOWN 2

// An argument is wrong whatever the state.
#define SM_INVALID_ARGUMENT 3

// A bounded wait ran out; the object is still usable.
#define SM_DEADLINE_EXCEEDED 4

// The named thing does not exist.
#define SM_NOT_FOUND 5

// The named thing exists already.
#define SM_ALREADY_EXISTS 6

// The process lacks a right.
#define SM_PERMISSION_DENIED 7

// Out of memory, handles, descriptors or disk.
#define SM_RESOURCE_EXHAUSTED 8

// The instance is in the wrong state: closed, poisoned, forked.
#define SM_FAILED_PRECONDITION 9

// Stopped by a conflict; the caller may start over.
#define SM_ABORTED 10

// A position beyond the end.
#define SM_OUT_OF_RANGE 11

// This backend does not do that.
#define SM_UNIMPLEMENTED 12

// A bug: an invariant broke, a panic or exception was caught.
#define SM_INTERNAL 13

// Not now; the same call may succeed later.
#define SM_UNAVAILABLE 14

// Data was lost or is corrupt.
#define SM_DATA_LOSS 15

// The caller has not proved who it is.
#define SM_UNAUTHENTICATED 16

// Error flag: the same call may succeed if it is made again.
#define SM_ERROR_RETRYABLE (1 << 0)

// Error flag: the device is gone; every later call on it fails.
#define SM_ERROR_DEVICE_LOST (1 << 1)

// Error flag: the error stays until the instance is closed.
#define SM_ERROR_STICKY (1 << 2)

// Error flag: memory ran out.
#define SM_ERROR_OOM (1 << 3)

// Error flag: peers that rely on this device must be told.
#define SM_ERROR_PEER_FATAL (1 << 4)

// Error flag: the message was cut to fit.
#define SM_ERROR_TRUNCATED (1 << 5)

// Bytes of an error's message: what is left of 256 after the numbers.
#define SM_ERROR_MSG_CAP 232

// Event flag: measures time.
#define SM_EVENT_TIMING (1 << 0)

// Event flag: other processes may wait for it.
#define SM_EVENT_IPC (1 << 1)

// Event flag: waiting sleeps by preference.
#define SM_EVENT_BLOCKING (1 << 2)

// Event flag: backed by a word in memory that the host polls.
#define SM_EVENT_MEMSYNC (1 << 3)

// Event state: work before the last record is still running.
#define SM_EVENT_PENDING 0

// Event state: that work is done. Also the state of an event that was never recorded.
#define SM_EVENT_DONE 1

// Event state: that work failed; `event_sync` tells how.
#define SM_EVENT_ERROR 2

// Wait mode: spin on the processor.
#define SM_WAIT_SPIN 0

// Wait mode: yield between looks.
#define SM_WAIT_YIELD 1

// Wait mode: sleep until woken.
#define SM_WAIT_BLOCK 2

// Handle kind: a file descriptor.
#define SM_IPC_FD 1

// Handle kind: bytes that only the vendor's library understands.
#define SM_IPC_OPAQUE 2

// Handle flag: the descriptor can be mapped by the host (`mmap`) for reading and writing.
#define SM_IPC_MAPPABLE (1 << 0)

// Mapping of a dma-buf: what the driver takes by default.
#define SM_DMABUF_DEFAULT 0

// Mapping of a dma-buf: through the device's PCIe window, also where another way would be default.
#define SM_DMABUF_PCIE 1

// Flush scope: the device whose memory it is.
#define SM_RDMA_FLUSH_OWNER 1

// Flush scope: every device.
#define SM_RDMA_FLUSH_ALL_DEVICES 2

// Flag of the capabilities: memory of `alloc_async` is exported too.
#define SM_RDMA_CAPS_ASYNC_POOL (1 << 0)

// Capture: the stream is not captured.
#define SM_CAPTURE_NONE 0

// Capture: it is.
#define SM_CAPTURE_ACTIVE 1

// Capture: it was, and an error ended that; ending the capture tells which.
#define SM_CAPTURE_INVALIDATED 2

// Outcome of a wait for a flag: the flag has the number.
#define SM_FLAG_WAIT_REACHED 1

// Outcome of a wait for a flag: the abort word was set.
#define SM_FLAG_WAIT_ABORTED 2

// Outcome of a wait for a flag: the time was up.
#define SM_FLAG_WAIT_TIMED_OUT 3

// Major version of the ABI. It is part of the entry symbol's name, so a library of another major
// is never called by mistake.
#define SM_ABI_MAJOR 1

// Minor version of the ABI: counts appended fields and slots. Any two minors work together.
#define SM_ABI_MINOR 0

// Log level: work was lost.
#define SM_LOG_ERROR 1

// Log level: degraded, going on.
#define SM_LOG_WARN 2

// Log level: a change an operator wants to see.
#define SM_LOG_INFO 3

// Log level: decisions.
#define SM_LOG_DEBUG 4

// Log level: each operation.
#define SM_LOG_TRACE 5

// Bytes of the host table in version 1.0; a host table is never smaller.
#define SM_HOST_API_LEN_V1_0 104

// Memory kind: not known to the backend.
#define SM_MEMORY_UNKNOWN 0

// Memory kind: the device's own.
#define SM_MEMORY_DEVICE 1

// Memory kind: host memory locked in place and known to the device.
#define SM_MEMORY_HOST_PINNED 2

// Memory kind: migrates between host and device.
#define SM_MEMORY_MANAGED 3

// Memory kind: ordinary host memory. A query's answer; cannot be allocated.
#define SM_MEMORY_HOST_PAGEABLE 4

// Memory kind: host memory that `host_register` made known. A query's answer.
#define SM_MEMORY_HOST_REGISTERED 5

// Alloc flag: a NIC will read and write the memory: aligned to [`SM_RDMA_ALIGN_BYTES`] at least,
// and synchronous memory operations forced where the device needs that.
#define SM_ALLOC_RDMA (1 << 0)

// Alloc flag: `stepmesh.ipc.v1` must be able to export the memory.
#define SM_ALLOC_SHAREABLE (1 << 1)

// Alignment in bytes of an allocation with [`SM_ALLOC_RDMA`]: the page of GPUDirect RDMA.
#define SM_RDMA_ALIGN_BYTES (64 << 10)

// Pointer flag: the host may load and store through the address.
#define SM_PTR_HOST_ACCESSIBLE (1 << 0)

// Pointer flag: `stepmesh.ipc.v1` can export the memory.
#define SM_PTR_SHAREABLE (1 << 1)

// Pointer flag: the memory is another process's, imported through `stepmesh.ipc.v1`.
#define SM_PTR_IMPORTED (1 << 2)

// Pointer flag: the pages are locked in memory.
#define SM_PTR_LOCKED (1 << 3)

// Copy direction: found from the pointers.
#define SM_COPY_AUTO 0

// Copy direction: host to device.
#define SM_COPY_H2D 1

// Copy direction: device to host.
#define SM_COPY_D2H 2

// Copy direction: within one device.
#define SM_COPY_D2D 3

// Copy direction: from one device to another.
#define SM_COPY_P2P 4

// Register flag: the device will only read the memory.
#define SM_REGISTER_READ_ONLY (1 << 0)

// Type of the note within its owner; another layout gets another number.
#define SM_NOTE_TYPE 1

// Kind: the host's own processor.
#define SM_KIND_CPU 1

// Kind: a GPU.
#define SM_KIND_GPU 2

// Kind: another accelerator.
#define SM_KIND_ACCELERATOR 3

// Panic strategy: the plugin's language has none.
#define SM_PANIC_NONE 0

// Panic strategy: panics unwind and are caught at the boundary.
#define SM_PANIC_UNWIND 1

// Panic strategy: a panic ends the process.
#define SM_PANIC_ABORT 2

// Sanitizer bit: address.
#define SM_SANITIZER_ADDRESS (1 << 0)

// Sanitizer bit: thread.
#define SM_SANITIZER_THREAD (1 << 1)

// Sanitizer bit: memory.
#define SM_SANITIZER_MEMORY (1 << 2)

// Note flag: the plugin has `stepmesh.lazy.v1`.
#define SM_NOTE_LAZY (1 << 0)

// Note flag: the plugin starts threads once it is open.
#define SM_NOTE_THREADS (1 << 1)

// Note flag: instances share state of the process, so one failing may harm another.
#define SM_NOTE_PROCESS_STATE (1 << 2)

// Stream: none. Refused by every slot, so that a forgotten stream never means the default one.
#define SM_STREAM_INVALID 0

// Stream: the device's legacy default stream (DLPack's number for CUDA).
#define SM_STREAM_LEGACY 1

// Stream: the calling thread's default stream of the device (DLPack's number for CUDA).
#define SM_STREAM_PER_THREAD 2

// Stream: the one the framework holds current. Resolved by the host; never reaches a plugin.
#define SM_STREAM_CURRENT UINT64_MAX

// Stream flag: not ordered with the legacy default stream.
#define SM_STREAM_NON_BLOCKING (1 << 0)

// The first field of every struct that crosses the boundary (except [`crate::SmError`], which
// carries its size alone).
//
// `struct_size` is always `sizeof` of the struct as the writer knows it. The reader uses the
// smaller of that and its own `sizeof`; a field beyond it is absent and has its default.
typedef struct SmHdr {
  // Bytes of the whole struct, this header included, as its writer knows it.
  uint32_t struct_size;
  // Major version of the ABI that the writer was built with.
  uint16_t abi_major;
  // Minor version of the ABI that the writer was built with.
  uint16_t abi_minor;
} SmHdr;

// A string in a struct: pointer and length, UTF-8, without a terminating NUL.
//
// The pointer may be null when the length is 0. The text lives as long as its owner says; readers
// copy it.
typedef struct SmStr {
  // First byte, or null when `len` is 0.
  const char *ptr;
  // Length in bytes.
  uint32_t len;
  // Zero.
  uint32_t pad0;
} SmStr;

// A plugin's description of itself. Name and version are those of its ELF note.
typedef struct SmPluginInfo {
  // Size and version.
  struct SmHdr hdr;
  // Name by which the backend is chosen: lower case letters, digits, `-` and `_`.
  struct SmStr name;
  // Version of the plugin.
  struct SmStr version;
  // Who made it.
  struct SmStr vendor;
  // What tells two builds apart; may be empty.
  struct SmStr build_id;
} SmPluginInfo;

// Where a slot writes why it failed. Owned by the caller, who may pass null; nothing in it is
// freed, so it outlives the plugin.
//
// A slot that succeeds leaves it alone. One that fails writes no byte at or beyond `struct_size`,
// which the caller sets. The message is UTF-8, cut at a character boundary when it does not fit
// ([`SM_ERROR_TRUNCATED`]), and has no NUL at its end.
typedef struct SmError {
  // Bytes of this struct, set by the caller.
  uint32_t struct_size;
  // One of the `SM_*` status codes; equal to what the slot returned.
  int32_t code;
  // The vendor's number (`cudaError_t`, `hipError_t`, `errno`), 0 if there is none.
  int64_t native_code;
  // `SM_ERROR_*` bits.
  uint32_t flags;
  // Bytes of `msg` in use.
  uint32_t msg_len;
  // What failed, on which object, and what to do about it.
  char msg[SM_ERROR_MSG_CAP];
} SmError;

// What a plugin may call. The host keeps the table and everything behind `ctx` alive until the
// process ends, and each function may be called from any thread at any time after `query`.
//
// A plugin copies the smaller of `hdr.struct_size` and its own `sizeof` into a zeroed table of its
// own, and treats a null function as one that does nothing.
typedef struct SmHostApi {
  // Size and version of the host's table.
  struct SmHdr hdr;
  // First argument of every function.
  void *ctx;
  // 1 if a message of this level (`SM_LOG_*`) and target would be kept. Ask before formatting.
  int32_t (*log_enabled)(void *ctx, uint32_t level, const char *target, uint32_t target_len);
  // Takes one log message; every text is UTF-8 with its length and is copied.
  void (*log)(void *ctx,
              uint32_t level,
              const char *target,
              uint32_t target_len,
              const char *file,
              uint32_t file_len,
              uint32_t line,
              const char *msg,
              uint32_t msg_len);
  // Copies the value of a configuration key to `buf` and its length to `len`. `SM_NOT_FOUND` if
  // the key has no value; `SM_OUT_OF_RANGE` with `len` set if it is longer than `cap`. Plugins
  // read no environment variable of their own.
  int32_t (*get_config)(void *ctx,
                        const char *key,
                        uint32_t key_len,
                        char *buf,
                        uint32_t cap,
                        uint32_t *len);
  // The framework's current stream of a device (`SM_DLPACK_*`, index). `SM_NOT_FOUND` if no
  // framework said.
  int32_t (*current_stream)(void *ctx, int32_t dlpack_type, uint32_t dev, uint64_t *stream);
  // Reports a failure that no call is there to return. The error is copied.
  void (*report_async_error)(void *ctx, uint32_t dev, const struct SmError *err);
  // Starts a span of the host's trace; the answer goes to `trace_end`. 0 when tracing is off.
  uint64_t (*trace_begin)(void *ctx, const char *name, uint32_t name_len);
  // Ends a span.
  void (*trace_end)(void *ctx, uint64_t span);
  // 1 once the process is ending: late destructors skip what would touch the driver.
  int32_t (*process_exiting)(void *ctx);
  // Memory of the host's allocator for a plugin's bookkeeping; null when there is none.
  void *(*alloc)(void *ctx, uint64_t size, uint64_t align);
  // Gives memory of `alloc` back, with the size and alignment it was asked with.
  void (*free)(void *ctx, void *ptr, uint64_t size, uint64_t align);
  // Nanoseconds of the host's monotonic clock.
  uint64_t (*monotonic_ns)(void *ctx);
} SmHostApi;

// What `open` is asked for.
typedef struct SmOpenArgs {
  // Size set by the host.
  struct SmHdr hdr;
  // No bit is defined in version 1.0; unknown bits are `SM_INVALID_ARGUMENT`.
  uint64_t flags;
} SmOpenArgs;

// Facts about one device. Filled by the plugin up to the smaller of its own size and the caller's
// `hdr.struct_size`; text fields are UTF-8, NUL-padded.
//
// The plugin supplies facts; the host decides what follows from them (which NIC is near, which
// torch device a tensor gets).
typedef struct SmDeviceInfo {
  // Size set by the caller.
  struct SmHdr hdr;
  // Index by which every slot names this device, 0 up to the count.
  int32_t ordinal;
  // Index before `*_VISIBLE_DEVICES` and the like; -1 if unknown.
  int32_t physical_ordinal;
  // Marketing name.
  char name[64];
  // Architecture as compilers name it (`sm_90`, `gfx942`, `x86_64`).
  char arch[32];
  // Type of the torch device (`cuda` for ROCm too).
  char torch_device_type[16];
  // PCI address in lower case, `0000:3b:00.0`; empty if the device is not on PCI.
  char pci_bdf[16];
  // Identity that survives reboots and ordinals; all zero if unknown.
  uint8_t uuid[16];
  // NUMA node; -1 if unknown.
  int32_t numa_node;
  // Index of the torch device.
  int32_t torch_index;
  // `DLDeviceType` (`SM_DLPACK_*`).
  int32_t dlpack_type;
  // `device_id` of DLPack.
  int32_t dlpack_id;
  // PCI vendor, 0 if not on PCI.
  uint32_t vendor_id;
  // PCI device, 0 if not on PCI.
  uint32_t device_id;
  // Major compute capability, 0 if it has none.
  uint32_t cc_major;
  // Minor compute capability.
  uint32_t cc_minor;
  // Bytes of memory.
  uint64_t total_mem;
  // Bytes of one allocation page: sizes and addresses of allocations are multiples of it.
  uint64_t page_granularity;
  // Alignment in bytes of an exported dma-buf, 0 if none can be exported.
  uint64_t dmabuf_granularity;
  // 1 if the device shares the host's memory.
  uint32_t integrated;
  // `SM_RDMA_ORDERING_*`.
  uint32_t rdma_write_ordering;
  // `SM_FLUSH_*` bits.
  uint32_t flush_options;
  // Zero.
  uint32_t pad0;
} SmDeviceInfo;

// What a backend knows about an address. Filled up to the smaller of the plugin's size and the
// caller's `hdr.struct_size`.
//
// An interior pointer resolves to its allocation. Memory the backend does not know is not an
// error: its kind is [`SM_MEMORY_UNKNOWN`] or [`SM_MEMORY_HOST_PAGEABLE`], the rest zero.
typedef struct SmPtrAttr {
  // Size set by the caller.
  struct SmHdr hdr;
  // `SM_MEMORY_*`.
  uint32_t kind;
  // Device that owns the memory; -1 if none.
  int32_t device;
  // First address of the allocation.
  uint64_t base;
  // Bytes of the allocation as they were asked for.
  uint64_t size;
  // Names the allocation; never given out again by the process, also when the address is, so
  // that a cache of registrations can be keyed by it. 0 for unknown memory.
  uint64_t alloc_id;
  // `SM_PTR_*` bits.
  uint64_t flags;
  // Zero.
  uint64_t reserved;
} SmPtrAttr;

// The functions of a plugin. Static, immutable, and at the same address for every `query`.
//
// Each slot returns a status code ([`crate::error`]) that is also in `err`, which may be null.
// Out pointers must not be null and are written on success only. A slot that is null or beyond
// `hdr.struct_size` is absent: the host puts a thunk of its own there if it is optional, and
// refuses the plugin if it is required.
//
// Threading classes:
// - **A**: any thread, concurrently.
// - **H**: any thread, one call at a time for each handle.
// - **C**: callback context; must not call back into the table and must not block for long.
// - **I**: the thread that initialises or ends the instance, with no other call in flight on it.
//
// A slot leaves the calling thread's current device as it found it, also on failure (except
// `set_current_device`), holds no lock while it calls the host, never aborts or exits, and installs
// no signal handler. In a forked child an instance of the parent answers `SM_FAILED_PRECONDITION`.
typedef struct SmBackendApi {
  // Size and version of the plugin's table.
  struct SmHdr hdr;
  // **Required.** The plugin's description of itself.
  const struct SmPluginInfo *info;
  // **Required, class A.** Counts usable devices and scores the backend (0: unusable; higher is
  // better) without making a context, a thread or a file. No driver installed is 0 devices, not
  // an error.
  int32_t (*probe)(uint32_t *n_devices, uint32_t *score, struct SmError *err);
  // **Required, class I.** Makes an instance. Several may be open at once. `host` is the table
  // that `query` was given.
  int32_t (*open)(const struct SmHostApi *host,
                  const struct SmOpenArgs *args,
                  SmBackend **out,
                  struct SmError *err);
  // **Optional, class I.** Drains the instance's work and stops its threads, within a bound.
  // Idempotent; afterwards every slot but `close`, `free`, the destroys and `last_error` is
  // `SM_FAILED_PRECONDITION`. Thunk: nothing.
  int32_t (*quiesce)(SmBackend *s, struct SmError *err);
  // **Required, class I.** Ends the instance; quiesces first if that was not done. Handles that
  // are still live are released. The pointer is invalid afterwards, whatever is returned.
  int32_t (*close)(SmBackend *s, struct SmError *err);
  // **Required, class A.** Number of devices; constant for the life of the instance.
  int32_t (*device_count)(SmBackend *s, uint32_t *n, struct SmError *err);
  // **Required, class A.** Facts about a device.
  int32_t (*device_info)(SmBackend *s, uint32_t dev, struct SmDeviceInfo *out, struct SmError *err);
  // **Optional, class A.** Free and total bytes of memory, as the runtime (or what stands in its
  // way) says now. Thunk: `SM_UNIMPLEMENTED`.
  int32_t (*mem_info)(SmBackend *s,
                      uint32_t dev,
                      uint64_t *free,
                      uint64_t *total,
                      struct SmError *err);
  // **Required, class A.** `SM_CAP_*` bits of a device.
  int32_t (*capabilities)(SmBackend *s, uint32_t dev, uint64_t *bits, struct SmError *err);
  // **Required, class A.** Makes a device the calling thread's current one.
  int32_t (*set_current_device)(SmBackend *s, uint32_t dev, struct SmError *err);
  // **Required, class A.** The calling thread's current device, as the runtime says; -1 if there
  // is none.
  int32_t (*get_current_device)(SmBackend *s, int32_t *dev, struct SmError *err);
  // **Required, class A.** Waits until all work submitted to the device so far is done. Use
  // `stream_sync` for a wait with a bound of your choice.
  int32_t (*device_sync)(SmBackend *s, uint32_t dev, struct SmError *err);
  // **Required, class A.** Memory of `size` bytes. `align` is a power of two, or 0 for the
  // backend's choice; `kind` is `SM_MEMORY_*`, `flags` are `SM_ALLOC_*`. Size 0 gives address 0.
  // Out of memory is `SM_RESOURCE_EXHAUSTED` with `SM_ERROR_OOM`, and leaves the device usable.
  int32_t (*alloc)(SmBackend *s,
                   uint32_t dev,
                   uint64_t size,
                   uint64_t align,
                   uint32_t kind,
                   uint32_t flags,
                   uint64_t *ptr,
                   struct SmError *err);
  // **Required, class A.** Gives memory back, from any thread. 0 is fine; an address that is not
  // the first of a live allocation is `SM_INVALID_ARGUMENT`. Work in flight on the memory must
  // be done.
  int32_t (*free)(SmBackend *s, uint32_t dev, uint64_t ptr, struct SmError *err);
  // **Optional, class A.** Memory usable by work submitted to the stream after this call. Thunk:
  // `alloc`.
  int32_t (*alloc_async)(SmBackend *s,
                         uint32_t dev,
                         uint64_t size,
                         uint32_t stream_dev,
                         uint64_t stream,
                         uint64_t *ptr,
                         struct SmError *err);
  // **Optional, class A.** Gives memory back when the stream gets there. Thunk: `stream_sync`,
  // then `free`.
  int32_t (*free_async)(SmBackend *s,
                        uint32_t dev,
                        uint64_t ptr,
                        uint32_t stream_dev,
                        uint64_t stream,
                        struct SmError *err);
  // **Optional, class A.** Makes host memory known to every device (`SM_REGISTER_*`) and gives
  // its device address. Registered already: `SM_ALREADY_EXISTS`. Thunk: `SM_UNIMPLEMENTED`.
  int32_t (*host_register)(SmBackend *s,
                           void *ptr,
                           uint64_t size,
                           uint32_t flags,
                           uint64_t *dptr,
                           struct SmError *err);
  // **Optional, class A.** Undoes `host_register`. Unknown: `SM_NOT_FOUND`. Thunk:
  // `SM_UNIMPLEMENTED`.
  int32_t (*host_unregister)(SmBackend *s, void *ptr, struct SmError *err);
  // **Required, class A.** What is known about an address; interior addresses resolve. Unknown
  // memory is not an error.
  int32_t (*pointer_attributes)(SmBackend *s,
                                uint64_t ptr,
                                struct SmPtrAttr *out,
                                struct SmError *err);
  // **Required, class A.** A stream: work on it runs in order, and asynchronously to the caller
  // where the device can; a backend may also do it before the slot that submits it returns.
  // Lower `priority` numbers are more urgent, 0 is ordinary, and the value is clamped. `flags`
  // are `SM_STREAM_*`.
  int32_t (*stream_create)(SmBackend *s,
                           uint32_t dev,
                           int32_t priority,
                           uint32_t flags,
                           uint64_t *stream,
                           struct SmError *err);
  // **Required, class H.** Ends a stream. Work already submitted is still done; the call does
  // not wait for it.
  int32_t (*stream_destroy)(SmBackend *s, uint32_t stream_dev, uint64_t stream, struct SmError *err);
  // **Required, class A.** Waits until the work submitted so far is done, `SM_DEADLINE_EXCEEDED`
  // at the latest after `timeout_ns`. A failure of earlier work on the stream is returned.
  int32_t (*stream_sync)(SmBackend *s,
                         uint32_t stream_dev,
                         uint64_t stream,
                         uint64_t timeout_ns,
                         struct SmError *err);
  // **Required, class A.** 1 if all work submitted so far is done.
  int32_t (*stream_query)(SmBackend *s,
                          uint32_t stream_dev,
                          uint64_t stream,
                          uint32_t *done,
                          struct SmError *err);
  // **Required, class A.** Later work on the stream waits for the event's last record; records
  // made after this call do not matter. Returns at once.
  int32_t (*stream_wait_event)(SmBackend *s,
                               uint32_t stream_dev,
                               uint64_t stream,
                               SmEvent *event,
                               struct SmError *err);
  // **Required, class A.** Copies in stream order. `dir` is `SM_COPY_*`; a device argument of a
  // host side is ignored. The ranges may not overlap, and stay valid until the copy is done.
  // Size 0 is fine.
  int32_t (*memcpy_async)(SmBackend *s,
                          uint64_t dst,
                          uint64_t src,
                          uint64_t size,
                          uint32_t dir,
                          uint32_t dst_dev,
                          uint32_t src_dev,
                          uint32_t stream_dev,
                          uint64_t stream,
                          struct SmError *err);
  // **Optional, class A.** Copies before it returns. Thunk: `memcpy_async` on a stream of the
  // host's, then `stream_sync`.
  int32_t (*memcpy_sync)(SmBackend *s,
                         uint64_t dst,
                         uint64_t src,
                         uint64_t size,
                         uint32_t dir,
                         uint32_t dst_dev,
                         uint32_t src_dev,
                         struct SmError *err);
  // **Optional, class A.** Fills `size` bytes with the low `width` (1, 2 or 4) bytes of `value`,
  // in stream order. `size` and `dst` are multiples of `width`. Thunk: `SM_UNIMPLEMENTED`.
  int32_t (*memset_async)(SmBackend *s,
                          uint64_t dst,
                          uint32_t value,
                          uint32_t width,
                          uint64_t size,
                          uint32_t stream_dev,
                          uint64_t stream,
                          struct SmError *err);
  // **Required, class A.** An event (`SM_EVENT_*` flags). Success is never null.
  int32_t (*event_create)(SmBackend *s,
                          uint32_t dev,
                          uint32_t flags,
                          SmEvent **out,
                          struct SmError *err);
  // **Required, class H.** Ends an event; safe while it is pending or waited for by a stream.
  // Null is fine.
  int32_t (*event_destroy)(SmBackend *s, SmEvent *event, struct SmError *err);
  // **Required, class H.** Marks the present end of the stream's work. Recording again moves the
  // mark; those who wait for the earlier one are not disturbed.
  int32_t (*event_record)(SmBackend *s,
                          SmEvent *event,
                          uint32_t stream_dev,
                          uint64_t stream,
                          struct SmError *err);
  // **Required, class A.** `SM_EVENT_PENDING`, `DONE` or `ERROR`. Never recorded is `DONE`.
  int32_t (*event_query)(SmBackend *s, SmEvent *event, uint32_t *state, struct SmError *err);
  // **Required, class A.** Waits for the last record in the way `wait` (`SM_WAIT_*`) says;
  // `SM_DEADLINE_EXCEEDED` at the latest after `timeout_ns`, and the event stays usable. A
  // failure of the work is returned.
  int32_t (*event_sync)(SmBackend *s,
                        SmEvent *event,
                        uint64_t timeout_ns,
                        uint32_t wait,
                        struct SmError *err);
  // **Optional, class A.** Milliseconds between two events that have `SM_EVENT_TIMING` and are
  // done. Thunk: `SM_UNIMPLEMENTED`.
  int32_t (*event_elapsed)(SmBackend *s,
                           SmEvent *start,
                           SmEvent *end,
                           double *ms,
                           struct SmError *err);
  // **Optional, class A.** Runs `func(arg)` exactly once when the stream gets there, also when
  // earlier work failed or the instance is closed first. `func` is class C. Thunk: a thread of
  // the host's that waits.
  int32_t (*launch_host_func)(SmBackend *s,
                              uint32_t stream_dev,
                              uint64_t stream,
                              void (*func)(void *arg),
                              void *arg,
                              struct SmError *err);
  // **Optional, class A.** The calling thread's last error on any instance, for callers that
  // passed null. `SM_OK` and an empty message if there was none. Returns its code. Thunk:
  // `SM_OK`.
  int32_t (*last_error)(SmBackend *s, struct SmError *err);
  // **Optional, class A.** `SM_HEALTH_*`; the error, if any, tells the fault. Thunk:
  // `SM_HEALTH_OK`.
  int32_t (*health)(SmBackend *s, uint32_t dev, uint32_t *state, struct SmError *err);
  // **Optional, class A.** The table of an extension (`SM_EXTENSION_*` or a vendor's own
  // reverse-DNS name) of at least `min_version`. Unknown: `SM_NOT_FOUND`. The table lives as
  // long as the process. Thunk: `SM_NOT_FOUND`.
  int32_t (*get_extension)(SmBackend *s,
                           const char *id,
                           uint32_t id_len,
                           uint32_t min_version,
                           const void **table,
                           uint32_t *version,
                           struct SmError *err);
} SmBackendApi;

// Type of the entry symbol. Pure: opens no device, starts no thread, reads no environment. Returns
// the same table each time, or null with `err` filled in if the host cannot be served. The host's
// table lives as long as the process; the plugin logs through it from here on.
typedef const struct SmBackendApi *(*SmBackendQueryFn)(const struct SmHostApi *host,
                                                       struct SmError *err);

// A piece of memory that another process can map or import. Filled by `SmIpcV1::export_memory`,
// carried to the other process by the host.
typedef struct SmIpcHandle {
  // Size set by the caller.
  struct SmHdr hdr;
  // `SM_IPC_FD` or `SM_IPC_OPAQUE`.
  uint32_t kind;
  // With `SM_IPC_FD`: a descriptor with `O_CLOEXEC`; -1 otherwise.
  int32_t fd;
  // Where the exported range starts in the file or in the opaque object, in bytes.
  uint64_t offset;
  // Bytes of the exported range.
  uint64_t len;
  // `SM_IPC_*` flags.
  uint32_t flags;
  // Zero.
  uint32_t pad0;
  // With `SM_IPC_OPAQUE`: the vendor's handle (64 bytes are enough for CUDA and HIP).
  uint8_t bytes[64];
} SmIpcHandle;

// `stepmesh.ipc.v1`: memory shared between processes of one host. Every function is class A and
// required; the table lives as long as the plugin, that is, as long as the process.
typedef struct SmIpcV1 {
  // Size and version of the plugin's table.
  struct SmHdr hdr;
  // Exports `size` bytes at `ptr` (interior pointers are fine) of an allocation of `dev`.
  //
  // The descriptor in an `SM_IPC_FD` handle belongs to the caller, who closes it with `close`
  // when it was sent or mapped; the plugin keeps no use of it. The memory stays alive through
  // the descriptor and its mappings, also after `free`. A range that is not within one
  // allocation is `SM_INVALID_ARGUMENT`; memory that cannot be shared is `SM_UNIMPLEMENTED`.
  int32_t (*export_memory)(SmBackend *s,
                           uint32_t dev,
                           uint64_t ptr,
                           uint64_t size,
                           struct SmIpcHandle *out,
                           struct SmError *err);
  // Makes another process's memory usable by `dev` and gives its address. The descriptor in the
  // handle stays the caller's. Size and offset are checked against the object itself.
  int32_t (*import_memory)(SmBackend *s,
                           uint32_t dev,
                           const struct SmIpcHandle *handle,
                           uint64_t *ptr,
                           struct SmError *err);
  // Ends an import. `ptr` is the address that `import_memory` gave; 0 is fine.
  int32_t (*close_import)(SmBackend *s, uint32_t dev, uint64_t ptr, struct SmError *err);
} SmIpcV1;

// `stepmesh.memevent.v1`: an event that the host waits for with nothing but loads. It is a word of
// 8 bytes, at first 0, that only ever grows. Each `arm` names a number greater than the one before,
// which the word has once the stream got there; so nothing is ever reset, and who waits for an
// earlier number cannot miss it.
//
// Every function is required. The table lives as long as the plugin, that is, as long as the
// process.
typedef struct SmMemEventV1 {
  // Size and version of the plugin's table.
  struct SmHdr hdr;
  // Class A. Makes a mem-event whose word is 0. Success is never null.
  int32_t (*create)(SmBackend *s, uint32_t dev, SmMemEvent **out, struct SmError *err);
  // Class H. Ends one; safe while it is armed. Its word may not be read any more. Null is fine.
  int32_t (*destroy)(SmBackend *s, SmMemEvent *event, struct SmError *err);
  // Class H. Once the stream's work so far is done, and what it wrote can be seen by who loads
  // the word (acquire) and by other devices, the word becomes `seq`. `seq` is greater than that
  // of every earlier call, else `SM_INVALID_ARGUMENT`. The caller takes another stream than for
  // the call before only if the word has that call's number or never will, or if the streams are
  // ordered: the plugin writes numbers as they become due.
  int32_t (*arm)(SmBackend *s,
                 SmMemEvent *event,
                 uint32_t stream_dev,
                 uint64_t stream,
                 uint64_t seq,
                 struct SmError *err);
  // Class A. Where the word is: 8 bytes, aligned, in memory that the host reads; the same for the
  // life of the event.
  int32_t (*poll_addr)(SmBackend *s, SmMemEvent *event, const uint64_t **addr, struct SmError *err);
  // Class A. What became of the last arm: `SM_EVENT_PENDING` or `DONE`. If the work before it
  // failed, or the device is lost, the word will never be what was armed: that failure is then
  // the answer of this function. A host that polls asks now and then.
  int32_t (*query)(SmBackend *s, SmMemEvent *event, uint32_t *state, struct SmError *err);
} SmMemEventV1;

// What a device offers to network adapters. Filled up to the smaller of the plugin's size and the
// caller's `hdr.struct_size`.
typedef struct SmRdmaCaps {
  // Size set by the caller.
  struct SmHdr hdr;
  // Bits `1 << SM_DMABUF_*` of the mappings that `dmabuf_export` makes.
  uint32_t mappings;
  // Bits `1 << SM_MEMORY_*` of the kinds of memory that it exports.
  uint32_t memory_kinds;
  // Bits `1 << SM_RDMA_FLUSH_*` of the scopes that `flush_rdma_writes` knows.
  uint32_t flush_scopes;
  // `SM_RDMA_ORDERING_*`, as in `SmDeviceInfo`.
  uint32_t write_ordering;
  // Bytes to which exports are aligned, as in `SmDeviceInfo`; 0 if there are none.
  uint64_t dmabuf_granularity;
  // `SM_RDMA_CAPS_*` flags.
  uint32_t flags;
  // Zero.
  uint32_t pad0;
} SmRdmaCaps;

// `stepmesh.rdma.v1`: memory that a network adapter reads and writes. Every function is class A and
// required; what a device cannot do is answered with `SM_UNIMPLEMENTED` and with what there is
// instead. The table lives as long as the plugin, that is, as long as the process.
typedef struct SmRdmaV1 {
  // Size and version of the plugin's table.
  struct SmHdr hdr;
  // Exports `size` bytes at `ptr` (interior pointers are fine) of an allocation of `dev` as a
  // dma-buf, whose descriptor has `O_CLOEXEC` and belongs to the caller until `dmabuf_close`.
  //
  // `mapping` is `SM_DMABUF_*`. A dma-buf has whole pages: `offset` is where `ptr` is in it, and
  // `len` the bytes that may be used from there, `size` at least. The memory stays alive through
  // the descriptor, also after `free`, and what is allocated later cannot be reached through it.
  //
  // An unknown mapping, or a range that is not within one allocation, is `SM_INVALID_ARGUMENT`;
  // a mapping or a kind of memory that is not supported is `SM_UNIMPLEMENTED`; a driver that
  // could and will not is `SM_UNAVAILABLE`. Never is less covered than was asked for.
  int32_t (*dmabuf_export)(SmBackend *s,
                           uint32_t dev,
                           uint64_t ptr,
                           uint64_t size,
                           uint32_t mapping,
                           int32_t *fd,
                           uint64_t *offset,
                           uint64_t *len,
                           struct SmError *err);
  // Closes a descriptor of `dmabuf_export`, once, after the last registration of it. Served after
  // `quiesce` too.
  int32_t (*dmabuf_close)(SmBackend *s, int32_t fd, struct SmError *err);
  // What the device offers.
  int32_t (*rdma_caps)(SmBackend *s, uint32_t dev, struct SmRdmaCaps *out, struct SmError *err);
  // Makes what network adapters wrote to the device's memory, and told the host of, visible to
  // `scope` (`SM_RDMA_FLUSH_*`) before it returns. An unknown scope is `SM_INVALID_ARGUMENT`.
  int32_t (*flush_rdma_writes)(SmBackend *s, uint32_t dev, uint32_t scope, struct SmError *err);
  // From here on, synchronous copies and fills of the allocation that `ptr` lies in are over when
  // they return, for network adapters too. An address that is in no allocation is
  // `SM_INVALID_ARGUMENT`.
  int32_t (*set_sync_memops)(SmBackend *s, uint64_t ptr, struct SmError *err);
  // Has `func` called with the `alloc_id` of each allocation, registration and import of the
  // instance that ends, before its address may be given to anything else and at the latest
  // before the call that ended it returns. So a cache of registrations is told in time.
  //
  // There is one for each instance: it takes the place of the one before, and null ends it. A call
  // under way in another thread may still reach the old one, so both stay valid until the
  // instance is closed. `func` is class C, may come from any thread and several at once, and is
  // called with no lock held. `close` ends all memory and calls nothing.
  int32_t (*set_invalidate_callback)(SmBackend *s,
                                     void (*func)(void *ctx, uint64_t alloc_id),
                                     void *ctx,
                                     struct SmError *err);
} SmRdmaV1;

// `stepmesh.graph.v1`: work that is captured into a graph and replayed, and flags in memory by which
// it and the host wait for each other. Every function is class A and required; what a device cannot
// do is answered with `SM_UNIMPLEMENTED`. The table lives as long as the plugin, that is, as long as
// the process.
//
// A flag and a sequence number are words of 8 bytes, aligned, in memory that the device reaches
// (device memory, pinned or registered memory), and stay there until the stream, and every graph that
// captured the work, is done with them. All three kinds of work read the sequence number from memory
// when they run and not when they are submitted, so that a graph that is replayed sees new ones:
// `seq_add_one` in the graph counts them. Copies, fills, events and mem-events are captured through
// their own slots.
typedef struct SmGraphV1 {
  // Size and version of the plugin's table.
  struct SmHdr hdr;
  // Whether a stream is being captured (`SM_CAPTURE_*`), and the number of that capture, 0 if there
  // is none.
  int32_t (*capture_state)(SmBackend *s,
                           uint32_t stream_dev,
                           uint64_t stream,
                           uint32_t *state,
                           uint64_t *id,
                           struct SmError *err);
  // In stream order: the word at `flag` becomes that at `seq`, once all earlier work of the stream
  // can be seen by who loads the flag (acquire).
  int32_t (*write_flag)(SmBackend *s,
                        uint32_t stream_dev,
                        uint64_t stream,
                        uint64_t flag,
                        uint64_t seq,
                        struct SmError *err);
  // In stream order: waits until the word at `flag` is that at `seq` or greater (acquire), until
  // the word at `abort` is not 0, or for `timeout_ns`, which is not 0. The word at `outcome`
  // becomes `SM_FLAG_WAIT_*`. `abort` and `outcome` may be 0: none.
  //
  // The stream goes on in each case, and so does a graph; who submitted it looks at the outcome.
  int32_t (*wait_flag)(SmBackend *s,
                       uint32_t stream_dev,
                       uint64_t stream,
                       uint64_t flag,
                       uint64_t seq,
                       uint64_t abort,
                       uint64_t outcome,
                       uint64_t timeout_ns,
                       struct SmError *err);
  // In stream order: adds 1 to the word at `seq`.
  int32_t (*seq_add_one)(SmBackend *s,
                         uint32_t stream_dev,
                         uint64_t stream,
                         uint64_t seq,
                         struct SmError *err);
} SmGraphV1;

// A reference to a value: an output of an earlier node. Its layout is fixed for good.
typedef struct SmValue {
  // Index of the node in the graph; for an operand, less than that of the node it belongs to.
  uint32_t node;
  // Which output of it; 0.
  uint32_t output;
} SmValue;

// An attribute of a node. Each key is there once at most. Its layout is fixed for good: a new kind
// is a new number.
typedef struct SmAttr {
  // `SM_ATTR_*`.
  uint32_t key;
  // `SM_ATTR_KIND_*`: which of the fields below has the value; the others are zero.
  uint32_t kind;
  // With `SM_ATTR_KIND_INT`.
  int64_t int_value;
  // With `SM_ATTR_KIND_FLOAT`.
  double float_value;
  // With `SM_ATTR_KIND_INTS`: `const int64_t*`; with `SM_ATTR_KIND_BYTES`: `const uint8_t*`.
  const void *data;
  // Numbers, or bytes, at `data`.
  uint64_t data_len;
} SmAttr;

// A node of a graph. All nodes of an array have the same `hdr.struct_size`, which is the distance
// from one to the next.
typedef struct SmNode {
  // Size and version.
  struct SmHdr hdr;
  // `SM_OP_*`.
  uint32_t op;
  // `SM_DTYPE_*` of the value.
  uint32_t dtype;
  // Dimensions of the value.
  uint32_t rank;
  // Number of operands.
  uint32_t n_operands;
  // Extents; zero beyond the rank.
  uint64_t dims[8];
  // The operands; may be null when there are none.
  const struct SmValue *operands;
  // The attributes; may be null when there are none.
  const struct SmAttr *attrs;
  // Number of attributes.
  uint32_t n_attrs;
  // Zero.
  uint32_t pad0;
  // Where in the user's program the node comes from (`src/model.rs:42`), for messages; or empty.
  struct SmStr location;
} SmNode;

// A donation: the caller of `execute` may pass the address of the parameter's argument as that of
// the result, which then replaces it. Both have the same type and shape, and each is in one alias
// at most. Its layout is fixed for good.
typedef struct SmAlias {
  // Number of the parameter.
  uint32_t param;
  // Number of the result.
  uint32_t result;
} SmAlias;

// A graph. Nodes are in topological order: operands come before those who use them. The plugin
// copies what it needs; nothing of it is read after `compile`.
typedef struct SmGraph {
  // Size and version.
  struct SmHdr hdr;
  // For messages and dumps; may be empty.
  struct SmStr name;
  // The nodes.
  const struct SmNode *nodes;
  // Indices of the parameters' nodes by their number; each `SM_OP_PARAMETER` is in it once.
  const uint32_t *params;
  // The results by their number. A value may be in it twice, and may be a parameter.
  const struct SmValue *results;
  // The donations.
  const struct SmAlias *aliases;
  // Number of nodes.
  uint32_t n_nodes;
  // Number of parameters.
  uint32_t n_params;
  // Number of results; at least one.
  uint32_t n_results;
  // Number of donations.
  uint32_t n_aliases;
} SmGraph;

// How to compile.
typedef struct SmCompileOptions {
  // Size and version.
  struct SmHdr hdr;
  // `SM_COMPILE_*` flags; an unknown one is `SM_INVALID_ARGUMENT`.
  uint32_t flags;
  // Host threads that an execution may use; 0 is the plugin's choice.
  uint32_t threads_max;
} SmCompileOptions;

// Type and shape of a parameter or a result. An array has the step `hdr.struct_size`.
typedef struct SmTensorInfo {
  // Size and version.
  struct SmHdr hdr;
  // `SM_DTYPE_*`.
  uint32_t dtype;
  // Dimensions.
  uint32_t rank;
  // Extents; zero beyond the rank.
  uint64_t dims[8];
  // Bytes that the argument or the result has.
  uint64_t len_bytes;
  // The other side of its donation (number of the result or of the parameter); -1 without one.
  int32_t alias;
  // Zero.
  uint32_t pad0;
} SmTensorInfo;

// What is known about an executable. Filled up to the smaller of the plugin's size and the
// caller's `hdr.struct_size`; the arrays are the plugin's and live as long as the executable.
typedef struct SmExecutableInfo {
  // Size set by the caller.
  struct SmHdr hdr;
  // The parameters by their number.
  const struct SmTensorInfo *params;
  // The results by their number.
  const struct SmTensorInfo *results;
  // Number of parameters.
  uint32_t n_params;
  // Number of results.
  uint32_t n_results;
  // Device memory that one execution takes for intermediate values, in bytes; 0 if unknown.
  uint64_t scratch_len_bytes;
} SmExecutableInfo;

// Tells where serialised executables can be used: where the bytes are equal.
typedef struct SmFingerprint {
  // Size set by the caller.
  struct SmHdr hdr;
  // Depends on the plugin's build and on the kind of device, not on the process or the time.
  uint8_t bytes[32];
} SmFingerprint;

// `stepmesh.compute.v1`. Every function is required and of class A, but for `executable_destroy`.
// The table lives as long as the plugin, that is, as long as the process.
typedef struct SmComputeV1 {
  // Size and version of the plugin's table.
  struct SmHdr hdr;
  // Whether the device does `op` for `dtype`: 1 or 0. The type is that of the value; of the
  // operand for `compare` and `argmax`. A cast needs a yes for both of its types. A plugin
  // compiles whatever graph is made of nodes to which it said yes. Unknown numbers are 0.
  int32_t (*supported_ops)(SmBackend *s,
                           uint32_t dev,
                           uint32_t op,
                           uint32_t dtype,
                           uint32_t *supported,
                           struct SmError *err);
  // Compiles a graph for a device; may take long. Null options are the defaults. Success is never
  // null. A failure leaves nothing behind.
  int32_t (*compile)(SmBackend *s,
                     uint32_t dev,
                     const struct SmGraph *graph,
                     const struct SmCompileOptions *options,
                     SmExecutable **out,
                     struct SmError *err);
  // Executes in stream order, asynchronously: returns once the work is queued. The stream is of
  // the executable's device.
  //
  // `args` and `outs` are addresses by number, each of the `len_bytes` that `executable_info`
  // says, aligned to the size of an element, and reachable by the device; 0 is fine for an empty
  // value. Arguments are only read, and may overlap each other. A result overlaps nothing but,
  // exactly, the argument of its donation. Both arrays are read before the call returns; the
  // memory stays valid until the stream is done. A wrong count, a null or a misaligned address is
  // `SM_INVALID_ARGUMENT`. A failure later on is the stream's, as that of a copy would be.
  //
  // One executable may execute on several streams at once.
  int32_t (*execute)(SmBackend *s,
                     SmExecutable *executable,
                     const uint64_t *args,
                     uint32_t n_args,
                     const uint64_t *outs,
                     uint32_t n_outs,
                     uint32_t stream_dev,
                     uint64_t stream,
                     struct SmError *err);
  // What is known about an executable.
  int32_t (*executable_info)(SmBackend *s,
                             SmExecutable *executable,
                             struct SmExecutableInfo *out,
                             struct SmError *err);
  // Text for people (`SM_COMPUTE_TEXT_*`): UTF-8, no NUL. `len` becomes the length of the whole;
  // as much of it as fits in `cap` bytes is written, so 0 asks for the length. A form that there
  // is not is `SM_UNIMPLEMENTED`, an unknown number `SM_INVALID_ARGUMENT`.
  int32_t (*executable_text)(SmBackend *s,
                             SmExecutable *executable,
                             uint32_t form,
                             char *buf,
                             uint64_t cap,
                             uint64_t *len,
                             struct SmError *err);
  // The executable as bytes, which `deserialize` takes wherever the fingerprint is the same.
  // `len` and `cap` as for `executable_text`; a part of them is of no use. Two calls for one
  // executable give the same bytes. `SM_UNIMPLEMENTED` if the plugin cannot.
  int32_t (*serialize)(SmBackend *s,
                       SmExecutable *executable,
                       uint8_t *buf,
                       uint64_t cap,
                       uint64_t *len,
                       struct SmError *err);
  // Makes an executable of such bytes, which are hostile until checked: `SM_FAILED_PRECONDITION`
  // if they are of another fingerprint, `SM_DATA_LOSS` if they were cut or changed.
  int32_t (*deserialize)(SmBackend *s,
                         uint32_t dev,
                         const uint8_t *bytes,
                         uint64_t len,
                         SmExecutable **out,
                         struct SmError *err);
  // Where serialised executables of this device can be used.
  int32_t (*fingerprint)(SmBackend *s, uint32_t dev, struct SmFingerprint *out, struct SmError *err);
  // Class H. Ends an executable; executions in flight are still done. Null is fine. Served after
  // `quiesce` too.
  int32_t (*executable_destroy)(SmBackend *s, SmExecutable *executable, struct SmError *err);
} SmComputeV1;

// Header of an ELF note, for authors in C. All numbers are little-endian.
typedef struct SmNoteHeader {
  // 9: the owner with its NUL.
  uint32_t name_len;
  // Bytes of the description.
  uint32_t desc_len;
  // `SM_NOTE_TYPE`.
  uint32_t note_type;
  // `StepMesh` and NULs.
  uint8_t owner[12];
} SmNoteHeader;

// Fixed part of the note's description, for authors in C. All numbers are little-endian. The
// texts follow at `struct_size`: name, aliases, version and target, without gaps.
typedef struct SmNoteDesc {
  // Bytes of the fixed part.
  uint32_t struct_size;
  // Major version of the ABI.
  uint16_t abi_major;
  // Oldest minor version of a host that the plugin works with.
  uint16_t abi_min_minor;
  // Minor version that the plugin was built with.
  uint16_t abi_max_minor;
  // Symbols the plugin exports.
  uint16_t exported_symbols;
  // `SM_KIND_*`.
  uint8_t kind;
  // Bytes of a pointer.
  uint8_t pointer_width;
  // `SM_PANIC_*`.
  uint8_t panic_strategy;
  // `SM_SANITIZER_*` bits.
  uint8_t sanitizer;
  // `SM_NOTE_*` bits.
  uint32_t flags;
  // The higher wins between plugins of one name or alias.
  int32_t priority;
  // Bytes of the name.
  uint16_t plugin_name_len;
  // Bytes of the aliases.
  uint16_t aliases_len;
  // Bytes of the version.
  uint16_t version_len;
  // Bytes of the target triple.
  uint16_t target_len;
  // Zero.
  uint32_t reserved;
} SmNoteDesc;

#endif  /* STEPMESH_BACKEND_H */

/* Names of the extensions. */
#define SM_EXTENSION_IPC_V1 "stepmesh.ipc.v1"
#define SM_EXTENSION_RDMA_V1 "stepmesh.rdma.v1"
#define SM_EXTENSION_MEMEVENT_V1 "stepmesh.memevent.v1"
#define SM_EXTENSION_TIMING_V1 "stepmesh.timing.v1"
#define SM_EXTENSION_GRAPH_V1 "stepmesh.graph.v1"
#define SM_EXTENSION_VMM_V1 "stepmesh.vmm.v1"
#define SM_EXTENSION_COMPUTE_V1 "stepmesh.compute.v1"
#define SM_EXTENSION_LAZY_V1 "stepmesh.lazy.v1"

/* The header of a struct of the given type. */
#define SM_HDR(type) { (uint32_t)sizeof(type), SM_ABI_MAJOR, SM_ABI_MINOR }

/* A string literal as an SmStr. */
#define SM_STR(literal) { literal, (uint32_t)(sizeof(literal) - 1), 0 }

#ifndef SM_TARGET_TRIPLE
#if defined(__linux__) && defined(__x86_64__) && defined(__GLIBC__)
#define SM_TARGET_TRIPLE "x86_64-unknown-linux-gnu"
#elif defined(__linux__) && defined(__x86_64__)
#define SM_TARGET_TRIPLE "x86_64-unknown-linux-musl"
#elif defined(__linux__) && defined(__aarch64__) && defined(__GLIBC__)
#define SM_TARGET_TRIPLE "aarch64-unknown-linux-gnu"
#elif defined(__linux__) && defined(__aarch64__)
#define SM_TARGET_TRIPLE "aarch64-unknown-linux-musl"
#else
#define SM_TARGET_TRIPLE "unknown"
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SM_SANITIZER_HERE SM_SANITIZER_ADDRESS
#elif defined(__SANITIZE_THREAD__)
#define SM_SANITIZER_HERE SM_SANITIZER_THREAD
#else
#define SM_SANITIZER_HERE 0
#endif

/*
 * Writes the plugin's ELF note; at file scope, once, with string literals:
 *   SM_BACKEND_NOTE("name", "ALIAS", "1.0.0", SM_KIND_GPU, SM_NOTE_THREADS, 0)
 */
#define SM_BACKEND_NOTE(name, aliases, version, kind, flags, priority)                        \
  __attribute__((used, section(".note.stepmesh"), aligned(4))) static const struct {          \
    SmNoteHeader header;                                                                      \
    SmNoteDesc desc;                                                                          \
    char text[(sizeof(name aliases version SM_TARGET_TRIPLE) + 3) / 4 * 4];                   \
  } sm_backend_note = {                                                                       \
    { 9,                                                                                      \
      (uint32_t)(sizeof(SmNoteDesc)                                                           \
                 + (sizeof(name aliases version SM_TARGET_TRIPLE) + 3) / 4 * 4),              \
      SM_NOTE_TYPE,                                                                           \
      { 'S', 't', 'e', 'p', 'M', 'e', 's', 'h', 0, 0, 0, 0 } },                               \
    { (uint32_t)sizeof(SmNoteDesc), SM_ABI_MAJOR, 0, SM_ABI_MINOR, 1, kind,                   \
      (uint8_t)sizeof(void *), SM_PANIC_NONE, SM_SANITIZER_HERE, flags, priority,             \
      (uint16_t)(sizeof(name) - 1), (uint16_t)(sizeof(aliases) - 1),                          \
      (uint16_t)(sizeof(version) - 1), (uint16_t)(sizeof(SM_TARGET_TRIPLE) - 1), 0 },         \
    name aliases version SM_TARGET_TRIPLE                                                     \
  }

#ifdef __cplusplus
extern "C" {
#endif

/* The one symbol that a plugin exports; its type is SmBackendQueryFn. */
__attribute__((visibility("default")))
const SmBackendApi *stepmesh_backend_query_v1(const SmHostApi *host, SmError *err);

#ifdef __cplusplus
}
#endif
