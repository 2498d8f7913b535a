//! The ways to register and the cache, with an adapter that only notes what it is asked for, on
//! machines that are made of files.
#![expect(unsafe_code, reason = "describes memory that nobody touches")]

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use stepmesh_transport::memory::{
    Allocation, Dmabuf, DmabufMapping, ExportDmabuf, Memory, MemoryKind,
};
use tempfile::TempDir;

use super::{Cache, CacheLimits, Machine, RangeUse, Refused, Registrar, Target, Way, register};
use crate::select::System;
use crate::{Access, VerbsError};

/// An adapter that refuses what it is told to, and notes what is registered.
#[derive(Clone, Default)]
struct Pretence {
    refused: Vec<(Way, i32)>,
    has_direct: bool,
    live: Rc<RefCell<Vec<(u64, u64, Access)>>>,
    tried: Rc<RefCell<Vec<Way>>>,
}

/// A registration of it.
#[derive(Debug)]
struct Region {
    of: (u64, u64, Access),
    live: Rc<RefCell<Vec<(u64, u64, Access)>>>,
    _memory: Arc<dyn std::any::Any + Send + Sync>,
}

impl Drop for Region {
    fn drop(&mut self) {
        let mut live = self.live.borrow_mut();
        let place = live.iter().position(|of| *of == self.of).unwrap();
        live.swap_remove(place);
    }
}

impl Pretence {
    fn refusing(refused: &[(Way, i32)]) -> Self {
        Self {
            refused: refused.to_vec(),
            ..Self::default()
        }
    }

    fn take(&self, way: Way, verb: &'static str, target: &Target) -> Result<Region, VerbsError> {
        self.tried.borrow_mut().push(way);
        if let Some((_, errno)) = self.refused.iter().find(|(refused, _)| *refused == way) {
            let (errno, object) = (*errno, "x".into());
            return Err(VerbsError {
                verb,
                errno,
                object,
            });
        }
        let of = (target.address, target.len_bytes, target.access);
        self.live.borrow_mut().push(of);
        Ok(Region {
            of,
            live: Rc::clone(&self.live),
            _memory: Arc::clone(&target.keep_alive),
        })
    }
}

impl Registrar for Pretence {
    type Region = Region;

    fn adapter(&self) -> &'static str {
        "mlx5_0"
    }

    fn has_direct_dmabuf(&self) -> bool {
        self.has_direct
    }

    fn register(&self, target: &Target) -> Result<Region, VerbsError> {
        self.take(Way::Host, "ibv_reg_mr", target)
    }

    fn register_dmabuf(
        &self,
        _dmabuf: &Dmabuf,
        mapping: DmabufMapping,
        target: &Target,
    ) -> Result<Region, VerbsError> {
        match mapping {
            DmabufMapping::Pcie => self.take(Way::DmabufPcie, "mlx5dv_reg_dmabuf_mr", target),
            _ => self.take(Way::Dmabuf, "ibv_reg_dmabuf_mr", target),
        }
    }
}

/// Exports /dev/null, and counts what is open.
#[derive(Debug, Default)]
struct Exporter {
    refusal: Option<String>,
    asked: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl ExportDmabuf for Exporter {
    fn export(
        &self,
        offset: u64,
        len_bytes: u64,
        _mapping: DmabufMapping,
    ) -> Result<Dmabuf, String> {
        self.asked.lock().unwrap().push((offset, len_bytes));
        match &self.refusal {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(Dmabuf {
                fd: Box::new(fs::File::open("/dev/null").unwrap()),
                offset: 0,
                len_bytes,
            }),
        }
    }
}

fn machine(files: &[(&str, &str)]) -> (TempDir, Machine) {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let machine = Machine::of(System::under(root.path()));
    (root, machine)
}

fn modern() -> Machine {
    machine(&[("/proc/sys/kernel/osrelease", "6.1.0-57-amd64")]).1
}

fn with_peermem(maps: &str) -> (TempDir, Machine) {
    machine(&[
        ("/proc/sys/kernel/osrelease", "6.8.0"),
        ("/sys/module/nvidia_peermem/initstate", "live"),
        ("/proc/self/maps", maps),
    ])
}

/// Memory at `BASE + offset` of an allocation of a mebibyte.
fn memory(id: u64, offset: u64, kind: MemoryKind, dmabuf: Option<Exporter>) -> Memory {
    let base = BASE + id * 0x1000_0000;
    let host_accessible = kind == MemoryKind::Host;
    // SAFETY: never read or written: the adapter is a pretence.
    let memory = unsafe { Memory::new(base + offset, 4096, host_accessible, None, Arc::new(())) };
    memory.with_allocation(Allocation {
        base,
        len_bytes: MEBIBYTE,
        id,
        kind,
        pci_address: None,
        numa_node: None,
        dmabuf: dmabuf.map(|exporter| Box::new(exporter) as Box<dyn ExportDmabuf>),
    })
}

fn host(id: u64, offset: u64) -> Memory {
    memory(id, offset, MemoryKind::Host, None)
}

fn device() -> Memory {
    memory(1, 8192, MemoryKind::Device, Some(Exporter::default()))
}

fn try_all(
    adapter: &Pretence,
    machine: &Machine,
    memory: &Memory,
) -> Result<super::Registered<Region>, Refused> {
    let target = Target {
        address: memory.address(),
        len_bytes: memory.len_bytes(),
        access: Access::REMOTE_WRITE,
        keep_alive: Arc::clone(memory.keep_alive()),
    };
    register(adapter, machine, memory, &target)
}

fn cache(limits: CacheLimits) -> (Cache<Pretence>, Pretence) {
    let adapter = Pretence::default();
    (Cache::new(adapter.clone(), modern(), limits), adapter)
}

#[test]
fn device_memory_goes_as_a_dmabuf_and_the_dmabuf_stays_open_with_it() {
    let adapter = Pretence::default();
    let exporter = Exporter::default();
    let asked = Arc::clone(&exporter.asked);
    let memory = memory(1, 8192, MemoryKind::Device, Some(exporter));
    let registered = try_all(&adapter, &modern(), &memory).unwrap();
    assert_eq!(registered.way, Way::Dmabuf);
    assert!(registered.refusals.is_empty());
    assert_eq!(
        *asked.lock().unwrap(),
        [(8192, 4096)],
        "offset in the allocation"
    );
    let dmabuf = registered
        .region
        ._memory
        .downcast_ref::<(Arc<Dmabuf>, Arc<dyn std::any::Any + Send + Sync>)>();
    assert!(dmabuf.is_some());
}

#[test]
fn the_ways_are_tried_in_order_and_each_refusal_is_kept() {
    let adapter = Pretence {
        has_direct: true,
        ..Pretence::refusing(&[
            (Way::Dmabuf, libc::EOPNOTSUPP),
            (Way::DmabufPcie, libc::ENOMEM),
        ])
    };
    let (_root, machine) = with_peermem("");
    let registered = try_all(&adapter, &machine, &device()).unwrap();
    assert_eq!(registered.way, Way::PeerMemory);
    let ways: Vec<Way> = registered
        .refusals
        .iter()
        .map(|refusal| refusal.way)
        .collect();
    assert_eq!(ways, [Way::Dmabuf, Way::DmabufPcie]);
    let first = &registered.refusals[0];
    assert_eq!(
        (first.verb, first.errno),
        ("ibv_reg_dmabuf_mr", Some(libc::EOPNOTSUPP))
    );
    assert_eq!((first.address, first.len_bytes), (device().address(), 4096));
    assert_eq!(
        (first.memory, first.adapter.as_str()),
        ("device memory", "mlx5_0")
    );
    assert!(registered.refusals[1].remedy.contains("resizable BAR"));
}

#[test]
fn device_memory_is_never_taken_for_the_hosts() {
    // The processor has memory of its own at the device's address.
    let address = device().address();
    let line = format!(
        "{:x}-{:x} rw-p 00000000 00:00 0 [heap]\n",
        address - 4096,
        address + 1
    );
    let (_root, machine) = with_peermem(&line);
    let adapter = Pretence::refusing(&[(Way::Dmabuf, libc::EINVAL)]);
    let refused = try_all(&adapter, &machine, &device()).unwrap_err();
    assert_eq!(
        *adapter.tried.borrow(),
        [Way::Dmabuf],
        "no plain registration was tried"
    );
    let last = refused.refusals.last().unwrap();
    assert!(last.reason.contains("[heap]"), "{last}");

    // Nobody says what it is, and the processor does not reach it.
    // SAFETY: never read or written.
    let unknown = unsafe { Memory::new(BASE, 4096, false, None, Arc::new(())) };
    let refused = try_all(&adapter, &machine, &unknown).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("nobody says what memory this is")
    );

    let managed = memory(1, 0, MemoryKind::Managed, None);
    let refused = try_all(&adapter, &machine, &managed).unwrap_err();
    assert!(refused.to_string().contains("migrates"));
    assert_eq!(adapter.tried.borrow().len(), 1);
}

#[test]
fn without_any_way_all_reasons_and_remedies_are_in_one_message() {
    let (_root, machine) = machine(&[("/proc/sys/kernel/osrelease", "5.4.0-42-generic")]);
    let refused = try_all(&Pretence::default(), &machine, &device()).unwrap_err();
    let message = refused.to_string();
    for part in [
        "5.12",
        "no direct verbs",
        "nvidia-peermem",
        "4096 bytes of device memory",
    ] {
        assert!(message.contains(part), "no `{part}` in: {message}");
    }
}

#[test]
fn a_backend_that_exports_nothing_is_quoted() {
    let exporter = Exporter {
        refusal: Some("the memory is not exportable".into()),
        ..Exporter::default()
    };
    let memory = memory(1, 0, MemoryKind::Device, Some(exporter));
    let refused = try_all(&Pretence::default(), &modern(), &memory).unwrap_err();
    assert!(
        refused.to_string().contains("export on mlx5_0"),
        "{refused}"
    );
    assert!(
        refused.to_string().contains("the memory is not exportable"),
        "{refused}"
    );
}

#[test]
fn the_limit_of_locked_memory_is_looked_at_before_anything_is_tried() {
    let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                  Max locked memory         65536                65536                bytes     \n";
    let locked = "Name:\tx\nCapEff:\t0000000000000000\nVmPin:\t      62 kB\n";
    let files = |status| [("/proc/self/limits", limits), ("/proc/self/status", status)];
    let (_root, limited) = machine(&files(locked));
    let adapter = Pretence::default();
    let refused = try_all(&adapter, &limited, &host(1, 0)).unwrap_err();
    let message = refused.to_string();
    assert!(
        message.contains("65536 bytes, of which 63488 are used"),
        "{message}"
    );
    assert!(message.contains("ulimit -l"), "{message}");
    assert!(adapter.tried.borrow().is_empty());
    let (_root, privileged) = machine(&files("CapEff:\t000001ffffffffff\nVmPin:\t      62 kB\n"));
    assert_eq!(privileged.memlock_refusal(1 << 40), None);
    let unlimited = limits.replace("65536 ", "unlimited ");
    let files = [
        ("/proc/self/limits", unlimited.as_str()),
        ("/proc/self/status", locked),
    ];
    assert_eq!(machine(&files).1.memlock_refusal(1 << 40), None);
}

#[test]
fn this_process_knows_its_own_mappings() {
    let here = [0_u8; 64];
    let address = here.as_ptr().addr() as u64;
    let this = Machine::this();
    assert!(matches!(this.range_use(address, 64), RangeUse::Mapped(_)));
    assert_eq!(this.range_use(0x1000, 4096), RangeUse::NotMapped);
}

#[test]
fn addresses_that_a_driver_reserved_are_no_memory_of_the_host() {
    let maps = "7f0000000000-7f0000200000 ---p 00000000 00:00 0 \n\
                7f0000200000-7f0000400000 rw-s 00000000 00:06 419 /dev/nvidia-uvm\n\
                7f0000400000-7f0000600000 r--p 00000000 08:01 42 /usr/lib/libc.so.6\n";
    let (_root, machine) = machine(&[("/proc/self/maps", maps)]);
    assert_eq!(
        machine.range_use(0x7f00_0000_0000, 0x40_0000),
        RangeUse::NotMapped
    );
    let used = machine.range_use(0x7f00_003f_f000, 0x2000);
    assert_eq!(used, RangeUse::Mapped("/usr/lib/libc.so.6".into()));
}

#[test]
fn any_part_of_an_allocation_finds_the_registration_of_all_of_it() {
    let (mut cache, adapter) = cache(CacheLimits::default());
    let first = cache.source(&host(1, 0)).unwrap();
    let second = cache.source(&host(1, 65_536)).unwrap();
    assert_eq!(first.of, (BASE + 0x1000_0000, MEBIBYTE, Access::LOCAL));
    assert_eq!(second.of, first.of);
    assert_eq!(adapter.live.borrow().len(), 1);
    let statistics = cache.statistics();
    assert_eq!((statistics.hits, statistics.misses), (1, 1));
}

#[test]
fn an_address_that_is_used_again_is_another_allocation() {
    let (mut cache, adapter) = cache(CacheLimits::default());
    drop(cache.source(&host(1, 0)).unwrap());
    cache.invalidate(1);
    assert!(adapter.live.borrow().is_empty(), "it ends with its memory");
    // The same number with another range, which no honest backend gives: not the old registration.
    drop(cache.source(&host(1, 0)).unwrap());
    let grown = Allocation {
        base: BASE + 0x1000_0000,
        len_bytes: 2 * MEBIBYTE,
        id: 1,
        kind: MemoryKind::Host,
        pci_address: None,
        numa_node: None,
        dmabuf: None,
    };
    let held = cache.source(&host(1, 0).with_allocation(grown)).unwrap();
    assert_eq!(held.of.1, 2 * MEBIBYTE);
    assert_eq!(adapter.live.borrow().len(), 1);
}

#[test]
fn what_is_kept_does_not_keep_the_memory_but_what_is_held_does() {
    let (mut cache, _adapter) = cache(CacheLimits::default());
    let memory = host(1, 0);
    let owner = Arc::downgrade(memory.keep_alive());
    let held = cache.source(&memory).unwrap();
    drop(memory);
    assert!(owner.upgrade().is_some());
    drop(held);
    assert!(owner.upgrade().is_none());
    assert_eq!(cache.len(), 1);
}

#[test]
fn a_registration_in_use_outlives_its_invalidation() {
    let (mut cache, adapter) = cache(CacheLimits::default());
    let held = cache.source(&host(1, 0)).unwrap();
    cache.invalidate(1);
    assert_eq!((cache.len(), adapter.live.borrow().len()), (0, 1));
    drop(held);
    assert!(adapter.live.borrow().is_empty());
}

#[test]
fn what_peers_write_to_is_exactly_the_range_and_ends_with_its_use() {
    let (mut cache, adapter) = cache(CacheLimits::default());
    let memory = host(1, 8192);
    let source = cache.source(&memory).unwrap();
    let target = cache.target(&memory, Access::REMOTE_WRITE).unwrap();
    assert_eq!(target.of, (memory.address(), 4096, Access::REMOTE_WRITE));
    assert_eq!(source.of.2, Access::LOCAL);
    drop(target);
    assert_eq!(*adapter.live.borrow(), [source.of]);
}

#[test]
fn memory_without_a_number_is_registered_for_each_use() {
    let (mut cache, adapter) = cache(CacheLimits::default());
    // SAFETY: never read or written.
    let memory = unsafe { Memory::new(BASE, 4096, true, None, Arc::new(())) };
    let held = cache.source(&memory).unwrap();
    assert_eq!(held.of, (BASE, 4096, Access::LOCAL));
    drop(held);
    assert!(adapter.live.borrow().is_empty());
    assert!(cache.is_empty());
}

#[test]
fn the_cache_gives_up_what_was_not_used_for_longest_and_nothing_that_is_held() {
    let limits = CacheLimits {
        entries_max: 4,
        bytes_max: u64::MAX,
    };
    let (mut cache, adapter) = cache(limits);
    let held = cache.source(&host(1, 0)).unwrap();
    for id in 2..=4 {
        drop(cache.source(&host(id, 0)).unwrap());
    }
    drop(cache.source(&host(2, 0)).unwrap());
    drop(cache.source(&host(5, 0)).unwrap());
    let bases: Vec<u64> = adapter
        .live
        .borrow()
        .iter()
        .map(|of| (of.0 - BASE) >> 28)
        .collect();
    assert_eq!(
        bases.iter().filter(|id| [1, 2, 4, 5].contains(id)).count(),
        4,
        "{bases:?}"
    );
    assert_eq!((cache.len(), cache.len_bytes()), (4, 4 * MEBIBYTE));
    assert_eq!(cache.statistics().evictions, 1);
    drop(held);
}

#[test]
fn a_full_cache_still_registers_what_is_asked_for_without_keeping_it() {
    let limits = CacheLimits {
        entries_max: 100,
        bytes_max: MEBIBYTE,
    };
    let (mut cache, adapter) = cache(limits);
    let first = cache.source(&host(1, 0)).unwrap();
    let second = cache.source(&host(2, 0)).unwrap();
    assert_eq!((first.of.1, second.of.1), (MEBIBYTE, 4096));
    assert_eq!(cache.len_bytes(), MEBIBYTE);
    drop((first, second));
    drop(cache.source(&host(3, 0)).unwrap());
    assert_eq!(cache.len_bytes(), MEBIBYTE);
    cache.clear();
    assert!(adapter.live.borrow().is_empty());
    assert_eq!(cache.len_bytes(), 0);
}

#[test]
fn churn_neither_leaks_nor_grows() {
    let limits = CacheLimits {
        entries_max: 64,
        bytes_max: u64::MAX,
    };
    let (mut cache, adapter) = cache(limits);
    for id in 1..=20_000 {
        let memory = host(id, 0);
        drop(cache.source(&memory).unwrap());
        drop(cache.target(&memory, Access::REMOTE_WRITE).unwrap());
        if id % 2 == 0 {
            cache.invalidate(id);
        }
    }
    assert!(cache.len() <= 64 && adapter.live.borrow().len() == cache.len());
    drop(cache);
    assert!(adapter.live.borrow().is_empty());
}

const BASE: u64 = 0x7000_0000_0000;

const MEBIBYTE: u64 = 1 << 20;
