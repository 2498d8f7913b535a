//! Which items are computed together: each cluster becomes one kernel, so that what its items give
//! each other never goes to memory. An item joins the cluster of an operand if both go through the
//! same elements in the same order, and if no cluster would come to wait for itself.
use crate::item::{Item, Items, Kind, Source, Space, View, element_count, merge};

/// What may be one kernel on the device that is compiled for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Items of a cluster at most.
    pub members_max: usize,
    /// Longest row, in elements, that a kernel goes through several times: later walks should find it
    /// in a cache.
    pub staged_len_max: usize,
    /// Whether what is done with a product element by element joins it.
    pub joins_products: bool,
}

/// Items that become one kernel.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// Ascending.
    pub members: Vec<Member>,
    /// Elements that its programs go through.
    pub element_count: usize,
    /// What its reductions go through, if it has any.
    pub space: Option<Space>,
    has_product: bool,
    has_stages: bool,
}

/// An item of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which.
    pub item: usize,
    /// How often it is computed.
    pub level: Level,
}

/// How often an item is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For each element.
    Full,
    /// For each element that reductions leave.
    Kept,
}

/// The clusters of a graph, in an order in which each finds its operands made.
#[derive(Debug)]
pub struct Clusters {
    /// In that order.
    pub list: Vec<Cluster>,
    /// Of each item, its cluster; `None` for what no result needs.
    pub of_item: Vec<Option<usize>>,
}

/// Cuts items into clusters.
pub fn cut(items: &Items, results: &[usize], limits: Limits) -> Clusters {
    let needed = needed(items, results);
    let mut cutter = Cutter {
        items,
        limits,
        list: Vec::new(),
        of_item: vec![None; items.list.len()],
        seen: Vec::new(),
        stamp: 0,
    };
    for (item, is_needed) in needed.into_iter().enumerate() {
        if is_needed {
            cutter.place(item);
        }
    }
    cutter.ordered()
}

/// What results are made of.
fn needed(items: &Items, results: &[usize]) -> Vec<bool> {
    let mut needed = vec![false; items.list.len()];
    for result in results {
        needed[*result] = true;
    }
    for item in (0..items.list.len()).rev() {
        if needed[item] {
            for view in views(&items.list[item]) {
                needed[view.item] = true;
            }
        }
    }
    needed
}

/// The operands of an item that are views.
pub fn views(item: &Item) -> impl Iterator<Item = &View> {
    item.operands.iter().filter_map(|operand| match operand {
        Source::View(view) => Some(view),
        Source::Splat(..) => None,
    })
}

struct Cutter<'a> {
    items: &'a Items,
    limits: Limits,
    // One that was joined to another is empty.
    list: Vec<Cluster>,
    of_item: Vec<Option<usize>>,
    // Marks of the last search, and its number.
    seen: Vec<u32>,
    stamp: u32,
}

impl Cutter<'_> {
    fn place(&mut self, item: usize) {
        let own = &self.items.list[item];
        let mut at = self.list.len();
        self.list.push(single(item, own));
        self.seen.push(0);
        self.of_item[item] = Some(at);
        if !own.kind.is_fusible() {
            return;
        }
        // The latest operands first: a chain goes on where it stopped.
        let mut candidates: Vec<usize> = views(own).map(|view| view.item).collect();
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        candidates.dedup();
        for candidate in candidates {
            let Some(other) = self.of_item[candidate] else {
                continue;
            };
            if other == at || !self.items.list[candidate].kind.is_fusible() {
                continue;
            }
            if let Some(joined) = self.joined(at, other)
                && !self.would_wait(at, other)
            {
                for member in &joined.members {
                    self.of_item[member.item] = Some(other);
                }
                self.list[other] = joined;
                self.list[at] = Cluster::default();
                at = other;
            }
        }
    }

    /// Two clusters as one, if what they do fits together.
    fn joined(&self, a: usize, b: usize) -> Option<Cluster> {
        let (a, b) = (&self.list[a], &self.list[b]);
        if a.members.len() + b.members.len() > self.limits.members_max {
            return None;
        }
        let is_plain = |cluster: &Cluster| cluster.space.is_none() && !cluster.has_product;
        let has_product = a.has_product || b.has_product;
        if has_product && !(self.limits.joins_products && (is_plain(a) || is_plain(b))) {
            return None;
        }
        let space = match (a.space, b.space) {
            (Some(x), Some(y)) if x != y => return None,
            (x, y) => x.or(y),
        };
        if a.element_count == b.element_count
            && let Some(joined) = self.checked(a, b, space, false)
        {
            return Some(joined);
        }
        // Or the one without reductions goes on with what those of the other leave.
        let (space, kept, full) = match (a.space, b.space) {
            (None, Some(space)) => (space, a, b),
            (Some(space), None) => (space, b, a),
            _ => return None,
        };
        if kept.element_count == space.kept() {
            self.checked(full, kept, Some(space), true)
        } else {
            None
        }
    }

    /// The union, with all of `b` on kept elements if told so.
    fn checked(
        &self,
        a: &Cluster,
        b: &Cluster,
        space: Option<Space>,
        is_kept: bool,
    ) -> Option<Cluster> {
        let mut members = a.members.clone();
        members.extend(b.members.iter().map(|member| Member {
            item: member.item,
            level: if is_kept { Level::Kept } else { member.level },
        }));
        members.sort_unstable_by_key(|member| member.item);
        let level = |item| {
            let found = members.binary_search_by_key(&item, |member| member.item);
            found.ok().map(|idx| members[idx].level)
        };
        let mut has_stages = a.has_stages || b.has_stages;
        for member in &members {
            let item = &self.items.list[member.item];
            let is_reduction = matches!(item.kind, Kind::Reduce { .. });
            for view in views(item) {
                let Some(from) = level(view.item) else {
                    continue;
                };
                // Seeds and matrices are read as a whole, before or while others are made.
                if matches!(item.kind, Kind::Random { .. } | Kind::Product) {
                    return None;
                }
                let reads = if is_reduction {
                    Level::Full
                } else {
                    member.level
                };
                let fits = match (reads, from) {
                    (Level::Full, Level::Full) | (Level::Kept, Level::Kept) => {
                        self.items.is_whole(view)
                    }
                    (Level::Full, Level::Kept) => {
                        has_stages = true;
                        space.is_some_and(|space| is_spread(view, space))
                    }
                    (Level::Kept, Level::Full) => false,
                };
                if !fits {
                    return None;
                }
            }
        }
        // A long row is walked once: several walks would each go to memory.
        if has_stages && space.is_some_and(|space| space.inner > self.limits.staged_len_max) {
            return None;
        }
        Some(Cluster {
            members,
            element_count: a.element_count,
            space,
            has_product: a.has_product || b.has_product,
            has_stages,
        })
    }

    /// Whether one of the two needs the other by way of a third.
    fn would_wait(&mut self, a: usize, b: usize) -> bool {
        self.reaches(a, b) || self.reaches(b, a)
    }

    /// Whether `from` needs `to` by way of a third. Says yes when the search gets too long.
    fn reaches(&mut self, from: usize, to: usize) -> bool {
        self.stamp += 1;
        let mut stack: Vec<usize> = Vec::new();
        self.push_needs(from, &mut stack, Some(to));
        let mut visited = 0;
        while let Some(cluster) = stack.pop() {
            visited += 1;
            if cluster == to || visited > SEARCH_MAX {
                return true;
            }
            self.push_needs(cluster, &mut stack, None);
        }
        false
    }

    fn push_needs(&mut self, cluster: usize, stack: &mut Vec<usize>, but: Option<usize>) {
        for member in &self.list[cluster].members {
            for view in views(&self.items.list[member.item]) {
                let Some(need) = self.of_item[view.item] else {
                    continue;
                };
                let is_given = self.list[need].is_given(self.items);
                if need != cluster
                    && Some(need) != but
                    && !is_given
                    && self.seen[need] != self.stamp
                {
                    self.seen[need] = self.stamp;
                    stack.push(need);
                }
            }
        }
    }

    /// The clusters in the order of their first items, as far as their needs allow.
    fn ordered(self) -> Clusters {
        let mut needs_left = vec![0_usize; self.list.len()];
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); self.list.len()];
        for (cluster, own) in self.list.iter().enumerate() {
            let mut needs: Vec<usize> = Vec::new();
            for member in &own.members {
                let views = views(&self.items.list[member.item]);
                needs.extend(views.filter_map(|view| self.of_item[view.item]));
            }
            needs.sort_unstable();
            needs.dedup();
            for need in needs.into_iter().filter(|need| *need != cluster) {
                needs_left[cluster] += 1;
                users[need].push(cluster);
            }
        }
        let first = |cluster: usize| self.list[cluster].members.first().map(|member| member.item);
        let mut ready: std::collections::BinaryHeap<_> = (0..self.list.len())
            .filter(|cluster| needs_left[*cluster] == 0)
            .filter_map(|cluster| Some(std::cmp::Reverse((first(cluster)?, cluster))))
            .collect();
        let mut list = Vec::new();
        let mut of_item = vec![None; self.items.list.len()];
        while let Some(std::cmp::Reverse((_, cluster))) = ready.pop() {
            for member in &self.list[cluster].members {
                of_item[member.item] = Some(list.len());
            }
            list.push(self.list[cluster].clone());
            for user in &users[cluster] {
                needs_left[*user] -= 1;
                if needs_left[*user] == 0
                    && let Some(item) = first(*user)
                {
                    ready.push(std::cmp::Reverse((item, *user)));
                }
            }
        }
        Clusters { list, of_item }
    }
}

impl Cluster {
    /// Whether it is there before anything runs.
    fn is_given(&self, items: &Items) -> bool {
        let first = self.members.first();
        first.is_some_and(|member| {
            matches!(items.list[member.item].kind, Kind::Param(_) | Kind::Data(_))
        })
    }

    /// Whether no element is read again after something was written.
    pub fn is_walked_once(&self) -> bool {
        !self.has_stages
    }

    /// The level of an item, if it is of this cluster.
    pub fn level(&self, item: usize) -> Option<Level> {
        let found = self
            .members
            .binary_search_by_key(&item, |member| member.item);
        found.ok().map(|idx| self.members[idx].level)
    }

    /// Its product, if it has one.
    pub fn product(&self, items: &Items) -> Option<usize> {
        let found = self
            .members
            .iter()
            .find(|member| matches!(items.list[member.item].kind, Kind::Product));
        found.map(|member| member.item)
    }
}

fn single(item: usize, own: &Item) -> Cluster {
    let (level, element_count, space) = match own.kind {
        Kind::Reduce { space, .. } => (Level::Kept, space.element_count(), Some(space)),
        _ => (Level::Full, element_count(&own.dims), None),
    };
    Cluster {
        members: vec![Member { item, level }],
        element_count,
        space,
        has_product: own.kind == Kind::Product,
        has_stages: false,
    }
}

/// Whether a view is each kept element as often as the space has elements of it.
fn is_spread(view: &View, space: Space) -> bool {
    let spread = merge(space.spread_dims());
    view.start == 0 && view.walks() == spread && view.element_count() == space.element_count()
}

/// Clusters that a search for a circle looks at; beyond it two are not joined.
const SEARCH_MAX: usize = 1024;
