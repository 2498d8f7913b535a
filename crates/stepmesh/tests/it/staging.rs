//! Tensors in memory that neither the host nor a fabric can reach: they are staged through pinned
//! memory, on either side or both, and the caller sees no difference but in the trace.

use stepmesh::{Error, Keyed, Staged, Tensor};
use stepmesh_core::Device;
use stepmesh_core::config::TransportKind;

use crate::backends::{cpu, sim};
use crate::mesh::{Mesh, PATIENCE, config, kinds};

/// Pushes and pulls a few sizes and gives back what was staged.
fn round_trips(kind: TransportKind, workers_device: &Device, servers_device: &Device) -> Staged {
    let mesh = Mesh::form_on(config(kind, 1, 1), servers_device.clone());
    let echoes = mesh.echo();
    let mut staged = Staged::default();
    for (key, len) in (0u64..).zip([1u32, 1000, 1 << 20, (3 << 20) + 5]) {
        let values: Vec<u8> = (0..len)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let dims = [u64::from(len)];
        let push = Tensor::from_slice(workers_device, &dims, &values).unwrap();
        let pull = Tensor::from_slice(workers_device, &dims, &vec![0u8; len as usize]).unwrap();
        let (push_key, pull_key) = (2 * key, 2 * key + 1);
        for part in [len, len / 2, 0] {
            let part_of = push.rows(0, u64::from(part)).unwrap();
            let handle = mesh.workers[0]
                .push_pull(
                    &[Keyed::new(push_key, &part_of)],
                    &[Keyed::new(pull_key, &pull)],
                )
                .unwrap();
            handle.wait(PATIENCE).unwrap();
            let back = pull.to_vec::<u8>().unwrap();
            let part = part as usize;
            assert!(
                back[..part] == values[..part],
                "{kind:?}, {part} of {len} bytes"
            );
            staged = handle.trace(0).staged;
        }
    }
    mesh.end(echoes);
    staged
}

#[test]
fn memory_that_cannot_be_read_is_staged_on_both_sides() {
    let device = sim(&[("stream_delay_us", "100")]);
    assert!(device.alloc(64).unwrap().host_bytes().is_none());
    for kind in kinds(&[TransportKind::Shm, TransportKind::Tcp]) {
        let staged = round_trips(kind, &device, &device);
        let everything = Staged {
            push_source: true,
            push_target: true,
            pull_source: true,
            pull_target: true,
        };
        assert_eq!(staged, everything, "{kind:?}");
    }
}

#[test]
fn unlike_devices_stage_only_where_they_must() {
    let (host, device) = (cpu(), sim(&[]));
    let staged = round_trips(TransportKind::Shm, &device, &host);
    assert!(staged.push_source && staged.pull_target, "{staged:?}");
    assert!(!staged.push_target && !staged.pull_source, "{staged:?}");
    let staged = round_trips(TransportKind::Shm, &host, &device);
    assert!(!staged.push_source && !staged.pull_target, "{staged:?}");
    assert!(staged.push_target && staged.pull_source, "{staged:?}");
    let staged = round_trips(TransportKind::Auto, &host, &host);
    assert!(!staged.any(), "{staged:?}");
}

#[test]
fn a_device_that_is_lost_fails_its_request_and_not_the_mesh() {
    let device = sim(&[("faults", "copy.0:fail@3+")]);
    let mesh = Mesh::form(config(TransportKind::Shm, 1, 1));
    let echoes = mesh.echo();
    // Two copies bring the values in; the third, of the staging, fails.
    let push = Tensor::from_slice(&device, &[4], &[1.0f32; 4]).unwrap();
    let on_host = Tensor::from_slice(&mesh.device, &[4], &[2.0f32; 4]).unwrap();
    let pull = Tensor::from_slice(&mesh.device, &[4], &[0.0f32; 4]).unwrap();
    let spare = Tensor::from_slice(&device, &[4], &[1.0f32; 4]).unwrap();
    let worker = &mesh.workers[0];
    let failed = worker
        .push_pull(&[Keyed::new(1, &push)], &[Keyed::new(2, &pull)])
        .and_then(|handle| handle.wait(PATIENCE));
    let error = failed.unwrap_err();
    assert!(matches!(error, Error::Backend { .. }), "{error}");
    let handle = worker
        .push_pull(&[Keyed::new(1, &on_host)], &[Keyed::new(2, &pull)])
        .unwrap();
    handle.wait(PATIENCE).unwrap();
    assert_eq!(pull.to_vec::<f32>().unwrap(), [2.0; 4]);
    drop((handle, spare));
    mesh.end(echoes);
}
