//! Work that fails on the device: who is told, and what goes on. On the simulated accelerator, whose
//! memory the host cannot reach by itself.

use std::sync::Arc;
use std::time::Duration;

use stepmesh_core::{Buffer, Device};
use stepmesh_lazy::{DType, Error, Fallback, FallbackPolicy, LazyDevice, Options};

use crate::common::sim_device;

fn sim(options: &[(&str, &str)]) -> (Device, LazyDevice) {
    let core = sim_device(options);
    let mut options = Options::default();
    options.fallback = FallbackPolicy::all(Fallback::Deny);
    options.backend.timeout = Duration::from_secs(5);
    let lazy = LazyDevice::open(&core, options).unwrap();
    (core, lazy)
}

fn buffer(core: &Device) -> Arc<Buffer> {
    Arc::new(core.alloc(64).unwrap())
}

#[test]
fn hidden_memory_is_computed_on_as_any_other() {
    let (core, device) = sim(&[]);
    let (slot, answer) = (buffer(&core), buffer(&core));
    slot.write_bytes(0, &[1.0_f32, 2.0].map(f32::to_le_bytes).concat())
        .unwrap();
    let x = device.wrap_buffer(&slot, 0, &[2], DType::F32).unwrap();
    let w = device
        .from_slice(&[2, 2], &[1.0_f32, 1.0, 0.0, 2.0])
        .unwrap();
    let y = (x.linear(&w, None).unwrap() * 0.5).unwrap();
    y.write_into(&answer, 8).unwrap();
    y.wait().unwrap();
    let mut bytes = [0; 8];
    answer.read_bytes(8, &mut bytes).unwrap();
    assert_eq!(bytes[..], [1.5_f32, 2.0].map(f32::to_le_bytes).concat());
}

#[test]
fn a_failure_is_told_to_who_waits_and_to_who_uses_the_value() {
    // The first copy on the device is the upload.
    let (core, device) = sim(&[("faults", "copy.1:fail@2")]);
    let x = device.from_slice(&[4], &[1.0_f32; 4]).unwrap();
    let fine = x.exp().unwrap();
    fine.wait().unwrap();
    x.write_into(&buffer(&core), 0).unwrap();
    let failed = x.wait().unwrap_err();
    assert!(matches!(failed, Error::Execution { .. }), "{failed:?}");
    let user = x.exp().unwrap().wait().unwrap_err();
    assert!(matches!(user, Error::Poisoned { .. }), "{user:?}");
    // Who was told is not told again, what is not concerned goes on.
    let after = device.step(|_| &fine + &fine).unwrap();
    assert_eq!(after.to_vec::<f32>().unwrap().len(), 4);
}

#[test]
fn a_failure_that_nobody_asked_for_is_the_next_steps() {
    let (core, device) = sim(&[("faults", "copy.1:fail@2")]);
    let x = device.from_slice(&[4], &[1.0_f32; 4]).unwrap();
    let fine = x.exp().unwrap();
    fine.wait().unwrap();
    x.write_into(&buffer(&core), 0).unwrap();
    let error = device.wait_device_ops().unwrap_err();
    assert!(matches!(error, Error::Execution { .. }), "{error:?}");
    device.wait_device_ops().unwrap();
    assert_eq!(
        device
            .step(|_| &fine - &fine)
            .unwrap()
            .to_vec::<f32>()
            .unwrap(),
        [0.0; 4]
    );

    let (core, device) = sim(&[("faults", "copy.1:fail@2"), ("stream_delay_us", "1000")]);
    let x = device.from_slice(&[4], &[1.0_f32; 4]).unwrap();
    let fine = x.exp().unwrap();
    fine.wait().unwrap();
    x.write_into(&buffer(&core), 0).unwrap();
    // Launched behind the failure, before anybody knows of it.
    let behind = (&fine + &fine).unwrap();
    behind.data().unwrap();
    assert!(matches!(behind.wait(), Err(Error::Poisoned { .. })));
    drop(x);
    let next = (&fine * &fine).unwrap();
    assert_eq!(next.to_vec::<f32>().unwrap().len(), 4);
}
