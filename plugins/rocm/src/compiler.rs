//! HIP's run-time compiler: in HIP's library up to version 6, in one of its own since 5.
#![expect(unsafe_code, reason = "calls the compiler")]

use std::ffi::{CString, c_char, c_void};
use std::ptr::{null, null_mut};

use stepmesh_driver::{Answer, Failure, Library};

use crate::functions::CompilerFunctions;
use crate::status::of_compiler;

/// The compiler, where there is one.
#[derive(Debug)]
pub(crate) struct Compiler(Option<CompilerFunctions>);

impl Compiler {
    /// That of HIP's library if it has one, for the two are of one version then.
    pub(crate) fn load(hip: &Library) -> Self {
        let own = CompilerFunctions::of(hip);
        if own.has(COMPILE) {
            return Self(Some(own));
        }
        let library = Library::open(LIBRARIES).ok();
        let functions = library.as_ref().map(CompilerFunctions::of);
        Self(functions.filter(|functions| functions.has(COMPILE)))
    }

    pub(crate) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// The code object of a source for an architecture.
    pub(crate) fn compile(&self, source: &str, arch: &str) -> Answer<Vec<u8>> {
        let functions = self.0.as_ref();
        let functions = functions.ok_or(Failure::Missing { call: COMPILE })?;
        of_compiler(compile(functions, source, arch))
    }
}

fn compile(functions: &CompilerFunctions, source: &str, arch: &str) -> Answer<Vec<u8>> {
    // Neither has a NUL inside; if one had, the compiler would refuse what is left.
    let source = CString::new(source).unwrap_or_default();
    let option = CString::new(format!("--offload-arch={arch}")).unwrap_or_default();
    let mut program: *mut c_void = null_mut();
    // SAFETY: `program` is a local; texts have a NUL at their end; there are no headers.
    unsafe {
        functions.hiprtcCreateProgram(
            &raw mut program,
            source.as_ptr(),
            c"flags.hip".as_ptr(),
            0,
            null(),
            null(),
        )?;
    };
    let options = [option.as_ptr()];
    // SAFETY: the program was made above; one option with a NUL at its end.
    let compiled = unsafe { functions.hiprtcCompileProgram(program, 1, options.as_ptr()) };
    let code = compiled.and_then(|()| code_of(functions, program));
    // SAFETY: made above and used no more.
    let destroyed = unsafe { functions.hiprtcDestroyProgram(&raw mut program) };
    destroyed.and(code)
}

fn code_of(functions: &CompilerFunctions, program: *mut c_void) -> Answer<Vec<u8>> {
    let mut len = 0;
    // SAFETY: a live program; `len` is a local.
    unsafe { functions.hiprtcGetCodeSize(program, &raw mut len)? };
    let mut code = vec![0_u8; len];
    let room: *mut c_char = code.as_mut_ptr().cast();
    // SAFETY: a live program, and as much room as it said.
    unsafe { functions.hiprtcGetCode(program, room)? };
    Ok(code)
}

const COMPILE: &str = "hiprtcCompileProgram";
/// The newest version first, as with HIP's library.
const LIBRARIES: &[&str] = &[
    "libhiprtc.so.7",
    "libhiprtc.so.6",
    "libhiprtc.so.5",
    "libhiprtc.so",
];
