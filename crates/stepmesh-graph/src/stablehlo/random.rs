//! Philox in StableHLO: ten rounds of integer arithmetic on a word for each element.

use super::compose::shaped;
use super::write::{Value, Writer, like, type_of, with_dtype};
use crate::{DType, TensorType};

/// Words are kept in 64 bits, of which the lower half counts, so that products are whole.
const WORD: &str = "ui64";

/// A value of unsigned words; the crate has no such type, so i64 stands for it in shapes and the text
/// says what it is.
struct Words<'a> {
    w: &'a mut Writer,
    ty: TensorType,
}

impl Words<'_> {
    fn text_type(&self) -> String {
        type_of(self.ty).replace("i64", WORD)
    }

    fn op(&mut self, op: &str, a: &Value, b: &Value) -> Value {
        let text = format!("stablehlo.{op} {}, {} : {}", a.0, b.0, self.text_type());
        self.w.line(self.ty, &text)
    }

    fn number(&mut self, number: u64) -> Value {
        let text = format!("stablehlo.constant dense<{number}> : {}", self.text_type());
        self.w.line(self.ty, &text)
    }

    fn shifted(&mut self, a: &Value, bits: u64) -> Value {
        let bits = self.number(bits);
        self.op("shift_right_logical", a, &bits)
    }

    fn low(&mut self, a: &Value) -> Value {
        let mask = self.number(u64::from(u32::MAX));
        self.op("and", a, &mask)
    }

    /// An i64 scalar as words everywhere.
    fn spread(&mut self, from: &Value) -> Value {
        let own = type_of(from.1);
        let text = format!(
            "stablehlo.bitcast_convert {} : ({own}) -> tensor<{WORD}>",
            from.0
        );
        let bits = self.w.line(from.1, &text);
        let to = self.text_type();
        let text = format!(
            "stablehlo.broadcast_in_dim {}, dims = [] : (tensor<{WORD}>) -> {to}",
            bits.0
        );
        self.w.line(self.ty, &text)
    }

    fn places(&mut self) -> Value {
        let text = format!("stablehlo.iota dim = 0 : {}", self.text_type());
        self.w.line(self.ty, &text)
    }

    /// The four words of each element's block.
    fn block(&mut self, seed: &Value, block: &Value) -> [Value; 4] {
        let mut key = [self.low(seed), self.shifted(seed, 32)];
        let zero = self.number(0);
        let mut counter = [self.low(block), self.shifted(block, 32), zero.clone(), zero];
        for round in 0..10 {
            if round > 0 {
                for (half, step) in key.iter_mut().zip([0x9E37_79B9, 0xBB67_AE85]) {
                    let step = self.number(step);
                    let sum = self.op("add", half, &step);
                    *half = self.low(&sum);
                }
            }
            let factors = [self.number(0xD251_1F53), self.number(0xCD9E_8D57)];
            let first = self.op("multiply", &factors[0], &counter[0]);
            let second = self.op("multiply", &factors[1], &counter[2]);
            let high_second = self.shifted(&second, 32);
            let high_first = self.shifted(&first, 32);
            let mixed = self.op("xor", &high_second, &counter[1]);
            let next_0 = self.op("xor", &mixed, &key[0]);
            let mixed = self.op("xor", &high_first, &counter[3]);
            let next_2 = self.op("xor", &mixed, &key[1]);
            counter = [next_0, self.low(&second), next_2, self.low(&first)];
        }
        counter
    }

    /// Whether each is a number.
    fn equals(&mut self, value: &Value, number: u64) -> Value {
        let number = self.number(number);
        let (own, bools) = (self.text_type(), with_dtype(self.ty, DType::Bool));
        let text = format!(
            "stablehlo.compare EQ, {}, {}, UNSIGNED : ({own}, {own}) -> {}",
            value.0,
            number.0,
            type_of(bools)
        );
        self.w.line(bools, &text)
    }

    /// That of several values which an element's place names.
    fn pick(&mut self, place: &Value, of: &[Value]) -> Value {
        let mut picked = of[0].clone();
        for (number, other) in (0..).zip(of).skip(1) {
            let is_it = self.equals(place, number);
            let text = format!(
                "stablehlo.select {}, {}, {} : {}, {}",
                is_it.0,
                other.0,
                picked.0,
                type_of(is_it.1),
                self.text_type()
            );
            picked = self.w.line(self.ty, &text);
        }
        picked
    }

    /// A whole number of at most 53 bits as a float, times a scale.
    fn scaled(&mut self, whole: &Value, dtype: DType, scale: f64) -> Value {
        let to = with_dtype(self.ty, dtype);
        let text = format!(
            "stablehlo.convert {} : ({}) -> {}",
            whole.0,
            self.text_type(),
            type_of(to)
        );
        let float = self.w.line(to, &text);
        let scale = self.w.number(to, scale);
        self.w.alike("multiply", &[&float, &scale])
    }
}

/// Elements of each block: words by element, block by element, place in the block.
fn blocks(
    words: &mut Words<'_>,
    seed: &Value,
    offset: &Value,
    per_block: u64,
) -> ([Value; 4], Value) {
    let places = words.places();
    let per = words.number(per_block);
    let (seed, offset) = (words.spread(seed), words.spread(offset));
    let own = words.op("divide", &places, &per);
    let block = words.op("add", &offset, &own);
    let place = words.op("remainder", &places, &per);
    (words.block(&seed, &block), place)
}

fn flat(ty: TensorType) -> TensorType {
    like(with_dtype(ty, DType::I64), &[ty.shape().element_count()])
}

/// Uniform in [0, 1), as `SM_OP_RNG_UNIFORM` says.
pub(super) fn uniform(w: &mut Writer, ty: TensorType, seed: &Value, offset: &Value) -> Value {
    let dtype = ty.dtype();
    let mut words = Words { w, ty: flat(ty) };
    let value = if dtype == DType::F64 {
        let (block, place) = blocks(&mut words, seed, offset, 2);
        let halves = [
            joined(&mut words, &block[..2]),
            joined(&mut words, &block[2..]),
        ];
        let picked = words.pick(&place, &halves);
        let whole = words.shifted(&picked, 11);
        words.scaled(&whole, dtype, exp2(-53))
    } else {
        let (block, place) = blocks(&mut words, seed, offset, 4);
        let picked = words.pick(&place, &block);
        let bits = match dtype {
            DType::F16 => 11,
            DType::BF16 => 8,
            _ => 24,
        };
        let whole = words.shifted(&picked, 32 - bits);
        let exact = words.scaled(&whole, DType::F32, exp2(-i32::try_from(bits).unwrap_or(24)));
        words.w.convert(&exact, dtype)
    };
    shaped(w, &value, ty.shape())
}

/// Normal, as `SM_OP_RNG_NORMAL` says.
pub(super) fn normal(w: &mut Writer, ty: TensorType, seed: &Value, offset: &Value) -> Value {
    let dtype = ty.dtype();
    let is_f64 = dtype == DType::F64;
    let mut words = Words { w, ty: flat(ty) };
    let (block, place) = blocks(&mut words, seed, offset, if is_f64 { 2 } else { 4 });
    let (first, second) = if is_f64 {
        (
            joined(&mut words, &block[..2]),
            joined(&mut words, &block[2..]),
        )
    } else {
        let pairs = |at: usize| [0, 0, 2, 2].map(|pair: usize| block[pair + at].clone());
        (words.pick(&place, &pairs(0)), words.pick(&place, &pairs(1)))
    };
    let (cut, bits, float) = if is_f64 {
        (11, -53, DType::F64)
    } else {
        (8, -24, DType::F32)
    };
    let one = words.number(1);
    let (u, v) = (words.shifted(&first, cut), words.shifted(&second, cut));
    let u = words.op("add", &u, &one);
    let (u, v) = (
        words.scaled(&u, float, exp2(bits)),
        words.scaled(&v, float, exp2(bits)),
    );
    let two = words.number(2);
    let parity = words.op("remainder", &place, &two);
    let is_even = words.equals(&parity, 0);
    let w = words.w;
    let log = w.alike("log", &[&u]);
    let factor = w.number(log.1, -2.0);
    let squared = w.alike("multiply", &[&log, &factor]);
    let radius = w.alike("sqrt", &[&squared]);
    let turn = w.number(v.1, std::f64::consts::TAU);
    let angle = w.alike("multiply", &[&v, &turn]);
    let (cosine, sine) = (w.alike("cosine", &[&angle]), w.alike("sine", &[&angle]));
    let part = w.select(&is_even, &cosine, &sine);
    let value = w.alike("multiply", &[&radius, &part]);
    let value = w.convert(&value, dtype);
    shaped(w, &value, ty.shape())
}

/// Two words as one of 64 bits, the lower half first.
fn joined(words: &mut Words<'_>, pair: &[Value]) -> Value {
    let bits = words.number(32);
    let high = words.op("shift_left", &pair[1], &bits);
    words.op("or", &pair[0], &high)
}

fn exp2(power: i32) -> f64 {
    libm::exp2(f64::from(power))
}
