//! Eight threads that trace on one device.

use std::thread;

use stepmesh_lazy::{Counter, Error, LazyDevice};

use crate::common::{compiled, interpreted};

fn trace_in_threads(device: &LazyDevice) {
    let shared = device.from_slice(&[4], &[1.0_f32, 2.0, 3.0, 4.0]).unwrap();
    thread::scope(|scope| {
        for thread in 0..8_u8 {
            let shared = &shared;
            scope.spawn(move || {
                let own = f64::from(thread);
                let mut state = device.from_slice(&[4], &[0.0_f32; 4]).unwrap();
                for step in 1..=50_u8 {
                    state = match step % 3 {
                        0 => device.step(|_| &state + shared * own).unwrap(),
                        1 => {
                            let before = state;
                            device
                                .step(move |_| {
                                    let after = &before + shared * own;
                                    drop(before);
                                    after
                                })
                                .unwrap()
                        }
                        _ => {
                            let next = (&state + shared * own).unwrap();
                            next.wait().unwrap();
                            next
                        }
                    };
                    let expected = f32::from(step) * f32::from(thread);
                    let found = state.to_vec::<f32>().unwrap();
                    let wanted: Vec<f32> = (1..=4_u8).map(|at| f32::from(at) * expected).collect();
                    assert_eq!(found, wanted, "thread {thread}, step {step}");
                }
            });
        }
    });
    assert_eq!(device.memory_report().nodes, 0);
    assert_eq!(device.memory_report().tensors, 1);
}

#[test]
fn eight_threads_on_one_device_get_their_own_values() {
    trace_in_threads(&interpreted(|_| {}));
    trace_in_threads(&compiled(|_| {}));
}

#[test]
fn tensors_may_be_dropped_while_others_are_computed() {
    let device = compiled(|_| {});
    let x = device.from_slice(&[64], &[1.0_f32; 64]).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let y = (&x * 2.0).unwrap();
                    let z = (&y + &x).unwrap();
                    drop(y);
                    drop(z.data().unwrap());
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..50 {
                device.step(|_| Ok::<_, Error>(())).unwrap();
            }
        });
    });
    assert_eq!(device.memory_report().tensors, 1);
    let metrics = device.metrics();
    let made = metrics.counter(Counter::CreateLtcTensor);
    assert_eq!(made, metrics.counter(Counter::DestroyLtcTensor) + 1);
}
