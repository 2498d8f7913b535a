//! Graphs that do not compile, and executions that fail.

use stepmesh_torch::lazy;
use tch::{Kind, Tensor};

use crate::{On, RIGHT, first_line, ones};

/// Steps until one fails; what it said, and how many were right before.
fn until_failure(on: On) -> (String, usize) {
    for right in 0..100 {
        match on.step() {
            Ok(found) => assert_eq!(found, RIGHT),
            Err(fault) => return (fault, right),
        }
    }
    panic!("nothing went wrong on {on:?}");
}

#[test]
fn a_graph_that_the_plugin_does_not_compile_is_an_error_that_names_the_operation() {
    let on = On::WithoutExp;
    for _ in 0..2 {
        let y = on.tensor(&[0.0, 1.0]).exp();
        let fault = first_line(&on.mark_step().unwrap_err());
        assert!(fault.contains("exp"), "{fault}");
        y.f_to_device(tch::Device::Cpu).unwrap_err();
        drop(y);
        assert_eq!(on.step().unwrap(), RIGHT);
    }
}

#[test]
fn a_graph_that_cannot_be_translated_is_an_error_and_the_next_one_works() {
    let on = On::Untranslated;
    let weight = Tensor::ones([3, 2], (Kind::Float, tch::Device::Cpu));
    let mut weight = lazy::to_lazy(&weight, on.ordinal()).unwrap();
    let _ = weight.requires_grad_(true);
    let indices = Tensor::from_slice(&[0_i64, 2, 2]);
    let indices = lazy::to_lazy(&indices, on.ordinal()).unwrap();
    let is_scaled = true;
    let rows = Tensor::embedding(&weight, &indices, -1, is_scaled, false);
    rows.sum(Kind::Float).backward();
    let fault = first_line(&on.mark_step().unwrap_err());
    assert!(fault.contains("aten::embedding_dense_backward"), "{fault}");
    assert!(fault.contains("scale_grad_by_freq"), "{fault}");
    drop((weight, indices, rows));
    assert_eq!(on.step().unwrap(), RIGHT);
}

/// A value of so many elements and its double, or what went wrong.
fn doubled(on: On, len: usize) -> Result<f64, String> {
    let x = on.tensor(&vec![1.0; len]);
    let y = x.f_add(&x).map_err(|error| first_line(&error))?;
    on.mark_step().map_err(|error| first_line(&error))?;
    let y = y.f_to_device(tch::Device::Cpu);
    let y = y.map_err(|error| first_line(&error))?;
    Ok(y.sum(Kind::Double).double_value(&[]))
}

#[test]
fn a_value_that_finds_no_memory_is_an_error_and_what_is_kept_is_given_back_before() {
    let on = On::Small;
    // The core has x twice. Three of either length are most of the memory: those kept for reuse go
    // when the others come.
    for len in [9_000, 10_000, 9_000] {
        let expected = f64::from(u32::try_from(len).unwrap()) * 2.0;
        assert_eq!(doubled(on, len).unwrap(), expected);
    }
    for _ in 0..2 {
        let fault = doubled(on, 40_000).unwrap_err();
        assert!(fault.contains("memory"), "{fault}");
        assert_eq!(on.step().unwrap(), RIGHT);
    }
}

#[test]
fn a_copy_that_fails_is_an_error_and_the_next_one_works() {
    let on = On::FailingCopy;
    let (fault, right) = until_failure(on);
    assert!(fault.contains("copy"), "{fault}");
    for _ in 0..20 - right {
        assert_eq!(on.step().unwrap(), RIGHT);
    }
}

#[test]
fn a_lost_device_fails_whoever_uses_it_and_no_other_device() {
    let on = On::Lost;
    let (fault, _) = until_failure(on);
    assert!(fault.contains("lost"), "{fault}");
    for _ in 0..3 {
        let fault = on.step().unwrap_err();
        assert!(fault.contains("lost"), "{fault}");
        assert_eq!(On::Bystander.step().unwrap(), RIGHT);
    }
}

#[test]
fn a_value_of_another_device_is_refused_by_the_core() {
    let (here, there) = (On::Healthy.tensor(&[1.0]), On::OtherHealthy.tensor(&[1.0]));
    let sum = here.f_add(&there);
    let value = sum.as_ref().unwrap().f_to_device(tch::Device::Cpu);
    value.unwrap_err();
    let mixed = here
        .f_add(&ones(2))
        .and_then(|sum| sum.f_to_device(tch::Device::Cpu));
    mixed.unwrap_err();
    drop((here, there, sum));
    // A failure that a value was asked for is told to the next step too: the core keeps it.
    On::Healthy.mark_step().unwrap_err();
    assert_eq!(On::Healthy.step().unwrap(), RIGHT);
}
