//! DLPack both ways: deleters run once, on any thread, and bad tensors are refused.
#![expect(unsafe_code, reason = "plays a producer")]

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use stepmesh::{DType, Tensor};
use stepmesh_torch::{DlDataType, DlDevice, DlTensor, Error, ManagedTensor, RawManagedTensor};
use tch::{IndexOp, Kind};

use crate::cpu;

/// A producer's tensor with a deleter that counts.
struct Produced {
    raw: RawManagedTensor,
    dims: [i64; 2],
    strides: [i64; 2],
    values: [f32; 6],
    deleted: Arc<AtomicU32>,
}

unsafe extern "C" fn delete(raw: *mut RawManagedTensor) {
    // SAFETY: called with the struct that `produce` made.
    let context = unsafe { (*raw).manager_ctx };
    // SAFETY: the context is the box that `produce` made.
    let produced = unsafe { Box::from_raw(context.cast::<Produced>()) };
    produced.deleted.fetch_add(1, Ordering::SeqCst);
}

/// `change` makes it a bad one.
fn produce(change: impl FnOnce(&mut Produced)) -> (ManagedTensor, Arc<AtomicU32>) {
    let deleted = Arc::new(AtomicU32::new(0));
    let produced = Box::new(Produced {
        raw: RawManagedTensor {
            dl_tensor: DlTensor {
                data: ptr::null_mut(),
                device: DlDevice {
                    device_type: 1,
                    device_id: 0,
                },
                ndim: 2,
                dtype: DlDataType {
                    code: 2,
                    bits: 32,
                    lanes: 1,
                },
                shape: ptr::null_mut(),
                strides: ptr::null_mut(),
                byte_offset: 4,
            },
            manager_ctx: ptr::null_mut(),
            deleter: Some(delete),
        },
        dims: [1, 5],
        strides: [5, 1],
        values: [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        deleted: Arc::clone(&deleted),
    });
    let at = Box::into_raw(produced);
    // SAFETY: just made; nobody else has it.
    let produced = unsafe { &mut *at };
    produced.raw.manager_ctx = at.cast::<c_void>();
    produced.raw.dl_tensor.data = produced.values.as_mut_ptr().cast();
    produced.raw.dl_tensor.shape = produced.dims.as_mut_ptr();
    produced.raw.dl_tensor.strides = produced.strides.as_mut_ptr();
    change(produced);
    // SAFETY: valid, and given away.
    let managed = unsafe { ManagedTensor::from_raw(&raw mut produced.raw) }.unwrap();
    (managed, deleted)
}

#[test]
fn a_producers_tensor_enters_the_mesh_and_is_given_back_once_on_another_thread() {
    let (managed, deleted) = produce(|_| {});
    let mesh = managed.into_mesh(&cpu()).unwrap();
    assert_eq!(mesh.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(
        (mesh.dtype(), mesh.shape().dims()),
        (DType::F32, &[1, 5][..])
    );
    let clone = mesh.clone();
    drop(mesh);
    assert_eq!(deleted.load(Ordering::SeqCst), 0);
    thread::spawn(move || drop(clone)).join().unwrap();
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
}

#[test]
fn torch_takes_a_producers_tensor_and_its_last_view_gives_it_back() {
    let (managed, deleted) = produce(|_| {});
    let torch = managed.into_torch().unwrap();
    let view = torch.i((0, 2));
    drop(torch);
    assert_eq!(deleted.load(Ordering::SeqCst), 0);
    assert_eq!(view.double_value(&[]), 3.0);
    drop(view);
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
}

#[test]
fn what_is_refused_is_given_back_once() {
    let refuse = |change: fn(&mut Produced)| {
        let (managed, deleted) = produce(change);
        let error = managed.into_mesh(&cpu()).unwrap_err();
        assert_eq!(deleted.load(Ordering::SeqCst), 1, "{error}");
        error
    };
    let error = refuse(|produced| produced.raw.dl_tensor.device.device_type = 2);
    assert!(error.to_string().contains("device_type: 2"), "{error}");
    let error = refuse(|produced| produced.dims = [5, 2]);
    assert!(matches!(error, Error::NotContiguous { .. }), "{error}");
    let error = refuse(|produced| produced.dims = [-1, 5]);
    assert!(error.to_string().contains("a dimension of -1"), "{error}");
    let error = refuse(|produced| produced.raw.dl_tensor.ndim = -3);
    assert!(error.to_string().contains("-3 dimensions"), "{error}");
    let error = refuse(|produced| produced.raw.dl_tensor.ndim = 1 << 30);
    assert!(error.to_string().contains("dimensions"), "{error}");
    let error = refuse(|produced| produced.raw.dl_tensor.dtype.lanes = 4);
    assert!(matches!(error, Error::UnsupportedKind { .. }), "{error}");
    let error = refuse(|produced| produced.raw.dl_tensor.data = ptr::null_mut());
    assert!(error.to_string().contains("its data is at 0x0"), "{error}");
    let error = refuse(|produced| {
        produced.dims = [i64::MAX, i64::MAX];
        produced.raw.dl_tensor.strides = ptr::null_mut();
    });
    assert!(
        error.to_string().contains("larger than any memory"),
        "{error}"
    );
    // SAFETY: null is what is tested.
    let null = unsafe { ManagedTensor::from_raw(ptr::null_mut()) };
    assert!(matches!(null, Err(Error::InvalidDlpack { .. })));

    let (managed, deleted) = produce(|produced| produced.raw.dl_tensor.dtype.code = 99);
    let error = managed.into_torch().unwrap_err();
    assert!(matches!(error, Error::Torch { .. }), "{error}");
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
}

#[test]
fn torch_and_mesh_meet_in_dlpack() {
    let device = cpu();
    let torch = tch::Tensor::arange(6, (Kind::BFloat16, tch::Device::Cpu)).reshape([2, 3]);
    let mesh = ManagedTensor::from_torch(&torch)
        .unwrap()
        .into_mesh(&device)
        .unwrap();
    assert_eq!(
        mesh.device_ptr(),
        torch.data_ptr().expose_provenance() as u64
    );
    assert_eq!(mesh.dtype(), DType::BF16);

    let mesh = Tensor::from_slice(&device, &[3, 2], &[1i64, 2, 3, 4, 5, 6]).unwrap();
    let buffer = Arc::downgrade(mesh.buffer());
    let torch = ManagedTensor::from_mesh(&mesh)
        .unwrap()
        .into_torch()
        .unwrap();
    drop(mesh);
    let turned = torch.tr();
    drop(torch);
    assert_eq!(turned.int64_value(&[1, 2]), 6);
    drop(turned);
    assert!(buffer.upgrade().is_none());
}

#[test]
fn an_export_nobody_takes_gives_its_buffer_back() {
    let mesh = Tensor::from_slice(&cpu(), &[2], &[1.0f32, 2.0]).unwrap();
    let buffer = Arc::downgrade(mesh.buffer());
    let managed = ManagedTensor::from_mesh(&mesh).unwrap();
    drop(mesh);
    assert!(buffer.upgrade().is_some());
    drop(managed);
    assert!(buffer.upgrade().is_none());
}
