//! What a device tells about itself: the driver's facts, what the kernel knows of its PCI address, and
//! the capability bits that follow.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use stepmesh_plugin::abi::device::{
    SM_CAP_CONCURRENT_CONTEXTS, SM_CAP_DMABUF_DEFAULT, SM_CAP_DMABUF_PCIE, SM_CAP_FLUSH_RDMA,
    SM_CAP_GRAPH_CAPTURE_SAFE, SM_CAP_HOST_FUNC, SM_CAP_IPC, SM_CAP_MANAGED, SM_CAP_MAPPED_HOST,
    SM_CAP_MEMEVENT, SM_CAP_PEER_ACCESS, SM_CAP_PEERMEM, SM_CAP_PINNED_HOST,
    SM_CAP_STREAM_ORDERED_ALLOC, SM_CAP_SYNC_MEMOPS, SM_CAP_TIMING, SM_CAP_UVA, SM_FLUSH_HOST,
};
use stepmesh_plugin::abi::extension::{
    SM_DMABUF_DEFAULT, SM_DMABUF_PCIE, SM_RDMA_FLUSH_ALL_DEVICES, SM_RDMA_FLUSH_OWNER,
};
use stepmesh_plugin::abi::memory::SM_MEMORY_DEVICE;
use stepmesh_plugin::abi::{SmDeviceInfo, SmRdmaCaps};
use stepmesh_plugin::software::{page_len, to_u64};
use stepmesh_plugin::text_field;

use crate::{Driver, Facts};

/// Facts about a device as the ABI has them. `root` is `/` but in tests.
pub(crate) fn device_info<D: Driver>(device: u32, facts: &Facts, root: &Path) -> SmDeviceInfo {
    let ordinal = i32::try_from(device).unwrap_or(-1);
    let pci = Pci::of(&facts.pci_bdf, root);
    SmDeviceInfo {
        ordinal,
        name: text_field(&facts.name),
        arch: text_field(&facts.arch),
        // Torch calls devices of ROCm by this name too.
        torch_device_type: text_field("cuda"),
        pci_bdf: text_field(pci.as_ref().map_or("", |pci| pci.bdf)),
        uuid: facts.uuid,
        numa_node: pci.as_ref().map_or(-1, Pci::numa_node),
        torch_index: ordinal,
        dlpack_type: D::DLPACK_TYPE,
        dlpack_id: ordinal,
        vendor_id: pci.as_ref().map_or(0, |pci| pci.id("vendor")),
        device_id: pci.as_ref().map_or(0, |pci| pci.id("device")),
        cc_major: facts.cc_major,
        cc_minor: facts.cc_minor,
        total_mem: facts.total_bytes,
        page_granularity: facts.alloc_align_bytes,
        dmabuf_granularity: dmabuf_granularity(facts),
        integrated: u32::from(facts.is_integrated),
        rdma_write_ordering: facts.rdma_write_ordering,
        flush_options: facts.flush_options,
        ..SmDeviceInfo::new()
    }
}

/// Capability bits of a device.
pub(crate) fn capabilities(facts: &Facts, has_peers: bool) -> u64 {
    let always = SM_CAP_PINNED_HOST
        | SM_CAP_MAPPED_HOST
        | SM_CAP_UVA
        | SM_CAP_TIMING
        | SM_CAP_HOST_FUNC
        // By stream writes, or by copies of eight bytes.
        | SM_CAP_MEMEVENT
        | SM_CAP_CONCURRENT_CONTEXTS;
    let optional = [
        (SM_CAP_MANAGED, facts.has_managed),
        (SM_CAP_STREAM_ORDERED_ALLOC, facts.has_pools),
        (SM_CAP_PEER_ACCESS, has_peers),
        (SM_CAP_DMABUF_DEFAULT, facts.has_dmabuf),
        (SM_CAP_DMABUF_PCIE, facts.has_dmabuf_pcie),
        (SM_CAP_PEERMEM, facts.has_peermem),
        (SM_CAP_SYNC_MEMOPS, facts.has_sync_memops),
        (SM_CAP_FLUSH_RDMA, can_flush(facts)),
        (SM_CAP_IPC, facts.has_ipc),
        (SM_CAP_GRAPH_CAPTURE_SAFE, facts.has_graphs),
    ];
    let set = optional.iter().filter(|(_, is_set)| *is_set);
    set.fold(always, |bits, (bit, _)| bits | bit)
}

/// What a device offers to network adapters.
pub(crate) fn rdma_caps(facts: &Facts) -> SmRdmaCaps {
    let bit = |is_set: bool, number: u32| if is_set { 1 << number } else { 0 };
    let mappings =
        bit(facts.has_dmabuf, SM_DMABUF_DEFAULT) | bit(facts.has_dmabuf_pcie, SM_DMABUF_PCIE);
    let flush_scopes = bit(can_flush(facts), SM_RDMA_FLUSH_OWNER)
        | bit(can_flush(facts), SM_RDMA_FLUSH_ALL_DEVICES);
    SmRdmaCaps {
        mappings,
        memory_kinds: bit(mappings != 0, SM_MEMORY_DEVICE),
        flush_scopes,
        write_ordering: facts.rdma_write_ordering,
        dmabuf_granularity: dmabuf_granularity(facts),
        ..SmRdmaCaps::new()
    }
}

/// Whether the host can flush writes of network adapters.
pub(crate) fn can_flush(facts: &Facts) -> bool {
    facts.flush_options & SM_FLUSH_HOST != 0
}

fn dmabuf_granularity(facts: &Facts) -> u64 {
    if facts.has_dmabuf || facts.has_dmabuf_pcie {
        to_u64(page_len())
    } else {
        0
    }
}

/// A device that the kernel knows by its PCI address. An address that it does not know, as in some
/// containers, says nothing to a host, which looks it up there.
struct Pci<'a> {
    bdf: &'a str,
    folder: PathBuf,
}

impl<'a> Pci<'a> {
    fn of(bdf: &'a str, root: &Path) -> Option<Self> {
        let folder = root.join("sys/bus/pci/devices").join(bdf);
        (!bdf.is_empty() && folder.exists()).then_some(Self { bdf, folder })
    }

    fn text(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.join(file)).unwrap_or_default()
    }

    fn numa_node(&self) -> i32 {
        self.text("numa_node").trim().parse().unwrap_or(-1)
    }

    fn id(&self, file: &str) -> u32 {
        let text = self.text(file);
        let digits = text.trim().trim_start_matches("0x");
        u32::from_str_radix(digits, 16).unwrap_or(0)
    }
}
