//! Writes the programs of a cluster. Each stage is one walk through the elements: what an item needs
//! of a reduction is there a stage later, and what a later stage needs again is kept if a row is
//! walked, or made again. Registers are given out in the allocate module.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};

use stepmesh_fusion::{
    Class, Cluster, Fold, Items, Kind, Level, Placement, Scalar, Source, Space, View, dense_dims,
    views,
};

use super::allocate::allocate;
use super::chain::join;
use crate::kernel::{Kernel, Stage};
use crate::product::Product;
use crate::tile::{Access, Instr, Reduced, Reg};

/// The kernel of a cluster, or the program of its product.
pub(super) fn emit(items: &Items, cluster: &Cluster, places: &Placement) -> Kernel {
    let space = cluster.space.unwrap_or(Space {
        outer: 1,
        inner: 1,
        columns: cluster.element_count,
    });
    let mut emitter = Emitter {
        items,
        cluster,
        places,
        kernel: Kernel {
            outer: space.outer,
            inner: space.inner,
            columns: space.columns,
            parts: 1,
            ..Kernel::default()
        },
        is_row: cluster.space.is_some() && space.columns == 1,
        stages: HashMap::new(),
        virtuals: 0,
        globals: HashSet::new(),
        numbers: Vec::new(),
        uniforms: HashMap::new(),
        kept: HashMap::new(),
        spread: HashMap::new(),
        slots: HashMap::new(),
    };
    emitter.find_stages();
    if let Some(product) = cluster.product(items) {
        emitter.kernel.needs.kept = Product::kept(items.list[product].dtype);
    } else if emitter.is_row {
        emitter.choose_kept();
    }
    let last = emitter.stages.values().copied().max().unwrap_or(0);
    for stage in 0..=last {
        let stage = emitter.stage(stage);
        emitter.kernel.stages.push(stage);
    }
    allocate(&mut emitter.kernel, &emitter.globals);
    join(&mut emitter.kernel);
    emitter.kernel.choose_parts();
    emitter.kernel
}

struct Emitter<'a> {
    items: &'a Items,
    cluster: &'a Cluster,
    places: &'a Placement,
    kernel: Kernel,
    /// Rows are walked, and not tiles of columns.
    is_row: bool,
    /// Of each item, the stage in which it is made.
    stages: HashMap<usize, usize>,
    virtuals: usize,
    /// Registers that live as long as the kernel runs.
    globals: HashSet<Reg>,
    numbers: Vec<(Class, Scalar, Reg)>,
    /// Registers of views that are one number throughout, by their access.
    uniforms: HashMap<usize, Reg>,
    /// Registers of what reductions leave, and those that have it as a whole tile.
    kept: HashMap<usize, Reg>,
    spread: HashMap<usize, Reg>,
    /// Rows that are kept for later stages.
    slots: HashMap<usize, usize>,
}

/// The program of a walk that is being written.
#[derive(Default)]
struct Walk {
    program: Vec<Instr>,
    made: HashMap<usize, Reg>,
    loaded: HashMap<usize, Reg>,
}

impl Emitter<'_> {
    fn find_stages(&mut self) {
        for member in &self.cluster.members {
            let mut stage = 0;
            let item = &self.items.list[member.item];
            for view in views(item) {
                let Some(level) = self.cluster.level(view.item) else {
                    continue;
                };
                let from = self.stages.get(&view.item).copied().unwrap_or(0);
                let waits = level == Level::Kept
                    && (member.level == Level::Full || matches!(item.kind, Kind::Reduce { .. }));
                stage = stage.max(from + usize::from(waits));
            }
            self.stages.insert(member.item, stage);
        }
    }

    /// Which items of a row more than one stage uses.
    fn choose_kept(&mut self) {
        let last = self.stages.values().copied().max().unwrap_or(0);
        let mut first_use: HashMap<usize, usize> = HashMap::new();
        for stage in 0..=last {
            let mut wanted: Vec<usize> = self.roots(stage);
            while let Some(item) = wanted.pop() {
                match first_use.get(&item) {
                    Some(first) if *first == stage => continue,
                    Some(_) => {
                        if !self.slots.contains_key(&item) && !self.is_plain_load(item) {
                            let class = Class::of(self.items.list[item].dtype);
                            self.slots.insert(item, self.kernel.needs.kept.len());
                            self.kernel.needs.kept.push((class, self.kernel.inner));
                            continue;
                        }
                        if self.slots.contains_key(&item) {
                            continue;
                        }
                    }
                    None => {
                        first_use.insert(item, stage);
                    }
                }
                wanted.extend(self.full_operands(item));
            }
        }
    }

    /// An item that is as quickly read again as it would be kept.
    fn is_plain_load(&self, item: usize) -> bool {
        self.items.list[item].kind == Kind::Move
    }

    fn full_operands(&self, item: usize) -> Vec<usize> {
        let views = views(&self.items.list[item]).map(|view| view.item);
        views
            .filter(|item| self.cluster.level(*item) == Some(Level::Full))
            .collect()
    }

    /// What a stage's walk is for, as items of the full level.
    fn roots(&self, stage: usize) -> Vec<usize> {
        let mut roots = Vec::new();
        for member in &self.cluster.members {
            if self.stages[&member.item] != stage {
                continue;
            }
            match member.level {
                Level::Full if self.places.is_stored(member.item) => roots.push(member.item),
                Level::Full => {}
                Level::Kept => roots.extend(self.full_operands(member.item)),
            }
        }
        roots
    }

    fn stage(&mut self, number: usize) -> Stage {
        let mut walk = Walk::default();
        let mut stage = Stage::default();
        let mut stores = Vec::new();
        for member in &self.cluster.members {
            if self.stages[&member.item] != number {
                continue;
            }
            let item = &self.items.list[member.item];
            match (member.level, &item.kind) {
                (Level::Full, _) if self.places.is_stored(member.item) => {
                    let from = self.make(member.item, &mut walk);
                    stores.push(self.store(member.item, from));
                }
                (Level::Full, _) => {}
                (Level::Kept, Kind::Reduce { fold, .. }) => {
                    let from = self.operand(&item.operands[0], Level::Full, &mut walk);
                    let reduced = self.reduction(*fold, from);
                    let value = self.reduced_value(member.item, &reduced, &mut stage.row);
                    self.finish_kept(member.item, value, &mut stage);
                    stage.reduced.push(reduced);
                }
                (Level::Kept, _) => {
                    let mut row = Walk {
                        program: std::mem::take(&mut stage.row),
                        ..Walk::default()
                    };
                    let value = self.compute(member.item, Level::Kept, &mut row);
                    stage.row = row.program;
                    self.finish_kept(member.item, value, &mut stage);
                }
            }
        }
        stage.full = walk.program;
        // Last, so that a result may replace an argument that the walk reads.
        stage.full.extend(stores);
        stage
    }

    /// Makes a kept value known to later items.
    fn finish_kept(&mut self, item: usize, value: Reg, stage: &mut Stage) {
        self.globals.insert(value);
        self.kept.insert(item, value);
        if self.places.is_stored(item) {
            let store = self.store(item, value);
            stage.row.push(store);
        }
        let is_spread = self.is_row
            && self.cluster.members.iter().any(|member| {
                let own = &self.items.list[member.item];
                let reads = member.level == Level::Full || matches!(own.kind, Kind::Reduce { .. });
                reads && views(own).any(|view| view.item == item)
            });
        if is_spread {
            let to = self.global(value.class);
            stage.spread.push(Instr::Splat { from: value, to });
            self.spread.insert(item, to);
        }
    }

    fn reduction(&mut self, fold: Fold, from: Reg) -> Reduced {
        let class = if from.class.is_float() {
            Class::F64
        } else {
            Class::I64
        };
        Reduced {
            fold,
            from,
            value: self.global(class),
            place: self.global(Class::I64),
        }
    }

    /// What a reduction gave, in the class of its item.
    fn reduced_value(&mut self, item: usize, reduced: &Reduced, row: &mut Vec<Instr>) -> Reg {
        let class = Class::of(self.items.list[item].dtype);
        let from = if reduced.fold == Fold::ArgMax {
            reduced.place
        } else {
            reduced.value
        };
        if from.class == class {
            return from;
        }
        let to = self.global(class);
        row.push(Instr::Cast {
            from,
            to,
            is_bool: false,
        });
        to
    }

    fn store(&mut self, item: usize, from: Reg) -> Instr {
        let own = &self.items.list[item];
        let dims = dense_dims(&own.dims);
        let buffer = self.places.buffer(item);
        let access = self.access(Access::new(buffer, own.dtype, 0, dims));
        Instr::Store { access, from }
    }

    fn access(&mut self, access: Access) -> usize {
        let accesses = &mut self.kernel.accesses;
        let found = accesses.iter().position(|other| *other == access);
        found.unwrap_or_else(|| {
            accesses.push(access);
            accesses.len() - 1
        })
    }

    /// The register of an item of the full level, made in this walk if it was not yet.
    fn make(&mut self, item: usize, walk: &mut Walk) -> Reg {
        if let Some(made) = walk.made.get(&item) {
            return *made;
        }
        let slot = self.slots.get(&item).copied();
        let is_kept = slot.is_some() && self.is_recalled(item);
        let reg = match slot {
            Some(slot) if is_kept => {
                let to = self.local(Class::of(self.items.list[item].dtype));
                walk.program.push(Instr::Recall { slot, to });
                to
            }
            _ => self.compute(item, Level::Full, walk),
        };
        if let Some(slot) = slot.filter(|_| !is_kept) {
            walk.program.push(Instr::Keep { slot, from: reg });
        }
        walk.made.insert(item, reg);
        reg
    }

    /// Whether an earlier stage kept the item.
    fn is_recalled(&self, item: usize) -> bool {
        let slot = self.slots[&item];
        let keeps =
            |instr: &Instr| matches!(instr, Instr::Keep { slot: kept, .. } if *kept == slot);
        let mut stages = self.kernel.stages.iter();
        stages.any(|stage| stage.full.iter().any(keeps))
    }

    fn compute(&mut self, item: usize, level: Level, walk: &mut Walk) -> Reg {
        let own = &self.items.list[item];
        let class = Class::of(own.dtype);
        if own.kind == Kind::Product {
            let to = self.local(class);
            walk.program.push(Instr::Recall { slot: 0, to });
            return to;
        }
        if let Kind::Random { normal } = own.kind {
            let [seed, offset] = [0, 1].map(|place| self.scalar(&own.operands[place]));
            let to = self.local(class);
            let dtype = own.dtype;
            walk.program.push(Instr::Random {
                normal,
                dtype,
                seed,
                offset,
                to,
            });
            return to;
        }
        let mut regs = Vec::with_capacity(own.operands.len());
        for operand in &own.operands {
            regs.push(self.operand(operand, level, walk));
        }
        if own.kind == Kind::Move {
            return regs[0];
        }
        let to = self.local(class);
        walk.program.push(match own.kind {
            Kind::Unary(op) => Instr::Unary {
                op,
                from: regs[0],
                to,
            },
            Kind::Binary(op) => Instr::Binary {
                op,
                a: regs[0],
                b: regs[1],
                to,
            },
            Kind::Compare(order) => Instr::Compare {
                order,
                a: regs[0],
                b: regs[1],
                to,
            },
            Kind::Select => Instr::Select {
                condition: regs[0],
                a: regs[1],
                b: regs[2],
                to,
            },
            Kind::Round => Instr::Round {
                dtype: own.dtype,
                from: regs[0],
                to,
            },
            _ => Instr::Cast {
                from: regs[0],
                to,
                is_bool: own.dtype == stepmesh_graph::DType::Bool,
            },
        });
        to
    }

    /// The register of an operand.
    fn operand(&mut self, operand: &Source, level: Level, walk: &mut Walk) -> Reg {
        let view = match operand {
            Source::Splat(dtype, value) => return self.number(Class::of(*dtype), *value),
            Source::View(view) => view,
        };
        match (self.cluster.level(view.item), level) {
            (Some(Level::Full), _) => self.make(view.item, walk),
            (Some(Level::Kept), Level::Kept) => self.kept[&view.item],
            (Some(Level::Kept), Level::Full) => {
                let spread = self.spread.get(&view.item);
                *spread.unwrap_or_else(|| &self.kept[&view.item])
            }
            (None, _) => self.load(view, walk),
        }
    }

    fn load(&mut self, view: &View, walk: &mut Walk) -> Reg {
        let access = self.view_access(view);
        if let Some(loaded) = walk.loaded.get(&access) {
            return *loaded;
        }
        if self.kernel.accesses[access].is_uniform() {
            return self.uniform(access, self.view_class(view));
        }
        let to = self.local(self.view_class(view));
        walk.program.push(Instr::Load { access, to });
        walk.loaded.insert(access, to);
        to
    }

    fn view_class(&self, view: &View) -> Class {
        Class::of(self.items.list[view.item].dtype)
    }

    fn view_access(&mut self, view: &View) -> usize {
        let dtype = self.items.list[view.item].dtype;
        let dims = view.dims.iter().copied();
        self.access(Access::new(
            self.places.buffer(view.item),
            dtype,
            view.start,
            dims,
        ))
    }

    /// A number that is the same for all elements, read before any walk.
    fn scalar(&mut self, operand: &Source) -> Reg {
        match operand {
            Source::Splat(dtype, value) => self.number(Class::of(*dtype), *value),
            Source::View(view) => {
                let access = self.view_access(view);
                self.uniform(access, self.view_class(view))
            }
        }
    }

    /// The register of a view that is one number throughout, read before any walk.
    fn uniform(&mut self, access: usize, class: Class) -> Reg {
        if let Some(known) = self.uniforms.get(&access) {
            return *known;
        }
        let to = self.global(class);
        self.kernel.constants.push(Instr::Load { access, to });
        self.uniforms.insert(access, to);
        to
    }

    fn number(&mut self, class: Class, value: Scalar) -> Reg {
        let is_it = |known: &&(Class, Scalar, Reg)| known.0 == class && same_bits(known.1, value);
        if let Some((_, _, reg)) = self.numbers.iter().find(is_it) {
            return *reg;
        }
        let to = self.global(class);
        self.kernel.constants.push(Instr::Constant { value, to });
        self.numbers.push((class, value, to));
        to
    }

    fn local(&mut self, class: Class) -> Reg {
        self.virtuals += 1;
        Reg {
            class,
            idx: self.virtuals - 1,
        }
    }

    fn global(&mut self, class: Class) -> Reg {
        let reg = self.local(class);
        self.globals.insert(reg);
        reg
    }
}

/// Whether two numbers are one, the sign of a zero too.
fn same_bits(a: Scalar, b: Scalar) -> bool {
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => a.to_bits() == b.to_bits(),
        (Scalar::Int(a), Scalar::Int(b)) => a == b,
        _ => false,
    }
}
