//! HIP's run-time compiler. Its statuses are its own, 0 being success.

use stepmesh_simdriver::{Out, OutText, Programs, Status, Text, Values, api};

api! {
    fn hiprtcVersion(major: Out<i32>, minor: Out<i32>) {
        major.set(6)?;
        minor.set(2)
    }

    fn hiprtcCreateProgram(
        program: Out<u64>, source: Text, _name: Text, headers: i32, _sources: Values<u64>,
        _names: Values<u64>,
    ) {
        if headers != 0 {
            return Err(INVALID_INPUT);
        }
        let source = source.get().map_err(|_| INVALID_INPUT)?;
        program.set(Programs::create(source)?)
    }

    fn hiprtcCompileProgram(program: u64, count: i32, options: Values<Text>) {
        for idx in 0..usize::try_from(count).unwrap_or(0) {
            let option = options.get(idx)?.get()?;
            if !OPTIONS.contains(&option.as_str()) {
                return Err(INVALID_OPTION);
            }
        }
        Programs::compile(program)
    }

    fn hiprtcGetCodeSize(program: u64, size: Out<usize>) {
        size.set(Programs::image(program)?.len())
    }

    fn hiprtcGetCode(program: u64, code: OutText) {
        code.put(&Programs::image(program)?)
    }

    fn hiprtcGetProgramLogSize(program: u64, size: Out<usize>) {
        size.set(Programs::log(program)?.len())
    }

    fn hiprtcGetProgramLog(program: u64, log: OutText) {
        log.put(&Programs::log(program)?)
    }

    fn hiprtcDestroyProgram(program: Out<u64>) {
        Programs::destroy(program.get()?)?;
        program.set(0)
    }
}

/// With the architecture that the devices say they have.
const OPTIONS: [&str; 2] = ["--offload-arch=gfx90a:sramecc+:xnack-", "--std=c++17"];
/// `HIPRTC_ERROR_INVALID_INPUT`.
const INVALID_INPUT: Status = Status(3);
/// `HIPRTC_ERROR_INVALID_OPTION`.
const INVALID_OPTION: Status = Status(5);
