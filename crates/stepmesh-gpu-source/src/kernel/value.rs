//! Values as expressions: what is loaded, computed, and known already.

use stepmesh_fusion::{Binary, Class, Kind, Level, Order, Source, Unary, View};
use stepmesh_graph::DType;

use super::form::Form;
use super::{Emitter, Made};
use crate::element::{cast, computed, literal, narrow, widened};
use crate::index::{Split, of_view};

impl Emitter<'_> {
    /// The name of an item's value, made by a line if there is none yet.
    pub(super) fn value(&mut self, item: usize, level: Level, made: &mut Made) -> String {
        if let Some(name) = made.values.get(&item) {
            return name.clone();
        }
        let own = &self.items.list[item];
        let mut operands = Vec::with_capacity(own.operands.len());
        for operand in &own.operands {
            operands.push(match own.kind {
                Kind::Random { .. } => self.scalar(operand),
                _ => self.operand(operand, level, made),
            });
        }
        let name = if own.kind == Kind::Move {
            operands.pop().unwrap_or_default()
        } else {
            let (class, text) = (self.class(item), self.expression(item, &operands));
            self.line(format!("const {class} v{item} = {text};"));
            format!("v{item}")
        };
        made.values.insert(item, name.clone());
        name
    }

    fn expression(&self, item: usize, operands: &[String]) -> String {
        let own = &self.items.list[item];
        let all = operands.join(", ");
        match own.kind {
            Kind::Unary(op) => format!("{}({all})", unary(op)),
            Kind::Binary(op) => format!("{}({all})", binary(op)),
            Kind::Compare(order) => format!("{} {} {}", operands[0], sign(order), operands[1]),
            Kind::Select => format!("{} != 0 ? {} : {}", operands[0], operands[1], operands[2]),
            Kind::Round => format!("round_{}({all})", narrow(own.dtype).unwrap_or("f32")),
            Kind::Random { normal } => {
                let name = if normal { "normal" } else { "uniform" };
                match own.dtype {
                    DType::F64 => format!("{name}64({all}, i)"),
                    _ if normal => format!("{name}32({all}, i)"),
                    dtype => format!("{name}32({all}, i, {})", random_bits(dtype)),
                }
            }
            _ if own.dtype == DType::Bool => format!("to_bool({all})"),
            _ => format!("{}({all})", cast(Class::of(own.dtype))),
        }
    }

    pub(super) fn operand(&mut self, operand: &Source, level: Level, made: &mut Made) -> String {
        let view = match operand {
            Source::Splat(dtype, value) => return literal(Class::of(*dtype), *value),
            Source::View(view) => view,
        };
        match (self.cluster.level(view.item), level) {
            (Some(Level::Full), _) => self.value(view.item, Level::Full, made),
            (Some(Level::Kept), Level::Kept) => self.value(view.item, Level::Kept, made),
            (Some(Level::Kept), Level::Full) => {
                let known = self.kept.values.get(&view.item);
                known.cloned().unwrap_or_else(|| format!("v{}", view.item))
            }
            (None, _) => self.load(view, level, made),
        }
    }

    fn load(&mut self, view: &View, level: Level, made: &mut Made) -> String {
        if let Some((_, name)) = made.loads.iter().find(|(known, _)| known == view) {
            return name.clone();
        }
        let columns;
        let (number, split) = match (level, self.plan.form) {
            (Level::Full, Form::Elements(_)) => ("i", None),
            (Level::Full, Form::Rows(space)) => ("i", Some((space.inner, "row", "k"))),
            (Level::Full, Form::Columns(space)) => ("i", Some((space.columns, "line", "column"))),
            (Level::Kept, Form::Columns(space)) => {
                columns = space.columns;
                ("kept", Some((columns, "outer", "column")))
            }
            (Level::Kept, _) => ("row", None),
        };
        let split = split.map(|(extent, quotient, remainder)| Split {
            extent,
            quotient,
            remainder,
        });
        let index = of_view(view, number, split, self.plan.width);
        let dtype = self.items.list[view.item].dtype;
        let from = self
            .kernel
            .read(self.items, view.item, self.places.buffer(view.item));
        let name = format!("x{}", self.loads);
        self.loads += 1;
        let (class, element) = (computed(Class::of(dtype)), format!("{from}[{index}]"));
        self.line(format!(
            "const {class} {name} = {};",
            widened(dtype, &element)
        ));
        made.loads.push((view.clone(), name.clone()));
        name
    }

    /// A number that is the same for all elements.
    fn scalar(&mut self, operand: &Source) -> String {
        match operand {
            Source::Splat(dtype, value) => literal(Class::of(*dtype), *value),
            Source::View(view) => {
                let buffer = self.places.buffer(view.item);
                let from = self.kernel.read(self.items, view.item, buffer);
                format!("{from}[{}]", view.start)
            }
        }
    }
}

fn unary(op: Unary) -> &'static str {
    match op {
        Unary::Neg => "neg",
        Unary::Exp => "exp",
        Unary::Log => "log",
        Unary::Sqrt => "sqrt",
        Unary::Rsqrt => "rsqrt",
        Unary::Tanh => "tanh",
        Unary::Sigmoid => "sigmoid",
        Unary::Relu => "relu",
        Unary::Silu => "silu",
        Unary::GeluErf => "gelu_erf",
        Unary::GeluTanh => "gelu_tanh",
    }
}

fn binary(op: Binary) -> &'static str {
    match op {
        Binary::Add => "add",
        Binary::Sub => "sub",
        Binary::Mul => "mul",
        Binary::Div => "div",
        Binary::Pow => "pow",
        Binary::Max => "max",
        Binary::Min => "min",
    }
}

fn sign(order: Order) -> &'static str {
    match order {
        Order::Eq => "==",
        Order::Ne => "!=",
        Order::Lt => "<",
        Order::Le => "<=",
        Order::Gt => ">",
        Order::Ge => ">=",
    }
}

/// Bits of a word that a uniform number is made of.
fn random_bits(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "11u",
        DType::BF16 => "8u",
        _ => "24u",
    }
}
