//! The kernel of a cluster. Three forms: elements one by one; rows that are reduced, a block each; and
//! columns that are reduced, a thread each. Where there are few of the latter two, they are cut into
//! parts, which a second kernel joins.
//!
//! A reduction is known when a walk through its elements is over, so that a cluster is several walks
//! (*stages*); what a later one needs again of an element is computed again.

mod form;
mod value;

use std::collections::HashMap;

use stepmesh_fusion::{Class, Cluster, Fold, Items, Kind, Level, Placement, Space, View};

use self::form::{Form, Parts, Plan, Reduction};
use crate::element::{computed, narrowed};
use crate::source::{Kernel, Launched};

/// Writes the kernels of a cluster: one, or two where reductions are cut into parts. What the first of
/// those leaves for the second gets parts of the workspace.
pub(crate) fn emit(
    items: &Items,
    cluster: &Cluster,
    places: &mut Placement,
    position: usize,
    name: &str,
    source: &mut String,
) -> Vec<Launched> {
    let plan = Plan::of(items, cluster);
    if plan.form.is_empty() {
        return Vec::new();
    }
    let Some(parts) = plan.parts() else {
        let mut emitter = Emitter::new(items, cluster, places, &plan, name.to_owned());
        match plan.form {
            Form::Elements(count) => emitter.elements(count),
            Form::Rows(space) => emitter.rows(space),
            Form::Columns(space) => emitter.columns(space),
        }
        let (blocks, threads) = plan.grid();
        return vec![emitter.kernel.finish(blocks, threads, source)];
    };
    let partials: Vec<usize> = plan
        .reductions
        .iter()
        .map(|reduction| {
            let len_bytes = reduction.size_bytes() * parts.count * parts.space.kept();
            places.buffers.add_part(len_bytes, position, position)
        })
        .collect();
    let mut first = Emitter::new(items, cluster, places, &plan, format!("{name}_parts"));
    first.parts(&parts, &partials);
    let (blocks, threads) = parts.grid(plan.threads());
    let first = first.kernel.finish(blocks, threads, source);
    let mut second = Emitter::new(items, cluster, places, &plan, name.to_owned());
    second.join(&parts, &partials);
    let (blocks, threads) = plan.grid();
    vec![first, second.kernel.finish(blocks, threads, source)]
}

/// Values that the lines so far have names for.
#[derive(Default)]
struct Made {
    values: HashMap<usize, String>,
    loads: Vec<(View, String)>,
}

struct Emitter<'a> {
    items: &'a Items,
    cluster: &'a Cluster,
    places: &'a Placement,
    plan: &'a Plan,
    kernel: Kernel,
    /// What reductions leave, and what is done with it: known till the end of a row or a column.
    kept: Made,
    loads: usize,
}

impl<'a> Emitter<'a> {
    fn new(
        items: &'a Items,
        cluster: &'a Cluster,
        places: &'a Placement,
        plan: &'a Plan,
        name: String,
    ) -> Self {
        Self {
            items,
            cluster,
            places,
            plan,
            kernel: Kernel::new(name),
            kept: Made::default(),
            loads: 0,
        }
    }

    fn elements(&mut self, count: usize) {
        self.open_elements("i", count);
        self.walk(0);
        self.close(2);
    }

    fn open_elements(&mut self, number: &str, count: usize) {
        self.kernel.open_elements(self.plan.width, number, count);
    }

    fn close(&mut self, blocks: usize) {
        for _ in 0..blocks {
            self.kernel.body.close();
        }
    }

    fn line(&mut self, line: impl AsRef<str>) {
        self.kernel.body.line(line);
    }

    fn number(&self, number: usize) -> String {
        self.plan.width.literal(number)
    }

    fn rows(&mut self, space: Space) {
        self.lanes();
        let (name, rows) = (self.plan.width.name(), self.number(space.outer));
        self.kernel.body.open(format!(
            "for ({name} row = blockIdx.x; row < {rows}; row += gridDim.x)"
        ));
        for stage in 0..=self.plan.last_stage {
            let folded = self.reductions_of(stage);
            self.open_together(&folded);
            self.line_none(&folded);
            let inner = self.number(space.inner);
            self.open_row_walk(stage, "t", &inner, &inner);
            self.put_lanes(&folded);
            for reduction in &folded {
                let (class, item) = (self.class(reduction.item), reduction.item);
                self.line(format!(
                    "const {class} v{item} = fold_block(lanes{item}).value;"
                ));
            }
            self.kept_items(stage);
        }
        self.close(1);
    }

    /// The walk of a stage through a row, from `first` on.
    fn open_row_walk(&mut self, stage: usize, first: &str, end: &str, inner: &str) {
        if !self.has_walk(stage) {
            return;
        }
        let name = self.plan.width.name();
        self.kernel.body.open(format!(
            "for ({name} k = {first}; k < {end}; k += blockDim.x)"
        ));
        self.line(format!("const {name} i = row * {inner} + k;"));
        self.walk(stage);
        self.close(1);
    }

    fn columns(&mut self, space: Space) {
        self.open_elements("kept", space.kept());
        self.line_outer("kept", space);
        for stage in 0..=self.plan.last_stage {
            let folded = self.reductions_of(stage);
            self.line_none(&folded);
            let inner = self.number(space.inner);
            self.open_column_walk(stage, "0", &inner, space);
            for reduction in &folded {
                let (class, item) = (self.class(reduction.item), reduction.item);
                self.line(format!("const {class} v{item} = r{item}.value;"));
            }
            self.kept_items(stage);
        }
        self.close(2);
    }

    fn line_outer(&mut self, number: &str, space: Space) {
        let (name, columns) = (self.plan.width.name(), self.number(space.columns));
        self.line(format!(
            "const {name} outer = {number} / {columns}, column = {number} % {columns};"
        ));
    }

    fn open_column_walk(&mut self, stage: usize, first: &str, end: &str, space: Space) {
        if !self.has_walk(stage) {
            return;
        }
        let name = self.plan.width.name();
        let (inner, columns) = (self.number(space.inner), self.number(space.columns));
        self.kernel
            .body
            .open(format!("for ({name} k = {first}; k < {end}; ++k)"));
        self.line(format!("const {name} line = outer * {inner} + k;"));
        self.line(format!("const {name} i = line * {columns} + column;"));
        self.walk(stage);
        self.close(1);
    }

    /// The kernel that folds parts, each into an element of `partials`.
    fn parts(&mut self, parts: &Parts, partials: &[usize]) {
        let Parts { space, count, len } = *parts;
        let name = self.plan.width.name();
        let kept = self.number(space.kept());
        let (tasks, count) = (self.number(parts.tasks()), self.number(count));
        let (len, inner) = (self.number(len), self.number(space.inner));
        let folded = self.reductions_of(0);
        let is_row = space.columns == 1;
        if is_row {
            self.lanes();
            self.kernel.body.open(format!(
                "for ({name} task = blockIdx.x; task < {tasks}; task += gridDim.x)"
            ));
            self.line(format!(
                "const {name} row = task / {count}, part = task % {count};"
            ));
        } else {
            self.open_elements("task", parts.tasks());
            self.line(format!(
                "const {name} kept = task % {kept}, part = task / {kept};"
            ));
            self.line_outer("kept", space);
        }
        self.line(format!(
            "const {name} first = part * {len}, end = first + {len} < {inner} ? first + {len} : {inner};"
        ));
        if is_row {
            self.open_together(&folded);
            self.line_none(&folded);
            self.open_row_walk(0, "first + t", "end", &inner);
            self.put_lanes(&folded);
        } else {
            self.line_none(&folded);
            self.open_column_walk(0, "first", "end", space);
        }
        for (reduction, buffer) in folded.iter().zip(partials) {
            let (item, fold) = (reduction.item, reduction.name());
            let partial = self.kernel.pointer(*buffer, &fold, true);
            if is_row {
                self.line(format!("const {fold} r{item} = fold_block(lanes{item});"));
                self.open_first_thread();
                self.line(format!("{partial}[task] = r{item};"));
                self.close(1);
            } else {
                self.line(format!("{partial}[task] = r{item};"));
            }
        }
        self.close(if is_row { 1 } else { 2 });
    }

    /// The kernel that joins parts, and goes on with what that gives.
    fn join(&mut self, parts: &Parts, partials: &[usize]) {
        let Parts { space, count, .. } = *parts;
        let name = self.plan.width.name();
        let (kept, count) = (self.number(space.kept()), self.number(count));
        let folded = self.reductions_of(0);
        let is_row = space.columns == 1;
        if is_row {
            self.lanes();
            self.kernel.body.open(format!(
                "for ({name} row = blockIdx.x; row < {kept}; row += gridDim.x)"
            ));
            self.open_together(&folded);
        } else {
            self.open_elements("kept", space.kept());
            self.line_outer("kept", space);
        }
        self.line_none(&folded);
        let (first, step) = if is_row {
            ("t", "blockDim.x")
        } else {
            ("0", "1")
        };
        self.kernel.body.open(format!(
            "for ({name} part = {first}; part < {count}; part += {step})"
        ));
        for (reduction, buffer) in folded.iter().zip(partials) {
            let (item, fold) = (reduction.item, reduction.name());
            let partial = self.kernel.pointer(*buffer, &fold, false);
            let place = if is_row {
                format!("row * {count} + part")
            } else {
                format!("part * {kept} + kept")
            };
            self.line(format!(
                "r{item} = {fold}::join(r{item}, {partial}[{place}]);"
            ));
        }
        self.close(1);
        if is_row {
            self.put_lanes(&folded);
        }
        for reduction in &folded {
            let (class, item) = (self.class(reduction.item), reduction.item);
            let whole = if is_row {
                format!("fold_block(lanes{item})")
            } else {
                format!("r{item}")
            };
            self.line(format!("const {class} v{item} = {whole}.value;"));
        }
        self.kept_items(0);
        self.close(if is_row { 1 } else { 2 });
    }

    /// Shared memory in which the threads of a block fold what each has.
    fn lanes(&mut self) {
        let threads = self.plan.threads();
        for reduction in &self.plan.reductions {
            let (item, fold) = (reduction.item, reduction.name());
            self.line(format!("__shared__ {fold} lanes{item}[{threads}];"));
        }
    }

    fn open_together(&mut self, folded: &[Reduction]) {
        if folded.is_empty() {
            return self.kernel.body.open("STEPMESH_EACH(t)");
        }
        // What was folded of the row before has been read by all.
        self.line("STEPMESH_BARRIER();");
        self.kernel.body.open("STEPMESH_TOGETHER(t)");
    }

    fn put_lanes(&mut self, folded: &[Reduction]) {
        for Reduction { item, .. } in folded {
            self.line(format!("lanes{item}[t] = r{item};"));
        }
        self.close(1);
    }

    fn open_first_thread(&mut self) {
        self.kernel.body.open("STEPMESH_EACH(t) if (t == 0)");
    }

    fn line_none(&mut self, folded: &[Reduction]) {
        for reduction in folded {
            let (item, fold) = (reduction.item, reduction.name());
            self.line(format!("{fold} r{item} = {fold}::none();"));
        }
    }

    fn reductions_of(&self, stage: usize) -> Vec<Reduction> {
        let all = self.plan.reductions.iter();
        all.filter(|reduction| self.plan.stages[&reduction.item] == stage)
            .copied()
            .collect()
    }

    /// Whether a stage goes through elements at all.
    fn has_walk(&self, stage: usize) -> bool {
        let does_something = self.cluster.members.iter().any(|member| {
            let is_reduction = matches!(self.items.list[member.item].kind, Kind::Reduce { .. });
            self.plan.stages[&member.item] == stage
                && (is_reduction
                    || (member.level == Level::Full && self.places.is_stored(member.item)))
        });
        does_something && self.cluster.element_count > 0
    }

    /// What is done with one element in a stage: reductions go on, and what is stored is written,
    /// last, so that a result may replace an argument that is read.
    fn walk(&mut self, stage: usize) {
        let mut made = Made::default();
        let mut stores = Vec::new();
        for member in &self.cluster.members {
            if self.plan.stages[&member.item] != stage {
                continue;
            }
            let item = &self.items.list[member.item];
            if member.level == Level::Full && self.places.is_stored(member.item) {
                let value = self.value(member.item, Level::Full, &mut made);
                stores.push(self.store(member.item, "i", &value));
            } else if let Kind::Reduce { fold, .. } = item.kind {
                let value = self.operand(&item.operands[0], Level::Full, &mut made);
                let reduction = self
                    .plan
                    .reductions
                    .iter()
                    .find(|own| own.item == member.item);
                let name = reduction.map(Reduction::name).unwrap_or_default();
                let place = if fold == Fold::ArgMax { "k" } else { "0" };
                let own = member.item;
                self.line(format!(
                    "r{own} = {name}::join(r{own}, {name}::of({value}, {place}));"
                ));
            }
        }
        for store in stores {
            self.line(store);
        }
    }

    /// What is done with what the reductions of a stage left.
    fn kept_items(&mut self, stage: usize) {
        let is_row = matches!(self.plan.form, Form::Rows(_));
        for member in &self.cluster.members {
            if member.level != Level::Kept || self.plan.stages[&member.item] != stage {
                continue;
            }
            let mut kept = std::mem::take(&mut self.kept);
            let is_reduction = matches!(self.items.list[member.item].kind, Kind::Reduce { .. });
            let value = if is_reduction {
                format!("v{}", member.item)
            } else {
                self.value(member.item, Level::Kept, &mut kept)
            };
            kept.values.insert(member.item, value.clone());
            self.kept = kept;
            if !self.places.is_stored(member.item) {
                continue;
            }
            let store = self.store(member.item, self.kept_number(), &value);
            if is_row {
                self.open_first_thread();
                self.line(store);
                self.close(1);
            } else {
                self.line(store);
            }
        }
    }

    fn kept_number(&self) -> &'static str {
        match self.plan.form {
            Form::Columns(_) => "kept",
            _ => "row",
        }
    }

    fn store(&mut self, item: usize, number: &str, value: &str) -> String {
        let dtype = self.items.list[item].dtype;
        let to = self.kernel.written(self.places.buffer(item), dtype);
        format!("{to}[{number}] = {};", narrowed(dtype, value))
    }

    /// The type in C++ of an item's value.
    fn class(&self, item: usize) -> &'static str {
        computed(Class::of(self.items.list[item].dtype))
    }
}
