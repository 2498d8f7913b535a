//! What is held, and for how long: pools, wrapped buffers, given memory, ten thousand steps.

use std::sync::Arc;

use stepmesh_lazy::{Counter, DType, Error, LazyDevice};

use crate::common::{compiled, core_device, interpreted, sim_device};

fn run_steps(device: &LazyDevice, steps: u32) {
    let gradient = device.from_slice(&[32], &[1.0_f32; 32]).unwrap();
    let mut w = device.from_slice(&[32], &[0.0_f32; 32]).unwrap();
    for _ in 0..steps {
        let before = w;
        w = device
            .step(|_| {
                let scratch = before.exp()?;
                drop(scratch);
                &before - &gradient * 0.5
            })
            .unwrap();
    }
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Runs this test again in a process of its own, where no other test allocates: true in the process
/// that has started it, once it has passed.
fn is_done_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let program = std::env::current_exe().unwrap();
    let output = std::process::Command::new(program)
        .args(["--exact", test])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
    true
}

#[test]
fn ten_thousand_steps_hold_what_a_thousand_held() {
    if is_done_alone("memory::ten_thousand_steps_hold_what_a_thousand_held") {
        return;
    }
    for device in [compiled(|_| {}), interpreted(|_| {})] {
        run_steps(&device, 1000);
        let (before, report) = (resident(), device.memory_report());
        run_steps(&device, 10_000);
        let after = device.memory_report();
        assert_eq!(after.tensors, report.tensors);
        assert_eq!(after.nodes, 0);
        assert_eq!(after.cached_graphs, report.cached_graphs);
        assert!(
            after.pooled_len_bytes <= report.pooled_len_bytes + 4096,
            "{after:?}"
        );
        // A step that kept its 128 bytes of weights, its nodes or its events would be above.
        let grown = resident().saturating_sub(before);
        assert!(grown < 1 << 20, "{grown} bytes more");
        let metrics = device.metrics();
        assert_eq!(
            metrics.counter(Counter::CreateLtcTensor),
            metrics.counter(Counter::DestroyLtcTensor)
        );
    }
}

#[test]
fn a_buffer_is_computed_on_where_it_lies() {
    let core = core_device();
    for device in [compiled(|_| {}), interpreted(|_| {})] {
        // The same backend's memory: both devices were opened on their own instance of it.
        drop(device);
    }
    let device = LazyDevice::open(&core, stepmesh_lazy::Options::default()).unwrap();
    let slot = Arc::new(core.alloc(64).unwrap());
    let answer = Arc::new(core.alloc(64).unwrap());
    let x = device.wrap_buffer(&slot, 16, &[2, 2], DType::F32).unwrap();
    for round in 1..=3_u8 {
        let values = [f32::from(round); 4];
        slot.write_bytes(16, &values.map(f32::to_le_bytes).concat())
            .unwrap();
        let y = (&x * 2.0).unwrap();
        let z = (&x + 1.0).unwrap();
        device
            .sync_into(&[(&y, &answer, 0), (&z, &answer, 16)])
            .unwrap();
        y.wait().unwrap();
        z.wait().unwrap();
        let mut bytes = [0; 32];
        answer.read_bytes(0, &mut bytes).unwrap();
        let (first, second) = bytes.split_at(16);
        assert_eq!(
            first,
            [f32::from(round) * 2.0; 4].map(f32::to_le_bytes).concat()
        );
        assert_eq!(
            second,
            [f32::from(round) + 1.0; 4].map(f32::to_le_bytes).concat()
        );
    }
    // A wrapped tensor is written on as it is, and the tensor is then the copy.
    x.write_into(&answer, 32).unwrap();
    x.wait().unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [3.0; 4]);
    let (buffer, offset) = x.to_buffer().unwrap();
    assert!(Arc::ptr_eq(&buffer, &answer) && offset == 32);
}

#[test]
fn what_is_kept_for_reuse_or_in_flight_is_given_back_where_memory_runs_out() {
    // A slow stream, so that launches are under way when memory is asked for.
    let options = [("memory_len_bytes", "131072"), ("stream_delay_us", "2000")];
    let device = LazyDevice::open(&sim_device(&options), stepmesh_lazy::Options::default());
    let device = device.unwrap();
    let double = |len: usize| -> Result<(), Error> {
        let x = device.from_slice(&[len], &vec![1.0_f32; len])?;
        let y = device.step(|_| &x + &x)?;
        drop((x, y));
        Ok(())
    };
    // Two values of either length are most of the memory.
    for len in [12_000, 14_000, 12_000, 14_000] {
        double(len).unwrap();
    }
    let error = double(40_000).unwrap_err();
    assert!(
        matches!(&error, Error::Backend { source, .. }
            if matches!(**source, stepmesh_core::Error::OutOfMemory { .. })),
        "{error}"
    );
    double(12_000).unwrap();
}

#[test]
fn memory_that_does_not_fit_is_refused() {
    let core = core_device();
    let device = LazyDevice::open(&core, stepmesh_lazy::Options::default()).unwrap();
    let slot = Arc::new(core.alloc(64).unwrap());
    for (offset, dims, what) in [
        (
            0,
            [5, 4],
            "f32[5,4] takes 80 bytes; from byte 0 on, the buffer of 64 has fewer",
        ),
        (
            56,
            [2, 2],
            "f32[2,2] takes 16 bytes; from byte 56 on, the buffer of 64 has fewer",
        ),
        (2, [2, 2], "f32[2,2] at byte 2, which is no multiple of 4"),
    ] {
        let error = device
            .wrap_buffer(&slot, offset, &dims, DType::F32)
            .unwrap_err();
        assert_eq!(error.to_string(), format!("using a buffer: {what}"));
    }
    let x = device.from_slice(&[32], &[0.0_f32; 32]).unwrap();
    assert!(matches!(
        x.write_into(&slot, 0),
        Err(Error::Elements { .. })
    ));
}

#[test]
fn data_lives_as_long_as_somebody_needs_it() {
    let device = compiled(|_| {});
    let x = device.from_slice(&[1024], &[1.0_f32; 1024]).unwrap();
    let y = (&x + 1.0).unwrap();
    // The tensor goes, its data is still a parameter of `y`.
    drop(x);
    assert_eq!(y.to_vec::<f32>().unwrap(), [2.0; 1024]);
    drop(y);
    let report = device.memory_report();
    assert_eq!((report.tensors, report.tensors_len_bytes), (0, 0));
    assert!(report.pooled_len_bytes >= 4096);
}

/// Set for a test that has a process of its own.
const ALONE: &str = "STEPMESH_TEST_ALONE";
