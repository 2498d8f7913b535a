//! Which function of CUDA's driver API loads and runs code, and the libraries of the toolkit beside it.
//! The other calls are in the driver module.
#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use cudarc::driver::sys::{CUfunction, CUmodule};
use stepmesh_driver::{Answer, FunctionLaunch, Toolkit};

use crate::cublas::Cublas;
use crate::driver::{Cuda, handle, to_u64};
use crate::nvrtc::Nvrtc;

/// The libraries beside the driver, each opened once, when it is first asked for.
#[derive(Debug, Default)]
pub(crate) struct Libraries {
    nvrtc: OnceLock<Result<Nvrtc, String>>,
    cublas: OnceLock<Result<Cublas, String>>,
}

impl Toolkit for Cuda {
    type Compiler = Nvrtc;
    type Blas = Cublas;

    fn compiler(&self) -> Result<&Nvrtc, &str> {
        let load = || Nvrtc::load(self.version());
        let loaded = self.libraries().nvrtc.get_or_init(load);
        loaded.as_ref().map_err(String::as_str)
    }

    fn blas(&self) -> Result<&Cublas, &str> {
        let load = || Cublas::load(self.version());
        let loaded = self.libraries().cublas.get_or_init(load);
        loaded.as_ref().map_err(String::as_str)
    }

    /// `cuModuleLoadData`.
    fn load_module(&self, image: &[u8]) -> Answer<u64> {
        let mut module: CUmodule = null_mut();
        let image = image.as_ptr().cast();
        // SAFETY: `module` is a local; the image is what the compiler made, and outlives the call.
        unsafe {
            self.functions().cuModuleLoadData(&raw mut module, image)?;
        };
        Ok(to_u64(module.expose_provenance()))
    }

    /// `cuModuleUnload`.
    unsafe fn unload_module(&self, module: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions().cuModuleUnload(handle(module)) }
    }

    /// `cuModuleGetFunction`.
    unsafe fn function(&self, module: u64, name: &CStr) -> Answer<u64> {
        let mut function: CUfunction = null_mut();
        // SAFETY: `function` is a local; the name has a NUL at its end; this method's contract.
        unsafe {
            self.functions().cuModuleGetFunction(
                &raw mut function,
                handle(module),
                name.as_ptr(),
            )?;
        };
        Ok(to_u64(function.expose_provenance()))
    }

    /// `cuLaunchKernel`.
    unsafe fn launch_function(&self, launch: FunctionLaunch<'_>, stream: u64) -> Answer<()> {
        let mut params: Vec<*mut c_void> = launch
            .arguments
            .iter_mut()
            .map(|argument| std::ptr::from_mut(argument).cast())
            .collect();
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (launch.grid, launch.block);
        // SAFETY: this method's contract; the driver copies the numbers before it returns.
        unsafe {
            self.functions().cuLaunchKernel(
                handle(launch.function),
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                // No shared memory beside what the function has by itself.
                0,
                handle(stream),
                params.as_mut_ptr(),
                null_mut(),
            )
        }
    }
}
