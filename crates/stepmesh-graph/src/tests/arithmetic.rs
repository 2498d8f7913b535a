//! Small floats and random words.

use crate::{float8, philox};

#[test]
fn philox_gives_the_published_words() {
    let words = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
    assert_eq!(philox::block(0, 0), words);
}

#[test]
fn uniform_numbers_stay_below_one() {
    for bits in [8, 11, 24] {
        assert!(philox::uniform(u32::MAX, bits) < 1.0);
    }
    assert!(philox::uniform_f64(u32::MAX, u32::MAX) < 1.0);
}

#[test]
fn normal_numbers_have_mean_and_deviation() {
    let numbers: Vec<f64> = (0..4000)
        .flat_map(|block| {
            let words = philox::block(9, block);
            let f32s = philox::normal([words[0], words[1]]).map(f64::from);
            [f32s, philox::normal_f64(words)].concat()
        })
        .collect();
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let variance = numbers.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
    assert!(mean.abs() < 0.05, "{mean}");
    assert!((variance - 1.0).abs() < 0.05, "{variance}");
}

#[test]
fn each_small_float_is_its_own_nearest() {
    for bits in 0..=u8::MAX {
        let wide = float8::e4m3_to_f32(bits);
        let back = float8::e4m3_from_f64(wide.into());
        assert!(
            back == bits || (wide.is_nan() && back & 0x7f == 0x7f),
            "{bits:#x}"
        );
        let wide = float8::e5m2_to_f32(bits);
        let back = float8::e5m2_from_f64(wide.into());
        assert!(
            back == bits || (wide.is_nan() && back & 0x7f == 0x7f),
            "{bits:#x}"
        );
    }
}

#[test]
fn small_floats_round_to_nearest_even() {
    let check = |to: fn(u8) -> f32, from: fn(f64) -> u8, last: u8| {
        for bits in 0..last {
            let (low, high) = (f64::from(to(bits)), f64::from(to(bits + 1)));
            let middle = f64::midpoint(low, high);
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            assert_eq!(from(middle), even, "middle of {low} and {high}");
            assert_eq!(from(middle.next_down()), bits);
            assert_eq!(from(middle.next_up()), bits + 1);
            assert_eq!(from(-middle), even | 0x80);
        }
    };
    check(float8::e4m3_to_f32, float8::e4m3_from_f64, 0x7e);
    check(float8::e5m2_to_f32, float8::e5m2_from_f64, 0x7b);
}

#[test]
fn what_is_too_large_is_nan_or_infinite() {
    assert_eq!(float8::e4m3_to_f32(0x7e), 448.0);
    assert_eq!(float8::e4m3_from_f64(464.0), 0x7e);
    assert_eq!(float8::e4m3_from_f64(464.1), 0x7f);
    assert_eq!(float8::e4m3_from_f64(f64::NEG_INFINITY), 0xff);
    assert_eq!(float8::e5m2_to_f32(0x7b), 57344.0);
    assert_eq!(float8::e5m2_from_f64(61440.0), 0x7c);
    assert_eq!(float8::e5m2_from_f64(61439.9), 0x7b);
    assert_eq!(float8::e5m2_from_f64(-1e300), 0xfc);
}
