//! What a kernel goes through: its form, the stages of its items, and how many threads do it.

use std::collections::HashMap;

use stepmesh_fusion::{Class, Cluster, Fold, Items, Kind, Level, Source, Space, views};

use crate::element::computed;
use crate::index::{Width, reach};
use crate::source::{THREADS, blocks, blocks_of};

/// What a kernel goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Elements(usize),
    Rows(Space),
    Columns(Space),
}

/// A reduction of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduction {
    pub(super) item: usize,
    pub(super) fold: Fold,
    /// What is folded.
    pub(super) class: Class,
}

/// How reductions are cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    pub(super) space: Space,
    pub(super) count: usize,
    /// Elements of `inner` in each; the last may have fewer.
    pub(super) len: usize,
}

pub(super) struct Plan {
    pub(super) form: Form,
    /// Of each item, the stage in which it is made.
    pub(super) stages: HashMap<usize, usize>,
    pub(super) last_stage: usize,
    pub(super) reductions: Vec<Reduction>,
    pub(super) width: Width,
}

impl Plan {
    pub(super) fn of(items: &Items, cluster: &Cluster) -> Self {
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
    pub(super) fn threads(&self) -> u32 {
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
    pub(super) fn grid(&self) -> (u32, u32) {
        match self.form {
            Form::Elements(count) => (blocks_of(count), THREADS),
            Form::Rows(space) => (blocks(space.outer), self.threads()),
            Form::Columns(space) => (blocks_of(space.kept()), THREADS),
        }
    }

    /// How reductions are cut, if there would be too few threads otherwise.
    pub(super) fn parts(&self) -> Option<Parts> {
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
    pub(super) fn is_empty(self) -> bool {
        match self {
            Self::Elements(count) => count == 0,
            Self::Rows(space) | Self::Columns(space) => space.kept() == 0,
        }
    }
}

impl Parts {
    /// Parts of all that is kept.
    pub(super) fn tasks(&self) -> usize {
        self.count * self.space.kept()
    }

    pub(super) fn grid(&self, threads: u32) -> (u32, u32) {
        match self.space.columns {
            1 => (blocks(self.tasks()), threads),
            _ => (blocks_of(self.tasks()), THREADS),
        }
    }
}

impl Reduction {
    /// Its type in the source.
    pub(super) fn name(&self) -> String {
        format!("{:?}<{}>", self.fold, computed(self.class))
    }

    pub(super) fn size_bytes(&self) -> usize {
        match (self.fold, self.class) {
            (Fold::ArgMax, _) => 16,
            (_, Class::F64 | Class::I64) => 8,
            (_, Class::F32 | Class::I32) => 4,
            (_, Class::U8) => 1,
        }
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
