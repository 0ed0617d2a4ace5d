//! Filters: the ids that a law is restricted to.
//!
//! Every filter keeps ids whose logits are not below some logit, of those with that very logit
//! perhaps only the first ones. So the cut is one logit and one id, whatever the filters.

use crate::draw::Sums;
use crate::error::Error;
use crate::exp::exp2;
use crate::lanes::Path;
use crate::law::Exponentials;
use crate::maxima::{Maxima, more_probable};
use crate::residual::Workers;
use crate::scalar::Scalar;

/// The most probable ids that `top_p` looks at first; if they do not reach it, at eight times more.
const FIRST_LOOK: usize = 256;

/// What a law is restricted to, each filter on what the one before has left, renormalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filters {
    /// Keep so many of the largest logits, and all that are equal to the last of them; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest most probable ids whose probability reaches this, of equally probable ones
    /// the lowest ids; above 0, and 1 keeps all.
    pub top_p: f64,
    /// Keep ids of at least this fraction of the largest probability; 0 keeps all.
    pub min_p: f64,
}

impl Filters {
    /// Keep all.
    pub const OFF: Self = Self { top_k: 0, top_p: 1.0, min_p: 0.0 };

    pub(crate) fn are_off(&self) -> bool {
        *self == Self::OFF
    }

    pub(crate) fn check(&self, request: usize) -> Result<(), Error> {
        let error = |argument, expected, value| {
            Err(Error::Parameter { argument, expected, value, request })
        };
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return error("top_p", "a number above 0 and up to 1, which keeps all", self.top_p);
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return error("min_p", "a number from 0, which keeps all, to 1", self.min_p);
        }
        Ok(())
    }

    /// What is left of weights whose reference is the largest logit; none if that is all.
    pub(crate) fn cut<T: Scalar>(
        &self,
        path: Path,
        workers: Workers,
        weights: Exponentials<'_, T>,
        maxima: &Maxima<'_, T>,
    ) -> Option<Cut> {
        let mut cut = None;
        if self.top_k > 0 && self.top_k < maxima.len() {
            cut = Some(Cut { logit: maxima.nth_largest(self.top_k), last: usize::MAX });
        }
        if self.top_p < 1.0 {
            let weights = Exponentials { cut, ..weights };
            let total = Sums::of(path, workers, weights).mass;
            cut = top_p(self.top_p * total, weights, maxima).or(cut);
        }
        if self.min_p > 0.0 {
            let logit = min_p(self.min_p, weights);
            // Where the logits are equal, what `top_p` has left of them stays.
            if cut.is_none_or(|cut| logit > cut.logit) {
                cut = Some(Cut { logit, last: usize::MAX });
            }
        }
        cut
    }
}

/// Logits above `logit`, and those equal to it up to the id `last`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cut {
    pub(crate) logit: f64,
    pub(crate) last: usize,
}

impl Cut {
    #[inline(always)]
    pub(crate) fn keeps(&self, logit: f64, id: usize) -> bool {
        logit >= self.logit && (logit > self.logit || id <= self.last)
    }
}

/// The fewest most probable ids whose weights, added one after the other, reach `mass`; none if
/// only all do, if any.
fn top_p<T: Scalar>(
    mass: f64,
    weights: Exponentials<'_, T>,
    maxima: &Maxima<'_, T>,
) -> Option<Cut> {
    let least = weights.cut.map_or(f64::NEG_INFINITY, |cut| cut.logit);
    let mut looked_at = FIRST_LOOK.min(maxima.len());
    loop {
        let bound = maxima.nth_largest(looked_at);
        let mut ids = maxima.not_below(if bound > least { bound } else { least });
        ids.sort_unstable_by(more_probable);
        let mut running = 0.0;
        for (id, logit) in ids {
            running += exp2(weights.exponent(logit));
            if running >= mass {
                return Some(Cut { logit, last: id });
            }
        }
        if bound <= least || looked_at == maxima.len() {
            return None;
        }
        looked_at = maxima.len().min(8 * looked_at);
    }
}

/// The least logit whose weight is at least so much, which is from above 0 to 1, of the weight of
/// the reference.
fn min_p<T: Scalar>(fraction: f64, weights: Exponentials<'_, T>) -> f64 {
    // The exponent that such a weight has: halve an interval until there is nothing between its
    // ends, or next to nothing.
    let (mut below, mut reached) = (-1100.0, 0.0);
    loop {
        let middle = below + (reached - below) / 2.0;
        if middle <= below || middle >= reached {
            break;
        }
        if exp2(middle) >= fraction { reached = middle } else { below = middle }
    }
    // Its logit is rounded, perhaps to one whose exponent is less.
    let logit = weights.reference + reached / weights.scale;
    if weights.exponent(logit) < reached { logit.next_up() } else { logit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Row;
    use crate::tests::Noise;

    /// The logit is rounded, but not to one that weighs less, by more than rounding weights does.
    #[test]
    fn min_p_is_reached() {
        let mut noise = Noise(1);
        for _ in 0..20_000 {
            let reference = (noise.uniform() - 0.5) * 10.0_f64.powf(8.0 * noise.uniform());
            let scale = 10.0_f64.powf(8.0 * noise.uniform() - 3.0);
            let fraction = 10.0_f64.powf(-12.0 * noise.uniform());
            let row = Row::of(&[0.0_f64]);
            let weights = Exponentials { row, reference, scale, cut: None };
            let logit = min_p(fraction, weights);
            let weight = |logit| exp2(weights.exponent(logit));
            assert!(
                weight(logit) >= fraction * (1.0 - 1e-12),
                "{fraction} of {reference} at {scale}"
            );
            let less = reference - (reference - logit) * (1.0 + 1e-9) - logit.abs() * 1e-15;
            assert!(weight(less) < fraction, "{fraction} of {reference} at {scale} is the least");
        }
    }
}
