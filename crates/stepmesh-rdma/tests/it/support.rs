//! A device for tests, or the report that there is none; and two connected ends on it.

use std::env;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use stepmesh_rdma::select::{Adapter, Candidate, Location, Options, System, choose};
use stepmesh_rdma::verbs::{
    self, CompletionChannel, CompletionQueue, Context, Endpoint, Ledger, MemoryRegion, PathOptions,
    ProtectionDomain, QpOptions, QueuePair, SendList, WorkCompletion, Write,
};
use stepmesh_rdma::{Access, RdmaFabric, RdmaOptions};
use stepmesh_transport::fabric::Fabric;

use crate::node::{self, MESSAGE_LEN_MAX};

/// The first usable device, for one test at a time: the ledger is the whole process's.
pub(crate) struct Device {
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) port: Candidate,
    // Dropped last, after everything of the device.
    _turn: Turn,
}

/// Nothing is alive when a test starts, and nothing when it ends.
struct Turn(#[expect(dead_code, reason = "held for its lock")] MutexGuard<'static, ()>);

/// The fabrics that keep the contract of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setup {
    /// The default.
    One,
    /// Striped.
    Eight,
    /// With queues so short that they are always full.
    Short,
}

impl Setup {
    /// A turn for a test where there is a device; otherwise it is reported that nothing was tested.
    pub(crate) fn take_turn(self, what: &str) -> Option<impl Drop> {
        let what = format!("{what} ({self:?})");
        Device::present(&what).map(|device| {
            let Device { domain, _turn, .. } = device;
            drop(domain);
            _turn
        })
    }

    pub(crate) fn fabric(self) -> Box<dyn Fabric> {
        Box::new(RdmaFabric::new(self.options()).unwrap())
    }

    #[expect(
        clippy::unused_self,
        reason = "other crates' fabrics need memory of their own kind"
    )]
    pub(crate) fn memory(self, len: usize) -> node::Bytes {
        node::Bytes::plain(len)
    }

    fn options(self) -> RdmaOptions {
        let mut options = RdmaOptions {
            message_len_bytes_max: MESSAGE_LEN_MAX,
            ..RdmaOptions::default()
        };
        // Longer than for tcp: the guest is emulated.
        options.control.handshake_timeout = Duration::from_secs(2);
        match self {
            Self::One => {}
            Self::Eight => options.queue_pairs = 8,
            Self::Short => {
                options.send_depth = 16;
                options.ring_len_bytes = 4096;
            }
        }
        options
    }
}

/// What a probe found.
enum Probe {
    Present(Candidate),
    Absent(String),
    Broken(String),
}

impl Device {
    /// The device, or nothing where there is none; then the test has reported that it tested
    /// nothing.
    ///
    /// # Panics
    /// There is one and it is broken, or there is none and `STEPMESH_REQUIRE` names `rdma`.
    pub(crate) fn present(what: &str) -> Option<Self> {
        let turn = Turn::take();
        let port = match probe() {
            Probe::Present(port) => port,
            Probe::Absent(reason) => {
                report_absent(what, &reason);
                return None;
            }
            Probe::Broken(reason) => panic!("the RDMA device is broken: {reason}"),
        };
        let devices = verbs::devices().unwrap();
        let device = devices
            .iter()
            .find(|device| device.name() == port.adapter)
            .unwrap();
        let context = Context::open(device).unwrap();
        let domain = ProtectionDomain::new(&context).unwrap();
        Some(Self {
            domain,
            port,
            _turn: turn,
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    pub(crate) fn memory(&self, len_bytes: usize, access: Access) -> Registered {
        Registered::new(&self.domain, len_bytes, access)
    }

    /// Two ends that are connected with each other.
    pub(crate) fn pair(&self, options: &QpOptions) -> (End, End) {
        let path = self.path();
        let mut ends = [1, 2].map(|psn| End::new(self, options, psn));
        let points = ends.each_ref().map(|end| end.endpoint(self));
        let [one, two] = &mut ends;
        one.connect(&points[1], &path);
        two.connect(&points[0], &path);
        ends.into()
    }

    pub(crate) fn path(&self) -> PathOptions {
        let port = self.context().port_attributes(self.port.port).unwrap();
        PathOptions {
            port: self.port.port,
            gid_index: self.port.gid.index,
            mtu: port.mtu_active,
            ..PathOptions::default()
        }
    }
}

impl Turn {
    fn take() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        // A test that failed has left its turn; what it left behind fails the next as well.
        let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Ledger::assert_empty();
        Self(guard)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !thread::panicking() {
            Ledger::assert_empty();
        }
    }
}

/// One end of a connection with completion queues of its own.
pub(crate) struct End {
    pub(crate) queue_pair: QueuePair,
    pub(crate) completions: CompletionQueue,
    pub(crate) channel: Arc<CompletionChannel>,
    psn: u32,
}

impl End {
    fn new(device: &Device, options: &QpOptions, psn: u32) -> Self {
        let channel = CompletionChannel::new(device.context()).unwrap();
        let completions = CompletionQueue::new(device.context(), 256, Some(&channel)).unwrap();
        let queue_pair = QueuePair::new(&device.domain, &completions, &completions, options);
        Self {
            queue_pair: queue_pair.unwrap(),
            completions,
            channel,
            psn,
        }
    }

    pub(crate) fn endpoint(&self, device: &Device) -> Endpoint {
        let port = device.context().port_attributes(device.port.port).unwrap();
        Endpoint {
            qp_num: self.queue_pair.number(),
            psn: self.psn,
            lid: port.lid,
            gid: device.port.gid.octets(),
        }
    }

    pub(crate) fn connect(&mut self, peer: &Endpoint, path: &PathOptions) {
        let local_psn = self.psn;
        let path = PathOptions { local_psn, ..*path };
        self.queue_pair.bring_up(peer, &path).unwrap();
    }

    /// Posts one write, with an immediate if there is one.
    pub(crate) fn write(&mut self, write: &Write, imm: Option<u32>) {
        let mut list = SendList::with_capacity(1);
        push(&mut list, write, imm);
        assert_eq!(self.queue_pair.post(&mut list).unwrap(), 1);
    }

    /// The next completion.
    pub(crate) fn wait(&mut self) -> WorkCompletion {
        let mut one = [WorkCompletion::EMPTY];
        wait_until("a completion", || {
            self.completions.poll(&mut one).unwrap() == 1
        });
        one[0]
    }

    /// That nothing has completed by now.
    pub(crate) fn assert_silent(&mut self) {
        let mut one = [WorkCompletion::EMPTY];
        assert_eq!(self.completions.poll(&mut one).unwrap(), 0, "{one:?}");
    }
}

/// Memory that a device may change at any time, and its registration.
pub(crate) struct Registered {
    bytes: Arc<Bytes>,
    pub(crate) region: Option<MemoryRegion>,
}

struct Bytes(Box<[AtomicU8]>);

impl Registered {
    fn new(domain: &Arc<ProtectionDomain>, len_bytes: usize, access: Access) -> Self {
        let bytes = Arc::new(Bytes((0..len_bytes).map(|_| AtomicU8::new(0)).collect()));
        let address = bytes.0.as_ptr().expose_provenance() as u64;
        let keep_alive = Arc::clone(&bytes);
        // SAFETY: `keep_alive` owns the range, whose bytes are atomics.
        let region =
            unsafe { domain.register(address, len_bytes as u64, access, keep_alive) }.unwrap();
        Self {
            bytes,
            region: Some(region),
        }
    }

    pub(crate) fn region(&self) -> &MemoryRegion {
        self.region.as_ref().unwrap()
    }

    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.bytes.0.as_ptr().expose_provenance() as u64 + offset as u64
    }

    pub(crate) fn fill(&self, bytes: impl Iterator<Item = u8>) {
        for (place, byte) in self.bytes.0.iter().zip(bytes) {
            place.store(byte, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        let bytes = self.bytes.0.iter();
        bytes.map(|byte| byte.load(Ordering::Acquire)).collect()
    }

    /// A signalled write of a range of `self` to a range of `target`.
    pub(crate) fn write_to(&self, target: &Self, offsets: (usize, usize), len: usize) -> Write {
        Write {
            wr_id: 7,
            lkey: self.region().lkey(),
            local_address: self.address(offsets.0),
            len_bytes: len.try_into().unwrap(),
            rkey: target.region().rkey(),
            remote_address: target.address(offsets.1),
            signalled: true,
        }
    }
}

/// Appends a write, with an immediate if there is one.
pub(crate) fn push(list: &mut SendList, write: &Write, imm: Option<u32>) {
    let pushed = match imm {
        // SAFETY: the memory of tests lives until the connection is gone.
        Some(imm) => unsafe { list.push_write_imm(write, imm, false) },
        // SAFETY: the same.
        None => unsafe { list.push_write(write) },
    };
    assert!(pushed);
}

/// Waits, with a bound, for what is sure to happen.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < end, "{what} took longer than {LONG:?}");
        thread::yield_now();
    }
}

fn probe() -> Probe {
    let adapters = Adapter::all(&System::this());
    let choice = choose(&adapters, &Location::default(), &Options::default());
    let devices = match verbs::devices() {
        Ok(devices) => devices,
        Err(error) if choice.ports.is_empty() => return Probe::Absent(error.to_string()),
        Err(error) => return Probe::Broken(error.to_string()),
    };
    if let Some(absence) = choice.absence() {
        return Probe::Absent(absence);
    }
    let port = choice.candidates[0].clone();
    if devices.iter().any(|device| device.name() == port.adapter) {
        return Probe::Present(port);
    }
    Probe::Broken(format!(
        "libibverbs does not list {}: {devices:?}",
        port.adapter
    ))
}

/// Says that something could not be tested here, or fails if `STEPMESH_REQUIRE` names it.
pub(crate) fn report_absent(what: &str, reason: &str) {
    let required = env::var("STEPMESH_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|name| name.trim() == "rdma"),
        "{what}: {reason}"
    );
    eprintln!("ABSENT (rdma): {what} was not tested: {reason}");
}

/// A bound for what is sure to happen, in a guest that is emulated on a machine that does much else.
const LONG: Duration = Duration::from_secs(60);
