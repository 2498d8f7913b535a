//! CUDA's run-time compiler, NVRTC: a library of its own, opened when it is first needed.
#![expect(unsafe_code, reason = "calls the compiler")]

use std::ffi::{CString, c_char, c_int};
use std::ptr::{null, null_mut};

use cudarc::nvrtc::sys::nvrtcProgram;
use stepmesh_driver::{Answer, Compiler, Failure, Library, Uncompiled};

use crate::status;

stepmesh_driver::functions! {
    /// The functions of libnvrtc, whose statuses are its own.
    struct Functions {
        fn nvrtcVersion(major: *mut c_int, minor: *mut c_int);
        fn nvrtcGetNumSupportedArchs(count: *mut c_int);
        fn nvrtcGetSupportedArchs(archs: *mut c_int);
        fn nvrtcCreateProgram(
            program: *mut nvrtcProgram, source: *const c_char, name: *const c_char,
            headers: c_int, sources: *const *const c_char, names: *const *const c_char,
        );
        fn nvrtcCompileProgram(
            program: nvrtcProgram, count: c_int, options: *const *const c_char,
        );
        fn nvrtcGetCUBINSize(program: nvrtcProgram, size: *mut usize);
        fn nvrtcGetCUBIN(program: nvrtcProgram, image: *mut c_char);
        fn nvrtcGetPTXSize(program: nvrtcProgram, size: *mut usize);
        fn nvrtcGetPTX(program: nvrtcProgram, image: *mut c_char);
        fn nvrtcGetProgramLogSize(program: nvrtcProgram, size: *mut usize);
        fn nvrtcGetProgramLog(program: nvrtcProgram, log: *mut c_char);
        fn nvrtcDestroyProgram(program: *mut nvrtcProgram);
    }
}

/// NVRTC, loaded.
#[derive(Debug)]
pub struct Nvrtc {
    functions: Functions,
    version: String,
    /// The architectures for which it makes machine code: 90 is `sm_90`.
    archs: Vec<c_int>,
}

impl Nvrtc {
    /// Opens the library of the newest version that a driver of CUDA takes code of, 12040 being 12.4.
    ///
    /// # Errors
    /// Which libraries were looked for and what the loader answered; what is wrong with what it found.
    pub fn load(driver_version: i32) -> Result<Self, String> {
        let library = Library::open(&library_names(NAMES, driver_version))?;
        let functions = Functions::of(&library);
        let name = library.name();
        let described = describe(&functions);
        let (version, archs) = described.map_err(|failure| match failure {
            Failure::Missing { call } => format!("{name} has no {call}: it is too old"),
            Failure::Status { call, status } => {
                format!("{name}: {call} answered {}", status::nvrtc_name(status))
            }
        })?;
        Ok(Self {
            functions,
            version,
            archs,
        })
    }

    /// The option that names an architecture, and whether machine code is made. A device that is
    /// younger than the compiler gets PTX of the youngest one that it knows, and its driver does the
    /// rest.
    fn target(&self, arch: &str) -> (String, bool) {
        let digits = arch.trim_start_matches(|c: char| !c.is_ascii_digit());
        let wanted: c_int = digits.parse().unwrap_or(0);
        if self.archs.contains(&wanted) {
            return (format!("--gpu-architecture=sm_{wanted}"), true);
        }
        let older = self.archs.iter().filter(|known| **known < wanted);
        let nearest = older.max().copied().unwrap_or(wanted);
        (format!("--gpu-architecture=compute_{nearest}"), false)
    }
}

impl Compiler for Nvrtc {
    fn version(&self) -> &str {
        &self.version
    }

    /// `nvrtcCreateProgram`, `nvrtcCompileProgram`, `nvrtcGetCUBIN` or `nvrtcGetPTX`.
    fn compile(&self, source: &str, arch: &str) -> Result<Vec<u8>, Uncompiled> {
        let (option, is_machine_code) = self.target(arch);
        // Neither has a NUL inside; if one had, the compiler would refuse what is left.
        let source = CString::new(source).unwrap_or_default();
        let option = CString::new(option).unwrap_or_default();
        let mut program = Program::new(&self.functions, &source)?;
        let compiled = program.compile(&[option.as_ptr(), STANDARD.as_ptr()]);
        let image = compiled.and_then(|()| program.image(is_machine_code));
        let log = match &image {
            Ok(_) => String::new(),
            Err(_) => program.log().unwrap_or_default(),
        };
        // It may refuse no program that it made.
        let _ = program.destroy();
        image.map_err(|failure| Uncompiled {
            failure: status::of_nvrtc(failure),
            log,
        })
    }
}

/// A program of the compiler's.
struct Program<'a> {
    functions: &'a Functions,
    raw: nvrtcProgram,
}

impl<'a> Program<'a> {
    fn new(functions: &'a Functions, source: &CString) -> Result<Self, Failure> {
        let mut raw: nvrtcProgram = null_mut();
        // SAFETY: `raw` is a local; texts have a NUL at their end; there are no headers.
        let made = unsafe {
            functions.nvrtcCreateProgram(
                &raw mut raw,
                source.as_ptr(),
                c"graph.cu".as_ptr(),
                0,
                null(),
                null(),
            )
        };
        made.map_err(status::of_nvrtc)?;
        Ok(Self { functions, raw })
    }

    fn compile(&self, options: &[*const c_char]) -> Answer<()> {
        let count = c_int::try_from(options.len()).unwrap_or(0);
        // SAFETY: a live program; as many options as is said, with a NUL at their end.
        unsafe {
            self.functions
                .nvrtcCompileProgram(self.raw, count, options.as_ptr())
        }
    }

    fn image(&self, is_machine_code: bool) -> Answer<Vec<u8>> {
        let functions = self.functions;
        let mut len = 0;
        if is_machine_code {
            // SAFETY: a live program; `len` is a local.
            unsafe { functions.nvrtcGetCUBINSize(self.raw, &raw mut len)? };
        } else {
            // SAFETY: as above.
            unsafe { functions.nvrtcGetPTXSize(self.raw, &raw mut len)? };
        }
        let mut image = vec![0_u8; len];
        let room: *mut c_char = image.as_mut_ptr().cast();
        if is_machine_code {
            // SAFETY: a live program, and as much room as it said.
            unsafe { functions.nvrtcGetCUBIN(self.raw, room)? };
        } else {
            // SAFETY: as above.
            unsafe { functions.nvrtcGetPTX(self.raw, room)? };
        }
        Ok(image)
    }

    fn log(&self) -> Answer<String> {
        let mut len = 0;
        // SAFETY: a live program; `len` is a local.
        unsafe {
            self.functions
                .nvrtcGetProgramLogSize(self.raw, &raw mut len)?;
        };
        let mut log = vec![0_u8; len];
        // SAFETY: a live program, and as much room as it said.
        unsafe {
            self.functions
                .nvrtcGetProgramLog(self.raw, log.as_mut_ptr().cast())?;
        };
        Ok(status::text_of(&log))
    }

    fn destroy(&mut self) -> Answer<()> {
        // SAFETY: made by `new` and used no more.
        unsafe { self.functions.nvrtcDestroyProgram(&raw mut self.raw) }
    }
}

/// The names of a library of the toolkit for a driver: of its own major version and of older ones, whose
/// code it takes, the newest first; then the one that a toolkit links to.
pub(crate) fn library_names(
    names: &[(i32, &'static str)],
    driver_version: i32,
) -> Vec<&'static str> {
    let major = driver_version / 1000;
    let taken = names.iter().filter(|(least, _)| *least <= major);
    taken.map(|(_, name)| *name).collect()
}

fn describe(functions: &Functions) -> Answer<(String, Vec<c_int>)> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are locals.
    unsafe { functions.nvrtcVersion(&raw mut major, &raw mut minor)? };
    let mut count = 0;
    // SAFETY: `count` is a local.
    unsafe { functions.nvrtcGetNumSupportedArchs(&raw mut count)? };
    let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: as much room as the library said.
    unsafe { functions.nvrtcGetSupportedArchs(archs.as_mut_ptr())? };
    Ok((format!("NVRTC {major}.{minor}"), archs))
}

/// The libraries, each with the major version of a driver that takes its code.
const NAMES: &[(i32, &str)] = &[
    (13, "libnvrtc.so.13"),
    (12, "libnvrtc.so.12"),
    // All of the eleventh version from 11.2 on have this name.
    (11, "libnvrtc.so.11.2"),
    (0, "libnvrtc.so"),
];
/// What the generated source is written in.
const STANDARD: &std::ffi::CStr = c"--std=c++17";

#[cfg(test)]
mod tests {
    //! Which libraries are looked for.

    use super::{NAMES, library_names};

    #[test]
    fn a_driver_is_given_no_code_of_a_younger_major_version() {
        assert_eq!(
            library_names(NAMES, 12_040),
            ["libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"]
        );
        assert_eq!(library_names(NAMES, 13_000).len(), 4);
    }
}
