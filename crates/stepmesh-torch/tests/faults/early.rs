//! What is asked before there are devices.

use stepmesh_torch::{Error, lazy};

use crate::{is_alone, ones};

#[test]
fn whoever_is_too_early_is_told_to_register() {
    if is_alone("whoever_is_too_early") {
        let faults = [
            lazy::to_lazy(&ones(2), 0).err(),
            lazy::mark_step(0, true).err(),
            lazy::use_reference(true).err(),
            lazy::metrics_report().err(),
        ];
        for fault in faults {
            let said = fault.as_ref().map(Error::to_string);
            let wanted = "call lazy::register first";
            assert!(said.is_some_and(|said| said.ends_with(wanted)), "{fault:?}");
        }
        assert_eq!(lazy::counter("MarkStep").unwrap(), 0);
    }
}
