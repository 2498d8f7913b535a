//! Lines of StableHLO: values get names as they are written.

use std::fmt::Write as _;

use crate::reference::Tensor;
use crate::{DType, Shape, TensorType};

/// A value in the text: its name, type and shape.
pub(super) type Value = (String, TensorType);

/// The lines of a function, so far.
#[derive(Debug, Default)]
pub(super) struct Writer {
    text: String,
    count: usize,
}

impl Writer {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Writes a line that makes a value, and gives it.
    pub(super) fn line(&mut self, ty: TensorType, right: &str) -> Value {
        let name = format!("%{}", self.count);
        self.count += 1;
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "    {name} = {right}");
        (name, ty)
    }

    /// An operation on values alike, giving one alike.
    pub(super) fn alike(&mut self, op: &str, operands: &[&Value]) -> Value {
        let ty = operands[0].1;
        let names: Vec<&str> = operands.iter().map(|(name, _)| name.as_str()).collect();
        let text = format!("stablehlo.{op} {} : {}", names.join(", "), type_of(ty));
        self.line(ty, &text)
    }

    /// An operation from one value to a type, with what stands between them.
    pub(super) fn to(&mut self, op: &str, from: &Value, extra: &str, ty: TensorType) -> Value {
        let (name, own) = from;
        let text = format!(
            "stablehlo.{op} {name}{extra} : ({}) -> {}",
            type_of(*own),
            type_of(ty)
        );
        self.line(ty, &text)
    }

    pub(super) fn convert(&mut self, from: &Value, dtype: DType) -> Value {
        if from.1.dtype() == dtype {
            return from.clone();
        }
        self.to("convert", from, "", with_dtype(from.1, dtype))
    }

    /// Elements by their bytes: one, or all.
    pub(super) fn elements(&mut self, ty: TensorType, bytes: &[u8]) -> Value {
        if ty.dtype() == DType::Bool {
            // Bits of bools are packed in MLIR's bytes; ours are bytes.
            let bytes = self.elements(with_dtype(ty, DType::U8), bytes);
            return self.to("convert", &bytes, "", ty);
        }
        let hex: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
        let data = if ty.shape().element_count() == 0 {
            String::new()
        } else {
            format!("\"0x{hex}\"")
        };
        let text = format!("stablehlo.constant dense<{data}> : {}", type_of(ty));
        self.line(ty, &text)
    }

    /// A number everywhere.
    pub(super) fn number(&mut self, ty: TensorType, number: f64) -> Value {
        let scalar = scalar(ty.dtype());
        let bytes = Tensor::from_f64(scalar, &[number]).to_bytes();
        let one = self.elements(scalar, &bytes);
        self.spread(&one, &[], ty)
    }

    /// Repeats a value; `dims` says where its dimensions are.
    pub(super) fn spread(&mut self, from: &Value, dims: &[usize], ty: TensorType) -> Value {
        let extra = format!(", dims = {dims:?}");
        self.to("broadcast_in_dim", from, &extra, ty)
    }

    /// `direction` is as StableHLO writes it.
    pub(super) fn compare(&mut self, direction: &str, a: &Value, b: &Value) -> Value {
        let ty = a.1;
        let kind = match ty.dtype() {
            DType::I32 | DType::I64 => "SIGNED",
            DType::U8 | DType::Bool => "UNSIGNED",
            _ => "FLOAT",
        };
        let result = with_dtype(ty, DType::Bool);
        let (own, to) = (type_of(ty), type_of(result));
        let text = format!(
            "stablehlo.compare {direction}, {}, {}, {kind} : ({own}, {own}) -> {to}",
            a.0, b.0
        );
        self.line(result, &text)
    }

    pub(super) fn select(&mut self, condition: &Value, yes: &Value, no: &Value) -> Value {
        let text = format!(
            "stablehlo.select {}, {}, {} : {}, {}",
            condition.0,
            yes.0,
            no.0,
            type_of(condition.1),
            type_of(yes.1)
        );
        self.line(yes.1, &text)
    }

    /// Reduces dimensions by an operation from a start.
    pub(super) fn reduce(
        &mut self,
        op: &str,
        from: &Value,
        start: &Value,
        dims: &[usize],
    ) -> Value {
        let shape = from.1.shape();
        let left = shape.dims().iter().enumerate();
        let left: Vec<usize> = left
            .filter(|(idx, _)| !dims.contains(idx))
            .map(|(_, extent)| *extent)
            .collect();
        let ty = like(from.1, &left);
        let (own, scalar, to) = (type_of(from.1), type_of(start.1), type_of(ty));
        let text = format!(
            "stablehlo.reduce({} init: {}) applies stablehlo.{op} across dimensions = {dims:?} : \
             ({own}, {scalar}) -> {to}",
            from.0, start.0
        );
        self.line(ty, &text)
    }
}

/// A type with other extents, fewer or no more elements than some valid one's.
pub(super) fn like(ty: TensorType, dims: &[usize]) -> TensorType {
    Shape::new(dims)
        .and_then(|shape| TensorType::new(ty.dtype(), shape))
        .unwrap_or(ty)
}

/// A shape with another type of elements. What would be too many bytes no memory holds anyway.
pub(super) fn with_dtype(ty: TensorType, dtype: DType) -> TensorType {
    TensorType::new(dtype, ty.shape()).unwrap_or(ty)
}

pub(super) fn scalar(dtype: DType) -> TensorType {
    TensorType::scalar(dtype)
}

/// As `tensor<2x3xf32>`.
pub(super) fn type_of(ty: TensorType) -> String {
    let dims = ty.shape();
    let dims: String = dims.dims().iter().map(|dim| format!("{dim}x")).collect();
    format!("tensor<{dims}{}>", element(ty.dtype()))
}

fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::U8 => "ui8",
        DType::Bool => "i1",
        DType::F8E4M3 => "f8E4M3FN",
        DType::F8E5M2 => "f8E5M2",
        other => other.name(),
    }
}
