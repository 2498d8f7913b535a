//! Tracing, compiling, caching, donating, failing.

use stepmesh_lazy::{
    BakeScalars, Counter, DType, DifferenceKind, Error, Fallback, FallbackPolicy, LazyTensor,
    Metric, OpKind,
};

use crate::common::{core_device, interpreted};

#[test]
fn nothing_runs_until_a_value_is_read() {
    let device = interpreted(|_| {});
    let x = device
        .from_slice(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0])
        .unwrap();
    let y = (x.matmul(&x).unwrap() + &x * 2.0).unwrap();
    assert!(y.is_traced());
    assert_eq!(device.metrics().counter(Counter::UncachedCompile), 0);
    assert_eq!(y.to_vec::<f32>().unwrap(), [9.0, 14.0, 21.0, 30.0]);
    assert!(!y.is_traced());
    assert_eq!(device.metrics().counter(Counter::UncachedCompile), 1);
    assert_eq!(
        y.item::<f32>().unwrap_err().to_string(),
        "item: a tensor of 4 elements is not one number"
    );
}

#[test]
fn a_step_computes_what_is_alive_and_nothing_else() {
    let device = interpreted(|_| {});
    let x = device.from_slice(&[3], &[1.0_f32, 2.0, 3.0]).unwrap();
    let (kept, other) = device
        .step(|step| {
            assert_eq!(step.number(), 0);
            let dropped = x.exp()?;
            let kept = (&x + &x)?;
            drop(dropped);
            Ok::<_, Error>((kept, x.neg()?))
        })
        .unwrap();
    assert!(!kept.is_traced() && !other.is_traced());
    assert_eq!(device.metrics().counter(Counter::SyncedTensorsWithIR), 2);
    assert_eq!(device.metrics().counter(Counter::MarkStep), 1);
    // parameter, add, neg: exp was dropped.
    assert_eq!(device.metrics().total(Metric::TensorsGraphSize), 3.0);
    assert_eq!(device.memory_report().nodes, 0);
}

#[test]
fn an_error_of_the_body_is_that_of_the_step_and_launches_nothing() {
    let device = interpreted(|_| {});
    let x = device.from_slice(&[3], &[1.0_f32, 2.0, 3.0]).unwrap();
    let y = device.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    let kept = x.exp().unwrap();
    let error = device.step(|_| &x + &y).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("add at ") && text.contains("engine.rs:"),
        "{text}"
    );
    assert!(text.ends_with("[3] and [2] do not broadcast"), "{text}");
    assert_eq!(device.metrics().samples(Metric::ExecuteTime), 0);
    assert!(kept.is_traced());
}

#[test]
fn another_shape_is_another_graph_and_is_explained() {
    let device = interpreted(|_| {});
    for rows in [2, 2, 3, 2, 3] {
        let x = device
            .from_slice(&[rows, 2], &vec![1.0_f32; rows * 2])
            .unwrap();
        assert_eq!(
            x.sum(&[0], false).unwrap().to_vec::<f32>().unwrap(),
            vec![rows as f32; 2]
        );
    }
    assert_eq!(device.metrics().counter(Counter::UncachedCompile), 2);
    let all = device.recompilations();
    assert_eq!(all.len(), 1);
    let difference = &all[0].difference;
    assert_eq!(difference.kind, DifferenceKind::Dim(0));
    assert_eq!(
        [&*difference.now, &*difference.before],
        ["f32[3,2]", "f32[2,2]"]
    );
    assert!(difference.location.contains("engine.rs:"), "{difference}");
}

#[test]
fn types_attributes_and_results_are_explained_too() {
    let device = interpreted(|_| {});
    let x = device
        .from_slice(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0])
        .unwrap();
    let ints = device.from_slice(&[2, 2], &[1_i32, 2, 3, 4]).unwrap();
    let read = |tensor: LazyTensor| tensor.to_host().map(drop).unwrap();
    read(x.softmax(0).unwrap());
    read(x.softmax(1).unwrap());
    read((&x + &x).unwrap());
    read((&ints + &ints).unwrap());
    let chain = x.exp().unwrap();
    read(chain.log().unwrap());
    let both = device.step(|_| chain.log()).unwrap();
    let kinds: Vec<DifferenceKind> = device
        .recompilations()
        .iter()
        .map(|recompilation| recompilation.difference.kind)
        .collect();
    assert_eq!(
        kinds,
        [
            DifferenceKind::Attribute,
            DifferenceKind::Op,
            DifferenceKind::DType,
            DifferenceKind::Op,
            DifferenceKind::Results,
        ]
    );
    assert!(!both.is_traced());
}

#[test]
fn the_limits_of_compilations_are_errors_that_say_why() {
    let device = interpreted(|options| options.max_compiles = Some(1));
    let x = device.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    x.exp().unwrap().wait().unwrap();
    x.exp().unwrap().wait().unwrap();
    let refused = x.log().unwrap();
    let text = refused.wait().unwrap_err().to_string();
    assert!(
        text.contains("would be compilation 2, the limit is 1"),
        "{text}"
    );
    assert!(
        text.contains("`log` at") && text.contains("engine.rs:"),
        "{text}"
    );
    // What was traced is still there.
    assert!(refused.is_traced());

    let device = interpreted(|options| options.no_recompile_after = Some(2));
    let x = device.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    for _ in 0..4 {
        device.step(|_| x.exp()).unwrap();
    }
    let error = device.step(|_| x.log()).unwrap_err();
    assert!(
        matches!(error, Error::TooManyCompiles { limit: 0, .. }),
        "{error}"
    );
}

#[test]
fn numbers_can_be_part_of_the_graph() {
    for (bake, expected) in [
        (BakeScalars::Never, 1),
        (BakeScalars::Special, 2),
        (BakeScalars::Always, 3),
    ] {
        let device = interpreted(|options| options.bake_scalars = bake);
        let x = device.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
        for (by, first) in [(0.5, 0.5), (0.25, 0.25), (1.0, 1.0)] {
            assert_eq!((&x * by).unwrap().to_vec::<f32>().unwrap()[0], first);
        }
        assert_eq!(device.metrics().counter(Counter::UncachedCompile), expected);
    }
}

#[test]
fn a_backend_without_an_operation_falls_back_and_everybody_sees_it() {
    let device = interpreted(|options| {
        options.fallback = FallbackPolicy::all(Fallback::Allow).with_forced(OpKind::Exp);
    });
    let x = device.from_slice(&[2], &[0.0_f32, 1.0]).unwrap();
    let sum = (&x + 1.0).unwrap();
    let y = (sum.exp().unwrap() * 2.0).unwrap();
    let values = y.to_vec::<f32>().unwrap();
    assert!((values[1] - 2.0 * 2.0_f32.exp()).abs() < 1e-5, "{values:?}");
    let reports = device.fallbacks();
    assert_eq!(reports.len(), 1);
    assert_eq!((reports[0].op, reports[0].calls), (OpKind::Exp, 1));
    let report = device.metrics_report();
    assert!(
        report.contains("Counter: aten::exp\n  Value: 1"),
        "{report}"
    );
    assert!(
        report.contains("Advice: Op(s) not lowered: exp"),
        "{report}"
    );
}

#[test]
fn a_fallback_that_is_denied_names_operation_type_and_place() {
    let device = interpreted(|options| {
        options.fallback = FallbackPolicy::all(Fallback::Allow).with(OpKind::Exp, Fallback::Deny);
    });
    let x = device.from_slice(&[2], &[1_u8, 2]).unwrap();
    // As an operation that no backend has for the type: it is refused when traced.
    let error = x.gelu().unwrap_err();
    assert!(
        matches!(error, Error::Operation { op: "gelu_erf", .. }),
        "{error}"
    );
    assert_eq!(device.fallbacks(), []);
}

#[test]
fn graphs_that_grow_too_large_are_launched() {
    let device = interpreted(|options| options.trim_threshold = 100);
    let mut x = device.from_slice(&[1], &[0.0_f32]).unwrap();
    let one = device.from_slice(&[1], &[1.0_f32]).unwrap();
    for _ in 0..1000 {
        x = (&x + &one).unwrap();
    }
    assert!(device.metrics().counter(Counter::TrimIrGraph) >= 9);
    assert_eq!(x.item::<f32>().unwrap(), 1000.0);
    // The same hundred operations each time.
    assert!(device.metrics().counter(Counter::UncachedCompile) <= 3);
}

#[test]
fn results_take_over_memory_that_nobody_needs() {
    let device = interpreted(|_| {});
    let gradient = device.from_slice(&[64], &[1.0_f32; 64]).unwrap();
    let mut w = device.from_slice(&[64], &[0.0_f32; 64]).unwrap();
    for step in 1..=4_u8 {
        let before = w;
        w = device
            .step(move |_| {
                let after = &before - &gradient_of(&before)?;
                drop(before);
                after
            })
            .unwrap();
        assert_eq!(w.to_vec::<f32>().unwrap(), [-f32::from(step); 64]);
    }
    assert_eq!(device.metrics().counter(Counter::InputOutputAliasCount), 4);
    // A step whose old weights are kept donates nothing, and is the same graph.
    let compiles = device.metrics().counter(Counter::UncachedCompile);
    let after = device.step(|_| &w - gradient_of(&w)).unwrap();
    assert_eq!(w.to_vec::<f32>().unwrap(), [-4.0; 64]);
    assert_eq!(after.to_vec::<f32>().unwrap(), [-5.0; 64]);
    assert_eq!(device.metrics().counter(Counter::InputOutputAliasCount), 4);
    assert_eq!(device.metrics().counter(Counter::UncachedCompile), compiles);
    assert_eq!(gradient.to_vec::<f32>().unwrap(), [1.0; 64]);
}

/// Ones of its shape.
fn gradient_of(w: &LazyTensor) -> Result<LazyTensor, Error> {
    w.device().full(&w.dims(), 1.0, w.dtype())
}

#[test]
fn an_assignment_in_place_leaves_what_was_traced_before() {
    let device = interpreted(|_| {});
    let w = device.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    let before = (&w * 10.0).unwrap();
    w.assign(&(&w + 1.0).unwrap()).unwrap();
    assert_eq!(w.to_vec::<f32>().unwrap(), [2.0, 3.0]);
    assert_eq!(before.to_vec::<f32>().unwrap(), [10.0, 20.0]);
    let ints = device.from_slice(&[2], &[1_i32, 2]).unwrap();
    assert!(matches!(
        w.assign(&ints),
        Err(Error::Operation { op: "assign", .. })
    ));
}

#[test]
fn tensors_of_two_devices_do_not_mix() {
    let (one, other) = (interpreted(|_| {}), interpreted(|_| {}));
    let a = one.from_slice(&[1], &[1.0_f32]).unwrap();
    let b = other.from_slice(&[1], &[1.0_f32]).unwrap();
    for error in [
        (&a + &b).unwrap_err(),
        a.matmul(&b).unwrap_err(),
        a.assign(&b).unwrap_err(),
        LazyTensor::concat(&[&a, &b], 0).unwrap_err(),
        one.sync_multi(&[&b]).unwrap_err(),
    ] {
        assert!(matches!(error, Error::ForeignValue { .. }), "{error}");
        // Their names are one, so it is said what differs.
        assert!(
            error.to_string().contains("another `LazyDevice`"),
            "{error}"
        );
    }
}

#[test]
fn tensors_and_devices_are_debugged_in_a_line_and_without_computing() {
    let device = interpreted(|_| {});
    let x = device.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    let y = x.neg().unwrap();
    assert_eq!(format!("{device:?}"), "LazyDevice(cpu:CPU0)");
    assert_eq!(format!("{y:?}"), "LazyTensor(f32[2], traced, cpu:CPU0)");
    assert!(y.is_traced());
    y.wait().unwrap();
    assert_eq!(format!("{y:?}"), "LazyTensor(f32[2], data, cpu:CPU0)");
}

#[test]
fn the_cache_has_limits_and_can_be_cleared() {
    let device = interpreted(|options| options.cache_entries_max = 2);
    let x = device.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    for _ in 0..2 {
        for tensor in [x.exp(), x.neg(), x.tanh()] {
            tensor.unwrap().wait().unwrap();
        }
    }
    let metrics = device.metrics();
    assert_eq!(metrics.counter(Counter::UncachedCompile), 6);
    assert_eq!(metrics.counter(Counter::DestroyCompileHandles), 4);
    assert_eq!(device.memory_report().cached_graphs, 2);
    device.clear_computation_cache();
    let report = device.memory_report();
    assert_eq!((report.cached_graphs, report.cached_len_bytes), (0, 0));
    assert_eq!(report.pooled_len_bytes, 0);
    assert_eq!(metrics.counter(Counter::DestroyCompileHandles), 6);
}

#[test]
fn graphs_can_be_saved_as_text() {
    let path = std::env::temp_dir().join(format!("stepmesh-lazy-{}", std::process::id()));
    let device = interpreted(|options| options.save_graphs_to = Some(path.clone()));
    let x = device.from_slice(&[2], &[1.0_f32, 2.0]).unwrap();
    x.exp().unwrap().wait().unwrap();
    x.neg().unwrap().wait().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(
        text.contains("[lazy_1]\nIR {") && text.contains("lazy::neg(%0)"),
        "{text}"
    );
}

#[test]
fn a_device_can_be_opened_without_an_interpreter() {
    let device = stepmesh_lazy::LazyDevice::open(&core_device(), stepmesh_lazy::Options::default());
    let device = device.unwrap();
    let x = device.from_slice(&[2], &[1_i32, 2]).unwrap();
    let y = (&x + &x).unwrap().cast(DType::F32).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [2.0, 4.0]);
}
