//! A process may end with tensors alive and work under way.

use std::env;
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use stepmesh_torch::lazy;
use tch::Tensor;

use crate::{ones, sim};

/// Set in the process that ends.
const CHILD: &str = "STEPMESH_TORCH_TEST_EXIT";

/// Keeps tensors until after the end of `main`: nothing drops a static.
static KEPT: OnceLock<Mutex<Vec<Tensor>>> = OnceLock::new();

#[test]
fn a_process_ends_with_tensors_alive_and_work_under_way() {
    if env::var_os(CHILD).is_some() {
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
        return;
    }
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["a_process_ends_with_tensors", "--test-threads=1"]);
    let output = child.env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(text.contains("1 passed"), "{text}");
}
