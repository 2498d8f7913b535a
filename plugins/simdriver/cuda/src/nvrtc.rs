//! CUDA's run-time compiler. `libnvrtc.so.12` is a link to this library. Statuses are the compiler's own,
//! 0 being success.

use stepmesh_simdriver::{Out, OutText, Programs, Status, Text, Values, api};

api! {
    fn nvrtcVersion(major: Out<i32>, minor: Out<i32>) {
        major.set(12)?;
        minor.set(9)
    }

    fn nvrtcGetNumSupportedArchs(count: Out<i32>) {
        count.set(1)
    }

    fn nvrtcGetSupportedArchs(archs: Out<i32>) {
        archs.set(ARCH)
    }

    fn nvrtcCreateProgram(
        program: Out<u64>, source: Text, _name: Text, headers: i32, _sources: Values<u64>,
        _names: Values<u64>,
    ) {
        if headers != 0 {
            return Err(INVALID_INPUT);
        }
        let source = source.get().map_err(|_| INVALID_INPUT)?;
        program.set(Programs::create(source)?)
    }

    fn nvrtcCompileProgram(program: u64, count: i32, options: Values<Text>) {
        let is_known = |idx| {
            let option = options.get(idx)?.get()?;
            Ok(OPTIONS.contains(&option.as_str()))
        };
        for idx in 0..usize::try_from(count).unwrap_or(0) {
            if !is_known(idx)? {
                return Err(INVALID_OPTION);
            }
        }
        Programs::compile(program)
    }

    fn nvrtcGetCUBINSize(program: u64, size: Out<usize>) {
        size.set(Programs::image(program)?.len())
    }

    fn nvrtcGetCUBIN(program: u64, image: OutText) {
        image.put(&Programs::image(program)?)
    }

    fn nvrtcGetProgramLogSize(program: u64, size: Out<usize>) {
        size.set(Programs::log(program)?.len())
    }

    fn nvrtcGetProgramLog(program: u64, log: OutText) {
        log.put(&Programs::log(program)?)
    }

    fn nvrtcDestroyProgram(program: Out<u64>) {
        Programs::destroy(program.get()?)?;
        program.set(0)
    }
}

/// The architecture that the devices say they have.
const ARCH: i32 = 70;
const OPTIONS: [&str; 2] = ["--gpu-architecture=sm_70", "--std=c++17"];
/// `NVRTC_ERROR_INVALID_INPUT`.
const INVALID_INPUT: Status = Status(3);
/// `NVRTC_ERROR_INVALID_OPTION`.
const INVALID_OPTION: Status = Status(5);
