//! Facts from a plugin are refused when they cannot be true.

use stepmesh_abi::SmDeviceInfo;

use super::DeviceInfo;

#[test]
fn facts_are_copied_and_absences_become_none() {
    let mut raw = SmDeviceInfo::new();
    raw.ordinal = 3;
    raw.name[0] = b'x'.cast_signed();
    raw.page_granularity = 4096;
    let info = DeviceInfo::check(3, &raw).unwrap();
    assert_eq!(
        (info.ordinal, info.name.as_str(), info.page_len_bytes),
        (3, "x", 4096)
    );
    assert_eq!(
        (info.numa_node, info.uuid, info.pci_bdf),
        (None, None, None)
    );
}

#[test]
fn facts_that_cannot_be_true_are_refused_by_name() {
    type Spoil = fn(&mut SmDeviceInfo);
    let broken: [(&str, Spoil); 5] = [
        ("device 0 calls itself 7", |raw| raw.ordinal = 7),
        ("device 0 calls itself -1", |raw| raw.ordinal = -1),
        ("name is not UTF-8", |raw| raw.name = [-1; 64]),
        ("arch has control characters", |raw| raw.arch[0] = 7),
        ("page granularity 3 is not a power of two", |raw| {
            raw.page_granularity = 3
        }),
    ];
    for (fault, spoil) in broken {
        let mut raw = SmDeviceInfo::new();
        spoil(&mut raw);
        assert_eq!(DeviceInfo::check(0, &raw).unwrap_err(), fault);
    }
}

#[test]
fn text_that_fills_its_field_needs_no_nul() {
    let mut raw = SmDeviceInfo::new();
    raw.torch_device_type = [b'a'.cast_signed(); 16];
    assert_eq!(
        DeviceInfo::check(0, &raw).unwrap().torch_device_type,
        "a".repeat(16)
    );
}
