//! What one would write without an engine: matrix products by the `gemm` crate, and loops, compiled
//! for the processor that is found.
#![expect(unsafe_code, reason = "calls `gemm`, which takes raw pointers")]

use std::f64::consts::FRAC_1_SQRT_2;
use std::thread;

use gemm::Parallelism;
use pulp::Arch;

/// A feed-forward network with made-up weights, row-major.
pub(super) struct Layer {
    pub(super) x: Vec<f64>,
    pub(super) w1: Vec<f64>,
    pub(super) b1: Vec<f64>,
    pub(super) w2: Vec<f64>,
    pub(super) b2: Vec<f64>,
}

impl Layer {
    pub(super) fn new() -> Self {
        // Small numbers that are not all alike.
        let values = |len: usize, scale: f64| -> Vec<f64> {
            let numbers = (0_u16..997).cycle().take(len);
            numbers.map(|n| (f64::from(n) - 498.0) * scale).collect()
        };
        Self {
            x: values(ROWS * WIDTH, 1e-3),
            w1: values(HIDDEN * WIDTH, 1e-4),
            b1: values(HIDDEN, 1e-3),
            w2: values(WIDTH * HIDDEN, 1e-4),
            b2: values(WIDTH, 1e-3),
        }
    }

    /// gelu(x·w1ᵀ + b1)·w2ᵀ + b2.
    pub(super) fn forward(&self) -> Vec<f64> {
        let mut hidden = vec![0.0; ROWS * HIDDEN];
        product(&mut hidden, &self.x, &self.w1, [ROWS, WIDTH, HIDDEN], true);
        for row in hidden.chunks_exact_mut(HIDDEN) {
            for (value, bias) in row.iter_mut().zip(&self.b1) {
                let x = *value + bias;
                *value = 0.5 * x * (1.0 + libm::erf(x * FRAC_1_SQRT_2));
            }
        }
        let mut y = vec![0.0; ROWS * WIDTH];
        product(&mut y, &hidden, &self.w2, [ROWS, HIDDEN, WIDTH], true);
        for row in y.chunks_exact_mut(WIDTH) {
            for (value, bias) in row.iter_mut().zip(&self.b2) {
                *value += bias;
            }
        }
        y
    }
}

/// The ten operations of the benchmark's chain in one loop, on all threads that there are.
pub(super) fn chain(out: &mut [f32], x: &[f32], factor: f32) {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let part_len = x.len().div_ceil(threads).max(1);
    let arch = Arch::new();
    thread::scope(|scope| {
        for (out, x) in out.chunks_mut(part_len).zip(x.chunks(part_len)) {
            scope.spawn(move || {
                arch.dispatch(
                    #[inline(always)]
                    || {
                        for (out, x) in out.iter_mut().zip(x) {
                            *out = half_chain(half_chain(*x, *x, factor), *x, factor);
                        }
                    },
                );
            });
        }
    });
}

#[inline(always)]
fn half_chain(value: f32, x: f32, factor: f32) -> f32 {
    let value = (value + x) * factor - x;
    // As the engine's maximum: NaN if one is.
    -(if value > x || value.is_nan() {
        value
    } else {
        x
    })
}

/// The product of `a`, `[m, k]`, and `b`, `[k, n]` or, transposed, `[n, k]`, by one thread.
pub(super) fn product<T: Number>(
    out: &mut [T],
    a: &[T],
    b: &[T],
    [m, k, n]: [usize; 3],
    is_transposed: bool,
) {
    assert!(a.len() == m * k && b.len() == k * n && out.len() == m * n);
    let step = |len: usize| isize::try_from(len).unwrap_or(isize::MAX);
    let (columns, rows) = if is_transposed {
        (step(k), 1)
    } else {
        (1, step(n))
    };
    // SAFETY: the three matrices are as long as their extents say (checked above) and their strides
    // stay within them; `out` is borrowed mutably, so it overlaps neither of the others; `T` is one
    // of the types that `gemm` knows.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            step(n),
            false,
            a.as_ptr(),
            1,
            step(k),
            b.as_ptr(),
            columns,
            rows,
            T::ZERO,
            T::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// What `gemm` multiplies.
pub(super) trait Number: Copy + 'static {
    const ZERO: Self;
    const ONE: Self;
}

impl Number for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
}

impl Number for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
}

/// Tokens of a batch.
pub(super) const ROWS: usize = 64;
/// Values of a token, as many as the demo's layer has.
pub(super) const WIDTH: usize = 384;
/// Values between the two products.
pub(super) const HIDDEN: usize = 1536;
