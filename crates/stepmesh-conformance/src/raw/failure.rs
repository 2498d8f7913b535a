//! Why a slot failed, as it told the caller.
#![forbid(unsafe_code)]

use std::fmt;

use stepmesh_abi::{Code, SmError};

/// A slot's failure.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) slot: &'static str,
    pub(crate) code: Code,
    /// What the error struct says, if one was passed.
    pub(crate) error: Option<Box<SmError>>,
    /// The plugin has no such slot.
    pub(crate) is_absent: bool,
}

impl Failure {
    pub(crate) fn absent(slot: &'static str) -> Self {
        Self {
            slot,
            code: Code::Unimplemented,
            error: None,
            is_absent: true,
        }
    }

    /// The message, with what is not UTF-8 replaced.
    pub(crate) fn message(&self) -> String {
        self.error.as_deref().map_or_else(String::new, |error| {
            let bytes = error.message_bytes();
            String::from_utf8_lossy(&bytes[..error.message_len()]).into_owned()
        })
    }

    pub(crate) fn flags(&self) -> u32 {
        self.error.as_deref().map_or(0, |error| error.flags)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_absent {
            return write!(f, "the plugin has no {}", self.slot);
        }
        write!(f, "{}: {}", self.slot, self.code)?;
        match self.message() {
            message if message.is_empty() => Ok(()),
            message => write!(f, ": {message}"),
        }
    }
}
