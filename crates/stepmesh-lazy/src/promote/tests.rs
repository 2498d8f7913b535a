//! The table of PyTorch's promotions, written from its documentation and the lookup table in
//! c10/core/ScalarType.cpp.

use stepmesh_graph::DType::{self, BF16, Bool, F8E4M3, F8E5M2, F16, F32, F64, I32, I64, U8};

use super::Category::{Dimensioned, Number, ZeroDim};
use super::{Category, promote_types, result_type};

const TYPES: [DType; 8] = [U8, I32, I64, F16, F32, F64, Bool, BF16];

/// Rows and columns as in `TYPES`.
const PROMOTED: [[DType; 8]; 8] = [
    [U8, I32, I64, F16, F32, F64, U8, BF16],
    [I32, I32, I64, F16, F32, F64, I32, BF16],
    [I64, I64, I64, F16, F32, F64, I64, BF16],
    [F16, F16, F16, F16, F32, F64, F16, F32],
    [F32, F32, F32, F32, F32, F64, F32, F32],
    [F64, F64, F64, F64, F64, F64, F64, F64],
    [U8, I32, I64, F16, F32, F64, Bool, BF16],
    [BF16, BF16, BF16, F32, F32, F64, BF16, BF16],
];

#[test]
fn two_types_promote_as_in_pytorch() {
    for (a, row) in TYPES.into_iter().zip(PROMOTED) {
        for (b, expected) in TYPES.into_iter().zip(row) {
            assert_eq!(promote_types(a, b), Some(expected), "{a} {b}");
        }
    }
}

#[test]
fn small_floats_promote_with_nothing_but_themselves() {
    assert_eq!(promote_types(F8E4M3, F8E4M3), Some(F8E4M3));
    for other in [F8E5M2, F32, U8] {
        assert_eq!(promote_types(F8E4M3, other), None, "{other}");
        assert_eq!(promote_types(other, F8E4M3), None, "{other}");
    }
}

/// Operands, and what `torch.result_type` says of them; numbers are i64, f32 or bool.
const RESULTS: &[(&[(DType, Category)], DType)] = &[
    // The examples of the documentation.
    (&[(I32, Dimensioned), (I64, Dimensioned)], I64),
    (&[(F32, Dimensioned), (F64, Dimensioned)], F64),
    (&[(F32, Dimensioned), (F64, ZeroDim)], F32),
    (&[(I32, Dimensioned), (I64, ZeroDim)], I32),
    (&[(I32, Dimensioned), (F32, Number)], F32),
    (&[(I32, Dimensioned), (I64, Number)], I32),
    (&[(U8, Dimensioned), (I64, Number)], U8),
    (&[(Bool, Dimensioned), (I64, Number)], I64),
    (&[(Bool, Dimensioned), (F32, Number)], F32),
    (&[(Bool, Dimensioned), (Bool, Number)], Bool),
    (&[(I64, ZeroDim), (F32, Number)], F32),
    // A number of a float's kind takes the tensor's width.
    (&[(F16, Dimensioned), (F32, Number)], F16),
    (&[(BF16, Dimensioned), (F32, Number)], BF16),
    (&[(F64, Dimensioned), (F32, Number)], F64),
    (&[(F16, Dimensioned), (I64, Number)], F16),
    // A zero-dimensional float makes integers floats, of its own width.
    (&[(I64, Dimensioned), (F16, ZeroDim)], F16),
    (&[(I64, Dimensioned), (F64, ZeroDim)], F64),
    (&[(Bool, Dimensioned), (U8, ZeroDim)], U8),
    (&[(U8, Dimensioned), (Bool, ZeroDim)], U8),
    // Within a category they promote.
    (&[(F16, ZeroDim), (BF16, ZeroDim)], F32),
    (&[(I64, Number), (F32, Number)], F32),
    // Three categories at once.
    (&[(U8, Dimensioned), (I32, ZeroDim), (F32, Number)], F32),
    (&[(U8, Dimensioned), (I32, ZeroDim), (I64, Number)], U8),
    (&[(F16, ZeroDim), (F32, Number), (I64, Dimensioned)], F16),
];

#[test]
fn the_categories_of_operands_decide_as_in_pytorch() {
    for (operands, expected) in RESULTS {
        assert_eq!(result_type(operands), Some(*expected), "{operands:?}");
        let mut turned = operands.to_vec();
        turned.reverse();
        assert_eq!(result_type(&turned), Some(*expected), "{turned:?}");
    }
    assert_eq!(result_type(&[]), None);
    assert_eq!(result_type(&[(F8E4M3, Dimensioned), (F32, Number)]), None);
}
