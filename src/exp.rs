//! Powers of two with exponents that are not integers, the exponential function of this crate.
//!
//! Made of additions, multiplications and operations on bits alone, so that every processor gives
//! the same bits; the libraries' functions differ between platforms. No branches: loops over it
//! vectorise.
//!
//! With `k` the integer next to `t` and `r = t - k`, 2^t is 2^k times a polynomial of degree 7 in
//! `r`. Its coefficients minimise the largest relative error on -1/2..=1/2 among those with
//! constant term 1 (Remez' exchange in 50 digits), so that powers of integers are exact. That error
//! is 4.67e-11, the rounding of coefficients and operations adds less than 1e-15.

use std::mem::MaybeUninit;

use crate::lanes::{Instructions, LANES, SUB_BLOCK, folded, lane_sum, written};
use crate::scalar::Scalar;

/// The polynomial's coefficients, from the constant term on.
const COEFFICIENTS: [f64; 8] = [
    1.0,
    0.693_147_180_704_532_1,
    0.240_226_510_665_606_16,
    0.055_504_103_659_907_72,
    0.009_618_038_132_110_119,
    0.001_333_393_505_654_288_2,
    0.000_154_667_563_059_500_54,
    1.519_615_627_139_357_1e-5,
];

/// Adding it to a number below 2^51 rounds that to an integer, which with the bias of the exponent
/// is then in the lowest bits.
pub(crate) const ROUND: f64 = 6_755_399_441_055_744.0 + 1023.0;

/// Exponents beyond are taken for these: the first gives 0, the other 2^1023.
pub(crate) const LOWEST: f64 = -1023.0;
pub(crate) const HIGHEST: f64 = 1023.0;

/// 2^t to within 5e-11 of its value, for -1022 <= t <= 1023; exactly 0 below -1022.5 and for -inf,
/// the last power of two from 1023 on; NaN for NaN.
#[inline(always)]
pub(crate) fn exp2(t: f64) -> f64 {
    let (fraction, power) = split_exponent(t);
    power_of(fraction) * power
}

/// The fraction `t - k` and the power 2^k.
#[inline(always)]
pub(crate) fn split_exponent(t: f64) -> (f64, f64) {
    // In this order of operands a NaN stays.
    let t = if LOWEST > t { LOWEST } else { t };
    let t = if HIGHEST < t { HIGHEST } else { t };
    let shifted = t + ROUND;
    // The lowest 11 bits are the exponent of a float64; of -1023 they are 0, and so is the float.
    (t - (shifted - ROUND), f64::from_bits(shifted.to_bits() << 52))
}

/// The polynomial. Pairs and squares leave less to wait for than one term after the other.
#[inline(always)]
fn power_of(fraction: f64) -> f64 {
    let [c0, c1, c2, c3, c4, c5, c6, c7] = COEFFICIENTS;
    let (r, square) = (fraction, fraction * fraction);
    let (low, high) = ((c0 + c1 * r, c2 + c3 * r), (c4 + c5 * r, c6 + c7 * r));
    (low.0 + low.1 * square) + (high.0 + high.1 * square) * (square * square)
}

/// The sum of 2^((logit - reference) * scale) over a sub-block in the fixed order. With `slots`,
/// every power is written there.
///
/// Two loops with buffers between them: in a single one an entry takes so many operations, each
/// waiting for the one before, that the processor cannot look ahead to enough other entries.
#[inline(always)]
pub(crate) fn powers<I: Instructions, T: Scalar>(
    logits: &[T],
    reference: f64,
    scale: f64,
    slots: Option<&mut [f64]>,
) -> f64 {
    let mut buffers = [[MaybeUninit::uninit(); SUB_BLOCK]; 2];
    let [fractions, powers] = &mut buffers;
    let (fractions, powers) = (&mut fractions[..logits.len()], &mut powers[..logits.len()]);
    I::split_exponents(logits, reference, scale, fractions, powers);
    // SAFETY: all slots have been written: they are as many as the logits.
    let (fractions, powers) = unsafe { (written(fractions), written(powers)) };
    if let Some(slots) = slots {
        for ((slot, fraction), power) in slots.iter_mut().zip(&*fractions).zip(&*powers) {
            *slot = power_of(*fraction) * power;
        }
        return lane_sum(slots);
    }
    let ((fractions, rest), (powers, powers_rest)) =
        (fractions.as_chunks::<LANES>(), powers.as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for (fractions, powers) in fractions.iter().zip(powers) {
        for lane in 0..LANES {
            lanes[lane] += power_of(fractions[lane]) * powers[lane];
        }
    }
    for (lane, (fraction, power)) in rest.iter().zip(powers_rest).enumerate() {
        lanes[lane] += power_of(*fraction) * power;
    }
    folded(lanes)
}

/// A positive number of whatever size: `mantissa * 2^exponent`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Power {
    /// From 0.7 to 3.
    mantissa: f64,
    /// An integer.
    exponent: f64,
}

impl Power {
    /// `factor * 2^exponent`, for a positive and finite factor and a finite exponent.
    pub(crate) fn new(factor: f64, exponent: f64) -> Self {
        let (mantissa, own) = split(factor);
        let integer = exponent.round_ties_even();
        Self { mantissa: mantissa * exp2(exponent - integer), exponent: own + integer }
    }

    /// Whether `uniform` times this number is less than 1.
    pub(crate) fn times_is_below_one(self, uniform: f64) -> bool {
        if uniform == 0.0 {
            return true;
        }
        let (mantissa, exponent) = split(uniform);
        // The mantissas' product is between 0.7 and 6, so that larger exponents change nothing.
        let exponent = (self.exponent + exponent).clamp(-8.0, 8.0);
        mantissa * self.mantissa * exp2(exponent) < 1.0
    }

    /// The number, as 0 or infinite where it is out of range.
    pub(crate) fn value(self) -> f64 {
        // Two steps, neither out of range.
        let half = (self.exponent / 2.0).round_ties_even().clamp(-1000.0, 1000.0);
        let rest = (self.exponent - half).clamp(-1000.0, 1000.0);
        self.mantissa * exp2(half) * exp2(rest)
    }
}

/// The logarithm of a positive finite number to base 2, to within 1e-15 of its value; exact for
/// powers of two.
pub(crate) fn log2(number: f64) -> f64 {
    let (mantissa, exponent) = split(number);
    let (mantissa, exponent) = if mantissa > std::f64::consts::SQRT_2 {
        (mantissa / 2.0, exponent + 1.0)
    } else {
        (mantissa, exponent)
    };
    // ln m = 2 artanh s, with s^2 below 0.0295: what follows the last term is below 1e-18.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let mut series = 0.0;
    for divisor in (0..12).rev() {
        series = series * (s * s) + 1.0 / f64::from(2 * divisor + 1);
    }
    exponent + 2.0 * std::f64::consts::LOG2_E * s * series
}

/// A positive finite number as mantissa in `1.0..2.0` and exponent.
#[expect(clippy::cast_possible_truncation, reason = "an exponent has 11 bits")]
fn split(number: f64) -> (f64, f64) {
    const MANTISSA: u64 = (1 << 52) - 1;
    let (number, shift) =
        if number < f64::MIN_POSITIVE { (number * exp2(64.0), 64) } else { (number, 0) };
    let bits = number.to_bits();
    let exponent = (bits >> 52).cast_signed() as i32 - 1023 - shift;
    (f64::from_bits(bits & MANTISSA | 1.0_f64.to_bits()), f64::from(exponent))
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "powers of two are exact")]
mod tests {
    use super::*;
    use crate::tests::Noise;

    /// Against the library's function, whose own error is below 1e-15.
    #[test]
    fn every_power_is_within_the_bound() {
        let mut noise = Noise(1);
        let mut worst = 0.0_f64;
        for step in 0..2_000_000 {
            let t = -1022.0 + 2045.0 * (f64::from(step) + noise.uniform()) / 2e6;
            let expected = t.exp2();
            let off = (exp2(t) - expected).abs() / expected;
            assert!(off <= 5e-11, "2^{t} is off by {off:e}");
            worst = worst.max(off);
        }
        assert!(worst > 4.6e-11, "the bound is as small as it can be: {worst:e}");
    }

    /// The error as a function of the fraction, which is all that it depends on, on a fine grid.
    #[test]
    fn every_fraction_is_within_the_bound() {
        for step in 0..=1_000_000 {
            let t = f64::from(step) / 1e6 - 0.5;
            let off = (exp2(t) / t.exp2() - 1.0).abs();
            assert!(off <= 4.68e-11, "2^{t} is off by {off:e}");
        }
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "small integers")]
    fn powers_of_integers_are_exact_and_the_ends_are_as_promised() {
        for k in -1022..=1023 {
            let expected = f64::from_bits(i64::cast_unsigned(k + 1023) << 52);
            assert_eq!(exp2(k as f64).to_bits(), expected.to_bits(), "2^{k}");
        }
        for t in [f64::NEG_INFINITY, -1e300, -1e6, -1023.0, -1022.6] {
            assert_eq!(exp2(t).to_bits(), 0, "2^{t}");
        }
        for t in [1023.0, 1023.5, 1e6, f64::INFINITY] {
            assert_eq!(exp2(t), 2.0_f64.powi(1023), "2^{t}");
        }
        assert!(exp2(f64::NAN).is_nan() && exp2(-f64::NAN).is_nan(), "NaN stays");
    }

    #[test]
    fn numbers_of_any_size_are_compared() {
        let mut noise = Noise(2);
        let mut kept = 0;
        for _ in 0..100_000 {
            let size = 10.0_f64.powf(8.0 * noise.uniform() - 4.0);
            let exponent = (noise.uniform() - 0.5) * size;
            let factor = (1200.0 * (noise.uniform() - 0.5)).exp2();
            let uniform = noise.uniform() * (-1100.0 * noise.uniform()).exp2();
            let logarithm = factor.log2() + exponent + uniform.log2();
            if uniform == 0.0 || logarithm.abs() < 1e-8 {
                continue;
            }
            let found = Power::new(factor, exponent).times_is_below_one(uniform);
            assert_eq!(found, logarithm < 0.0, "{uniform:e} * {factor:e} * 2^{exponent}");
            kept += usize::from(found);
        }
        assert!((10_000..90_000).contains(&kept), "both are seen: {kept}");
        let half = Power::new(0.5, 2.0);
        assert!(!half.times_is_below_one(0.5), "1 is not below 1");
        assert!(half.times_is_below_one(0.5 - f64::EPSILON / 4.0), "just below");
        assert!(Power::new(1.0, 1e300).times_is_below_one(0.0), "0 is below whatever comes");
        assert!(!Power::new(1.0, 1e300).times_is_below_one(f64::from_bits(1)), "far above");
    }

    #[test]
    fn logarithms_are_within_the_bound() {
        let mut noise = Noise(3);
        for _ in 0..200_000 {
            let size = 2000.0 * noise.uniform() - 1000.0;
            for number in [size.exp2(), 1.0 + size * 1e-3 * noise.uniform() * 0.5, noise.uniform()]
            {
                if number > 0.0 {
                    let (found, expected) = (log2(number), number.log2());
                    assert!((found - expected).abs() <= 1e-15 * expected.abs(), "log2 {number:e}");
                }
            }
        }
        for k in -1022..=1023 {
            assert_eq!(log2(exp2(f64::from(k))), f64::from(k));
        }
        for k in 0..52 {
            assert_eq!(log2(f64::from_bits(1 << k)), f64::from(k - 1074));
        }
    }

    #[test]
    fn values_overflow_to_infinity_and_underflow_to_0() {
        for (factor, exponent, expected) in [
            (3.0, 4.0, 48.0),
            (1.0, 1e300, f64::INFINITY),
            (1.0, -1e300, 0.0),
            (2.0_f64.powi(-900), 1800.0, 2.0_f64.powi(900)),
            (2.0_f64.powi(900), -1974.0, f64::from_bits(1)),
            (2.0_f64.powi(900), 200.0, f64::INFINITY),
        ] {
            assert_eq!(Power::new(factor, exponent).value(), expected, "{factor} 2^{exponent}");
        }
    }
}
