//! Adapters that write straight into a device's memory, played over the simulated network: what they
//! wrote is not seen by the device before a flush, so who hands it out without one hands out old bytes.
#![expect(unsafe_code, reason = "names the entry of a backend that is linked in")]

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use stepmesh_backend_sim::adapter_write;
use stepmesh_core::config::{Config, PluginsConfig};
use stepmesh_core::{Backend, Buffer, Device, StaticPlugin};
use stepmesh_transport::error::Error;
use stepmesh_transport::fabric::{
    Address, Chain, EventSink, Fabric, FabricKind, Limits, PeerId, PostError, Posted, RegionId,
    RemoteId, SharedRegion,
};
use stepmesh_transport::memory::Memory;
use stepmesh_transport::sim::fabric::SimFabric;
use stepmesh_transport::sim::network::SimNetwork;
use stepmesh_transport::sim::options::SimOptions;

use super::world::{World, cpu_device};
use crate::Tensor;
use crate::memory;
use crate::protocol::worker::{Keyed, RequestOptions};

#[test]
fn what_an_adapter_wrote_is_flushed_before_a_batch_or_an_answer_is_handed_out() {
    let device = sim(1);
    let network = SimNetwork::new(1, SimOptions::default());
    let mut world = World::on(network, device.clone(), adapter, (1, 1));
    let push = world.tensor(&[0.0; 3]);
    let pull = Tensor::from_slice(&device, &[3, 1], &[0.0_f32; 3]).unwrap();
    for round in 1..4_u8 {
        let values = [1.0, 2.0, 3.0].map(|value| value * f32::from(round));
        push.write(&values).unwrap();
        let pushes = [Keyed::new(1, &push)];
        let pulls = [Keyed::new(2, &pull)];
        let id = world.submit(0, &pushes, &pulls, &RequestOptions::default());
        let id = id.unwrap();
        world.run_until("answered", |world| {
            let host = world.device.clone();
            world.serve(0, |record| {
                let slot = &record.tensors()[0];
                assert!(!slot.buffer().is_host_accessible());
                let found = slot.to_vec::<f32>().unwrap();
                assert_eq!(found, values, "the batch of round {round}");
                let answer = found.iter().map(|value| value + 1.0).collect::<Vec<_>>();
                vec![Tensor::from_slice(&host, &[3, 1], &answer).unwrap()]
            });
            world.outcome(0, id).is_some()
        });
        world.wait(0, id).unwrap();
        let answer = values.map(|value| value + 1.0);
        assert_eq!(pull.to_vec::<f32>().unwrap(), answer, "round {round}");
        assert!(!world.workers[0].machine.trace(id, 0).unwrap().staged.any());
        world.workers[0].machine.detach(id);
    }
}

#[test]
fn a_device_that_orders_writes_itself_needs_no_flush_and_one_that_does_not_shows_old_bytes() {
    for (unordered, seen) in [(0, 7.0), (1, 0.0)] {
        let device = sim(unordered);
        let tensor = Tensor::from_slice(&device, &[1], &[0.0_f32]).unwrap();
        assert!(adapter_write(tensor.device_ptr(), &7.0_f32.to_ne_bytes()));
        assert_eq!(tensor.to_vec::<f32>().unwrap(), [seen]);
    }
}

/// A fabric that reaches device memory as an adapter does. What arrives for it first lands in host
/// memory beside it, and is written on when the message tells of it.
#[derive(Debug)]
struct Adapter {
    network: SimFabric,
    shadows: Vec<Shadow>,
}

#[derive(Debug)]
struct Shadow {
    ptr: u64,
    host: Arc<Buffer>,
    written: Vec<u8>,
}

fn adapter(network: SimFabric) -> Box<dyn Fabric> {
    let shadows = Vec::new();
    Box::new(Adapter { network, shadows })
}

impl Fabric for Adapter {
    fn register(&mut self, memory: Memory) -> Result<RegionId, Error> {
        if memory.is_host_accessible() {
            return self.network.register(memory);
        }
        let host = Arc::new(cpu_device().alloc(memory.len_bytes()).unwrap());
        let region = self.network.register(memory::describe(&host))?;
        self.shadows.push(Shadow {
            ptr: memory.address(),
            written: vec![0; usize::try_from(memory.len_bytes()).unwrap()],
            host,
        });
        Ok(region)
    }

    fn poll(&mut self, now_ns: u64, sink: &mut dyn EventSink) -> usize {
        let shadows = &mut self.shadows;
        self.network.poll(now_ns, &mut Sink { shadows, sink })
    }

    fn kind(&self) -> FabricKind {
        self.network.kind()
    }

    fn limits(&self) -> Limits {
        self.network.limits()
    }

    fn address(&self) -> Address {
        self.network.address()
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), Error> {
        self.network.deregister(region)
    }

    fn share(&mut self, region: RegionId, peer: PeerId) -> Result<SharedRegion, Error> {
        self.network.share(region, peer)
    }

    fn import(&mut self, peer: PeerId, region: &SharedRegion) -> Result<RemoteId, Error> {
        self.network.import(peer, region)
    }

    fn release(&mut self, peer: PeerId, remote: RemoteId) {
        self.network.release(peer, remote);
    }

    fn connect(
        &mut self,
        address: &Address,
        hello: &[u8],
        timeout: Duration,
    ) -> Result<PeerId, Error> {
        self.network.connect(address, hello, timeout)
    }

    fn set_hello(&mut self, hello: &[u8]) {
        self.network.set_hello(hello);
    }

    fn post(&mut self, peer: PeerId, chain: &Chain<'_>) -> Result<Posted, PostError> {
        self.network.post(peer, chain)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.network.wait_fd()
    }

    fn close(&mut self, peer: PeerId) {
        self.network.close(peer);
    }
}

/// Writes to the device what a message tells of, before it is told.
struct Sink<'a> {
    shadows: &'a mut [Shadow],
    sink: &'a mut dyn EventSink,
}

impl EventSink for Sink<'_> {
    fn message(&mut self, peer: PeerId, message: &[u8]) {
        for shadow in &mut *self.shadows {
            let mut bytes = vec![0; shadow.written.len()];
            shadow.host.read_bytes(0, &mut bytes).unwrap();
            if bytes != shadow.written {
                assert!(adapter_write(shadow.ptr, &bytes));
                shadow.written = bytes;
            }
        }
        self.sink.message(peer, message);
    }

    fn connected(&mut self, peer: PeerId, hello: &[u8]) {
        self.sink.connected(peer, hello);
    }

    fn accepted(&mut self, peer: PeerId, hello: &[u8]) {
        self.sink.accepted(peer, hello);
    }

    fn sent(&mut self, peer: PeerId, token: u64) {
        self.sink.sent(peer, token);
    }

    fn closed(&mut self, peer: PeerId, reason: Error) {
        self.sink.closed(peer, reason);
    }
}

fn sim(unordered: u8) -> Device {
    let options = BTreeMap::from([("rdma_unordered".to_owned(), unordered.to_string())]);
    let config = Config {
        backend: "sim".into(),
        options: BTreeMap::from([("sim".to_owned(), options)]),
        // Another copy of the backend would have memory that the adapter here does not know.
        plugins: PluginsConfig {
            disable: vec!["*.so".into()],
            ..PluginsConfig::default()
        },
        ..Config::default()
    };
    let backend = Backend::open_with(&config, &[SIM]).unwrap();
    backend.device(0).unwrap()
}

// SAFETY: the entry of a backend made by the kit.
const SIM: StaticPlugin = unsafe { StaticPlugin::new(stepmesh_backend_sim::query) };
