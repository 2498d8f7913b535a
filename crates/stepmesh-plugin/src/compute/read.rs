//! The ABI's structs of a graph as owned values. Pointers are the caller's promise, everything else
//! is a claim: counts are bounded before anything is read, and `stepmesh_graph` checks the rest.
#![expect(unsafe_code, reason = "reads the caller's structs")]

use std::sync::Arc;

use stepmesh_abi::compute::{
    SM_ATTR_KIND_BYTES, SM_ATTR_KIND_FLOAT, SM_ATTR_KIND_INT, SM_ATTR_KIND_INTS,
    SM_COMPUTE_CONSTANT_MAX, SM_COMPUTE_NODES_MAX, SM_COMPUTE_OPERANDS_MAX, SM_COMPUTE_RANK_MAX,
    SM_COMPUTE_TEXT_MAX,
};
use stepmesh_abi::{SmAlias, SmAttr, SmGraph, SmHdr, SmNode, SmStr, SmValue};
use stepmesh_graph::{Alias, Attribute, Graph, RawGraph, RawNode, RawValue};

use crate::{Error, Result};

/// The graph that a caller passed, checked.
///
/// # Safety
/// - `graph` is null or a struct of the `hdr.struct_size` bytes that it starts with saying, and its
///   pointers are null or valid for what their counts say.
pub(super) unsafe fn graph(graph: *const SmGraph) -> Result<Graph> {
    if graph.is_null() {
        return Err(Error::invalid_argument("the graph is null"));
    }
    // SAFETY: not null; this function's contract.
    let graph: SmGraph = unsafe { sized(graph, "the graph")? };
    // SAFETY: the pointers of the struct, by this function's contract.
    let nodes = unsafe { nodes(graph.nodes, graph.n_nodes)? };
    // SAFETY: as above.
    let params = unsafe { items(graph.params, graph.n_params, "parameters")? };
    // SAFETY: as above.
    let results: Vec<SmValue> = unsafe { items(graph.results, graph.n_results, "results")? };
    // SAFETY: as above.
    let aliases: Vec<SmAlias> = unsafe { items(graph.aliases, graph.n_aliases, "donations")? };
    let alias = |alias: SmAlias| Alias {
        param: alias.param,
        result: alias.result,
    };
    let raw = RawGraph {
        // SAFETY: as above.
        name: unsafe { text(graph.name, "the graph's name")? },
        nodes,
        params,
        results: results.into_iter().map(value).collect(),
        aliases: aliases.into_iter().map(alias).collect(),
    };
    Graph::from_raw(raw).map_err(error)
}

/// What the graph crate found, in the codes of the ABI.
pub(super) fn error(error: stepmesh_graph::Error) -> Error {
    if error.is_unknown() {
        return Error::unimplemented(error.to_string());
    }
    Error::invalid_argument(error.to_string())
}

/// # Safety
/// - `first` is null or valid for `count` nodes, each of the size that the first starts with saying.
unsafe fn nodes(first: *const SmNode, count: u32) -> Result<Vec<RawNode>> {
    let count = bounded(count, SM_COMPUTE_NODES_MAX, "nodes")?;
    if count == 0 {
        return Ok(Vec::new());
    }
    if first.is_null() {
        return Err(Error::invalid_argument("the nodes are null"));
    }
    // SAFETY: not null, and a node has a header at least.
    let step = unsafe { first.cast::<SmHdr>().read_unaligned() }.struct_size;
    let Some(step_len) = usize::try_from(step).ok().filter(|len| len % 8 == 0) else {
        return Err(bad_size("a node", step));
    };
    let mut nodes = Vec::new();
    for idx in 0..count {
        // SAFETY: within the array by this function's contract.
        let at = unsafe { first.byte_add(idx * step_len) };
        // SAFETY: a node of the array.
        let node: SmNode = unsafe { sized(at, "a node")? };
        if node.hdr.struct_size != step {
            let message = format!(
                "node {idx} has {} bytes, the first has {step}",
                node.hdr.struct_size
            );
            return Err(Error::invalid_argument(message));
        }
        // SAFETY: the pointers of a node, by the contract of `graph`.
        let read = unsafe { read_node(&node) };
        nodes.push(read.map_err(|error| {
            Error::new(error.code(), format!("node {idx}: {}", error.message()))
        })?);
    }
    Ok(nodes)
}

/// # Safety
/// - The pointers of the node are null or valid for what their counts say.
unsafe fn read_node(node: &SmNode) -> Result<RawNode> {
    let rank = bounded(node.rank, SM_COMPUTE_RANK_MAX, "dimensions")?;
    // SAFETY: this function's contract.
    let operands: Vec<SmValue> = unsafe { items(node.operands, node.n_operands, "operands")? };
    // SAFETY: as above.
    let attrs: Vec<SmAttr> = unsafe { items(node.attrs, node.n_attrs, "attributes")? };
    let mut attributes = Vec::new();
    for attr in attrs {
        // SAFETY: as above.
        attributes.push((attr.key, unsafe { attribute(&attr)? }));
    }
    // SAFETY: as above.
    let location = unsafe { text(node.location, "the location")? };
    Ok(RawNode {
        op: node.op,
        dtype: node.dtype,
        dims: node.dims[..rank].to_vec(),
        operands: operands.into_iter().map(value).collect(),
        attributes,
        location: Some(location)
            .filter(|location| !location.is_empty())
            .map(Arc::from),
    })
}

/// # Safety
/// - `data` is null or valid for what kind and length say.
unsafe fn attribute(attr: &SmAttr) -> Result<Attribute> {
    match attr.kind {
        SM_ATTR_KIND_INT => Ok(Attribute::Int(attr.int_value)),
        SM_ATTR_KIND_FLOAT => Ok(Attribute::Float(attr.float_value)),
        SM_ATTR_KIND_INTS => {
            let len = bounded_len(attr, u64::from(SM_COMPUTE_RANK_MAX))?;
            // SAFETY: this function's contract; not null if there are any.
            Ok(Attribute::Ints(unsafe { copied(attr.data.cast(), len) }))
        }
        SM_ATTR_KIND_BYTES => {
            let len = bounded_len(attr, SM_COMPUTE_CONSTANT_MAX)?;
            // SAFETY: as above.
            let bytes: Vec<u8> = unsafe { copied(attr.data.cast(), len) };
            Ok(Attribute::Bytes(bytes.into()))
        }
        kind => Err(Error::unimplemented(format!(
            "attribute {} has the unknown kind {kind}",
            attr.key
        ))),
    }
}

fn bounded_len(attr: &SmAttr, most: u64) -> Result<usize> {
    let (key, len) = (attr.key, attr.data_len);
    if len > most {
        return Err(Error::invalid_argument(format!(
            "attribute {key} has {len} items, at most {most}"
        )));
    }
    if len > 0 && attr.data.is_null() {
        return Err(Error::invalid_argument(format!(
            "attribute {key} has {len} items at null"
        )));
    }
    usize::try_from(len).map_err(|_| Error::invalid_argument("too long an attribute"))
}

/// # Safety
/// - `first` is null or valid for `count` items.
unsafe fn items<T: Copy>(first: *const T, count: u32, what: &str) -> Result<Vec<T>> {
    let len = bounded(count, SM_COMPUTE_OPERANDS_MAX, what)?;
    if len > 0 && first.is_null() {
        return Err(Error::invalid_argument(format!("{count} {what} at null")));
    }
    // SAFETY: this function's contract; not null if there are any.
    Ok(unsafe { copied(first, len) })
}

/// # Safety
/// - `first` is valid for `len` items, or `len` is 0.
unsafe fn copied<T: Copy>(first: *const T, len: usize) -> Vec<T> {
    let mut items: Vec<T> = Vec::with_capacity(len);
    if len > 0 {
        let (from, to) = (first.cast::<u8>(), items.as_mut_ptr().cast::<u8>());
        // SAFETY: both hold `len` items, the second by its capacity; bytes need no alignment.
        unsafe { from.copy_to_nonoverlapping(to, len * size_of::<T>()) };
        // SAFETY: written on the line above; the types read here are numbers and pointers.
        unsafe { items.set_len(len) };
    }
    items
}

/// # Safety
/// - The pointer is null or valid for the length.
unsafe fn text(text: SmStr, what: &str) -> Result<String> {
    if text.len > 0 && text.ptr.is_null() {
        return Err(Error::invalid_argument(format!("{what} is null")));
    }
    let len = usize::try_from(text.len.min(SM_COMPUTE_TEXT_MAX)).unwrap_or(0);
    // SAFETY: this function's contract; not null if there is any.
    let bytes: Vec<u8> = unsafe { copied(text.ptr.cast(), len) };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A struct of version 1 at least; what a later one appends is not read.
///
/// # Safety
/// - `from` is not null and valid for the `hdr.struct_size` bytes that it starts with saying.
unsafe fn sized<T: Copy>(from: *const T, what: &str) -> Result<T> {
    // SAFETY: this function's contract: a header at least.
    let size = unsafe { from.cast::<SmHdr>().read_unaligned() }.struct_size;
    let is_whole = usize::try_from(size).is_ok_and(|len| len >= size_of::<T>());
    if !is_whole {
        return Err(bad_size(what, size));
    }
    // SAFETY: as many bytes as the struct has, by the line above.
    Ok(unsafe { from.read_unaligned() })
}

fn bad_size(what: &str, size: u32) -> Error {
    Error::invalid_argument(format!(
        "{what} says it has {size} bytes; set hdr.struct_size"
    ))
}

fn bounded(count: u32, most: u32, what: &str) -> Result<usize> {
    match usize::try_from(count) {
        Ok(len) if count <= most => Ok(len),
        _ => Err(Error::invalid_argument(format!(
            "{count} {what}, at most {most}"
        ))),
    }
}

fn value(value: SmValue) -> RawValue {
    RawValue {
        node: value.node,
        output: value.output,
    }
}
