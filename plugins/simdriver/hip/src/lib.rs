//! `libamdhip64.so.6` on host memory, for tests: the functions of HIP, of its run-time compiler, of
//! rocBLAS and of HSA's dma-buf export that StepMesh uses, by their exported names. What they do is in
//! `stepmesh-simdriver`; here are HIP's own ways: a current device instead of contexts, the thread's
//! last error, and the numbers of its sixth version.
#![deny(unsafe_code)]

mod compiler;
mod current;
mod device;
mod graph;
mod hsa;
mod memory;
mod rocblas;
mod stream;

/// A `hipError_t` of success or failure.
type Answer = stepmesh_simdriver::Answer<()>;
