//! How a graph is to be compiled, and the forms of text that an executable has.

use stepmesh_abi::compute::{
    SM_COMPILE_ALLOW_TF32, SM_COMPILE_DETERMINISTIC, SM_COMPUTE_TEXT_PLAN, SM_COMPUTE_TEXT_SOURCE,
};

/// How to compile. The default leaves all to the plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CompileOptions {
    /// The same arguments give the same bits, each time and with any number of threads.
    pub is_deterministic: bool,
    /// `matmul` of f32 may round its operands to 10 bits of mantissa.
    pub allows_tf32: bool,
    /// Host threads that an execution may use; 0 is the plugin's choice.
    pub threads_max: u32,
}

impl CompileOptions {
    /// The options as the ABI's flags, `SM_COMPILE_*`.
    #[must_use]
    pub const fn flags(&self) -> u32 {
        let deterministic = if self.is_deterministic {
            SM_COMPILE_DETERMINISTIC
        } else {
            0
        };
        let tf32 = if self.allows_tf32 {
            SM_COMPILE_ALLOW_TF32
        } else {
            0
        };
        deterministic | tf32
    }

    /// The options of the ABI's flags; `None` if one is unknown.
    #[must_use]
    pub const fn from_flags(flags: u32, threads_max: u32) -> Option<Self> {
        if flags & !(SM_COMPILE_DETERMINISTIC | SM_COMPILE_ALLOW_TF32) != 0 {
            return None;
        }
        Some(Self {
            is_deterministic: flags & SM_COMPILE_DETERMINISTIC != 0,
            allows_tf32: flags & SM_COMPILE_ALLOW_TF32 != 0,
            threads_max,
        })
    }
}

/// A form of an executable's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TextForm {
    /// The graph as it is executed, with what was fused.
    Plan,
    /// The source of the generated kernels.
    Source,
}

impl TextForm {
    /// Its number in the ABI, `SM_COMPUTE_TEXT_*`.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Plan => SM_COMPUTE_TEXT_PLAN,
            Self::Source => SM_COMPUTE_TEXT_SOURCE,
        }
    }

    /// The form of a number, if there is one.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            SM_COMPUTE_TEXT_PLAN => Some(Self::Plan),
            SM_COMPUTE_TEXT_SOURCE => Some(Self::Source),
            _ => None,
        }
    }
}
