//! What runs need for a while and give back: registers and workspaces. After the first few runs
//! nothing is allocated any more.
#![forbid(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use crate::memory::Region;
use crate::tile::{RegisterNeeds, Registers};

/// What lies unused.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    registers: Mutex<Vec<Registers>>,
    workspaces: Mutex<Vec<Workspace>>,
}

/// Registers, given back when dropped.
#[derive(Debug)]
pub(crate) struct Lease<'a> {
    scratch: &'a Scratch,
    registers: Registers,
}

/// Memory of a run for what its steps hand on to each other.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    lines: Lines,
    /// The buffers of the run.
    pub(crate) regions: Vec<Region>,
}

/// Memory of whole cache lines.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<Line>);

/// Memory is aligned for the widest vectors, and no two values share a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([u8; LINE_LEN]);

impl crate::memory::Element for Line {}

impl Scratch {
    pub(crate) fn registers(&self, needs: &RegisterNeeds) -> Lease<'_> {
        let mut unused = self
            .registers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut registers = unused.pop().unwrap_or_default();
        drop(unused);
        registers.fit(needs);
        Lease {
            scratch: self,
            registers,
        }
    }

    pub(crate) fn workspace(&self, len_bytes: usize) -> Workspace {
        let mut unused = self
            .workspaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut workspace = unused.pop().unwrap_or_default();
        drop(unused);
        let lines = len_bytes.div_ceil(LINE_LEN);
        if workspace.lines.0.len() < lines {
            workspace.lines = Lines(vec![Line([0; LINE_LEN]); lines]);
        }
        workspace
    }

    pub(crate) fn give_back(&self, mut workspace: Workspace) {
        workspace.regions.clear();
        let mut unused = self
            .workspaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if unused.len() < UNUSED_MAX {
            unused.push(workspace);
        }
    }
}

impl Workspace {
    pub(crate) fn region(&mut self) -> Region {
        Region::of(&mut self.lines.0)
    }
}

impl Lines {
    /// A copy of bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let line = |part: &[u8]| {
            let mut line = Line([0; LINE_LEN]);
            line.0[..part.len()].copy_from_slice(part);
            line
        };
        Self(bytes.chunks(LINE_LEN).map(line).collect())
    }

    /// The same, for reading only.
    pub(crate) fn region(&self) -> Region {
        Region::read_only(&self.0)
    }
}

impl Deref for Lease<'_> {
    type Target = Registers;

    fn deref(&self) -> &Registers {
        &self.registers
    }
}

impl DerefMut for Lease<'_> {
    fn deref_mut(&mut self) -> &mut Registers {
        &mut self.registers
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let registers = std::mem::take(&mut self.registers);
        let unused = &self.scratch.registers;
        let mut unused = unused.lock().unwrap_or_else(PoisonError::into_inner);
        unused.push(registers);
    }
}

/// Bytes of a cache line.
pub(crate) const LINE_LEN: usize = 64;
/// Workspaces that are kept: one for each stream that executes at one time, as a rule one or two.
const UNUSED_MAX: usize = 4;
