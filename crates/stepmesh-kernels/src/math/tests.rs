//! How far the functions are from the C library's in f64, over all magnitudes.

/// The largest distance in units in the last place of f32, over a sample of all finite numbers.
fn worst(
    ours: impl Fn(f32) -> f32,
    exact: impl Fn(f64) -> f64,
    range: impl Fn(f32) -> bool,
) -> f64 {
    let mut worst = 0.0_f64;
    // A step that hits all exponents and no pattern of mantissas.
    let numbers = (0..u32::MAX).step_by(40_009).map(f32::from_bits);
    for x in numbers.filter(|x| x.is_finite() && range(*x)) {
        let (found, wanted) = (ours(x), exact(f64::from(x)));
        if wanted.abs() > f64::from(f32::MAX) {
            assert!(
                found.is_infinite() || found.abs() > 3.4e38,
                "{x}: {found}, not {wanted}"
            );
            continue;
        }
        // Subnormal results have fewer digits.
        let unit = wanted.abs().max(f64::from(f32::MIN_POSITIVE)) * f64::from(f32::EPSILON);
        let distance = (f64::from(found) - wanted).abs() / unit;
        assert!(!distance.is_nan(), "{x}: {found}, not {wanted}");
        worst = worst.max(distance);
    }
    worst
}

#[test]
fn exponentials_and_logarithms_are_within_2_units() {
    let exp = worst(super::exp, f64::exp, |_| true);
    assert!(exp <= 2.0, "{exp}");
    let log = worst(super::log, f64::ln, |x| x > 0.0);
    assert!(log <= 2.0, "{log}");
}

#[test]
fn hyperbolic_tangents_and_error_functions_are_within_4_units() {
    let tanh = worst(super::tanh, f64::tanh, |_| true);
    assert!(tanh <= 4.0, "{tanh}");
    let erf = worst(super::erf, libm::erf, |_| true);
    assert!(erf <= 4.0, "{erf}");
}

#[test]
fn the_ends_are_exact() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    assert_eq!(
        (super::exp(inf), super::exp(-inf), super::exp(0.0)),
        (inf, 0.0, 1.0)
    );
    assert_eq!(
        (super::log(inf), super::log(0.0), super::log(1.0)),
        (inf, -inf, 0.0)
    );
    assert_eq!((super::tanh(inf), super::tanh(-inf)), (1.0, -1.0));
    assert_eq!((super::erf(inf), super::erf(-inf)), (1.0, -1.0));
    for function in [super::exp, super::log, super::tanh, super::erf] {
        assert!(function(nan).is_nan());
    }
    assert!(super::log(-1.0).is_nan() && super::log(-inf).is_nan());
}
