//! The operations without their attributes: names, numbers, and the types that each is for.

use std::fmt;

use stepmesh_abi::compute as abi;

use crate::{DType, DTypeClass};

/// Which types an operation is for; the names are those of the texts in the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Types {
    Floats,
    Numbers,
    NumbersAndBool,
    AnyButFp8,
    Any,
}

macro_rules! op_kinds {
    ($($(#[$doc:meta])* $kind:ident = $number:ident, $name:literal, $types:ident;)+) => {
        /// An operation, without its attributes. What it means is written at its number in
        /// [`stepmesh_abi::compute`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum OpKind {
            $(
                #[doc = concat!("`", stringify!($number), "`.")]
                $kind,
            )+
        }

        impl OpKind {
            /// Every operation.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// Its number in the ABI, `SM_OP_*`.
            #[must_use]
            pub const fn number(self) -> u32 {
                match self { $(Self::$kind => abi::$number),+ }
            }

            /// The operation of a number, if there is one.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $(abi::$number => Some(Self::$kind),)+ _ => None }
            }

            /// Its name in dumps and messages.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),+ }
            }

            const fn types(self) -> Types {
                match self { $(Self::$kind => Types::$types),+ }
            }
        }
    };
}

op_kinds! {
    Parameter = SM_OP_PARAMETER, "parameter", Any;
    Constant = SM_OP_CONSTANT, "constant", Any;
    Cast = SM_OP_CAST, "cast", Any;
    Add = SM_OP_ADD, "add", Numbers;
    Sub = SM_OP_SUB, "sub", Numbers;
    Mul = SM_OP_MUL, "mul", Numbers;
    Div = SM_OP_DIV, "div", Numbers;
    Pow = SM_OP_POW, "pow", Numbers;
    Max = SM_OP_MAX, "max", NumbersAndBool;
    Min = SM_OP_MIN, "min", NumbersAndBool;
    Neg = SM_OP_NEG, "neg", Numbers;
    Exp = SM_OP_EXP, "exp", Floats;
    Log = SM_OP_LOG, "log", Floats;
    Sqrt = SM_OP_SQRT, "sqrt", Floats;
    Rsqrt = SM_OP_RSQRT, "rsqrt", Floats;
    Tanh = SM_OP_TANH, "tanh", Floats;
    Sigmoid = SM_OP_SIGMOID, "sigmoid", Floats;
    Relu = SM_OP_RELU, "relu", Numbers;
    Silu = SM_OP_SILU, "silu", Floats;
    GeluErf = SM_OP_GELU_ERF, "gelu_erf", Floats;
    GeluTanh = SM_OP_GELU_TANH, "gelu_tanh", Floats;
    Compare = SM_OP_COMPARE, "compare", NumbersAndBool;
    Select = SM_OP_SELECT, "select", AnyButFp8;
    Clamp = SM_OP_CLAMP, "clamp", Numbers;
    Sum = SM_OP_SUM, "sum", Numbers;
    Mean = SM_OP_MEAN, "mean", Floats;
    ReduceMax = SM_OP_REDUCE_MAX, "reduce_max", NumbersAndBool;
    Argmax = SM_OP_ARGMAX, "argmax", Numbers;
    Matmul = SM_OP_MATMUL, "matmul", Numbers;
    Softmax = SM_OP_SOFTMAX, "softmax", Floats;
    LayerNorm = SM_OP_LAYER_NORM, "layer_norm", Floats;
    RmsNorm = SM_OP_RMS_NORM, "rms_norm", Floats;
    Reshape = SM_OP_RESHAPE, "reshape", Any;
    Transpose = SM_OP_TRANSPOSE, "transpose", Any;
    Broadcast = SM_OP_BROADCAST, "broadcast", Any;
    Slice = SM_OP_SLICE, "slice", Any;
    Concat = SM_OP_CONCAT, "concat", Any;
    Gather = SM_OP_GATHER, "gather", Any;
    IndexAdd = SM_OP_INDEX_ADD, "index_add", Numbers;
    RngUniform = SM_OP_RNG_UNIFORM, "rng_uniform", Floats;
    RngNormal = SM_OP_RNG_NORMAL, "rng_normal", Floats;
}

impl OpKind {
    /// Whether the operation exists for a type: that of its value, but of the operand for `compare`
    /// and `argmax`. Whether some plugin does it is the plugin's to say.
    #[must_use]
    pub const fn allows(self, dtype: DType) -> bool {
        match (self.types(), dtype.class()) {
            (Types::Any, _)
            | (_, DTypeClass::Float)
            | (Types::Numbers | Types::NumbersAndBool | Types::AnyButFp8, DTypeClass::Integer)
            | (Types::NumbersAndBool | Types::AnyButFp8, DTypeClass::Bool) => true,
            (Types::Floats, _) | (_, DTypeClass::Bool | DTypeClass::Storage) => false,
        }
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
