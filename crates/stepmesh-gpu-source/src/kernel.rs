//! The kernel of a cluster. Three forms: elements one by one; rows that are reduced, a block each; and
//! columns that are reduced, a thread each. Where there are few of the latter two, they are cut into
//! parts, which a second kernel joins.
//!
//! A reduction is known when a walk through its elements is over, so that a cluster is several walks
//! (*stages*); what a later one needs again of an element is computed again.

use std::collections::HashMap;

use stepmesh_fusion::{
    Binary, Cluster, Fold, Items, Kind, Level, Order, Placement, Source, Space, Unary, View, views,
};

use crate::element::{Class, literal, narrow, narrowed, widened};
use crate::index::{Split, Width, of_view, reach};
use crate::source::{Kernel, Launched, THREADS, blocks, blocks_of};

/// Writes the kernels of a cluster. `partials` is asked for memory of so many bytes that the first
/// fills and the second reads.
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

/// What a kernel goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Elements(usize),
    Rows(Space),
    Columns(Space),
}

/// A reduction of a cluster.
#[derive(Clone, Copy, Debug)]
struct Reduction {
    item: usize,
    fold: Fold,
    /// What is folded.
    class: Class,
}

/// How reductions are cut.
#[derive(Clone, Copy, Debug)]
struct Parts {
    space: Space,
    count: usize,
    /// Elements of `inner` in each; the last may have fewer.
    len: usize,
}

struct Plan {
    form: Form,
    /// Of each item, the stage in which it is made.
    stages: HashMap<usize, usize>,
    last_stage: usize,
    reductions: Vec<Reduction>,
    width: Width,
}

impl Plan {
    fn of(items: &Items, cluster: &Cluster) -> Self {
        let form = match cluster.space {
            None => Form::Elements(cluster.element_count),
            Some(space) if space.columns == 1 => Form::Rows(space),
            Some(space) => Form::Columns(space),
        };
        let mut stages = HashMap::new();
        let mut reductions = Vec::new();
        let mut width = Width::of(cluster.element_count);
        for member in &cluster.members {
            let item = &items.list[member.item];
            let is_reduction = matches!(item.kind, Kind::Reduce { .. });
            let mut stage = 0;
            for view in views(item) {
                match cluster.level(view.item) {
                    None => width = width.max(Width::of(reach(view))),
                    Some(level) => {
                        let from = stages.get(&view.item).copied().unwrap_or(0);
                        let waits =
                            level == Level::Kept && (member.level == Level::Full || is_reduction);
                        stage = stage.max(from + usize::from(waits));
                    }
                }
            }
            stages.insert(member.item, stage);
            if let Kind::Reduce { fold, .. } = item.kind {
                let class = match &item.operands[0] {
                    Source::Splat(dtype, _) => Class::of(*dtype),
                    Source::View(view) => Class::of(items.list[view.item].dtype),
                };
                reductions.push(Reduction {
                    item: member.item,
                    fold,
                    class,
                });
            }
        }
        Self {
            form,
            last_stage: stages.values().copied().max().unwrap_or(0),
            stages,
            reductions,
            width,
        }
    }

    /// Threads of a block.
    fn threads(&self) -> u32 {
        let Form::Rows(space) = self.form else {
            return THREADS;
        };
        let lane: usize = self
            .reductions
            .iter()
            .map(|reduction| reduction.size_bytes())
            .sum();
        let mut threads = THREADS;
        // Each goes through some elements, so that the folding at the end is not most of the work.
        let few = |threads: u32| threads as usize * ROW_STEPS > space.inner;
        let too_much = |threads: u32| threads as usize * lane > SHARED_LEN_BYTES_MAX;
        while threads > THREADS_MIN && (few(threads) || too_much(threads)) {
            threads /= 2;
        }
        threads
    }

    /// Blocks, and threads of each.
    fn grid(&self) -> (u32, u32) {
        match self.form {
            Form::Elements(count) => (blocks_of(count), THREADS),
            Form::Rows(space) => (blocks(space.outer), self.threads()),
            Form::Columns(space) => (blocks_of(space.kept()), THREADS),
        }
    }

    /// How reductions are cut, if there would be too few threads otherwise.
    fn parts(&self) -> Option<Parts> {
        if self.last_stage > 0 || self.reductions.is_empty() {
            return None;
        }
        let (space, wanted, len_min) = match self.form {
            Form::Elements(_) => return None,
            Form::Rows(space) => (space, ROWS_WANTED, ROW_PART_LEN_MIN),
            Form::Columns(space) => (space, COLUMNS_WANTED, COLUMN_PART_LEN_MIN),
        };
        let most = space.inner / len_min;
        let count = (wanted / space.kept().max(1)).min(most);
        if count < 2 {
            return None;
        }
        let len = space.inner.div_ceil(count);
        let count = space.inner.div_ceil(len);
        Some(Parts { space, count, len })
    }
}

impl Form {
    /// Whether there is nothing to do.
    fn is_empty(self) -> bool {
        match self {
            Self::Elements(count) => count == 0,
            Self::Rows(space) | Self::Columns(space) => space.kept() == 0,
        }
    }
}

impl Parts {
    /// Parts of all that is kept.
    fn tasks(&self) -> usize {
        self.count * self.space.kept()
    }

    fn grid(&self, threads: u32) -> (u32, u32) {
        match self.space.columns {
            1 => (blocks(self.tasks()), threads),
            _ => (blocks_of(self.tasks()), THREADS),
        }
    }
}

impl Reduction {
    /// Its type in the source.
    fn name(&self) -> String {
        format!("{:?}<{}>", self.fold, self.class.name())
    }

    fn size_bytes(&self) -> usize {
        match (self.fold, self.class) {
            (Fold::ArgMax, _) => 16,
            (_, Class::F64 | Class::I64) => 8,
            (_, Class::F32 | Class::I32) => 4,
            (_, Class::U8) => 1,
        }
    }
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

    /// A loop of all threads of the grid.
    fn open_elements(&mut self, number: &str, count: usize) {
        let (name, count) = (self.plan.width.name(), self.number(count));
        self.kernel.body.open("STEPMESH_EACH(t)");
        self.kernel.body.open(format!(
            "for ({name} {number} = ({name})blockIdx.x * blockDim.x + t; {number} < {count}; \
             {number} += ({name})gridDim.x * blockDim.x)"
        ));
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
                let (class, item) = (self.class(reduction.item).name(), reduction.item);
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
                let (class, item) = (self.class(reduction.item).name(), reduction.item);
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
            let (class, item) = (self.class(reduction.item).name(), reduction.item);
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

    fn class(&self, item: usize) -> Class {
        Class::of(self.items.list[item].dtype)
    }

    /// The name of an item's value, made by a line if there is none yet.
    fn value(&mut self, item: usize, level: Level, made: &mut Made) -> String {
        if let Some(name) = made.values.get(&item) {
            return name.clone();
        }
        let own = &self.items.list[item];
        let mut operands = Vec::with_capacity(own.operands.len());
        for operand in &own.operands {
            operands.push(match own.kind {
                Kind::Random { .. } => self.scalar(operand),
                _ => self.operand(operand, level, made),
            });
        }
        let name = if own.kind == Kind::Move {
            operands.pop().unwrap_or_default()
        } else {
            let (class, text) = (self.class(item).name(), self.expression(item, &operands));
            self.line(format!("const {class} v{item} = {text};"));
            format!("v{item}")
        };
        made.values.insert(item, name.clone());
        name
    }

    fn expression(&self, item: usize, operands: &[String]) -> String {
        let own = &self.items.list[item];
        let all = operands.join(", ");
        match own.kind {
            Kind::Unary(op) => format!("{}({all})", unary(op)),
            Kind::Binary(op) => format!("{}({all})", binary(op)),
            Kind::Compare(order) => format!("{} {} {}", operands[0], sign(order), operands[1]),
            Kind::Select => format!("{} != 0 ? {} : {}", operands[0], operands[1], operands[2]),
            Kind::Round => format!("round_{}({all})", narrow(own.dtype).unwrap_or("f32")),
            Kind::Random { normal } => {
                let name = if normal { "normal" } else { "uniform" };
                match own.dtype {
                    stepmesh_graph::DType::F64 => format!("{name}64({all}, i)"),
                    _ if normal => format!("{name}32({all}, i)"),
                    dtype => format!("{name}32({all}, i, {})", random_bits(dtype)),
                }
            }
            _ if own.dtype == stepmesh_graph::DType::Bool => format!("to_bool({all})"),
            _ => format!("to_{}({all})", Class::of(own.dtype).short()),
        }
    }

    fn operand(&mut self, operand: &Source, level: Level, made: &mut Made) -> String {
        let view = match operand {
            Source::Splat(dtype, value) => return literal(Class::of(*dtype), *value),
            Source::View(view) => view,
        };
        match (self.cluster.level(view.item), level) {
            (Some(Level::Full), _) => self.value(view.item, Level::Full, made),
            (Some(Level::Kept), Level::Kept) => self.value(view.item, Level::Kept, made),
            (Some(Level::Kept), Level::Full) => {
                let known = self.kept.values.get(&view.item);
                known.cloned().unwrap_or_else(|| format!("v{}", view.item))
            }
            (None, _) => self.load(view, level, made),
        }
    }

    fn load(&mut self, view: &View, level: Level, made: &mut Made) -> String {
        if let Some((_, name)) = made.loads.iter().find(|(known, _)| known == view) {
            return name.clone();
        }
        let columns;
        let (number, split) = match (level, self.plan.form) {
            (Level::Full, Form::Elements(_)) => ("i", None),
            (Level::Full, Form::Rows(space)) => ("i", Some((space.inner, "row", "k"))),
            (Level::Full, Form::Columns(space)) => ("i", Some((space.columns, "line", "column"))),
            (Level::Kept, Form::Columns(space)) => {
                columns = space.columns;
                ("kept", Some((columns, "outer", "column")))
            }
            (Level::Kept, _) => ("row", None),
        };
        let split = split.map(|(extent, quotient, remainder)| Split {
            extent,
            quotient,
            remainder,
        });
        let index = of_view(view, number, split, self.plan.width);
        let dtype = self.items.list[view.item].dtype;
        let from = self
            .kernel
            .read(self.items, view.item, self.places.buffer(view.item));
        let name = format!("x{}", self.loads);
        self.loads += 1;
        let (class, element) = (Class::of(dtype).name(), format!("{from}[{index}]"));
        self.line(format!(
            "const {class} {name} = {};",
            widened(dtype, &element)
        ));
        made.loads.push((view.clone(), name.clone()));
        name
    }

    /// A number that is the same for all elements.
    fn scalar(&mut self, operand: &Source) -> String {
        match operand {
            Source::Splat(dtype, value) => literal(Class::of(*dtype), *value),
            Source::View(view) => {
                let buffer = self.places.buffer(view.item);
                let from = self.kernel.read(self.items, view.item, buffer);
                format!("{from}[{}]", view.start)
            }
        }
    }
}

fn unary(op: Unary) -> &'static str {
    match op {
        Unary::Neg => "neg",
        Unary::Exp => "exp",
        Unary::Log => "log",
        Unary::Sqrt => "sqrt",
        Unary::Rsqrt => "rsqrt",
        Unary::Tanh => "tanh",
        Unary::Sigmoid => "sigmoid",
        Unary::Relu => "relu",
        Unary::Silu => "silu",
        Unary::GeluErf => "gelu_erf",
        Unary::GeluTanh => "gelu_tanh",
    }
}

fn binary(op: Binary) -> &'static str {
    match op {
        Binary::Add => "add",
        Binary::Sub => "sub",
        Binary::Mul => "mul",
        Binary::Div => "div",
        Binary::Pow => "pow",
        Binary::Max => "max",
        Binary::Min => "min",
    }
}

fn sign(order: Order) -> &'static str {
    match order {
        Order::Eq => "==",
        Order::Ne => "!=",
        Order::Lt => "<",
        Order::Le => "<=",
        Order::Gt => ">",
        Order::Ge => ">=",
    }
}

/// Bits of a word that a uniform number is made of.
fn random_bits(dtype: stepmesh_graph::DType) -> &'static str {
    match dtype {
        stepmesh_graph::DType::F16 => "11u",
        stepmesh_graph::DType::BF16 => "8u",
        _ => "24u",
    }
}

/// Elements that each thread of a row goes through at least, if the row has that many.
const ROW_STEPS: usize = 4;
/// Threads of a block at least: a warp.
const THREADS_MIN: u32 = 32;
/// Shared memory of a block at most: so that several share a multiprocessor.
const SHARED_LEN_BYTES_MAX: usize = 16 << 10;
/// Blocks of rows, and threads of columns, that occupy the largest devices some times over.
const ROWS_WANTED: usize = 1024;
const COLUMNS_WANTED: usize = 1 << 17;
/// Elements of a part at least: what a block, or a thread, is worth being begun for.
const ROW_PART_LEN_MIN: usize = 4096;
const COLUMN_PART_LEN_MIN: usize = 64;
