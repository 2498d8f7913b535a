//! A graph as the structs of the ABI, which point into arrays that are kept beside them.

use std::ffi::c_void;
use std::ptr;

use stepmesh_abi::compute::{
    SM_ATTR_KIND_BYTES, SM_ATTR_KIND_FLOAT, SM_ATTR_KIND_INT, SM_ATTR_KIND_INTS,
    SM_COMPUTE_RANK_MAX, SM_COMPUTE_TEXT_MAX,
};
use stepmesh_abi::{SmAlias, SmAttr, SmGraph, SmHdr, SmNode, SmStr, SmValue};

use crate::raw::{Attribute, RawGraph, RawNode, RawValue};

/// The arrays of a graph, of which the structs of the ABI are made. Nothing is checked, so that one can
/// also make what a plugin must refuse.
// Vectors that have moved into it do not change any more, so what points to their items stays right
// wherever the whole moves.
#[derive(Debug)]
pub struct Lowered {
    raw: RawGraph,
    nodes: Vec<SmNode>,
    results: Vec<SmValue>,
    aliases: Vec<SmAlias>,
    // Only pointed to.
    _operands: Vec<SmValue>,
    _attrs: Vec<SmAttr>,
}

impl Lowered {
    /// The arrays of a graph.
    #[must_use]
    pub fn new(raw: RawGraph) -> Self {
        // All at once, so that no push moves what a node points to.
        let operands: Vec<SmValue> = raw
            .nodes
            .iter()
            .flat_map(|node| &node.operands)
            .map(value)
            .collect();
        let attrs: Vec<SmAttr> = raw
            .nodes
            .iter()
            .flat_map(|node| &node.attributes)
            .map(|(key, attribute)| attr(*key, attribute))
            .collect();
        let (mut operands_left, mut attrs_left) = (&*operands, &*attrs);
        let mut nodes = Vec::with_capacity(raw.nodes.len());
        for from in &raw.nodes {
            let (own_operands, rest) = operands_left.split_at(from.operands.len());
            operands_left = rest;
            let (own_attrs, rest) = attrs_left.split_at(from.attributes.len());
            attrs_left = rest;
            nodes.push(node(from, own_operands, own_attrs));
        }
        Self {
            nodes,
            results: raw.results.iter().map(value).collect(),
            aliases: raw
                .aliases
                .iter()
                .map(|alias| SmAlias {
                    param: alias.param,
                    result: alias.result,
                })
                .collect(),
            raw,
            _operands: operands,
            _attrs: attrs,
        }
    }

    /// The nodes, for those who test what a plugin refuses.
    pub fn nodes_mut(&mut self) -> &mut [SmNode] {
        &mut self.nodes
    }

    /// The struct. It points into `self`, and must not be used after it.
    #[must_use]
    pub fn graph(&self) -> SmGraph {
        SmGraph {
            hdr: SmHdr::of::<SmGraph>(),
            name: text(&self.raw.name),
            nodes: self.nodes.as_ptr(),
            params: self.raw.params.as_ptr(),
            results: self.results.as_ptr(),
            aliases: self.aliases.as_ptr(),
            n_nodes: count(self.nodes.len()),
            n_params: count(self.raw.params.len()),
            n_results: count(self.results.len()),
            n_aliases: count(self.aliases.len()),
        }
    }
}

fn node(from: &RawNode, operands: &[SmValue], attrs: &[SmAttr]) -> SmNode {
    let mut dims = [0; SM_COMPUTE_RANK_MAX as usize];
    for (to, from) in dims.iter_mut().zip(&from.dims) {
        *to = *from;
    }
    SmNode {
        hdr: SmHdr::of::<SmNode>(),
        op: from.op,
        dtype: from.dtype,
        rank: count(from.dims.len()),
        n_operands: count(operands.len()),
        dims,
        operands: operands.as_ptr(),
        attrs: attrs.as_ptr(),
        n_attrs: count(attrs.len()),
        pad0: 0,
        location: text(from.location.as_deref().unwrap_or_default()),
    }
}

fn attr(key: u32, attribute: &Attribute) -> SmAttr {
    let mut attr = SmAttr {
        key,
        kind: 0,
        int_value: 0,
        float_value: 0.0,
        data: ptr::null(),
        data_len: 0,
    };
    match attribute {
        Attribute::Int(int) => (attr.kind, attr.int_value) = (SM_ATTR_KIND_INT, *int),
        Attribute::Float(float) => (attr.kind, attr.float_value) = (SM_ATTR_KIND_FLOAT, *float),
        Attribute::Ints(ints) => {
            attr.kind = SM_ATTR_KIND_INTS;
            (attr.data, attr.data_len) = (ints.as_ptr().cast::<c_void>(), ints.len() as u64);
        }
        Attribute::Bytes(bytes) => {
            attr.kind = SM_ATTR_KIND_BYTES;
            (attr.data, attr.data_len) = (bytes.as_ptr().cast::<c_void>(), bytes.len() as u64);
        }
    }
    attr
}

fn value(from: &RawValue) -> SmValue {
    SmValue {
        node: from.node,
        output: from.output,
    }
}

fn text(from: &str) -> SmStr {
    let cut = from.floor_char_boundary(SM_COMPUTE_TEXT_MAX as usize);
    SmStr {
        ptr: from.as_ptr().cast(),
        len: count(cut),
        pad0: 0,
    }
}

/// The counts of a valid graph are bounded far below this.
fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}
