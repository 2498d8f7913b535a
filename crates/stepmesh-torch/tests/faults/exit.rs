//! A process may end with tensors alive and work under way.

use std::sync::{Mutex, OnceLock};

use stepmesh_torch::lazy;
use tch::Tensor;

use crate::{is_alone, ones, sim};

/// Keeps tensors until after the end of `main`: nothing drops a static.
static KEPT: OnceLock<Mutex<Vec<Tensor>>> = OnceLock::new();

#[test]
fn a_process_ends_with_tensors_alive_and_work_under_way() {
    if is_alone("a_process_ends_with_tensors") {
        // Each graph takes a while, so that the last ones are under way at the end.
        let slow = sim(&[("devices", "1"), ("stream_delay_us", "50000")]);
        lazy::register(&slow.devices()).unwrap();
        let x = lazy::to_lazy(&ones(4), 0).unwrap();
        let mut kept = vec![x.shallow_clone()];
        for number in 0..3 {
            kept.push(&x * number + 1);
            lazy::mark_step(0, false).unwrap();
        }
        // Traced, never computed.
        kept.push(&x + 7);
        KEPT.set(Mutex::new(kept)).unwrap();
    }
}
