//! Thousands of steps hold no more memory than some.

use stepmesh_torch::lazy::counter;

use crate::On;

/// Steps of the test.
const STEPS: usize = 3000;
/// After so many, everything that is cached is.
const WARM: usize = 500;
/// What comes and goes: the core's cache of numbers, and a stream that is still letting go. Each value
/// is a page, so that one that is lost every 100 steps is more.
const SLACK_BYTES: u64 = 24 * 4096;

#[test]
fn thousands_of_steps_hold_as_much_memory_as_some() {
    let on = On::Counted;
    let device = on.device();
    let mut weight = on.tensor(&[1.0, 2.0, 3.0, 4.0]);
    let gradient = on.tensor(&[0.5, 0.5, 0.5, 0.5]);
    let mut free = 0;
    for step in 0..STEPS {
        // Another number each time: it is an argument, not a graph of its own.
        let rate = 1.0 / f64::from(u32::try_from(step + 2).unwrap());
        weight = (&weight - &gradient * rate).clamp(-10.0, 10.0);
        on.mark_step().unwrap();
        // Waits for the device: how much is in flight, and kept for reuse afterwards, would depend on
        // how far ahead this thread is.
        let _ = weight.to_device(tch::Device::Cpu);
        if step % 100 == 99 {
            // An exception on its way through both languages leaves nothing behind either.
            weight.f_view([3]).unwrap_err();
        }
        if step == WARM {
            free = device.memory().unwrap().free_bytes;
        }
    }
    let lost = free.saturating_sub(device.memory().unwrap().free_bytes);
    assert!(lost <= SLACK_BYTES, "{lost} bytes in {STEPS} steps");
    drop((weight, gradient));
    assert!(counter("UncachedCompile").unwrap() < 100);
}
