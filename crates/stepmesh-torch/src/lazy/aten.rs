//! ATen's operations as nodes of our graphs: the table of those that are known, and what one call is
//! made of. Each group of operations has its module below.

mod gradient;
mod index;
mod loss;
mod matrix;
mod pointwise;
mod random;
mod reduce;
mod scatter;
mod shape;

use stepmesh_lazy::{Category, result_type};

use super::error::LoweringError;
use stepmesh_graph::{DType, GraphBuilder, NodeId, Op, Shape, TensorType};

/// A value of a TorchScript graph.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// A tensor.
    Tensor(NodeId),
    /// A number that is an argument of the graph, as a node without dimensions.
    Number(NodeId),
    Int(i64),
    Double(f64),
    Bool(bool),
    Text(String),
    None,
    List(Vec<Self>),
}

/// A call of an operation that is being translated.
pub(super) struct Call<'a> {
    pub(super) builder: &'a mut GraphBuilder,
    /// By its schema, with its overload.
    pub(super) name: &'a str,
    pub(super) inputs: &'a [Value],
    /// Type and shape of the results, where the lazy core knows them.
    pub(super) outputs: &'a [Option<TensorType>],
    /// Seed and offset of the generator, made when first asked for.
    pub(super) random: &'a mut Option<(NodeId, NodeId)>,
}

/// The translation of one operation.
type Translation = fn(&mut Call<'_>) -> Result<Vec<Value>, LoweringError>;

/// Translates a call.
pub(super) fn translate(call: &mut Call<'_>) -> Result<Vec<Value>, LoweringError> {
    let Some(translation) = find(call.name) else {
        return Err(call.fault("has no translation"));
    };
    let results = translation(call)?;
    if results.len() < call.outputs.len() {
        return Err(call.fault(format!("gives {} results", results.len())));
    }
    // What the core expects must be what the translation gives; a wrong type would be a wrong value.
    for (result, expected) in results.iter().zip(call.outputs) {
        let (Value::Tensor(id), Some(expected)) = (result, expected) else {
            continue;
        };
        let found = call.ty(*id)?;
        if found != *expected {
            return Err(call.fault(format!("gives {found}, where PyTorch expects {expected}")));
        }
    }
    Ok(results)
}

/// Whether the lazy core may keep its kernel of this operation: we can translate what it lowers to,
/// or it never lowers it.
pub(super) fn is_known(name: &str) -> bool {
    STRUCTURAL.contains(&name) || find(name).is_some()
}

fn find(name: &str) -> Option<Translation> {
    let tables = [
        pointwise::TABLE,
        reduce::TABLE,
        matrix::TABLE,
        shape::TABLE,
        scatter::TABLE,
        random::TABLE,
        gradient::TABLE,
        loss::TABLE,
        index::TABLE,
    ];
    let rows = tables.into_iter().flatten();
    let mut found = rows.filter(|(known, _)| *known == name);
    found.next().map(|(_, translation)| *translation)
}

impl Call<'_> {
    pub(super) fn fault(&self, fault: impl Into<String>) -> LoweringError {
        LoweringError {
            op: self.name.to_owned(),
            fault: fault.into(),
        }
    }

    fn input(&self, index: usize) -> Result<&Value, LoweringError> {
        let input = self.inputs.get(index);
        input.ok_or_else(|| self.fault(format!("has no input {index}")))
    }

    /// An input that is a tensor.
    pub(super) fn tensor(&self, index: usize) -> Result<NodeId, LoweringError> {
        match self.input(index)? {
            Value::Tensor(id) | Value::Number(id) => Ok(*id),
            other => Err(self.fault(format!("input {index} is {other:?}, not a tensor"))),
        }
    }

    /// An input that is a tensor, or none.
    pub(super) fn optional_tensor(&self, index: usize) -> Result<Option<NodeId>, LoweringError> {
        if self.is_none(index) {
            return Ok(None);
        }
        self.tensor(index).map(Some)
    }

    /// Whether an input is not given.
    pub(super) fn is_none(&self, index: usize) -> bool {
        matches!(self.inputs.get(index), None | Some(Value::None))
    }

    /// An input that is a list of tensors.
    pub(super) fn tensors(&self, index: usize) -> Result<Vec<NodeId>, LoweringError> {
        let Value::List(items) = self.input(index)? else {
            return Err(self.fault(format!("input {index} is no list")));
        };
        items
            .iter()
            .map(|item| match item {
                Value::Tensor(id) | Value::Number(id) => Ok(*id),
                other => Err(self.fault(format!("input {index} has {other:?}, not a tensor"))),
            })
            .collect()
    }

    pub(super) fn int(&self, index: usize) -> Result<i64, LoweringError> {
        match self.input(index)? {
            Value::Int(value) => Ok(*value),
            Value::Bool(value) => Ok(i64::from(*value)),
            other => Err(self.fault(format!("input {index} is {other:?}, not a known integer"))),
        }
    }

    pub(super) fn int_or(&self, index: usize, default: i64) -> Result<i64, LoweringError> {
        if self.is_none(index) {
            return Ok(default);
        }
        self.int(index)
    }

    pub(super) fn double(&self, index: usize) -> Result<f64, LoweringError> {
        match self.input(index)? {
            Value::Double(value) => Ok(*value),
            #[expect(clippy::cast_precision_loss, reason = "as PyTorch converts it")]
            Value::Int(value) => Ok(*value as f64),
            other => Err(self.fault(format!("input {index} is {other:?}, not a known number"))),
        }
    }

    pub(super) fn flag(&self, index: usize) -> Result<bool, LoweringError> {
        match self.inputs.get(index) {
            None | Some(Value::None) => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(self.fault(format!("input {index} is {other:?}, not a flag"))),
        }
    }

    /// An input that is a list of so many flags.
    pub(super) fn flags<const COUNT: usize>(
        &self,
        index: usize,
    ) -> Result<[bool; COUNT], LoweringError> {
        let mut flags = [false; COUNT];
        match self.input(index)? {
            Value::List(items) if items.len() == COUNT => {
                for (flag, item) in flags.iter_mut().zip(items) {
                    *flag = matches!(item, Value::Bool(true));
                }
                Ok(flags)
            }
            other => Err(self.fault(format!("input {index} is {other:?}, not {COUNT} flags"))),
        }
    }

    pub(super) fn text(&self, index: usize) -> Result<&str, LoweringError> {
        match self.input(index)? {
            Value::Text(text) => Ok(text),
            other => Err(self.fault(format!("input {index} is {other:?}, not a text"))),
        }
    }

    pub(super) fn ints(&self, index: usize) -> Result<Vec<i64>, LoweringError> {
        let known = |value: &Value| match value {
            Value::Int(value) => Ok(*value),
            other => Err(self.fault(format!("input {index} has {other:?}, not a known integer"))),
        };
        match self.input(index)? {
            Value::List(items) => items.iter().map(known).collect(),
            single => Ok(vec![known(single)?]),
        }
    }

    /// A dimension of a value of `rank` dimensions, counted from the end if it is negative.
    pub(super) fn dim(&self, dim: i64, rank: usize) -> Result<usize, LoweringError> {
        // A value without dimensions takes 0 and -1, as one of one would.
        let extent = i64::try_from(rank.max(1)).unwrap_or(i64::MAX);
        let from_start = if dim < 0 { dim + extent } else { dim };
        match usize::try_from(from_start) {
            Ok(dim) if from_start < extent => Ok(dim),
            _ => Err(self.fault(format!("there is no dimension {dim} of {rank}"))),
        }
    }

    pub(super) fn ty(&self, id: NodeId) -> Result<TensorType, LoweringError> {
        let ty = self.builder.ty(id);
        ty.ok_or_else(|| self.fault("an input is no node"))
    }

    pub(super) fn shape(&self, id: NodeId) -> Result<Shape, LoweringError> {
        Ok(self.ty(id)?.shape())
    }

    /// What the core expects of the first result.
    pub(super) fn expected(&self) -> Option<TensorType> {
        self.outputs.first().copied().flatten()
    }

    pub(super) fn node(&mut self, op: Op, operands: &[NodeId]) -> Result<NodeId, LoweringError> {
        self.builder
            .node(op, operands)
            .map_err(|error| self.fault(error.to_string()))
    }

    pub(super) fn shape_of(&self, dims: &[usize]) -> Result<Shape, LoweringError> {
        Shape::new(dims).map_err(|error| self.fault(error.to_string()))
    }

    /// A constant of one value.
    pub(super) fn constant(
        &mut self,
        value: f64,
        dtype: DType,
        shape: Shape,
    ) -> Result<NodeId, LoweringError> {
        let double = TensorType::new(DType::F64, Shape::SCALAR);
        let double = double.map_err(|error| self.fault(error.to_string()))?;
        let made = self.builder.splat(double, &value.to_le_bytes());
        let made = made.map_err(|error| self.fault(error.to_string()))?;
        let cast = self.cast(made, dtype)?;
        self.broadcast(cast, shape)
    }

    fn int_constant(
        &mut self,
        value: i64,
        dtype: DType,
        shape: Shape,
    ) -> Result<NodeId, LoweringError> {
        let long = TensorType::new(DType::I64, Shape::SCALAR);
        let long = long.map_err(|error| self.fault(error.to_string()))?;
        let made = self.builder.splat(long, &value.to_le_bytes());
        let made = made.map_err(|error| self.fault(error.to_string()))?;
        let cast = self.cast(made, dtype)?;
        self.broadcast(cast, shape)
    }

    /// A constant of these elements, row-major, little-endian.
    pub(super) fn known(
        &mut self,
        dtype: DType,
        shape: Shape,
        data: Vec<u8>,
    ) -> Result<NodeId, LoweringError> {
        let ty = TensorType::new(dtype, shape).map_err(|error| self.fault(error.to_string()))?;
        let data = data.into();
        self.node(Op::Constant { ty, data }, &[])
    }

    /// A constant in the type and shape of a value.
    pub(super) fn like(&mut self, id: NodeId, value: f64) -> Result<NodeId, LoweringError> {
        let ty = self.ty(id)?;
        self.constant(value, ty.dtype(), ty.shape())
    }

    /// The value in the type that PyTorch computes it in: f32 for the narrower floats.
    pub(super) fn wide(&mut self, id: NodeId) -> Result<NodeId, LoweringError> {
        match self.ty(id)?.dtype() {
            DType::F16 | DType::BF16 => self.cast(id, DType::F32),
            _ => Ok(id),
        }
    }

    /// The value with another element type.
    pub(super) fn cast(&mut self, id: NodeId, dtype: DType) -> Result<NodeId, LoweringError> {
        if self.ty(id)?.dtype() == dtype {
            return Ok(id);
        }
        self.node(Op::Cast { dtype }, &[id])
    }

    /// The value repeated to a shape, its dimensions aligned at the end.
    pub(super) fn broadcast(&mut self, id: NodeId, shape: Shape) -> Result<NodeId, LoweringError> {
        let from = self.shape(id)?;
        if from == shape {
            return Ok(id);
        }
        let Some(missing) = shape.rank().checked_sub(from.rank()) else {
            return Err(self.fault(format!("{from} does not repeat to {shape}")));
        };
        let dims = (missing..shape.rank()).collect();
        self.node(Op::Broadcast { shape, dims }, &[id])
    }

    pub(super) fn reshape(&mut self, id: NodeId, shape: Shape) -> Result<NodeId, LoweringError> {
        if self.shape(id)? == shape {
            return Ok(id);
        }
        self.node(Op::Reshape { shape }, &[id])
    }

    /// An input that may be a tensor or a number, as a value of this type and shape.
    pub(super) fn operand(
        &mut self,
        index: usize,
        dtype: DType,
        shape: Shape,
    ) -> Result<NodeId, LoweringError> {
        match self.input(index)?.clone() {
            Value::Tensor(id) | Value::Number(id) => {
                let cast = self.cast(id, dtype)?;
                self.broadcast(cast, shape)
            }
            Value::Int(value) => self.int_constant(value, dtype, shape),
            Value::Bool(value) => self.int_constant(i64::from(value), dtype, shape),
            Value::Double(value) => self.constant(value, dtype, shape),
            other => Err(self.fault(format!("input {index} is {other:?}, not a number"))),
        }
    }

    /// The type that inputs promote to, as PyTorch does it.
    pub(super) fn promoted(&self, indices: &[usize]) -> Result<DType, LoweringError> {
        let mut operands = Vec::new();
        for index in indices {
            operands.push(match self.input(*index)? {
                Value::Tensor(id) => {
                    let ty = self.ty(*id)?;
                    let category = if ty.shape().rank() == 0 {
                        Category::ZeroDim
                    } else {
                        Category::Dimensioned
                    };
                    (ty.dtype(), category)
                }
                Value::Number(id) => (number_type(self.ty(*id)?.dtype()), Category::Number),
                Value::Int(_) => (DType::I64, Category::Number),
                Value::Bool(_) => (DType::Bool, Category::Number),
                // A number with a fraction has PyTorch's default type.
                Value::Double(_) => (DType::F32, Category::Number),
                other => return Err(self.fault(format!("input {index} is {other:?}"))),
            });
        }
        result_type(&operands).ok_or_else(|| self.fault(format!("{operands:?} do not promote")))
    }

    /// The shape that inputs repeat to.
    pub(super) fn common_shape(&self, indices: &[usize]) -> Result<Shape, LoweringError> {
        let mut dims: Vec<usize> = Vec::new();
        for index in indices {
            let (Value::Tensor(id) | Value::Number(id)) = self.input(*index)? else {
                continue;
            };
            let shape = self.shape(*id)?;
            let missing = shape.rank().saturating_sub(dims.len());
            dims.splice(0..0, std::iter::repeat_n(1, missing));
            let start = dims.len() - shape.rank();
            for (own, other) in dims[start..].iter_mut().zip(shape.dims()) {
                match (*own, *other) {
                    (1, other) => *own = other,
                    (own, other) if other == 1 || own == other => {}
                    (own, other) => {
                        return Err(self.fault(format!("{own} and {other} do not broadcast")));
                    }
                }
            }
        }
        self.shape_of(&dims)
    }
}

/// The type that a number counts as: those with a fraction as PyTorch's default type.
fn number_type(dtype: DType) -> DType {
    if dtype.is_float() { DType::F32 } else { dtype }
}

/// An index that may count from the end, cut to what is there.
fn clipped(index: i64, extent: usize) -> usize {
    let extent_signed = i64::try_from(extent).unwrap_or(i64::MAX);
    let from_start = if index < 0 {
        index.saturating_add(extent_signed)
    } else {
        index
    };
    usize::try_from(from_start.clamp(0, extent_signed)).unwrap_or(extent)
}

/// One tensor as the results of a call.
pub(super) fn one(id: NodeId) -> Result<Vec<Value>, LoweringError> {
    Ok(vec![Value::Tensor(id)])
}

/// Kernels of the lazy core that make or move values themselves and lower nothing of their own.
const STRUCTURAL: &[&str] = &[
    "aten::_copy_from",
    "aten::_copy_from_and_resize",
    "aten::_to_copy",
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::fill_.Scalar",
    "aten::lift",
    "aten::lift_fresh",
    "aten::new_empty_strided",
];
