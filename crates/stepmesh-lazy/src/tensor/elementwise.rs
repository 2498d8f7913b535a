//! Operations element by element: with broadcasting and promotion as in PyTorch.

use std::panic::Location;
use std::sync::Arc;

use stepmesh_graph::{CompareDirection, DType, DTypeClass, Op, Shape};

use super::LazyTensor;
use crate::broadcast::broadcast_shapes;
use crate::ir::NodePtr;
use crate::promote::{Category, DEFAULT_FLOAT, result_type};
use crate::{Error, Scalar};

/// The other operand of an operation: a tensor or a number.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// A tensor.
    Tensor(&'a LazyTensor),
    /// A number.
    Scalar(Scalar),
}

impl<'a> From<&'a LazyTensor> for Operand<'a> {
    fn from(tensor: &'a LazyTensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl<T: Into<Scalar>> From<T> for Operand<'_> {
    fn from(scalar: T) -> Self {
        Self::Scalar(scalar.into())
    }
}

impl Operand<'_> {
    fn kind(&self) -> (DType, Category) {
        match self {
            Self::Tensor(tensor) if tensor.rank() == 0 => (tensor.dtype(), Category::ZeroDim),
            Self::Tensor(tensor) => (tensor.dtype(), Category::Dimensioned),
            Self::Scalar(scalar) => (scalar.dtype(), Category::Number),
        }
    }

    fn shape(&self) -> Shape {
        match self {
            Self::Tensor(tensor) => tensor.ty().shape(),
            Self::Scalar(_) => Shape::SCALAR,
        }
    }
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)+) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// `Operation` when shapes do not broadcast or types do not promote, `ForeignValue`,
            /// `FallbackDenied`.
            #[track_caller]
            pub fn $name<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Self, Error> {
                let both = [Operand::Tensor(self), other.into()];
                self.binary(stringify!($name), Op::$op, both, Location::caller())
            }
        )+
    };
}

macro_rules! compare {
    ($($(#[$doc:meta])* $name:ident => $direction:ident;)+) => {
        $(
            $(#[$doc])*
            ///
            /// The result is bool.
            ///
            /// # Errors
            /// As for [`LazyTensor::add`].
            #[track_caller]
            pub fn $name<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Self, Error> {
                let both = [Operand::Tensor(self), other.into()];
                let op = Op::Compare(CompareDirection::$direction);
                self.binary(stringify!($name), op, both, Location::caller())
            }
        )+
    };
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident, $rule:ident;)+) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// `Operation` for types it is not for, `FallbackDenied`.
            #[track_caller]
            pub fn $name(&self) -> Result<Self, Error> {
                self.unary(Op::$op, Rule::$rule, Location::caller())
            }
        )+
    };
}

/// What becomes of operands that are no floats.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// They become floats.
    Float,
    /// They stay.
    Keep,
}

impl LazyTensor {
    binary! {
        /// The sum of two, element by element; of bools whether one is true.
        add => Add;
        /// The difference of two, element by element.
        sub => Sub;
        /// The product of two, element by element; of bools whether both are true.
        mul => Mul;
        /// The quotient of two, element by element; integers become floats.
        div => Div;
        /// The power of two, element by element.
        pow => Pow;
        /// The greater of two, element by element.
        maximum => Max;
        /// The lesser of two, element by element.
        minimum => Min;
    }

    compare! {
        /// Whether two are equal, element by element.
        eq => Eq;
        /// Whether two differ, element by element.
        ne => Ne;
        /// Whether this one is less, element by element.
        lt => Lt;
        /// Whether this one is less or equal, element by element.
        le => Le;
        /// Whether this one is greater, element by element.
        gt => Gt;
        /// Whether this one is greater or equal, element by element.
        ge => Ge;
    }

    unary! {
        /// The negative of each element.
        neg => Neg, Keep;
        /// e to the power of each element; integers become floats.
        exp => Exp, Float;
        /// The natural logarithm of each element; integers become floats.
        log => Log, Float;
        /// The square root of each element; integers become floats.
        sqrt => Sqrt, Float;
        /// 1 over the square root of each element; integers become floats.
        rsqrt => Rsqrt, Float;
        /// The hyperbolic tangent of each element; integers become floats.
        tanh => Tanh, Float;
        /// 1 / (1 + e^-x) of each element; integers become floats.
        sigmoid => Sigmoid, Float;
        /// The greater of 0 and each element.
        relu => Relu, Keep;
        /// x times sigmoid(x) of each element.
        silu => Silu, Keep;
        /// GELU of each element, by the error function.
        gelu => GeluErf, Keep;
        /// GELU of each element, by the approximation with tanh.
        gelu_tanh => GeluTanh, Keep;
    }

    /// A number less a tensor.
    ///
    /// # Errors
    /// As for [`LazyTensor::add`].
    #[track_caller]
    pub fn rsub<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Self, Error> {
        let both = [other.into(), Operand::Tensor(self)];
        self.binary("rsub", Op::Sub, both, Location::caller())
    }

    /// A number over a tensor.
    ///
    /// # Errors
    /// As for [`LazyTensor::add`].
    #[track_caller]
    pub fn rdiv<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Self, Error> {
        let both = [other.into(), Operand::Tensor(self)];
        self.binary("rdiv", Op::Div, both, Location::caller())
    }

    /// The same in another type.
    ///
    /// # Errors
    /// `FallbackDenied`.
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Result<Self, Error> {
        let location = Location::caller();
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let node = self.node(location)?;
        self.context().emit(Op::Cast { dtype }, &[node], location)
    }

    /// Where this tensor, of bools, is true the element of `yes`, else that of `no`.
    ///
    /// # Errors
    /// `Operation` if it is not of bools, shapes do not broadcast or types do not promote;
    /// `ForeignValue`, `FallbackDenied`.
    #[track_caller]
    pub fn select<'a, 'b>(
        &self,
        yes: impl Into<Operand<'a>>,
        no: impl Into<Operand<'b>>,
    ) -> Result<Self, Error> {
        let location = Location::caller();
        let (yes, no) = (yes.into(), no.into());
        let dtype = self.promoted("select", &[yes, no], location)?;
        let shape = self.broadcast_of("select", &[Operand::Tensor(self), yes, no], location)?;
        let operands = [
            self.operand(
                "select",
                Operand::Tensor(self),
                self.dtype(),
                shape,
                location,
            )?,
            self.operand("select", yes, dtype, shape, location)?,
            self.operand("select", no, dtype, shape, location)?,
        ];
        self.context().emit(Op::Select, &operands, location)
    }

    /// Each element, but at least `low` and at most `high`.
    ///
    /// # Errors
    /// As for [`LazyTensor::add`].
    #[track_caller]
    pub fn clamp<'a, 'b>(
        &self,
        low: impl Into<Operand<'a>>,
        high: impl Into<Operand<'b>>,
    ) -> Result<Self, Error> {
        let location = Location::caller();
        let all = [Operand::Tensor(self), low.into(), high.into()];
        let dtype = self.promoted("clamp", &all, location)?;
        let shape = self.broadcast_of("clamp", &all, location)?;
        let operands: Result<Vec<NodePtr>, Error> = all
            .into_iter()
            .map(|operand| self.operand("clamp", operand, dtype, shape, location))
            .collect();
        self.context().emit(Op::Clamp, &operands?, location)
    }

    fn binary(
        &self,
        name: &'static str,
        op: Op,
        both: [Operand<'_>; 2],
        location: &'static Location<'static>,
    ) -> Result<Self, Error> {
        let mut dtype = self.promoted(name, &both, location)?;
        if matches!(op, Op::Div) && !dtype.is_float() {
            dtype = DEFAULT_FLOAT;
        }
        // Of bools, as PyTorch has it.
        let op = match (op, dtype) {
            (Op::Add, DType::Bool) => Op::Max,
            (Op::Mul, DType::Bool) => Op::Min,
            (op, _) => op,
        };
        let shape = self.broadcast_of(name, &both, location)?;
        let [a, b] = both;
        let a = self.operand(name, a, dtype, shape, location)?;
        let b = self.operand(name, b, dtype, shape, location)?;
        self.context().emit(op, &[a, b], location)
    }

    pub(super) fn unary(
        &self,
        op: Op,
        rule: Rule,
        location: &'static Location<'static>,
    ) -> Result<Self, Error> {
        let mut node = self.node(location)?;
        let is_counted = matches!(self.dtype().class(), DTypeClass::Integer | DTypeClass::Bool);
        if rule == Rule::Float && is_counted {
            node = self.converted(&node, DEFAULT_FLOAT, location)?;
        }
        self.context().emit(op, &[node], location)
    }

    fn promoted(
        &self,
        op: &'static str,
        operands: &[Operand<'_>],
        location: &'static Location<'static>,
    ) -> Result<DType, Error> {
        let mut kinds = [(DType::F32, Category::Number); 3];
        for (kind, operand) in kinds.iter_mut().zip(operands) {
            *kind = operand.kind();
        }
        let kinds = &kinds[..operands.len().min(3)];
        result_type(kinds).ok_or_else(|| {
            let types: Vec<&str> = kinds.iter().map(|(dtype, _)| dtype.name()).collect();
            let fault = format!("{} do not promote; cast them first", types.join(" and "));
            self.fault(op, location, fault)
        })
    }

    fn broadcast_of(
        &self,
        op: &'static str,
        operands: &[Operand<'_>],
        location: &'static Location<'static>,
    ) -> Result<Shape, Error> {
        let mut shapes = operands.iter().map(Operand::shape);
        let together = shapes.try_fold(Shape::SCALAR, broadcast_shapes);
        together.ok_or_else(|| {
            let shapes: Vec<String> = operands
                .iter()
                .map(|operand| operand.shape().to_string())
                .collect();
            self.fault(
                op,
                location,
                format!("{} do not broadcast", shapes.join(" and ")),
            )
        })
    }

    /// An operand in the common type and shape.
    fn operand(
        &self,
        op: &'static str,
        operand: Operand<'_>,
        dtype: DType,
        shape: Shape,
        location: &'static Location<'static>,
    ) -> Result<NodePtr, Error> {
        let context = self.context();
        let node = match operand {
            Operand::Tensor(tensor) => {
                self.check_device(op, tensor)?;
                let node = tensor.node(location)?;
                self.converted(&node, dtype, location)?
            }
            Operand::Scalar(scalar) => context.number(context.origin(location), scalar, dtype)?,
        };
        self.expanded(&node, shape, location)
    }

    pub(super) fn converted(
        &self,
        node: &NodePtr,
        dtype: DType,
        location: &'static Location<'static>,
    ) -> Result<NodePtr, Error> {
        if node.dtype() == dtype {
            return Ok(Arc::clone(node));
        }
        let context = self.context();
        let operands = std::slice::from_ref(node);
        context.emit_node(Op::Cast { dtype }, operands, context.origin(location))
    }

    pub(super) fn expanded(
        &self,
        node: &NodePtr,
        shape: Shape,
        location: &'static Location<'static>,
    ) -> Result<NodePtr, Error> {
        if node.shape() == shape {
            return Ok(Arc::clone(node));
        }
        let context = self.context();
        let dims = crate::broadcast::aligned_dims(node.shape().rank(), shape.rank());
        let operands = std::slice::from_ref(node);
        let op = Op::Broadcast { shape, dims };
        context.emit_node(op, operands, context.origin(location))
    }

    pub(super) fn fault(
        &self,
        op: &'static str,
        location: &'static Location<'static>,
        fault: impl Into<String>,
    ) -> Error {
        self.context().origin(location).fault(op, fault)
    }
}
