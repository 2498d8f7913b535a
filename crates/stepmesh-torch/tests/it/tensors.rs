//! One memory, seen from both sides.

use std::sync::Arc;
use std::thread;

use stepmesh::{DType, Shape, Tensor};
use stepmesh_torch::{Error, dtype_of, from_torch, kind_of, to_torch};
use tch::{IndexOp, Kind};

use crate::cpu;

#[test]
fn a_torch_tensor_is_shared_with_the_mesh_in_place() {
    let device = cpu();
    let torch = tch::Tensor::arange(12, (Kind::Float, tch::Device::Cpu)).reshape([3, 4]);
    let mesh = from_torch(&device, &torch).unwrap();
    assert_eq!(
        mesh.device_ptr(),
        torch.data_ptr().expose_provenance() as u64
    );
    assert_eq!(
        (mesh.dtype(), mesh.shape().dims()),
        (DType::F32, &[3, 4][..])
    );
    mesh.write(&[7.0f32; 12]).unwrap();
    assert_eq!(torch.double_value(&[2, 3]), 7.0);
    let _ = torch.i(1).fill_(9.0);
    assert_eq!(mesh.to_vec::<f32>().unwrap()[4..8], [9.0; 4]);
}

#[test]
fn views_of_one_storage_are_views_of_one_buffer() {
    let device = cpu();
    let torch = tch::Tensor::arange(12, (Kind::Int64, tch::Device::Cpu)).reshape([3, 4]);
    let row = from_torch(&device, &torch.i(1)).unwrap();
    assert_eq!(row.to_vec::<i64>().unwrap(), [4, 5, 6, 7]);
    assert_eq!(row.offset_bytes(), 32);
    let whole = from_torch(&device, &torch).unwrap();
    assert_eq!(row.buffer().device_ptr(), whole.buffer().device_ptr());
    assert_eq!(row.buffer().len_bytes(), whole.buffer().len_bytes());
}

#[test]
fn the_mesh_keeps_a_storage_that_torch_forgot() {
    let device = cpu();
    let torch = tch::Tensor::full([1 << 16], 3, (Kind::Float, tch::Device::Cpu));
    let mesh = from_torch(&device, &torch).unwrap();
    drop(torch);
    let other = tch::Tensor::full([1 << 16], 5, (Kind::Float, tch::Device::Cpu));
    assert_eq!(mesh.to_vec::<f32>().unwrap()[1 << 15], 3.0);
    assert_ne!(
        mesh.device_ptr(),
        other.data_ptr().expose_provenance() as u64
    );
}

#[test]
fn what_cannot_be_shared_is_refused_by_reason() {
    let device = cpu();
    let square = tch::Tensor::zeros([4, 4], (Kind::Float, tch::Device::Cpu));
    let turned = from_torch(&device, &square.tr());
    assert!(matches!(turned, Err(Error::NotContiguous { .. })));
    let complex = tch::Tensor::zeros([2], (Kind::ComplexFloat, tch::Device::Cpu));
    assert!(matches!(
        from_torch(&device, &complex),
        Err(Error::UnsupportedKind { .. })
    ));
    let sparse = square.to_sparse(None, None::<&[i64]>, None);
    let error = from_torch(&device, &sparse).unwrap_err();
    assert!(error.to_string().contains("not dense"), "{error}");
    let deep = tch::Tensor::zeros([1; 9], (Kind::Float, tch::Device::Cpu));
    let error = from_torch(&device, &deep).unwrap_err();
    assert!(error.to_string().contains("9 dimensions"), "{error}");
}

#[test]
fn a_tensor_of_the_mesh_is_shared_with_torch_and_outlives_all_else() {
    let device = cpu();
    let mesh = Tensor::from_slice(&device, &[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let buffer = Arc::downgrade(mesh.buffer());
    let torch = to_torch(&mesh).unwrap();
    assert_eq!((torch.size(), torch.kind()), (vec![2, 3], Kind::Float));
    assert_eq!(
        torch.data_ptr().expose_provenance() as u64,
        mesh.device_ptr()
    );
    let view = torch.i(1);
    drop((torch, mesh));
    assert_eq!(view.double_value(&[2]), 6.0);
    assert!(buffer.upgrade().is_some(), "the view holds the memory");
    thread::spawn(move || drop(view)).join().unwrap();
    assert!(buffer.upgrade().is_none(), "the last view let it go");
}

#[test]
fn every_type_that_both_have_goes_there_and_back() {
    let device = cpu();
    for dtype in DType::ALL {
        let Ok(kind) = kind_of(dtype) else {
            assert!(
                matches!(dtype, DType::U16 | DType::U32 | DType::U64),
                "{dtype}"
            );
            continue;
        };
        assert_eq!(dtype_of(kind).unwrap(), dtype);
        let mesh = Tensor::empty(&device, dtype, &[2, 5]).unwrap();
        let torch = to_torch(&mesh).unwrap();
        assert_eq!(torch.kind(), kind, "{dtype}");
        let back = from_torch(&device, &torch).unwrap();
        assert_eq!(
            (back.dtype(), back.device_ptr()),
            (dtype, mesh.device_ptr())
        );
    }
    let complex = dtype_of(Kind::ComplexDouble);
    assert!(matches!(complex, Err(Error::UnsupportedKind { .. })));
}

#[test]
fn scalars_and_empty_tensors_are_shared_too() {
    let device = cpu();
    let scalar = tch::Tensor::from(2.5f32);
    let mesh = from_torch(&device, &scalar).unwrap();
    assert_eq!(mesh.shape().dims(), [0u64; 0]);
    assert_eq!(mesh.to_vec::<f32>().unwrap(), [2.5]);
    let empty = tch::Tensor::zeros([0, 4], (Kind::Float, tch::Device::Cpu));
    assert_eq!(from_torch(&device, &empty).unwrap().len_bytes(), 0);
    let nothing = Tensor::at(
        Arc::clone(mesh.buffer()),
        0,
        DType::F32,
        Shape::new(&[0, 3]).unwrap(),
    );
    assert_eq!(to_torch(&nothing.unwrap()).unwrap().size(), [0, 3]);
}
