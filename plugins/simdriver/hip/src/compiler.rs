//! HIP's run-time compiler, as far as that a program can be made and taken: the "code" is the source.
//! Its statuses are its own, 0 being success.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stepmesh_simdriver::{Answer, Out, OutText, Status, Text, Values, api};

/// Sources by handle.
static PROGRAMS: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());

fn programs() -> MutexGuard<'static, BTreeMap<u64, String>> {
    PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn source(program: u64) -> Answer<String> {
    programs().get(&program).cloned().ok_or(INVALID_PROGRAM)
}

api! {
    fn hiprtcCreateProgram(
        program: Out<u64>, source: Text, _name: Text, headers: i32, _sources: Values<u64>,
        _names: Values<u64>,
    ) {
        if headers != 0 {
            return Err(INVALID_INPUT);
        }
        let source = source.get().map_err(|_| INVALID_INPUT)?;
        let mut programs = programs();
        let handle = programs.last_key_value().map_or(PROGRAM_BASE, |(last, _)| last + 16);
        programs.insert(handle, source);
        program.set(handle)
    }

    fn hiprtcCompileProgram(program: u64, _count: i32, _options: Values<u64>) {
        source(program).map(|_| ())
    }

    fn hiprtcGetCodeSize(program: u64, size: Out<usize>) {
        size.set(source(program)?.len() + 1)
    }

    fn hiprtcGetCode(program: u64, code: OutText) {
        code.set(&source(program)?, i32::MAX)
    }

    fn hiprtcGetProgramLogSize(program: u64, size: Out<usize>) {
        source(program)?;
        size.set(1)
    }

    fn hiprtcGetProgramLog(program: u64, log: OutText) {
        source(program)?;
        log.set("", 1)
    }

    fn hiprtcDestroyProgram(program: Out<u64>) {
        let handle = program.get()?;
        programs().remove(&handle).ok_or(INVALID_PROGRAM)?;
        program.set(0)
    }
}

/// Where no memory is mapped.
const PROGRAM_BASE: u64 = 0x5e20_0000_0000_0000;
/// `HIPRTC_ERROR_INVALID_INPUT`.
const INVALID_INPUT: Status = Status(3);
/// `HIPRTC_ERROR_INVALID_PROGRAM`.
const INVALID_PROGRAM: Status = Status(4);
