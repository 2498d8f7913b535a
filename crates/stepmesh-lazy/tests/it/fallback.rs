//! Operations that a backend lacks, on a simulated accelerator that is told to lack some.

use stepmesh_lazy::{
    DType, Error, Fallback, FallbackDevice, FallbackPolicy, LazyDevice, OpKind, Options,
};

use crate::common::{compiled, sim_device};

fn lacking(ops: &str, change: impl FnOnce(&mut Options)) -> LazyDevice {
    let mut options = Options::default();
    options.fallback = FallbackPolicy::all(Fallback::Allow);
    change(&mut options);
    LazyDevice::open(&sim_device(&[("lacks", ops)]), options).unwrap()
}

#[test]
fn what_a_backend_lacks_is_computed_by_the_cpu_backend_and_reported() {
    let device = lacking("exp,argmax", |_| {});
    let x = device.from_slice(&[2, 3], &[0.5_f32, 1.0, -2.0, 3.0, 2.0, 1.0]);
    let x = x.unwrap();
    let line = line!() + 1;
    let y = (x.exp().unwrap() + 1.0).unwrap();
    let best = y.argmax(1, false).unwrap();
    assert_eq!(best.to_vec::<i64>().unwrap(), [1, 0]);
    // The same bits as where the whole graph is the cpu backend's.
    let cpu = compiled(|_| {});
    let same = cpu
        .from_slice(&[2, 3], &x.to_vec::<f32>().unwrap())
        .unwrap();
    let same = (same.exp().unwrap() + 1.0).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), same.to_vec::<f32>().unwrap());
    x.exp().unwrap();
    let reports = device.fallbacks();
    let told: Vec<_> = reports
        .iter()
        .map(|report| (report.op, report.dtype, report.calls, report.computed_by))
        .collect();
    assert_eq!(
        told,
        [
            (OpKind::Exp, DType::F32, 2, FallbackDevice::Cpu),
            (OpKind::Argmax, DType::F32, 1, FallbackDevice::Cpu),
        ]
    );
    assert!(reports[0].location.file().ends_with("fallback.rs"));
    assert_eq!(reports[0].location.line(), line);
    let report = device.metrics_report();
    assert!(
        report.contains("Counter: aten::exp\n  Value: 2\n"),
        "{report}"
    );
    assert!(report.contains("EagerOpExecuteTime"), "{report}");
    let advice = report.lines().find(|line| line.starts_with("Advice:"));
    assert!(advice.unwrap().contains("exp"), "{report}");
}

#[test]
fn fallback_is_denied_for_one_operation_and_allowed_for_another() {
    let device = lacking("exp,argmax", |options| {
        options.fallback = FallbackPolicy::all(Fallback::Warn).with(OpKind::Exp, Fallback::Deny);
    });
    let x = device.from_slice(&[2], &[1.0_f32, 5.0]).unwrap();
    let denied = x.exp().unwrap_err();
    assert!(matches!(denied, Error::FallbackDenied { .. }), "{denied:?}");
    let text = denied.to_string();
    assert!(text.starts_with("sim:"), "{text}");
    assert!(text.contains("does not do `exp` for f32 (at "), "{text}");
    let best = x.argmax(0, false).unwrap();
    assert_eq!(best.item::<i64>().unwrap(), 1);
    let fell_back: Vec<OpKind> = device.fallbacks().iter().map(|report| report.op).collect();
    assert_eq!(fell_back, [OpKind::Argmax]);
}

#[test]
fn the_interpreter_computes_what_the_cpu_backend_is_suspected_of() {
    let device = compiled(|options| {
        options.fallback = FallbackPolicy::all(Fallback::Allow).with_forced(OpKind::Tanh);
    });
    let x = device.from_slice(&[2], &[0.0_f32, 0.5]).unwrap();
    let y = x.tanh().unwrap().to_vec::<f32>().unwrap();
    assert_eq!(y[0].to_bits(), 0);
    assert!((y[1] - 0.5_f32.tanh()).abs() < 1e-6);
    assert_eq!(
        device.fallbacks()[0].computed_by,
        FallbackDevice::Interpreter
    );
}

#[test]
fn random_numbers_that_fall_back_are_those_of_the_backend() {
    let draw = |device: &LazyDevice| {
        device.backend().set_rng_seed(7);
        device
            .randn(&[5], DType::F32)
            .unwrap()
            .to_vec::<f32>()
            .unwrap()
    };
    let lacks = lacking("rng_normal", |_| {});
    assert_eq!(draw(&lacks), draw(&lacking("", |_| {})));
    assert_eq!(lacks.fallbacks()[0].op, OpKind::RngNormal);
}
