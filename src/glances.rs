//! Both rows of a position at a glance, and what they tell: whether the drafted token is kept, and
//! what it is replaced by. Each answers nothing where the sums in `f64` might tell otherwise.

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::draw::Sums;
use crate::error::Error;
use crate::exp::Power;
use crate::glance::{ADDING_OFF_BY, Glance, Rough, SUM_OFF_BY, UNIT, WEIGHT_OFF_BY, narrowed};
use crate::lanes::{Instructions, Path, SUB_BLOCK};
use crate::law::FARTHEST;
use crate::residual::Workers;
use crate::row::Row;
use crate::scalar::Scalar;

/// What a probability may be off by, as a fraction of it: its weight, the sum that it is divided by,
/// and two roundings.
const PROBABILITY_OFF_BY: f64 = WEIGHT_OFF_BY + SUM_OFF_BY + 2.0 * UNIT;

/// What all differences may be off by altogether: each of the two laws adds up to 1. One rounding of a
/// difference and adding them are less than what is left, as differences leave out what both share.
pub(crate) const EXCESS_OFF_BY: f64 = 2.0 * PROBABILITY_OFF_BY;
const _: () = assert!(ADDING_OFF_BY + UNIT <= PROBABILITY_OFF_BY, "see above");

/// The law of a row at a glance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a, T> {
    pub(crate) weights: Glance<'a, T>,
    /// The sum of the weights.
    pub(crate) total: f64,
}

impl<'a, T: Scalar> Seen<'a, T> {
    /// The law of a row, where a glance sees it: as `Glance::of`.
    pub(crate) fn of(
        path: Path,
        workers: Workers,
        row: Row<'a, T>,
        temperature: f64,
    ) -> Result<Option<Self>, Error> {
        let seen = Glance::of(path, workers, row, temperature)?;
        Ok(seen.map(|(weights, sums)| Self { weights, total: sums.mass }))
    }

    /// From weights to probabilities.
    fn factor(&self) -> f32 {
        narrowed(1.0 / self.total)
    }
}

/// The drafted token of a position and its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glances<'a, T> {
    pub(crate) token: usize,
    /// None where the token was the only one that could come.
    pub(crate) draft: Option<Seen<'a, T>>,
    pub(crate) target: Seen<'a, T>,
}

impl<T: Scalar> Glances<'_, T> {
    /// Whether the token is kept.
    pub(crate) fn keep(&self, uniform: f64) -> Option<bool> {
        let exponents = |seen: &Seen<'_, T>| (seen.total, seen.weights.exponent(self.token));
        let (draft_total, above) = self.draft.as_ref().map_or((1.0, 0.0), exponents);
        let (target_total, below) = exponents(&self.target);
        // Beyond, laws take one exponent for all.
        if above.abs().max(below.abs()) > FARTHEST {
            return None;
        }
        let kept = |factor: f64| {
            let ratio = Power::new(target_total / draft_total * factor, above - below);
            ratio.times_is_below_one(uniform)
        };
        // Both sums may be off.
        let (surely, perhaps) = (kept(1.0 + 3.0 * SUM_OFF_BY), kept(1.0 - 3.0 * SUM_OFF_BY));
        Some(surely).filter(|_| surely == perhaps)
    }

    /// The id that replaces the token.
    pub(crate) fn replace(
        &self,
        path: Path,
        workers: Workers,
        uniform: f64,
    ) -> Result<Option<usize>, Error> {
        let excess = RoughExcess(*self);
        let sums = Sums::of(path, workers, excess)?;
        Ok(sums.draw_surely(path, excess, uniform, EXCESS_OFF_BY))
    }
}

/// max(target - draft, 0).
#[derive(Clone, Copy)]
pub(crate) struct RoughExcess<'a, T>(pub(crate) Glances<'a, T>);

impl<T: Scalar> Rough for RoughExcess<'_, T> {
    fn vocabulary(&self) -> usize {
        self.0.target.weights.vocabulary()
    }

    #[inline(always)]
    fn weigh<'b, I: Instructions>(
        &self,
        range: Range<usize>,
        slots: &'b mut [MaybeUninit<f32>; SUB_BLOCK],
    ) -> &'b mut [f32] {
        let Glances { token, draft, target } = &self.0;
        let slots = target.weights.weigh::<I>(range.clone(), slots);
        let factor = target.factor();
        if let Some(draft) = draft {
            let mut buffer = [MaybeUninit::uninit(); SUB_BLOCK];
            let draft_factor = draft.factor();
            for (slot, weight) in slots.iter_mut().zip(draft.weights.weigh::<I>(range, &mut buffer))
            {
                let difference = *slot * factor - *weight * draft_factor;
                *slot = if difference > 0.0 { difference } else { 0.0 };
            }
        } else {
            for slot in slots.iter_mut() {
                *slot *= factor;
            }
            if range.contains(token) {
                slots[token - range.start] = 0.0;
            }
        }
        slots
    }
}
