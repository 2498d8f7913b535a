//! Which function of HIP loads and runs code, and the libraries beside it. The other calls are in the
//! driver module.
#![expect(unsafe_code, reason = "calls HIP")]

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use hip_sys::hiprt::{hipFunction_t, hipModule_t};
use stepmesh_driver::{Answer, FunctionLaunch, Toolkit};

use crate::compiler::Hiprtc;
use crate::driver::Rocm;
use crate::handles::{handle, stream_of, to_u64};
use crate::rocblas::Rocblas;

impl Toolkit for Rocm {
    type Compiler = Hiprtc;
    type Blas = Rocblas;

    fn compiler(&self) -> Result<&Hiprtc, &str> {
        self.loaded_compiler().as_ref().map_err(String::as_str)
    }

    fn blas(&self) -> Result<&Rocblas, &str> {
        self.loaded_blas().as_ref().map_err(String::as_str)
    }

    /// `hipModuleLoadData`.
    fn load_module(&self, image: &[u8]) -> Answer<u64> {
        let mut module: hipModule_t = null_mut();
        let image = image.as_ptr().cast();
        // SAFETY: `module` is a local; the image is what the compiler made, and outlives the call.
        unsafe {
            self.functions().hipModuleLoadData(&raw mut module, image)?;
        };
        Ok(to_u64(module.expose_provenance()))
    }

    /// `hipModuleUnload`.
    unsafe fn unload_module(&self, module: u64) -> Answer<()> {
        // SAFETY: this method's contract.
        unsafe { self.functions().hipModuleUnload(handle(module)) }
    }

    /// `hipModuleGetFunction`.
    unsafe fn function(&self, module: u64, name: &CStr) -> Answer<u64> {
        let mut function: hipFunction_t = null_mut();
        // SAFETY: `function` is a local; the name has a NUL at its end; this method's contract.
        unsafe {
            self.functions().hipModuleGetFunction(
                &raw mut function,
                handle(module),
                name.as_ptr(),
            )?;
        };
        Ok(to_u64(function.expose_provenance()))
    }

    /// `hipModuleLaunchKernel`.
    unsafe fn launch_function(&self, launch: FunctionLaunch<'_>, stream: u64) -> Answer<()> {
        let mut params: Vec<*mut c_void> = launch
            .arguments
            .iter_mut()
            .map(|argument| std::ptr::from_mut(argument).cast())
            .collect();
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (launch.grid, launch.block);
        // SAFETY: this method's contract; HIP copies the numbers before it returns.
        unsafe {
            self.functions().hipModuleLaunchKernel(
                handle(launch.function),
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                // No shared memory beside what the function has by itself.
                0,
                stream_of(stream),
                params.as_mut_ptr(),
                null_mut(),
            )
        }
    }
}
