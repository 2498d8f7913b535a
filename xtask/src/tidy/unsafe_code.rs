//! Where `unsafe` may be written. The list is closed: a new entry needs a reason that a reviewer can
//! judge, and an entry whose file has no `unsafe` left must go.

use super::{Violation, files::File, mask};

pub(super) fn check(file: &File) -> Vec<Violation> {
    if !file.is_rust() || is_allowed(&file.path) {
        return Vec::new();
    }
    let code = mask::code_only(file.text.as_deref().unwrap_or_default());
    let first = code.lines().position(|line| mask::has_word(line, "unsafe"));
    // The first place stands for all: it is the file that has no business with it.
    let violation = first.map(|index| {
        let message = "`unsafe` outside the modules that may have it, which \
                       xtask/src/tidy/unsafe_code.rs lists with the reason";
        Violation::at(&file.path, index + 1, message)
    });
    violation.into_iter().collect()
}

/// Entries of the list that no file needs.
pub(super) fn check_list(files: &[File]) -> Vec<Violation> {
    let is_needed = |place: &Place| {
        files
            .iter()
            .filter(|file| file.is_rust() && place.covers(&file.path))
            .any(|file| {
                let code = mask::code_only(file.text.as_deref().unwrap_or_default());
                mask::has_word(&code, "unsafe")
            })
    };
    let unneeded = places().filter(|place| !is_needed(place));
    unneeded
        .map(|Place { path, reason }| {
            let message =
                format!("may hold `unsafe` ({reason}), but has none: take it off the list");
            Violation::new(path, message)
        })
        .collect()
}

fn is_allowed(path: &str) -> bool {
    places().any(|place| place.covers(path))
}

fn places() -> impl Iterator<Item = Place> {
    ALLOWED
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(path, reason)| {
            let reason = reason.trim_start();
            Place { path, reason }
        })
}

struct Place {
    /// A file, or a folder with all that is below it, which ends with `/`.
    path: &'static str,
    reason: &'static str,
}

impl Place {
    fn covers(&self, path: &str) -> bool {
        if self.path.ends_with('/') {
            path.starts_with(self.path)
        } else {
            path == self.path
        }
    }
}

/// A path and the reason on each line.
const ALLOWED: &str = "\
crates/stepmesh-abi/                            types and function pointers of the C ABI
crates/stepmesh-plugin/                         the C side of the table
crates/stepmesh-cli/src/bench/allocations.rs    an allocator that counts
crates/stepmesh-cli/src/bench/floor/page.rs     memory that two processes share
crates/stepmesh-cli/src/bench/lazy/hand.rs      calls `gemm` as one would by hand
crates/stepmesh-cli/src/bench/loader.rs         dlopen without the loader, to compare with it
crates/stepmesh-cli/src/bench/verbs/hit.rs      describes memory for a look-up
crates/stepmesh-cli/src/bench/vtable.rs         calls a slot of the C table
crates/stepmesh-core/src/secure.rs              asks libc whether the process is set-user-id
crates/stepmesh-core/src/loader.rs              dlopen and tables of foreign code
crates/stepmesh-core/src/loader/                dlopen and tables of foreign code
crates/stepmesh-core/src/host.rs                the functions that plugins call
crates/stepmesh-core/src/host/                  calls them as a plugin does
crates/stepmesh-core/src/status.rs              reads the error that a plugin filled in
crates/stepmesh-core/src/probe.rs               calls through a table that is not yet normalised
crates/stepmesh-core/src/table.rs               turns a foreign table into the host's own
crates/stepmesh-core/src/table/                 turns a foreign table into the host's own
crates/stepmesh-core/src/instance.rs            calls through the table
crates/stepmesh-core/src/flags.rs               calls an extension with addresses of words
crates/stepmesh-core/src/mem_event.rs           calls an extension, loads from its word
crates/stepmesh-core/src/mem_event/             plays backends with that extension
crates/stepmesh-core/src/device.rs              passes on what callers vouch for
crates/stepmesh-core/src/framework.rs           callers vouch for streams
crates/stepmesh-core/src/framework/             vouches for a stream
crates/stepmesh-core/src/buffer/                vouches for memory
crates/stepmesh-core/src/compute/host.rs        calls an extension
crates/stepmesh-core/src/compute/executable.rs  calls an extension, reads arrays that it gave
crates/stepmesh-core/src/compute/tests.rs       plays a backend with that extension
crates/stepmesh-core/src/rdma.rs                calls an extension, takes its descriptors
crates/stepmesh-core/src/rdma/                  plays a backend with that extension
crates/stepmesh-core/src/buffer.rs              views on host memory
crates/stepmesh-core/src/stream.rs              the callback of a stream
crates/stepmesh-core/src/fake.rs                the C side of a backend for tests
crates/stepmesh-conformance/src/raw/            calls plugins under test through their raw table
crates/stepmesh-conformance/tests/              names the entry of a backend that is linked in
crates/stepmesh-driver/src/backend.rs           the trait's methods whose caller vouches for addresses
crates/stepmesh-driver/src/buffer.rs            gives memory back that the table knows
crates/stepmesh-driver/src/compute/             calls the driver with handles of its own
crates/stepmesh-driver/src/driver.rs            methods whose caller vouches for addresses and handles
crates/stepmesh-driver/src/event.rs             calls the driver with handles of its own
crates/stepmesh-driver/src/extensions.rs        the traits' methods whose caller vouches for addresses
crates/stepmesh-driver/src/host_funcs.rs        is called by the driver with a number
crates/stepmesh-driver/src/library.rs           opens vendors' libraries and names their functions
crates/stepmesh-driver/src/stream.rs            calls the driver with handles of the caller
crates/stepmesh-driver/src/toolkit.rs           methods whose caller vouches for addresses and handles
crates/stepmesh-driver/src/words.rs             makes references of pinned memory
crates/stepmesh-rdma/src/registration/domain.rs registers memory that its owner vouched for
crates/stepmesh-rdma/src/registration/tests.rs  describes memory that nobody touches
crates/stepmesh-rdma/src/fabric/half.rs         registers the memory of messages
crates/stepmesh-rdma/src/fabric/post.rs         names checked memory by address
crates/stepmesh-rdma/src/verbs/                 calls libibverbs, and owns what it gives
crates/stepmesh-rdma/tests/                     promises about the memory of a test
crates/stepmesh-gpu-check/src/bare.rs           calls CUDA's driver without the backend
crates/stepmesh-gpu-check/src/copies.rs         copies by the driver's bare call
crates/stepmesh-gpu-check/src/flags.rs          submits work that uses words of buffers
crates/stepmesh-kernels/src/memory.rs           reads and writes values by their addresses
crates/stepmesh-gpu-source/tests/               runs kernels that were compiled for the host, and calls NVRTC
crates/stepmesh-kernels/tests/                  promises about the memory of a test
crates/stepmesh-transport/examples/             maps the memory that it measures
crates/stepmesh-transport/src/memory.rs         views on memory that peers write
crates/stepmesh-transport/src/segment.rs        maps memory of other processes
crates/stepmesh-transport/src/shm/              rings and slots in shared memory
crates/stepmesh-transport/src/sim/placement.rs  writes of simulated transfers
crates/stepmesh-transport/src/tcp/              reads and writes of registered memory
crates/stepmesh-transport/tests/                promises about the memory of a test
crates/stepmesh-lazy/tests/it/common.rs         names the entry of a backend that is linked in
crates/stepmesh/tests/it/backends.rs            names the entries of backends that are linked in
crates/stepmesh/src/protocol/tests/adapter.rs   names the entry of a backend that is linked in
crates/stepmesh/src/memory.rs                   registered tensors of the caller
crates/stepmesh-torch/src/device.rs             loads torch's CUDA half
crates/stepmesh-torch/src/sys.rs                calls C++
crates/stepmesh-torch/src/lazy/hooks.rs         functions that C++ calls
crates/stepmesh-torch/src/dlpack.rs             structs of other frameworks
crates/stepmesh-torch/src/tensor.rs             vouches for memory of torch and the mesh
crates/stepmesh-torch/src/stream.rs             vouches for torch's streams
crates/stepmesh-torch/tests/                    plays a producer of tensors
plugins/cpu/src/backend.rs                      the trait's methods whose caller vouches for addresses
plugins/cpu/src/compute.rs                      hands on memory that submitters vouched for
plugins/cpu/src/engine.rs                       touches memory that submitters vouched for
plugins/cpu/src/sys.rs                          tells the kernel about memory
plugins/cpu/tests/                              calls the table as a C host does
plugins/cuda/src/cublas.rs                      calls cuBLAS
plugins/cuda/src/driver.rs                      calls CUDA's driver
plugins/cuda/src/facts.rs                       calls CUDA's driver
plugins/cuda/src/nvrtc.rs                       calls CUDA's run-time compiler
plugins/cuda/src/pointer.rs                     calls CUDA's driver
plugins/cuda/src/toolkit.rs                     calls CUDA's driver
plugins/cuda/tests/                             calls the backend as the kit does
plugins/sim/src/backend.rs                      the trait's methods whose caller vouches for addresses
plugins/sim/src/compute.rs                      hands on memory that submitters vouched for
plugins/sim/src/dmabuf.rs                       asks a driver for a dma-buf, and owns what it gives
plugins/sim/src/engine.rs                       touches memory that submitters vouched for
plugins/sim/src/memory.rs                       copies between the host and the alias of a device
plugins/cuda/tests/                             calls the backend as the kit's table does
plugins/rocm/src/compiler.rs                    calls HIP's run-time compiler
plugins/rocm/src/driver.rs                      calls HIP
plugins/rocm/src/facts.rs                       calls HIP
plugins/rocm/src/functions.rs                   names functions of C libraries
plugins/rocm/src/hsa.rs                         calls HSA
plugins/rocm/src/pointer.rs                     calls HIP
plugins/rocm/src/rocblas.rs                     calls rocBLAS
plugins/rocm/src/toolkit.rs                     calls HIP
plugins/rocm/tests/                             calls HIP as a framework does, beside the backend
plugins/simdriver/src/boundary.rs               reads and writes for C callers, exports their functions
plugins/simdriver/src/code.rs                   loads compiled kernels and calls them
plugins/simdriver/src/dmabuf.rs                 asks a driver for a dma-buf, and owns what it gives
plugins/simdriver/src/memory.rs                 maps the memory of simulated devices and copies it
plugins/simdriver/src/work.rs                   calls functions of the driver's callers
plugins/simdriver/testing/                      calls the backends as the kit's table does
plugins/sim/tests/                              calls the table as a C host does
xtask/src/plugins/load.rs                       calls the C entry of each built plugin
";
