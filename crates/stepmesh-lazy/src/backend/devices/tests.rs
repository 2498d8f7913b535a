//! Devices of two types, asked for by type, ordinal and name.

use super::{BackendDevice, BackendDeviceType, BackendDevices, VirtualDevice};

const CPU: BackendDeviceType = BackendDeviceType::CPU;
const CUDA: BackendDeviceType = BackendDeviceType::CUDA;

fn devices() -> BackendDevices {
    BackendDevices::new("two", [CPU, CUDA, CUDA])
}

#[test]
fn the_default_is_the_first_until_another_is_named() {
    let devices = devices();
    assert_eq!(devices.default(), BackendDevice::new(CPU, 0));
    devices.set_default_type(CUDA).unwrap();
    assert_eq!(devices.default(), BackendDevice::new(CUDA, 1));
    devices.set_default(BackendDevice::new(CUDA, 2)).unwrap();
    assert_eq!(devices.default(), BackendDevice::new(CUDA, 2));
    let error = devices
        .set_default_type(BackendDeviceType::ROCM)
        .unwrap_err();
    let said = "the backend two has no device of type ROCM; it has 3";
    assert_eq!(error.to_string(), said);
    assert_eq!(devices.default(), BackendDevice::new(CUDA, 2));
}

#[test]
fn a_device_is_known_by_type_and_ordinal_together() {
    let devices = devices();
    let known = devices.at(VirtualDevice(1)).unwrap();
    assert_eq!(devices.position(&known).unwrap(), 1);
    for unknown in [BackendDevice::new(CPU, 1), BackendDevice::new(CUDA, 3)] {
        let error = devices.position(&unknown).unwrap_err();
        assert!(error.to_string().contains(&unknown.to_string()), "{error}");
    }
    let error = devices.at(VirtualDevice(3)).unwrap_err();
    assert!(error.to_string().contains("no device lazy:3"), "{error}");
}

#[test]
fn random_numbers_go_on_on_each_device_until_a_seed_is_set() {
    let devices = devices();
    let [first, second] = [0, 1].map(|ordinal| devices.at(VirtualDevice(ordinal)).unwrap());
    assert_eq!(devices.take_rng_blocks(&first, 3).unwrap().1, 0);
    assert_eq!(devices.take_rng_blocks(&first, 1).unwrap().1, 3);
    assert_eq!(devices.take_rng_blocks(&second, 1).unwrap().1, 0);
    devices.set_seed(7);
    assert_eq!(devices.take_rng_blocks(&first, 1).unwrap(), (7, 0));
}

#[test]
fn a_backend_without_devices_has_a_default_that_nothing_knows() {
    let none = BackendDevices::new("none", []);
    none.position(&none.default()).unwrap_err();
}
