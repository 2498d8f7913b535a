//! The error that a slot is given: one with known content, none, or one that ends at a page without
//! access. What a slot did with it is judged here, after every call.
#![expect(unsafe_code, reason = "reads what the plugin wrote")]

use stepmesh_abi::error::{SM_ERROR_FIXED_LEN, SM_ERROR_MSG_CAP, SM_OK};
use stepmesh_abi::{Code, SmError};

use super::failure::Failure;
use super::guard::Guarded;
use super::memory::narrow;

/// What a session passes for `err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorMode {
    /// A whole struct.
    Whole,
    /// Null.
    Null,
    /// A struct of this size (a multiple of 8, a page at most) and not a byte more.
    Sized(u32),
}

/// The argument of one call.
pub(crate) enum ErrorArg {
    Whole(Box<SmError>),
    Null,
    Sized(Guarded, u32),
}

/// A slot's answer and what it did wrong in telling it.
pub(crate) struct Judged {
    pub(crate) result: Result<(), Failure>,
    pub(crate) faults: Vec<String>,
}

impl ErrorArg {
    pub(crate) fn new(mode: ErrorMode) -> Self {
        match mode {
            ErrorMode::Whole => Self::Whole(Box::new(poisoned())),
            ErrorMode::Null => Self::Null,
            ErrorMode::Sized(size) => {
                let mut bytes = vec![0; narrow(size.into())];
                for (to, from) in bytes.iter_mut().zip(size.to_ne_bytes()) {
                    *to = from;
                }
                // Without pages to guard, a struct that is larger than it says must do.
                Guarded::holding(&bytes).map_or(Self::Null, |guarded| Self::Sized(guarded, size))
            }
        }
    }

    pub(crate) fn as_ptr(&mut self) -> *mut SmError {
        match self {
            Self::Whole(error) => &raw mut **error,
            Self::Null => std::ptr::null_mut(),
            Self::Sized(guarded, _) => guarded.as_ptr().cast(),
        }
    }

    /// What the slot said, and whether it said it as the ABI wants.
    pub(crate) fn judge(&self, slot: &'static str, status: i32) -> Judged {
        let mut faults = Vec::new();
        let mut fault = |what: String| faults.push(format!("{slot}: {what}"));
        let written = self.written();
        if status == SM_OK {
            if matches!(self, Self::Whole(error) if !is_poisoned(error)) {
                fault("succeeded, but wrote to the error".into());
            }
            return Judged {
                result: Ok(()),
                faults,
            };
        }
        if matches!(Code::from_raw(status), Code::Other(_)) {
            fault(format!("status {status} is none of the ABI's"));
        }
        let error = written.map(|mut error| {
            if is_poisoned(&error) {
                fault(format!(
                    "failed with {status}, but left the error as it was"
                ));
                return SmError::with_message(status, "");
            }
            if error.code != status {
                fault(format!("returned {status}, but wrote code {}", error.code));
            }
            if error.native_code == POISON_64 || error.flags == POISON_FLAGS {
                fault("did not write all numbers of the error".into());
            }
            let len = error.message_len();
            if narrow(error.msg_len.into()) > SM_ERROR_MSG_CAP {
                fault(format!("a message of {} bytes does not fit", error.msg_len));
                error.msg_len = 0;
            } else if std::str::from_utf8(&error.message_bytes()[..len]).is_err() {
                fault("the message is not UTF-8".into());
            } else if len == 0 {
                fault(format!("failed with {status} and no message"));
            }
            error
        });
        let failure = Failure {
            slot,
            code: Code::from_raw(status),
            error: error.map(Box::new),
            is_absent: false,
        };
        Judged {
            result: Err(failure),
            faults,
        }
    }

    /// What is in the struct now, if it has room for anything.
    fn written(&self) -> Option<SmError> {
        match self {
            Self::Whole(error) => Some(**error),
            Self::Null => None,
            Self::Sized(guarded, size) => {
                let bytes = guarded.bytes();
                if bytes.len() < SM_ERROR_FIXED_LEN {
                    return None;
                }
                let mut error = SmError::new();
                let len = bytes.len().min(size_of::<SmError>());
                // SAFETY: both have at least `len` bytes and one is a local; any bytes are a valid
                // `SmError`, whose fields are integers.
                unsafe {
                    (&raw mut error)
                        .cast::<u8>()
                        .copy_from_nonoverlapping(bytes.as_ptr(), len);
                };
                error.struct_size = *size;
                Some(error)
            }
        }
    }
}

fn poisoned() -> SmError {
    let mut error = SmError::new();
    error.code = POISON_CODE;
    error.native_code = POISON_64;
    error.flags = POISON_FLAGS;
    error.msg_len = POISON_FLAGS;
    error
}

fn is_poisoned(error: &SmError) -> bool {
    error.code == POISON_CODE
        && error.native_code == POISON_64
        && error.flags == POISON_FLAGS
        && error.msg_len == POISON_FLAGS
}

/// No status code.
const POISON_CODE: i32 = 0x5a5a_5a5a;
/// No vendor's number.
const POISON_64: i64 = 0x5a5a_5a5a_5a5a_5a5a;
/// No set of flags, and no length that fits.
const POISON_FLAGS: u32 = 0x5a5a_5a5a;
