//! A graph of PyTorch's on its way to one of ours.
#![forbid(unsafe_code)]

use stepmesh_graph::{GraphBuilder, NodeId, TensorType};

use super::aten::{self, Call, Value};
use super::program::Program;

/// What C++ has told so far.
pub(super) struct Lowering {
    device: usize,
    builder: GraphBuilder,
    values: Vec<Value>,
    results: Vec<NodeId>,
    /// Seed and offset for the next draw, once there was one.
    random: Option<(NodeId, NodeId)>,
    /// How many random elements an execution draws.
    drawn: u64,
}

impl Lowering {
    pub(super) fn new(name: &str, device: usize) -> Self {
        Self {
            device,
            builder: GraphBuilder::new(name),
            values: Vec::new(),
            results: Vec::new(),
            random: None,
            drawn: 0,
        }
    }

    /// Adds an argument. A scalar is a plain number in PyTorch's eyes.
    pub(super) fn parameter(&mut self, ty: TensorType, is_scalar: bool) -> Result<u32, String> {
        let made = self.builder.parameter(ty.dtype(), ty.shape());
        let id = made.map_err(|error| error.to_string())?;
        self.push(if is_scalar {
            Value::Number(id)
        } else {
            Value::Tensor(id)
        })
    }

    /// Adds something that is known.
    pub(super) fn constant(&mut self, constant: Value) -> Result<u32, String> {
        self.push(constant)
    }

    pub(super) fn list(&mut self, items: &[u32]) -> Result<u32, String> {
        let items = self.all(items)?;
        self.push(Value::List(items))
    }

    /// Calls an operation; the number of its first result.
    pub(super) fn call(
        &mut self,
        name: &str,
        inputs: &[u32],
        outputs: &[Option<TensorType>],
    ) -> Result<u32, String> {
        let inputs = self.all(inputs)?;
        let first = self.next_number()?;
        if let Some(results) = unpacked(name, &inputs) {
            self.values.extend(results);
            return Ok(first);
        }
        let before = self.random;
        let mut call = Call {
            builder: &mut self.builder,
            name,
            inputs: &inputs,
            outputs,
            random: &mut self.random,
        };
        let results = aten::translate(&mut call).map_err(|error| error.to_string())?;
        if self.random != before
            && let Some(Value::Tensor(id)) = results.first()
            && let Some(ty) = self.builder.ty(*id)
        {
            self.drawn = self.drawn.saturating_add(ty.shape().element_count() as u64);
        }
        self.values.extend(results);
        Ok(first)
    }

    /// Names a result, and what the core believes it to be.
    pub(super) fn result(&mut self, value: u32, expected: TensorType) -> Result<(), String> {
        let (Value::Tensor(id) | Value::Number(id)) = self.value(value)? else {
            return Err(format!("result {} is no tensor", self.results.len()));
        };
        let found = self.builder.ty(id);
        if found != Some(expected) {
            return Err(format!(
                "result {} is {found:?}, where PyTorch expects {expected}",
                self.results.len()
            ));
        }
        self.results.push(id);
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Program, String> {
        let graph = self.builder.build(&self.results);
        let graph = graph.map_err(|error| error.to_string())?;
        Ok(Program::new(
            self.device,
            graph,
            self.random.is_some(),
            self.drawn,
        ))
    }

    fn value(&self, number: u32) -> Result<Value, String> {
        let value = usize::try_from(number)
            .ok()
            .and_then(|index| self.values.get(index));
        value
            .cloned()
            .ok_or_else(|| format!("there is no value {number}"))
    }

    fn all(&self, numbers: &[u32]) -> Result<Vec<Value>, String> {
        numbers.iter().map(|number| self.value(*number)).collect()
    }

    fn next_number(&self) -> Result<u32, String> {
        u32::try_from(self.values.len()).map_err(|_| "the graph is too large".to_owned())
    }

    fn push(&mut self, value: Value) -> Result<u32, String> {
        let number = self.next_number()?;
        self.values.push(value);
        Ok(number)
    }
}

/// What TorchScript says to take lists and numbers apart, which are whole values here.
fn unpacked(name: &str, inputs: &[Value]) -> Option<Vec<Value>> {
    match (name, inputs) {
        ("prim::ListUnpack" | "prim::TupleUnpack", [Value::List(items)]) => Some(items.clone()),
        // A scalar of the host that the core made a value.
        (
            "aten::ScalarImplicit" | "aten::FloatImplicit" | "aten::IntImplicit",
            [Value::Tensor(id)],
        ) => Some(vec![Value::Number(*id)]),
        ("aten::ScalarImplicit" | "aten::FloatImplicit" | "aten::IntImplicit", [value]) => {
            Some(vec![value.clone()])
        }
        ("prim::NumToTensor" | "prim::NumToTensor.Scalar", [value]) => Some(vec![value.clone()]),
        _ => None,
    }
}
