//! Graphs as text for people. Nothing reads it back.

use std::fmt;

use crate::{Graph, Node, Op};

/// One line for each node:
///
/// ```text
/// graph ffn(%0: f32[2,3]) {
///   %0 = parameter(number=0) : f32[2,3]
///   %1 = sum(%0, dims=[1]) : f32[2]    // src/ffn.rs:42
///   return %1
/// }
/// ```
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "graph {}(", self.name())?;
        for (number, (id, ty)) in self.params().iter().zip(self.param_types()).enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}%{}: {ty}", id.0)?;
        }
        f.write_str(") {\n")?;
        for (idx, node) in self.nodes().iter().enumerate() {
            writeln!(f, "  %{idx} = {node}")?;
        }
        let results: Vec<String> = self
            .results()
            .iter()
            .map(|id| format!("%{}", id.0))
            .collect();
        write!(f, "  return {}\n}}", results.join(", "))
    }
}

/// As `sum(%0, dims=[1]) : f32[2]    // src/ffn.rs:42`.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut inside: Vec<String> = self
            .operands()
            .iter()
            .map(|id| format!("%{}", id.0))
            .collect();
        inside.extend(attributes(self.op()));
        write!(f, "{}({}) : {}", self.kind(), inside.join(", "), self.ty())?;
        match self.location() {
            Some(location) => write!(f, "    // {location}"),
            None => Ok(()),
        }
    }
}

fn attributes(op: &Op) -> Vec<String> {
    match op {
        Op::Parameter { number, .. } => vec![format!("number={number}")],
        Op::Constant { data, .. } => {
            let shown: String = data
                .iter()
                .take(CONSTANT_SHOWN_BYTES)
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let more = if data.len() > CONSTANT_SHOWN_BYTES {
                ".."
            } else {
                ""
            };
            vec![format!("data=0x{shown}{more}")]
        }
        Op::Compare(direction) => vec![direction.name().into()],
        Op::Sum { dims } | Op::Mean { dims } | Op::ReduceMax { dims } | Op::Transpose { dims } => {
            vec![format!("dims={dims:?}")]
        }
        Op::Broadcast { dims, .. } => vec![format!("dims={dims:?}")],
        Op::Argmax { dim }
        | Op::Softmax { dim }
        | Op::Concat { dim }
        | Op::Gather { dim }
        | Op::IndexAdd { dim } => vec![format!("dim={dim}")],
        Op::LayerNorm { dim, epsilon } | Op::RmsNorm { dim, epsilon } => {
            vec![format!("dim={dim}"), format!("epsilon={epsilon:?}")]
        }
        Op::Matmul {
            transpose_a,
            transpose_b,
        } => [("transpose_a", transpose_a), ("transpose_b", transpose_b)]
            .iter()
            .filter(|(_, is_set)| **is_set)
            .map(|(name, _)| (*name).to_owned())
            .collect(),
        Op::Slice {
            starts,
            limits,
            strides,
        } => vec![
            format!("starts={starts:?}"),
            format!("limits={limits:?}"),
            format!("strides={strides:?}"),
        ],
        // The type of the value says the rest.
        _ => Vec::new(),
    }
}

/// Bytes of a constant that a line shows: two f64.
const CONSTANT_SHOWN_BYTES: usize = 16;
