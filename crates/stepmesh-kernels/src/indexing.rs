//! Steps that go where indices say: gather and index-add. Indices are data: one out of range is taken
//! to the nearest bound, or left out, as the ABI says, and never followed.
#![forbid(unsafe_code)]

use stepmesh_graph::DType;

use crate::kernel::{Kernel, Lent, TASK_LEN};
use crate::memory::Region;
use crate::tile::{Frame, TILE, run};

/// Slices of `data` that indices name. All three buffers are dense.
#[derive(Clone, Debug)]
pub(crate) struct Gather {
    pub(crate) data: Slices,
    pub(crate) indices: Indices,
    pub(crate) to: usize,
    pub(crate) element_len: usize,
}

/// `data` with slices added where indices say; `to` already holds `data`.
#[derive(Clone, Debug)]
pub(crate) struct IndexAdd {
    pub(crate) to: Slices,
    pub(crate) indices: Indices,
    /// Two stages: the update is loaded; then `to` is, the two are added and stored.
    pub(crate) program: Kernel,
}

/// A buffer as outer × extent × inner elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slices {
    pub(crate) buffer: usize,
    /// First element.
    pub(crate) start: usize,
    pub(crate) outer: usize,
    pub(crate) extent: usize,
    pub(crate) inner: usize,
}

/// Indices one after another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indices {
    pub(crate) buffer: usize,
    pub(crate) start: usize,
    pub(crate) count: usize,
    pub(crate) dtype: DType,
}

impl Indices {
    fn read(&self, regions: &[Region], first: usize, to: &mut [i64]) {
        let region = &regions[self.buffer];
        match self.dtype {
            DType::I32 => region.read(self.start + first, 1, to, |x: i32| i64::from(x)),
            _ => region.read(self.start + first, 1, to, |x: i64| x),
        }
    }
}

impl Gather {
    pub(crate) fn run(&self, lent: Lent<'_>) {
        let Slices {
            outer,
            extent,
            inner,
            ..
        } = self.data;
        if extent == 0 || inner == 0 {
            return;
        }
        let slices = outer * self.indices.count;
        let per_task = (TASK_LEN / inner).clamp(1, TILE);
        let last = i64::try_from(extent - 1).unwrap_or(i64::MAX);
        let (data, to) = (lent.regions[self.data.buffer], lent.regions[self.to]);
        let slice_len = inner * self.element_len;
        lent.pool.run(
            slices.div_ceil(per_task),
            lent.threads_max,
            || (),
            |(), task| {
                for slice in task * per_task..((task + 1) * per_task).min(slices) {
                    let (outer, idx) = (slice / self.indices.count, slice % self.indices.count);
                    let mut index = [0];
                    self.indices.read(lent.regions, idx, &mut index);
                    let index = usize::try_from(index[0].clamp(0, last)).unwrap_or(0);
                    let from = (outer * extent + index) * slice_len;
                    let from = self.data.start * self.element_len + from;
                    to.copy_from(slice * slice_len, &data, from, slice_len);
                }
            },
        );
    }
}

impl IndexAdd {
    pub(crate) fn run(&self, lent: Lent<'_>) {
        let Slices { outer, inner, .. } = self.to;
        let tiles = inner.div_ceil(TILE);
        let is_small = outer * inner * self.indices.count < TASK_LEN;
        lent.pool.run(
            outer * tiles,
            if is_small { 1 } else { lent.threads_max },
            || self.program.prepared(lent),
            |registers, task| {
                let (outer, inner_first) = (task / tiles, task % tiles * TILE);
                let len = TILE.min(inner - inner_first);
                let mut indices = [0; TILE];
                for idx in 0..self.indices.count {
                    if idx % TILE == 0 {
                        let rest = TILE.min(self.indices.count - idx);
                        self.indices.read(lent.regions, idx, &mut indices[..rest]);
                    }
                    let index = usize::try_from(indices[idx % TILE]);
                    let Some(index) = index.ok().filter(|index| *index < self.to.extent) else {
                        continue;
                    };
                    let update = (outer * self.indices.count + idx) * inner + inner_first;
                    let slice = (outer * self.to.extent + index) * inner + inner_first;
                    let frame = |first| Frame {
                        accesses: &self.program.accesses,
                        chains: &self.program.chains,
                        regions: lent.regions,
                        first,
                        within: 0,
                        len,
                    };
                    let [take, add] = &self.program.stages[..] else {
                        return;
                    };
                    run(lent.arch, &take.full, &frame(update), registers);
                    run(lent.arch, &add.full, &frame(slice), registers);
                }
            },
        );
    }
}
