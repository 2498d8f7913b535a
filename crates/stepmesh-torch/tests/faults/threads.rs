//! Threads, each with a device of its own, and tensors that go from one to the other.

use std::thread;

use crate::{On, RIGHT};

#[test]
fn threads_take_steps_on_devices_of_their_own() {
    let threads = [On::Thread0, On::Thread1].map(|on| {
        thread::spawn(move || {
            for _ in 0..50 {
                assert_eq!(on.step().unwrap(), RIGHT, "{on:?}");
            }
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_tensor_that_was_traced_in_one_thread_is_computed_and_dropped_in_another() {
    for _ in 0..20 {
        let x = On::Crossing.tensor(&[1.0, 2.0]);
        let y = thread::spawn(move || (&x * &x, x)).join().unwrap();
        let sum = thread::spawn(move || y.0 + y.1).join().unwrap();
        let found = thread::spawn(move || Vec::<f32>::try_from(sum.to_device(tch::Device::Cpu)));
        assert_eq!(found.join().unwrap().unwrap(), [2.0, 6.0]);
    }
}
