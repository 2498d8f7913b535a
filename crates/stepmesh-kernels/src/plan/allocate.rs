//! Gives the values of a kernel's programs registers, each again when its value is used no more, so
//! that few are needed and all stay in the nearest cache.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};

use stepmesh_fusion::Class;

use crate::kernel::Kernel;
use crate::tile::{Instr, Reg};

/// Replaces virtual registers by real ones. Globals keep theirs to the end.
pub(super) fn allocate(kernel: &mut Kernel, globals: &HashSet<Reg>) {
    let mut file = File {
        real: HashMap::new(),
        free: HashMap::new(),
        globals,
    };
    let mut stages = std::mem::take(&mut kernel.stages);
    let mut constants = std::mem::take(&mut kernel.constants);
    file.rename_all(kernel, &mut constants, &[]);
    for stage in &mut stages {
        let used_after: Vec<Reg> = stage.reduced.iter().map(|reduced| reduced.from).collect();
        // First: they live from one tile to the next, so the walk's own values must not share them.
        for reduced in &mut stage.reduced {
            reduced.value = file.real_of(kernel, reduced.value);
            reduced.place = file.real_of(kernel, reduced.place);
        }
        file.rename_all(kernel, &mut stage.full, &used_after);
        for reduced in &mut stage.reduced {
            let from = file.real.get(&reduced.from).copied();
            reduced.from = from.unwrap_or(reduced.from);
        }
        file.release(used_after.into_iter());
        file.rename_all(kernel, &mut stage.row, &[]);
        file.rename_all(kernel, &mut stage.spread, &[]);
    }
    kernel.constants = constants;
    kernel.stages = stages;
}

struct File<'a> {
    real: HashMap<Reg, Reg>,
    free: HashMap<Class, Vec<Reg>>,
    globals: &'a HashSet<Reg>,
}

impl File<'_> {
    fn rename_all(&mut self, kernel: &mut Kernel, program: &mut [Instr], used_after: &[Reg]) {
        let mut last_use: HashMap<Reg, usize> = HashMap::new();
        for (idx, instr) in program.iter().enumerate() {
            for reg in instr.operands().chain(instr.result()) {
                last_use.insert(reg, idx);
            }
        }
        for (idx, instr) in program.iter_mut().enumerate() {
            let virtual_result = instr.result();
            let operands: Vec<Reg> = instr.operands().collect();
            // Before operands are given back: an instruction does not write what it reads.
            let result = virtual_result.map(|reg| self.real_of(kernel, reg));
            *instr = instr.renamed(|reg| self.real.get(&reg).copied().unwrap_or(reg), result);
            let ended = operands.into_iter().chain(virtual_result);
            let ended = ended.filter(|reg| last_use[reg] == idx && !used_after.contains(reg));
            let ended: Vec<Reg> = ended.collect();
            self.release(ended.into_iter());
        }
    }

    fn real_of(&mut self, kernel: &mut Kernel, reg: Reg) -> Reg {
        if let Some(real) = self.real.get(&reg) {
            return *real;
        }
        let free = self.free.get_mut(&reg.class).and_then(Vec::pop);
        let real = free.unwrap_or_else(|| kernel.needs.add(reg.class));
        self.real.insert(reg, real);
        real
    }

    fn release(&mut self, ended: impl Iterator<Item = Reg>) {
        for reg in ended {
            if !self.globals.contains(&reg)
                && let Some(real) = self.real.remove(&reg)
            {
                self.free.entry(real.class).or_default().push(real);
            }
        }
    }
}
