//! A framework that is there: its stream is found by host and plugins, and no second one may come.
#![expect(unsafe_code, reason = "vouches for a stream")]

use super::{current_stream, set_current_stream_source};
use crate::{Error, fake};

#[test]
fn a_frameworks_stream_is_found_and_a_second_framework_refused() {
    let device = fake::backend().device(0).unwrap();
    let before = device.current_stream().handle();
    assert_eq!(before, device.default_stream().handle());

    // Only of the fake's type, for the other tests of this process are without a framework.
    let (fakes_type, _) = device.info().dlpack;
    assert_eq!(fakes_type, 0);
    let source = |dlpack_type, device_id| (dlpack_type == 0 && device_id == 0).then_some(77);
    // SAFETY: the fake backend knows every number as a stream.
    unsafe { set_current_stream_source(source) }.unwrap();
    assert_eq!(device.current_stream().handle(), 77);
    assert_eq!(current_stream(2, 0), None);
    // SAFETY: as above.
    let second = unsafe { set_current_stream_source(source) };
    assert!(matches!(second, Err(Error::InvalidArgument { .. })));
}
