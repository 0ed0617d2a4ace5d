//! A glance at the sum of a row's weights, in `f32`: enough to tell nearly every time whether a token
//! is kept. Where it is not, the sum is computed in `f64`, so that a glance changes no result, and
//! neither its order of sums nor its rounding is part of the contract.
//!
//! The bound. An exponent `t` of at most 127 is the product of a logit and a scale, each rounded to 24
//! bits, as is the product: it is off by less than 127 * 3 * 2^-24, the weight by 1.6e-5 of its value.
//! The polynomial adds 2.9e-6 and the rounding of its operations 4e-7. Within a sub-block 16 weights
//! are added in `f32`, which adds 1e-6; from there on sums are `f64`. Weights below 2^-126 may be
//! lost: 2^31 of them have not 2^-35 of a sum that is taken. All of it is below 2^-15.

use std::ops::{Range, RangeInclusive};

use crate::draw::{Sums, Weights};
use crate::error::Error;
use crate::lanes::{Instructions, LANES, Path, SUB_BLOCK};
use crate::law::SHARED;
use crate::residual::Workers;
use crate::row::{Row, Source};
use crate::scalar::Scalar;

/// What a sum may be off by, as a fraction of it.
pub(crate) const OFF_BY: f64 = 1.0 / 32_768.0;

/// Sums that are taken, 2^-60 to 2^100: then no weight was too large for `f32`, and none that counts
/// too small. A logit that is none makes a sum of NaN or beyond, as +inf does.
const TAKEN: RangeInclusive<f64> =
    f64::from_bits((1023 - 60) << 52)..=f64::from_bits((1023 + 100) << 52);

/// 2^r for |r| <= 1/2, from the constant term on: the largest relative error is 2.9e-6.
const COEFFICIENTS: [f32; 5] = [1.0, 0.693_124_2, 0.240_240_99, 0.055_906_426, 0.009_582_853];

/// Adding it to a number below 2^22 rounds that to an integer, which with the bias of the exponent is
/// then in the lowest bits.
const ROUND: f32 = 12_582_912.0 + 127.0;

/// The sum of 2^(logit * scale) over a row, to within `OFF_BY` of it; none where that cannot be said.
pub(crate) fn glance<T: Scalar>(
    path: Path,
    workers: Workers,
    row: Row<'_, T>,
    scale: f64,
) -> Result<Option<f64>, Error> {
    let scale = narrowed(scale);
    let sum = Sums::of(path, workers, Glance { row, scale })?.mass;
    Ok(Some(sum).filter(|sum| TAKEN.contains(sum)))
}

#[derive(Clone, Copy)]
struct Glance<'a, T> {
    row: Row<'a, T>,
    scale: f32,
}

impl<T: Scalar> Weights for Glance<'_, T> {
    const SHARED: usize = SHARED;

    fn len(&self) -> usize {
        Source::len(&self.row)
    }

    #[inline(always)]
    fn sum<I: Instructions>(&self, range: Range<usize>) -> (f64, bool) {
        let sum = if let Some(entries) = self.row.as_slice() {
            sum::<I, T>(&entries[range], self.scale)
        } else {
            let mut buffer = [T::NAN; SUB_BLOCK];
            sum::<I, T>(self.row.load(range.start, range.len(), &mut buffer), self.scale)
        };
        (sum, false)
    }
}

#[inline(always)]
fn sum<I: Instructions, T: Scalar>(entries: &[T], scale: f32) -> f64 {
    let (groups, rest) = entries.as_chunks::<LANES>();
    let mut lanes = [0.0_f32; LANES];
    for group in groups {
        I::ask_ahead(group);
        for lane in 0..LANES {
            lanes[lane] += exp2::<I>(narrowed(group[lane].logit()) * scale);
        }
    }
    for (lane, entry) in rest.iter().enumerate() {
        lanes[lane] += exp2::<I>(narrowed(entry.logit()) * scale);
    }
    lanes.into_iter().map(f64::from).sum()
}

/// 2^t for |t| <= 126; 0 from -127 down, 2^127 from 127 on, NaN for NaN.
#[inline(always)]
fn exp2<I: Instructions>(t: f32) -> f32 {
    // In this order of operands a NaN stays.
    let t = if -127.0 > t { -127.0 } else { t };
    let t = if 127.0 < t { 127.0 } else { t };
    let shifted = t + ROUND;
    let r = t - (shifted - ROUND);
    // The lowest 8 bits are the exponent of a float32; of -127 they are 0, and so is the float.
    let power = f32::from_bits(shifted.to_bits() << 23);
    let [c0, c1, c2, c3, c4] = COEFFICIENTS;
    let polynomial = if I::FUSED {
        c4.mul_add(r, c3).mul_add(r, c2).mul_add(r, c1).mul_add(r, c0)
    } else {
        let square = r * r;
        (c0 + c1 * r) + (c2 + c3 * r) * square + c4 * (square * square)
    };
    polynomial * power
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "rounding is in the bound, and so is infinity")]
fn narrowed(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::Kernel;
    use crate::tests::{Noise, Sample, paths};

    struct Power(f32);

    impl Kernel for Power {
        type Output = f32;

        #[inline(always)]
        fn run<I: Instructions>(self) -> f32 {
            exp2::<I>(self.0)
        }
    }

    #[test]
    fn every_power_is_within_the_bound() {
        for path in paths() {
            let power = |t| path.run(Power(t));
            let mut worst = 0.0_f64;
            for step in 0..=1_000_000 {
                let t = narrowed(-126.0 + 252.0 * f64::from(step) / 1e6);
                let off = (f64::from(power(t)) / f64::from(t).exp2() - 1.0).abs();
                assert!(off <= 3.3e-6, "2^{t} is off by {off:e}");
                worst = worst.max(off);
            }
            assert!(worst > 2.8e-6, "the bound is as small as it can be: {worst:e}");
            for t in [-127.0, -1e9, f32::NEG_INFINITY] {
                assert_eq!(power(t).to_bits(), 0, "2^{t}");
            }
            for t in [127.0, 1e9, f32::INFINITY] {
                assert_eq!(power(t).to_bits(), 2.0_f32.powi(127).to_bits(), "2^{t}");
            }
            assert!(power(f32::NAN).is_nan() && power(-f32::NAN).is_nan(), "NaN stays");
        }
    }

    fn sums_are_within_the_bound<T: Sample>() {
        let mut noise = Noise(5);
        for round in 0..300_usize {
            let (spread, shift) = (10.0_f64.powf(2.0 * noise.uniform()), 40.0 * noise.uniform());
            let len = 1 + round * 10;
            let entry = |noise: &mut Noise| T::of((noise.uniform() - 0.5) * spread + shift - 20.0);
            let logits: Vec<T> = (0..len).map(|_| entry(&mut noise)).collect();
            let scale = 4.0 * noise.uniform() + 1e-3;
            let exact: f64 = logits.iter().map(|logit| (logit.logit() * scale).exp2()).sum();
            for path in paths() {
                let found = glance(path, Workers::Caller, Row::of(&logits), scale).expect("memory");
                let in_range = TAKEN.contains(&exact);
                let case = format!("round {round}: {found:?} for {exact:e}");
                match found {
                    Some(sum) => assert!((sum / exact - 1.0).abs() <= OFF_BY, "{case}"),
                    None => assert!(!in_range || exact > 2.0_f64.powi(99), "{case}"),
                }
                assert!(found.is_none() || in_range, "{case}");
            }
        }
    }

    #[test]
    fn sums_of_all_types_are_within_the_bound() {
        sums_are_within_the_bound::<half::f16>();
        sums_are_within_the_bound::<half::bf16>();
        sums_are_within_the_bound::<f32>();
        sums_are_within_the_bound::<f64>();
    }

    #[test]
    fn what_is_no_law_is_not_taken() {
        for bad in [f64::NAN, f64::INFINITY, 1e308, 150.0] {
            for path in paths() {
                let row = [0.0, bad, 0.0];
                assert_eq!(glance(path, Workers::Caller, Row::of(&row), 1.0), Ok(None), "{bad}");
            }
        }
        for row in [[f64::NEG_INFINITY; 3], [-1e308; 3], [-62.0; 3]] {
            let found = glance(Path::Portable, Workers::Caller, Row::of(&row), 1.0);
            assert_eq!(found, Ok(None), "{row:?}");
        }
    }
}
