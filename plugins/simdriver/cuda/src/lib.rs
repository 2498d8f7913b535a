//! `libcuda.so.1` on host memory, for tests: the functions of CUDA's driver API, of NVRTC and of cuBLAS
//! that StepMesh uses, by their exported names. What they do is in `stepmesh-simdriver`; here are CUDA's own ways: contexts,
//! attributes, and the order of arguments.

#![deny(unsafe_code)]

mod context;
mod cublas;
mod device;
mod graph;
mod memory;
mod nvrtc;
mod pointer;
mod stream;

/// A `CUresult` of success or failure.
type Answer = stepmesh_simdriver::Answer<()>;
