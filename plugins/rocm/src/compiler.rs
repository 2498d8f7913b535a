//! HIP's run-time compiler: in HIP's library up to version 6, in one of its own since 5.
#![expect(unsafe_code, reason = "calls the compiler")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use stepmesh_driver::{Answer, Compiler, Library, Uncompiled};

use crate::functions::CompilerFunctions;
use crate::status::of_compiler;

/// The compiler, loaded.
#[derive(Debug)]
pub struct Hiprtc {
    functions: CompilerFunctions,
    version: String,
}

impl Hiprtc {
    /// That of HIP's library if it has one, for the two are of one version then.
    ///
    /// # Errors
    /// Which libraries were looked for and what the loader answered.
    pub fn load(hip: &Library) -> Result<Self, String> {
        let own = CompilerFunctions::of(hip);
        if own.has(COMPILE) {
            return Ok(Self::new(own));
        }
        let library = Library::open(LIBRARIES)?;
        let functions = CompilerFunctions::of(&library);
        if !functions.has(COMPILE) {
            return Err(format!("{} has no {COMPILE}", library.name()));
        }
        Ok(Self::new(functions))
    }

    fn new(functions: CompilerFunctions) -> Self {
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: both are locals.
        let asked = unsafe { functions.hiprtcVersion(&raw mut major, &raw mut minor) };
        let version = match asked {
            Ok(()) => format!("HIPRTC {major}.{minor}"),
            Err(_) => "HIPRTC of an unknown version".to_owned(),
        };
        Self { functions, version }
    }
}

impl Compiler for Hiprtc {
    fn version(&self) -> &str {
        &self.version
    }

    /// `hiprtcCreateProgram`, `hiprtcCompileProgram`, `hiprtcGetCode`.
    fn compile(&self, source: &str, arch: &str) -> Result<Vec<u8>, Uncompiled> {
        // Neither has a NUL inside; if one had, the compiler would refuse what is left.
        let source = CString::new(source).unwrap_or_default();
        let option = CString::new(format!("--offload-arch={arch}")).unwrap_or_default();
        let functions = &self.functions;
        let mut program: *mut c_void = null_mut();
        // SAFETY: `program` is a local; texts have a NUL at their end; there are no headers.
        of_compiler(unsafe {
            functions.hiprtcCreateProgram(
                &raw mut program,
                source.as_ptr(),
                c"stepmesh.hip".as_ptr(),
                0,
                null(),
                null(),
            )
        })?;
        let options = [option.as_ptr(), STANDARD.as_ptr()];
        // SAFETY: the program was made above; two options with a NUL at their end.
        let compiled = unsafe { functions.hiprtcCompileProgram(program, 2, options.as_ptr()) };
        let code = compiled.and_then(|()| code_of(functions, program));
        let log = match &code {
            Ok(_) => String::new(),
            Err(_) => log_of(functions, program).unwrap_or_default(),
        };
        // It may refuse no program that it made.
        // SAFETY: made above and used no more.
        let _ = unsafe { functions.hiprtcDestroyProgram(&raw mut program) };
        of_compiler(code).map_err(|failure| Uncompiled { failure, log })
    }
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

fn log_of(functions: &CompilerFunctions, program: *mut c_void) -> Answer<String> {
    let mut len = 0;
    // SAFETY: a live program; `len` is a local.
    unsafe { functions.hiprtcGetProgramLogSize(program, &raw mut len)? };
    let mut log = vec![0_u8; len];
    // SAFETY: a live program, and as much room as it said.
    unsafe { functions.hiprtcGetProgramLog(program, log.as_mut_ptr().cast())? };
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

const COMPILE: &str = "hiprtcCompileProgram";
/// What the sources are written in.
const STANDARD: &std::ffi::CStr = c"--std=c++17";
/// The newest version first, as with HIP's library.
const LIBRARIES: &[&str] = &[
    "libhiprtc.so.7",
    "libhiprtc.so.6",
    "libhiprtc.so.5",
    "libhiprtc.so",
];
