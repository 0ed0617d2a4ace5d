//! The weights of a row at a glance, in `f32`: enough to tell nearly every time whether a token is
//! kept, and which one is drawn. Where it is not, all is computed in `f64`, so that a glance changes
//! no result, and neither its order of sums nor its rounding is part of the contract.
//!
//! The bound, in units of 2^-24. An exponent is cut into an integer and a fraction that is at most a
//! little more than 1/2. With fused operations the fraction is rounded up to three times, by 1/4 of a
//! unit and behind 1/2 by 1/2, by which the weight is off by 0.9 of its value, else once, 0.4. The
//! polynomial adds 0.3, and the rounding of its operations 1.2, or 1.7 without fused ones: a weight is
//! off by less than 3, and 5e-11 of `exp.rs` has room in it. Four weights are added in `f32`, which
//! adds 3; from there on sums are `f64`. Weights below 2^-126 may be lost: 2^31 of them have not 2^-35
//! of a sum that is taken.

use std::f32::consts::LN_2;
use std::mem::MaybeUninit;
use std::ops::{Range, RangeInclusive};

use crate::draw::{Entries, Sums, Weights};
use crate::error::Error;
use crate::lanes::{Instructions, LANES, Path, SUB_BLOCK, folded, written};
use crate::law::{Exponentials, SHARED};
use crate::residual::Workers;
use crate::row::{Row, Source};
use crate::scalar::Scalar;

/// One unit, half of the last place of 1.
pub(crate) const UNIT: f64 = 1.0 / 16_777_216.0;

/// What a weight may be off by, as a fraction of it.
pub(crate) const WEIGHT_OFF_BY: f64 = 3.0 * UNIT;

/// What adding in `f32` may change a sum by, as a fraction of it.
pub(crate) const ADDING_OFF_BY: f64 = 3.0 * UNIT;

/// What a sum may be off by, as a fraction of it.
pub(crate) const SUM_OFF_BY: f64 = WEIGHT_OFF_BY + ADDING_OFF_BY;

/// Groups of lanes that are added in `f32`.
const ADDED: usize = 4;

/// Sums that are taken, 2^-60 to 2^100: then no weight was too large for `f32`, and none that counts
/// too small. A logit that is NaN or +inf makes a larger sum.
const TAKEN: RangeInclusive<f64> = power(-60)..=power(100);

/// Scales that are: the products of their parts with logits keep all their places.
const SCALES: RangeInclusive<f64> = power(-64)..=power(64);

/// The degree of the polynomial.
pub(crate) const DEGREE: usize = 6;

/// 2^r for |r| <= 1/2, from the constant term on: the largest relative error is 1.63e-8.
pub(crate) const COEFFICIENTS: [f32; DEGREE + 1] =
    [1.0, LN_2, 0.240_226_5, 0.055_503_055, 0.009_616_87, 0.001_341_725_9, 0.000_160_134_72];

/// Adding it to a number below 2^22 rounds that to an integer, which with the bias of the exponent is
/// then in the lowest bits.
pub(crate) const ROUND_F32: f32 = 12_582_912.0 + 127.0;

/// Exponents beyond are taken for these: one gives 0, the other 2^127.
const LIMIT: f64 = 127.0;

/// 2^exponent, of a normal number.
const fn power(exponent: i64) -> f64 {
    f64::from_bits((1023 + exponent).cast_unsigned() << 52)
}

/// The number that logits are multiplied with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    exact: f64,
    /// The exact one in two parts.
    pub(crate) high: f32,
    pub(crate) low: f32,
    /// The logit whose exponent is `LIMIT`.
    pub(crate) limit: f32,
}

impl Scale {
    pub(crate) fn new(exact: f64) -> Option<Self> {
        let high = narrowed(exact);
        let low = narrowed(exact - f64::from(high));
        let limit = narrowed(LIMIT) / high;
        SCALES.contains(&exact).then_some(Self { exact, high, low, limit })
    }
}

/// The weights of a row, 2^(logit * scale).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glance<'a, T> {
    row: Row<'a, T>,
    scale: Scale,
}

impl<'a, T: Scalar> Glance<'a, T> {
    /// The weights of a row at a temperature above 0 and their sums, all of which are as near as
    /// `SUM_OFF_BY` says; none where that cannot be said, as of a row that is no law.
    pub(crate) fn of(
        path: Path,
        workers: Workers,
        row: Row<'a, T>,
        temperature: f64,
    ) -> Result<Option<(Self, Sums)>, Error> {
        let Some(scale) = Scale::new(Exponentials::new(row, temperature).scale) else {
            return Ok(None);
        };
        let glance = Self { row, scale };
        let sums = Sums::of(path, workers, glance)?;
        Ok(Some((glance, sums)).filter(|(_, sums)| TAKEN.contains(&sums.mass)))
    }

    /// The id that a uniform number selects, where the sums tell.
    pub(crate) fn draw(self, path: Path, sums: &Sums, uniform: f64) -> Option<usize> {
        sums.draw_surely(path, self, uniform, SUM_OFF_BY * sums.mass)
    }

    /// The exponent of an id, in `f64`.
    pub(crate) fn exponent(&self, id: usize) -> f64 {
        self.row.entry(id).logit() * self.scale.exact
    }
}

impl<T: Scalar> Rough for Glance<'_, T> {
    fn vocabulary(&self) -> usize {
        Source::len(&self.row)
    }

    #[inline(always)]
    fn weigh<'b, I: Instructions>(
        &self,
        range: Range<usize>,
        slots: &'b mut [MaybeUninit<f32>; SUB_BLOCK],
    ) -> &'b mut [f32] {
        let slots = &mut slots[..range.len()];
        if let Some(entries) = self.row.as_slice() {
            I::glances(&entries[range], self.scale, slots);
        } else {
            let mut buffer = [T::NAN; SUB_BLOCK];
            let entries = self.row.load(range.start, range.len(), &mut buffer);
            I::glances(entries, self.scale, slots);
        }
        // SAFETY: all slots have been written: they are as many as the entries.
        unsafe { written(slots) }
    }
}

/// Weights in `f32`.
pub(crate) trait Rough: Copy + Sync {
    /// The size of the vocabulary, not 0.
    fn vocabulary(&self) -> usize;

    /// The weights of a sub-block. `#[inline(always)]`.
    fn weigh<'b, I: Instructions>(
        &self,
        range: Range<usize>,
        slots: &'b mut [MaybeUninit<f32>; SUB_BLOCK],
    ) -> &'b mut [f32];
}

impl<R: Rough> Weights for R {
    const SHARED: usize = SHARED;

    fn len(&self) -> usize {
        self.vocabulary()
    }

    #[inline(always)]
    fn sum<I: Instructions>(&self, range: Range<usize>) -> (f64, bool) {
        let mut buffer = [MaybeUninit::uninit(); SUB_BLOCK];
        (sum_of(self.weigh::<I>(range, &mut buffer)), false)
    }
}

impl<R: Rough> Entries for R {
    #[inline(always)]
    fn entries<I: Instructions>(&self, range: Range<usize>, slots: &mut [f64]) {
        let mut buffer = [MaybeUninit::uninit(); SUB_BLOCK];
        for (slot, weight) in slots.iter_mut().zip(self.weigh::<I>(range, &mut buffer)) {
            *slot = f64::from(*weight);
        }
    }
}

/// The sum of the numbers of a sub-block.
#[inline(always)]
pub(crate) fn sum_of(numbers: &[f32]) -> f64 {
    let (groups, rest) = numbers.as_chunks::<LANES>();
    let (added, groups) = groups.as_chunks::<ADDED>();
    let mut lanes = [0.0; LANES];
    for groups in added {
        let mut sums = groups[0];
        for group in &groups[1..] {
            for lane in 0..LANES {
                sums[lane] += group[lane];
            }
        }
        for lane in 0..LANES {
            lanes[lane] += f64::from(sums[lane]);
        }
    }
    for (lane, number) in groups.as_flattened().iter().chain(rest).enumerate() {
        lanes[lane % LANES] += f64::from(*number);
    }
    folded(lanes)
}

/// 2^(entry * scale), where that is from 2^-126 to 2^126; 0 from 2^-127 down, about 2^127 from there on
/// and of NaN. `FUSED` says that multiplying and adding with one rounding is one instruction, which
/// spares entries of no more than 32 bits the way by `f64`.
#[inline(always)]
pub(crate) fn weight<T: Scalar, const FUSED: bool>(entry: T, scale: Scale) -> f32 {
    let Scale { exact, high, low, limit } = scale;
    let fused = FUSED && size_of::<T::Wide>() == size_of::<f32>();
    // In this order of operands NaN is the limit.
    let (shifted, fraction) = if fused {
        let logit = narrowed(entry.logit());
        let logit = if logit < limit { logit } else { limit };
        let logit = if logit > -limit { logit } else { -limit };
        let shifted = logit.mul_add(high, ROUND_F32);
        (shifted, logit.mul_add(low, logit.mul_add(high, ROUND_F32 - shifted)))
    } else {
        let exponent = entry.logit() * exact;
        let exponent = if exponent < LIMIT { exponent } else { LIMIT };
        let exponent = if exponent > -LIMIT { exponent } else { -LIMIT };
        let shifted = narrowed(exponent) + ROUND_F32;
        (shifted, narrowed(exponent - f64::from(shifted - ROUND_F32)))
    };
    let mut power = COEFFICIENTS[DEGREE];
    for degree in (0..DEGREE).rev() {
        let coefficient = COEFFICIENTS[degree];
        power = if fused {
            power.mul_add(fraction, coefficient)
        } else {
            power * fraction + coefficient
        };
    }
    // The lowest 8 bits are the exponent of a float32; of -127 they are 0, and so is the float: tokens
    // that are ruled out make no subnormal numbers, which some processors are slow with.
    power * f32::from_bits(shifted.to_bits() << 23)
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "rounding is in the bound, and so is infinity")]
pub(crate) fn narrowed(value: f64) -> f32 {
    value as f32
}
