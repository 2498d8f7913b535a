//! Which buffer each item's value lies in: an argument's, a result's, a constant's, or a part of the
//! workspace. Where parts lie is the buffers module's.

use stepmesh_graph::Graph;

use crate::buffers::Buffers;
use crate::cluster::{Clusters, Level, views};
use crate::item::{Item, Items, Kind, Source};

/// Where the values of a graph lie.
#[derive(Debug)]
pub struct Placement {
    /// All buffers. Parts can be added until they are given their places.
    pub buffers: Buffers,
    /// Results that must not be written before the end, because what they replace is still read.
    pub copies: Vec<Copy>,
    of_item: Vec<Option<usize>>,
}

/// What is done after all clusters: a value is moved to where a result is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The item that is the result.
    pub item: usize,
    /// The buffer that it was made in.
    pub from: usize,
    /// The result's.
    pub to: usize,
}

/// A value of more bytes than a process can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// Its shape.
    pub dims: Vec<usize>,
}

impl Placement {
    /// The buffer of an item that is stored.
    #[must_use]
    pub fn buffer(&self, item: usize) -> usize {
        // What is read or written is stored.
        self.of_item[item].unwrap_or(usize::MAX)
    }

    /// Whether an item is stored.
    #[must_use]
    pub fn is_stored(&self, item: usize) -> bool {
        self.of_item[item].is_some()
    }
}

/// Places every value that goes from one cluster to another. The position of a cluster in the list is
/// the step that runs it.
///
/// # Errors
/// [`TooLarge`].
pub fn place(
    graph: &Graph,
    items: &Items,
    results: &[usize],
    clusters: &Clusters,
) -> Result<Placement, TooLarge> {
    let mut buffers = Buffers {
        args: graph.param_types().map(|ty| ty.len_bytes()).collect(),
        results: graph.result_types().map(|ty| ty.len_bytes()).collect(),
        constants: items.constants.iter().map(|bytes| bytes.len()).collect(),
        ..Buffers::default()
    };
    let end = clusters.list.len();
    let mut of_item = vec![None; items.list.len()];
    let mut copies = Vec::new();
    for (number, item) in results.iter().enumerate() {
        let to = buffers.result(number);
        of_item[*item] = Some(to);
        let mut aliases = graph.aliases().iter();
        let donated = aliases.find(|alias| usize_of(alias.result) == number);
        if let Some(alias) = donated
            && !may_replace(items, clusters, usize_of(alias.param), *item)
        {
            let made = clusters.of_item[*item].unwrap_or(end);
            let from = buffers.add_part(len_bytes(&items.list[*item])?, made, end);
            of_item[*item] = Some(from);
            copies.push(Copy {
                item: *item,
                from,
                to,
            });
        }
    }
    let last_reads = last_reads(items, clusters);
    for (item, own) in items.list.iter().enumerate() {
        match own.kind {
            Kind::Param(number) => of_item[item] = Some(Buffers::arg(number)),
            Kind::Data(number) => of_item[item] = Some(buffers.constant(number)),
            _ => {
                if let (None, Some(made), Some(last)) =
                    (of_item[item], clusters.of_item[item], last_reads[item])
                {
                    of_item[item] = Some(buffers.add_part(len_bytes(own)?, made, last));
                }
            }
        }
    }
    Ok(Placement {
        buffers,
        copies,
        of_item,
    })
}

/// Of each item, the last cluster beside its own that reads it.
fn last_reads(items: &Items, clusters: &Clusters) -> Vec<Option<usize>> {
    let mut last = vec![None; items.list.len()];
    for (position, cluster) in clusters.list.iter().enumerate() {
        for member in &cluster.members {
            for view in views(&items.list[member.item]) {
                if clusters.of_item[view.item] != Some(position) {
                    last[view.item] = Some(position);
                }
            }
        }
    }
    last
}

/// Whether a result may be written over the argument of its donation: nothing reads the argument
/// later, and what makes the result reads each element before it writes it.
fn may_replace(items: &Items, clusters: &Clusters, param: usize, result: usize) -> bool {
    let is_it = |item: &Item| item.kind == Kind::Param(param);
    let Some(param) = items.list.iter().position(is_it) else {
        return true;
    };
    let Some(made) = clusters.of_item[result] else {
        return false;
    };
    for (position, cluster) in clusters.list.iter().enumerate().skip(made) {
        for member in &cluster.members {
            let item = &items.list[member.item];
            for (place, operand) in item.operands.iter().enumerate() {
                let Source::View(view) = operand else {
                    continue;
                };
                if view.item != param {
                    continue;
                }
                let is_elementwise = member.level == Level::Full
                    && cluster.level(result) == Some(Level::Full)
                    && cluster.is_walked_once()
                    && item.kind.is_fusible()
                    && !matches!(item.kind, Kind::Product | Kind::Random { .. });
                let is_index_add = matches!(item.kind, Kind::IndexAdd { .. }) && place == 0;
                let reads_own = items.is_whole(view) && (is_elementwise || is_index_add);
                if position > made || !reads_own {
                    return false;
                }
            }
        }
    }
    true
}

fn len_bytes(item: &Item) -> Result<usize, TooLarge> {
    let len = item
        .dims
        .iter()
        .try_fold(item.dtype.size_bytes(), |len, dim| len.checked_mul(*dim));
    len.filter(|len| isize::try_from(*len).is_ok())
        .ok_or_else(|| TooLarge {
            dims: item.dims.clone(),
        })
}

fn usize_of(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
