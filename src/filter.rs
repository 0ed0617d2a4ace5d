//! Filters: the ids that a law is restricted to.
//!
//! Every filter keeps ids whose logits are not below some logit, of those with that very logit
//! perhaps only the first ones. So the cut is one logit and one id, whatever the filters.

use crate::draw::Sums;
use crate::error::Error;
use crate::exp::{exp2, log2};
use crate::lanes::Path;
use crate::law::Exponentials;
use crate::maxima::{Maxima, more_probable};
use crate::residual::Workers;
use crate::scalar::Scalar;

/// The most probable ids that `top_p` looks at first; if they do not reach it, at eight times more.
const FIRST_LOOK: usize = 256;

/// What a probability may be off by: a bound that is missed by less is reached. So it is by laws
/// for which the two are equal, and which come out a little below.
const REACHED: f64 = 1e-10;

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
    ) -> Result<Option<Cut>, Error> {
        let mut cut = None;
        if self.top_k > 0 && self.top_k < maxima.len() {
            cut = Some(Cut { logit: maxima.nth_largest(self.top_k)?, last: usize::MAX });
        }
        if self.top_p < 1.0 {
            let weights = Exponentials { cut, ..weights };
            let total = Sums::of(path, workers, weights)?.mass;
            cut = top_p(self.top_p * total, weights, maxima)?.or(cut);
        }
        if self.min_p > 0.0 {
            let logit = min_p(self.min_p, weights);
            // Where the logits are equal, what `top_p` has left of them stays.
            if cut.is_none_or(|cut| logit > cut.logit) {
                cut = Some(Cut { logit, last: usize::MAX });
            }
        }
        Ok(cut)
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
) -> Result<Option<Cut>, Error> {
    let mass = mass * (1.0 - REACHED);
    let least = weights.cut.map_or(f64::NEG_INFINITY, |cut| cut.logit);
    let mut looked_at = FIRST_LOOK.min(maxima.len());
    loop {
        let bound = maxima.nth_largest(looked_at)?;
        let mut ids = maxima.not_below(if bound > least { bound } else { least })?;
        ids.sort_unstable_by(more_probable);
        let mut running = 0.0;
        for (id, logit) in ids {
            running += exp2(weights.exponent(logit));
            if running >= mass {
                return Ok(Some(Cut { logit, last: id }));
            }
        }
        if bound <= least || looked_at == maxima.len() {
            return Ok(None);
        }
        looked_at = maxima.len().min(8 * looked_at);
    }
}

/// The least logit whose weight is at least so much, which is from above 0 to 1, of the weight of
/// the reference.
fn min_p<T: Scalar>(fraction: f64, weights: Exponentials<'_, T>) -> f64 {
    weights.reference + (log2(fraction) - REACHED) / weights.scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Argument;
    use crate::row::Row;
    use crate::tests::Noise;

    /// Laws of whole hundredths, by way of logarithms: where a filter's bound is exactly that of an
    /// id, the id is kept, and those below are not.
    #[test]
    fn what_just_reaches_a_bound_is_kept() {
        let mut noise = Noise(2);
        for _ in 0..2000 {
            let mut left = 100.0;
            let mut law = vec![];
            while left > 0.0 && law.len() < 9 {
                let part = (noise.uniform() * left * 0.6).ceil();
                law.push(part / 100.0);
                left -= part;
            }
            law.sort_unstable_by(|one, other| other.total_cmp(one));
            let temperature = 10.0_f64.powf(4.0 * noise.uniform() - 2.0);
            let shift = 20.0 * noise.uniform() - 10.0;
            let logits: Vec<f64> =
                law.iter().map(|weight| weight.ln() * temperature + shift).collect();
            let total: f64 = law.iter().sum();
            let mut reached = 0.0;
            for (last, weight) in law.iter().enumerate() {
                reached += weight;
                let min_p = Filters { min_p: weight / law[0], ..Filters::OFF };
                let top_p = Filters { top_p: (reached / total).min(1.0), ..Filters::OFF };
                for (filters, wanted) in [
                    (min_p, law.iter().filter(|other| *other >= weight).count()),
                    (top_p, last + 1),
                ] {
                    let scale = std::f64::consts::LOG2_E / temperature;
                    let row = Row::of(&logits);
                    let maxima = Maxima::of(Path::Portable, Argument::TargetLogits, row);
                    let maxima = maxima.expect("logits");
                    let reference = maxima.largest;
                    let weights = Exponentials { row, reference, scale, cut: None };
                    let cut = filters.cut(Path::Portable, Workers::Caller, weights, &maxima);
                    let kept = cut.expect("memory").map_or(law.len(), |cut| {
                        logits
                            .iter()
                            .enumerate()
                            .filter(|(id, logit)| cut.keeps(**logit, *id))
                            .count()
                    });
                    assert_eq!(kept, wanted, "{filters:?} of {law:?} at {temperature}, {shift}");
                }
            }
        }
    }

    /// The logit is rounded.
    #[test]
    fn min_p_is_reached() {
        let mut noise = Noise(1);
        for _ in 0..20_000 {
            let reference = (noise.uniform() - 0.5) * 10.0_f64.powf(8.0 * noise.uniform());
            let scale = 10.0_f64.powf(8.0 * noise.uniform() - 3.0);
            let fraction = 10.0_f64.powf(-12.0 * noise.uniform());
            let row = Row::of(&[0.0_f64]);
            let weights = Exponentials { row, reference, scale, cut: None };
            let exponent = weights.exponent(min_p(fraction, weights)) - fraction.log2();
            let rounding = f64::EPSILON * (reference.abs() * scale + 40.0);
            let case = format!("{fraction} of {reference} at {scale}: {exponent}");
            assert!((-1.01e-10 - rounding..=-0.99e-10 + rounding).contains(&exponent), "{case}");
        }
    }
}
