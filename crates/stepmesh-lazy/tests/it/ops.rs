//! Operations as PyTorch has them: shapes, types, values of small tensors, and what is refused.

use stepmesh_lazy::{DType, Error, LazyDevice, LazyTensor};

use crate::common::interpreted;

fn f32s(device: &LazyDevice, dims: &[usize], values: &[f32]) -> LazyTensor {
    device.from_slice(dims, values).unwrap()
}

fn values(tensor: &LazyTensor) -> Vec<f32> {
    let tensor = tensor.cast(DType::F32).unwrap();
    tensor.to_vec().unwrap()
}

#[test]
fn operands_broadcast_and_promote() {
    let device = interpreted(|_| {});
    let column = device.from_slice(&[2, 1], &[1_u8, 2]).unwrap();
    let row = f32s(&device, &[3], &[0.5, 1.5, 2.5]);
    let sum = (&column + &row).unwrap();
    assert_eq!((sum.dims(), sum.dtype()), (vec![2, 3], DType::F32));
    assert_eq!(values(&sum), [1.5, 2.5, 3.5, 2.5, 3.5, 4.5]);
    let kinds = [
        ((&column + 1_i64).unwrap(), DType::U8),
        ((&column * 1.5).unwrap(), DType::F32),
        ((&column / 2_i64).unwrap(), DType::F32),
        (column.exp().unwrap(), DType::F32),
        (column.relu().unwrap(), DType::U8),
        (column.lt(1.5).unwrap(), DType::Bool),
        (column.sum(&[], false).unwrap(), DType::I64),
        (column.amax(&[0], false).unwrap(), DType::U8),
        (column.argmax(0, false).unwrap(), DType::I64),
        ((&row.cast(DType::F16).unwrap() * 2.0).unwrap(), DType::F16),
        (column.clamp(0.5, 1_i64).unwrap(), DType::F32),
    ];
    for (at, (tensor, dtype)) in kinds.iter().enumerate() {
        assert_eq!(tensor.dtype(), *dtype, "case {at}");
    }
    assert_eq!(values(&kinds[2].0), [0.5, 1.0]);
    // 1 < 1.5 is not true of the numbers as u8.
    assert_eq!(values(&kinds[5].0), [1.0, 0.0]);
}

#[test]
fn bools_add_as_or_and_multiply_as_and() {
    let device = interpreted(|_| {});
    let a = device
        .from_slice(&[4], &[false, false, true, true])
        .unwrap();
    let b = device
        .from_slice(&[4], &[false, true, false, true])
        .unwrap();
    let bools = |tensor: Result<LazyTensor, Error>| tensor.unwrap().to_vec::<bool>().unwrap();
    assert_eq!(bools(&a + &b), [false, true, true, true]);
    assert_eq!(bools(&a * &b), [false, false, false, true]);
    assert!(matches!(&a - &b, Err(Error::Operation { op: "sub", .. })));
    assert_eq!(bools(a.select(&b, true)), [true, true, false, true]);
}

#[test]
fn matrix_products_take_vectors_batches_and_transposes() {
    let device = interpreted(|_| {});
    let a = f32s(&device, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let v = f32s(&device, &[3], &[1.0, 0.0, -1.0]);
    let u = f32s(&device, &[2], &[1.0, 1.0]);
    assert_eq!(values(&a.matmul(&v).unwrap()), [-2.0, -2.0]);
    assert_eq!(values(&u.matmul(&a).unwrap()), [5.0, 7.0, 9.0]);
    assert_eq!(v.matmul(&v).unwrap().item::<f32>().unwrap(), 2.0);
    let gram = a.matmul(&a.t().unwrap()).unwrap();
    assert_eq!(values(&gram), [14.0, 32.0, 32.0, 77.0]);
    let text = a.t().unwrap().matmul(&a).unwrap().ir_text().unwrap();
    assert!(
        text.contains("transpose_a: true") && !text.contains("lazy::transpose"),
        "{text}"
    );
    let batch = f32s(&device, &[2, 1, 2, 2], &[1.0; 8]);
    let other = f32s(&device, &[5, 2, 3], &[1.0; 30]);
    let product = batch.matmul(&other).unwrap();
    assert_eq!(product.dims(), [2, 5, 2, 3]);
    assert_eq!(values(&product), [2.0; 60]);
    for wrong in [
        a.matmul(&a),
        a.matmul(&v.cast(DType::F64).unwrap()),
        a.matmul(&u),
    ] {
        assert!(matches!(wrong, Err(Error::Operation { op: "matmul", .. })));
    }
}

#[test]
fn dimensions_count_from_the_end_and_wrong_ones_are_refused() {
    let device = interpreted(|_| {});
    let x = f32s(&device, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(values(&x.sum(&[-1], false).unwrap()), [6.0, 15.0]);
    assert_eq!(x.mean(&[0], true).unwrap().dims(), [1, 3]);
    assert_eq!(values(&x.amax(&[0, 1], false).unwrap()), [6.0]);
    assert_eq!(x.argmax(-1, true).unwrap().to_vec::<i64>().unwrap(), [2, 2]);
    assert_eq!(x.unsqueeze(-1).unwrap().dims(), [2, 3, 1]);
    assert_eq!(x.unsqueeze(0).unwrap().squeeze(0).unwrap().dims(), [2, 3]);
    assert_eq!(
        values(&x.permute(&[1, 0]).unwrap()),
        [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
    );
    assert_eq!(values(&x.slice(1, 0..3, 2).unwrap()), [1.0, 3.0, 4.0, 6.0]);
    assert_eq!(values(&x.narrow(0, 1..2).unwrap()), [4.0, 5.0, 6.0]);
    for wrong in [
        x.sum(&[2], false),
        x.sum(&[0, -2], false),
        x.softmax(-3),
        x.narrow(0, 1..4),
        x.slice(0, 0..2, 0),
        x.reshape(&[4]),
        x.permute(&[0, 0]),
        x.broadcast_to(&[3]),
        LazyTensor::concat(&[], 0),
    ] {
        let error = wrong.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Operation { .. }), "{text}");
        assert!(text.contains("ops.rs:"), "{text}");
    }
}

#[test]
fn tables_are_read_and_written_by_index() {
    let device = interpreted(|_| {});
    let table = f32s(&device, &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let indices = device.from_slice(&[2, 2], &[2_i64, 0, 0, 1]).unwrap();
    let rows = table.embedding(&indices).unwrap();
    assert_eq!(rows.dims(), [2, 2, 2]);
    assert_eq!(values(&rows), [5.0, 6.0, 1.0, 2.0, 1.0, 2.0, 3.0, 4.0]);
    let which = device.from_slice(&[3], &[0_i32, 2, 0]).unwrap();
    let updates = device.full(&[3, 2], 10.0, DType::F32).unwrap();
    let added = table.index_add(0, &which, &updates).unwrap();
    assert_eq!(values(&added), [21.0, 22.0, 3.0, 4.0, 15.0, 16.0]);
    table.gather(0, &updates).unwrap_err();
}

#[test]
fn norms_and_softmax_are_what_their_formulas_say() {
    let device = interpreted(|_| {});
    let x = f32s(&device, &[2, 2], &[1.0, 3.0, -2.0, 2.0]);
    let weight = f32s(&device, &[2], &[2.0, 1.0]);
    let bias = f32s(&device, &[2], &[0.5, 0.0]);
    let close = |tensor: LazyTensor, wanted: &[f32]| {
        for (found, wanted) in values(&tensor).iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-4, "{found} {wanted}");
        }
    };
    let normed = x.layer_norm(-1, Some(&weight), Some(&bias), 0.0).unwrap();
    close(normed, &[-1.5, 1.0, -1.5, 1.0]);
    close(
        x.rms_norm(-1, None, 0.0).unwrap(),
        &[0.447_214, 1.341_641, -1.0, 1.0],
    );
    close(
        x.softmax(1).unwrap(),
        &[0.119_203, 0.880_797, 0.017_986, 0.982_014],
    );
    x.layer_norm(-1, None, Some(&bias), 0.0).unwrap_err();
    device
        .from_slice(&[2], &[1_i64, 2])
        .unwrap()
        .softmax(0)
        .unwrap_err();
}

#[test]
fn values_are_read_in_the_type_they_have() {
    let device = interpreted(|_| {});
    let x = device.from_slice(&[2], &[1.5_f64, -2.5]).unwrap();
    assert!(matches!(x.to_vec::<f32>(), Err(Error::Elements { .. })));
    assert_eq!(
        x.cast(DType::I32).unwrap().to_vec::<i32>().unwrap(),
        [1, -2]
    );
    assert_eq!(
        x.to_host()
            .unwrap()
            .to_dtype(DType::BF16)
            .unwrap()
            .ty()
            .len_bytes(),
        4
    );
    let empty = device.zeros(&[0, 3], DType::F16).unwrap();
    assert_eq!(
        empty
            .sum(&[0], false)
            .unwrap()
            .to_vec::<half::f16>()
            .unwrap()
            .len(),
        3
    );
    device.from_slice(&[3], &[1.0_f32]).unwrap_err();
}
