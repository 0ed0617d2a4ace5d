//! The law softmax(logits / temperature) of one row, filtered or not, without an array for it.
//!
//! An id weighs 2^((logit - reference) * scale), with scale = log2(e) / temperature; the law is the
//! weights divided by their sum. The reference is 0 where the sum then is of ordinary size, which
//! saves a pass over the row. Where it is not, and where the law is filtered, it is the largest
//! logit. Which of them depends on the row alone. Logits are widened to `f64`, and so is all that
//! comes of them: with `exp.rs` a probability is off by at most 1e-10 of its value.

use std::f64::consts::LOG2_E;
use std::ops::{Range, RangeInclusive};

use crate::draw::{Entries, Sums, Weights};
use crate::error::{Argument, Error, Place};
use crate::exp::powers;
use crate::filter::{Cut, Filters};
use crate::lanes::{Instructions, Path, SUB_BLOCK, lane_sum};
use crate::maxima::Maxima;
use crate::residual::Workers;
use crate::row::{Row, Source};
use crate::scalar::Scalar;

/// From this many entries on several threads share a row: there is more to do for an entry than
/// where rows are probabilities.
pub(crate) const SHARED: usize = 1 << 15;

/// Sums of weights that leave room on both sides: 2^-400 to 2^500. What is lost below has not
/// 2^-600 of the whole.
const ORDINARY: RangeInclusive<f64> =
    f64::from_bits((1023 - 400) << 52)..=f64::from_bits((1023 + 500) << 52);

/// Exponents beyond are taken for this, so that differences of two are finite.
pub(crate) const FARTHEST: f64 = 1e300;

/// The law of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Law<'a, T> {
    pub(crate) weights: Exponentials<'a, T>,
    /// The sum of the weights.
    pub(crate) total: f64,
}

impl<'a, T: Scalar> Law<'a, T> {
    /// The law of a row at a temperature above 0, and the sums of its weights.
    pub(crate) fn of(
        path: Path,
        workers: Workers,
        argument: Argument,
        row: Row<'a, T>,
        temperature: f64,
        filters: Filters,
    ) -> Result<(Self, Sums), Error> {
        let mut weights = Exponentials::new(row, temperature);
        if filters.are_off() {
            let sums = Sums::of(path, workers, weights)?;
            if ORDINARY.contains(&sums.mass) {
                return Ok((Self { weights, total: sums.mass }, sums));
            }
        }
        let maxima = Maxima::of(path, argument, row)?;
        weights.reference = maxima.largest;
        weights.cut = filters.cut(path, workers, weights, &maxima)?;
        let sums = Sums::of(path, workers, weights)?;
        Ok((Self { weights, total: sums.mass }, sums))
    }

    /// The logarithm of an id's weight to base 2; none where its probability is 0 because the logit
    /// is -inf or filtered away.
    pub(crate) fn exponent(&self, id: usize) -> Option<f64> {
        let Exponentials { row, cut, .. } = self.weights;
        let logit = row.entry(id).logit();
        let kept = logit > f64::NEG_INFINITY && cut.is_none_or(|cut| cut.keeps(logit, id));
        kept.then(|| self.weights.exponent(logit).clamp(-FARTHEST, FARTHEST))
    }
}

/// The weights of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exponentials<'a, T> {
    pub(crate) row: Row<'a, T>,
    pub(crate) reference: f64,
    pub(crate) scale: f64,
    pub(crate) cut: Option<Cut>,
}

impl<'a, T: Scalar> Exponentials<'a, T> {
    /// All weights at a temperature above 0, with 0 for the reference.
    pub(crate) fn new(row: Row<'a, T>, temperature: f64) -> Self {
        // Below 1e-308 a temperature is as good as that.
        let scale = (LOG2_E / temperature).min(f64::MAX);
        Self { row, reference: 0.0, scale, cut: None }
    }

    #[inline(always)]
    pub(crate) fn exponent(&self, logit: f64) -> f64 {
        (logit - self.reference) * self.scale
    }

    /// The sum of the weights of a sub-block. With `slots`, every weight is written there.
    #[inline(always)]
    fn weigh<I: Instructions>(&self, range: Range<usize>, slots: Option<&mut [f64]>) -> f64 {
        if let Some(entries) = self.row.as_slice() {
            self.weigh_all::<I>(&entries[range.clone()], range.start, slots)
        } else {
            let mut buffer = [T::NAN; SUB_BLOCK];
            let entries = self.row.load(range.start, range.len(), &mut buffer);
            self.weigh_all::<I>(entries, range.start, slots)
        }
    }

    #[inline(always)]
    fn weigh_all<I: Instructions>(
        &self,
        entries: &[T],
        start: usize,
        slots: Option<&mut [f64]>,
    ) -> f64 {
        let Some(cut) = self.cut else {
            return powers::<I, T>(entries, self.reference, self.scale, slots);
        };
        let mut buffer = [0.0; SUB_BLOCK];
        let slots = slots.unwrap_or(&mut buffer[..entries.len()]);
        // Of most sub-blocks nothing is left.
        let reached = entries.iter().fold(false, |any, entry| any | (entry.logit() >= cut.logit));
        if !reached {
            slots.fill(0.0);
            return 0.0;
        }
        powers::<I, T>(entries, self.reference, self.scale, Some(slots));
        for (id, (slot, entry)) in (start..).zip(slots.iter_mut().zip(entries)) {
            *slot = if cut.keeps(entry.logit(), id) { *slot } else { 0.0 };
        }
        lane_sum(slots)
    }
}

impl<T: Scalar> Weights for Exponentials<'_, T> {
    const SHARED: usize = SHARED;

    fn len(&self) -> usize {
        Source::len(&self.row)
    }

    /// Nothing is suspect: of a logit that is NaN the sum is NaN, of +inf it is not ordinary.
    #[inline(always)]
    fn sum<I: Instructions>(&self, range: Range<usize>) -> (f64, bool) {
        (self.weigh::<I>(range, None), false)
    }
}

impl<T: Scalar> Entries for Exponentials<'_, T> {
    #[inline(always)]
    fn entries<I: Instructions>(&self, range: Range<usize>, slots: &mut [f64]) {
        self.weigh::<I>(range, Some(slots));
    }
}

/// What a drafted token was drawn from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Draft<'a, T> {
    Law(Law<'a, T>),
    /// The only token that could come.
    OneHot(usize),
}

/// max(scale * target - draft, 0).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Residual<'a, T> {
    target: Exponentials<'a, T>,
    /// From weights to scaled probabilities.
    factor: f64,
    draft: Draft<'a, T>,
}

impl<'a, T: Scalar> Residual<'a, T> {
    pub(crate) fn new(target: Law<'a, T>, draft: Draft<'a, T>, scale: f64) -> Self {
        Self { target: target.weights, factor: scale * (1.0 / target.total), draft }
    }

    #[inline(always)]
    fn fill<I: Instructions>(&self, range: Range<usize>, slots: &mut [f64]) {
        self.target.weigh::<I>(range.clone(), Some(slots));
        match &self.draft {
            Draft::Law(Law { weights, total }) => {
                let mut buffer = [0.0; SUB_BLOCK];
                let draft = &mut buffer[..range.len()];
                weights.weigh::<I>(range, Some(draft));
                let draft_factor = 1.0 / total;
                for (slot, draft) in slots.iter_mut().zip(draft) {
                    let difference = *slot * self.factor - *draft * draft_factor;
                    *slot = if difference > 0.0 { difference } else { 0.0 };
                }
            }
            Draft::OneHot(token) => {
                for slot in slots.iter_mut() {
                    *slot *= self.factor;
                }
                if range.contains(token) {
                    slots[token - range.start] = 0.0;
                }
            }
        }
    }
}

impl<T: Scalar> Weights for Residual<'_, T> {
    const SHARED: usize = SHARED;

    fn len(&self) -> usize {
        Weights::len(&self.target)
    }

    #[inline(always)]
    fn sum<I: Instructions>(&self, range: Range<usize>) -> (f64, bool) {
        let mut buffer = [0.0; SUB_BLOCK];
        let slots = &mut buffer[..range.len()];
        self.fill::<I>(range, slots);
        (lane_sum(slots), false)
    }
}

impl<T: Scalar> Entries for Residual<'_, T> {
    #[inline(always)]
    fn entries<I: Instructions>(&self, range: Range<usize>, slots: &mut [f64]) {
        self.fill::<I>(range, slots);
    }
}

/// A row of logits that is no law: the first entry that is NaN or +inf, else the first of a row of
/// -inf alone.
#[cold]
pub(crate) fn bad_logit<T: Scalar>(argument: Argument, row: Row<'_, T>) -> Error {
    let bad = (0..Source::len(&row)).find(|index| {
        let logit = row.entry(*index).logit();
        logit.is_nan() || logit == f64::INFINITY
    });
    let index = bad.unwrap_or(0);
    Error::Value { argument, place: Place::Only, index, value: row.entry(index).logit() }
}
