//! Products of matrices by rows, as graphs have them, as products by columns, as the libraries have them.
#![forbid(unsafe_code)]

use stepmesh_gpu_source::Product;
use stepmesh_plugin::compute::DType;

use crate::{Element, Gemm, Matrix, Sums};

/// The product with left operand, right operand and result at these addresses.
///
/// A matrix by rows is the transpose of the same memory by columns, and the transpose of a product is the
/// product of the transposes the other way round: so the operands change places, and nothing else.
pub(super) fn by_columns(product: &Product, sums_f32: Sums, at: [u64; 3]) -> Gemm {
    let [left, right, out] = at;
    let (element, sums) = match product.dtype {
        DType::F16 => (Element::F16, Sums::F32),
        DType::BF16 => (Element::Bf16, Sums::F32),
        DType::F64 => (Element::F64, Sums::F64),
        // There are no others.
        _ => (Element::F32, sums_f32),
    };
    let matrix = |ptr, matrix: &stepmesh_gpu_source::Matrix| Matrix {
        ptr,
        element,
        leading: int(matrix.leading),
        stride: i64::try_from(matrix.batch_stride).unwrap_or(i64::MAX),
        is_transposed: matrix.is_transposed,
    };
    Gemm {
        m: int(product.columns),
        n: int(product.rows),
        k: int(product.depth),
        batch: int(product.batch),
        a: matrix(right, &product.right),
        b: matrix(left, &product.left),
        c: matrix(out, &product.out),
        sums,
    }
}

/// A size as the libraries have it. Programs have no others; one that did not fit would be refused.
fn int(size: u64) -> i32 {
    i32::try_from(size).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    //! Against products that are worked out by hand.

    use stepmesh_gpu_source::{Matrix, Place, Product};
    use stepmesh_plugin::compute::DType;

    use super::{Sums, by_columns};

    fn matrix(leading: u64, is_transposed: bool) -> Matrix {
        Matrix {
            place: Place::Scratch { offset_bytes: 0 },
            leading,
            batch_stride: 100 + leading,
            is_transposed,
        }
    }

    #[test]
    fn operands_change_places_and_keep_their_transposes() {
        // 2 by 3 times 3 by 5, of which the right one lies as its transpose.
        let product = Product {
            rows: 2,
            columns: 5,
            depth: 3,
            batch: 7,
            dtype: DType::F32,
            left: matrix(3, false),
            right: matrix(4, true),
            out: matrix(5, false),
        };
        let gemm = by_columns(&product, Sums::Tf32, [10, 20, 30]);
        assert_eq!((gemm.m, gemm.n, gemm.k, gemm.batch), (5, 2, 3, 7));
        assert_eq!(
            (gemm.a.ptr, gemm.a.leading, gemm.a.is_transposed),
            (20, 4, true)
        );
        assert_eq!(
            (gemm.b.ptr, gemm.b.leading, gemm.b.is_transposed),
            (10, 3, false)
        );
        assert_eq!((gemm.c.ptr, gemm.c.leading, gemm.c.stride), (30, 5, 105));
        assert_eq!(gemm.sums, Sums::Tf32);
    }

    #[test]
    fn only_f32_may_be_rounded() {
        for (dtype, sums) in [
            (DType::F16, Sums::F32),
            (DType::BF16, Sums::F32),
            (DType::F64, Sums::F64),
            (DType::F32, Sums::Tf32),
        ] {
            let product = Product {
                rows: 1,
                columns: 1,
                depth: 1,
                batch: 1,
                dtype,
                left: matrix(1, false),
                right: matrix(1, false),
                out: matrix(1, false),
            };
            assert_eq!(by_columns(&product, Sums::Tf32, [0; 3]).sums, sums);
        }
    }
}
