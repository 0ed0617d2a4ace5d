//! The largest logit of a row and of each of its sub-blocks.
//!
//! The sub-blocks' maxima tell where the largest logits are, so that most of the row is not looked
//! at again.

use std::cmp::Ordering;

use crate::error::{Argument, Error};
use crate::lanes::{Instructions, Kernel, LANES, Path, SUB_BLOCK};
use crate::law::bad_logit;
use crate::memory::{collect, push, room};
use crate::row::{Row, Source};
use crate::scalar::Scalar;

/// The maxima of a row of logits, and the row.
pub(crate) struct Maxima<'a, T> {
    row: Row<'a, T>,
    /// Of each sub-block.
    blocks: Vec<f64>,
    /// Of the row, finite.
    pub(crate) largest: f64,
}

impl<'a, T: Scalar> Maxima<'a, T> {
    /// An error if a logit is NaN or +inf, or all are -inf.
    pub(crate) fn of(path: Path, argument: Argument, row: Row<'a, T>) -> Result<Self, Error> {
        let mut blocks = collect((0..row.len().div_ceil(SUB_BLOCK)).map(|_| f64::NEG_INFINITY))?;
        let bad = path.run(MaximaPass { row, blocks: &mut blocks });
        let largest = blocks.iter().copied().fold(f64::NEG_INFINITY, larger);
        if bad || largest == f64::NEG_INFINITY {
            return Err(bad_logit(argument, row));
        }
        Ok(Self { row, blocks, largest })
    }

    pub(crate) fn len(&self) -> usize {
        Source::len(&self.row)
    }

    /// The lowest of the ids with the largest logit.
    pub(crate) fn id(&self) -> Result<usize, Error> {
        Ok(self.not_below(self.largest)?.first().map_or(0, |(id, _)| *id))
    }

    /// All ids whose logits are not below some number, in order, with their logits.
    pub(crate) fn not_below(&self, bound: f64) -> Result<Vec<(usize, f64)>, Error> {
        let mut found = Vec::new();
        self.visit(bound, |id, logit| {
            push(&mut found, (id, logit))?;
            Ok(bound)
        })?;
        Ok(found)
    }

    /// The largest logit but `n - 1`, equal ones counted one by one; `n` is from 1 to the number of
    /// ids.
    pub(crate) fn nth_largest(&self, n: usize) -> Result<f64, Error> {
        let descending = |one: &f64, other: &f64| other.total_cmp(one);
        // With the maxima of n sub-blocks n logits are known; the n-th largest is not below them.
        let mut bound = f64::NEG_INFINITY;
        if n <= self.blocks.len() {
            let mut blocks = collect(self.blocks.iter().copied())?;
            bound = *blocks.select_nth_unstable_by(n - 1, descending).1;
        }
        let most = (2 * n).max(1024);
        let mut found = room(most.min(self.len()))?;
        self.visit(bound, |_, logit| {
            found.push(logit);
            if found.len() == most {
                bound = *found.select_nth_unstable_by(n - 1, descending).1;
                found.truncate(n);
            }
            Ok(bound)
        })?;
        Ok(*found.select_nth_unstable_by(n - 1, descending).1)
    }

    /// Show all logits that are not below a bound, ids ascending; each answer is the next bound,
    /// not below the one before.
    fn visit(
        &self,
        mut bound: f64,
        mut seen: impl FnMut(usize, f64) -> Result<f64, Error>,
    ) -> Result<(), Error> {
        let mut buffer = [T::NAN; SUB_BLOCK];
        for (block, largest) in self.blocks.iter().enumerate() {
            if *largest < bound {
                continue;
            }
            let start = block * SUB_BLOCK;
            let width = SUB_BLOCK.min(self.len() - start);
            for (id, entry) in (start..).zip(self.row.load(start, width, &mut buffer)) {
                // Of the two zeros, which are equal, just one is left.
                let logit = entry.logit() + 0.0;
                if logit >= bound {
                    bound = seen(id, logit)?;
                }
            }
        }
        Ok(())
    }
}

/// By descending logit, and of equal ones the lowest id first.
pub(crate) fn more_probable(one: &(usize, f64), other: &(usize, f64)) -> Ordering {
    other.1.total_cmp(&one.1).then(one.0.cmp(&other.0))
}

struct MaximaPass<'a, 'b, T> {
    row: Row<'a, T>,
    /// Where the maxima of the sub-blocks go.
    blocks: &'b mut [f64],
}

impl<T: Scalar> Kernel for MaximaPass<'_, '_, T> {
    /// Whether some logit is NaN or +inf.
    type Output = bool;

    #[inline(always)]
    fn run<I: Instructions>(self) -> bool {
        let mut buffer = [T::NAN; SUB_BLOCK];
        let mut bad = [false; LANES];
        let starts = (0..self.row.len()).step_by(SUB_BLOCK);
        for (start, block) in starts.zip(self.blocks) {
            let width = SUB_BLOCK.min(self.row.len() - start);
            let (groups, rest) = self.row.load(start, width, &mut buffer).as_chunks::<LANES>();
            let mut lanes = [f64::NEG_INFINITY; LANES];
            for group in groups {
                for lane in 0..LANES {
                    let logit = group[lane].logit();
                    lanes[lane] = larger(lanes[lane], logit);
                    bad[lane] |= no_logit(logit);
                }
            }
            for (lane, entry) in rest.iter().enumerate() {
                lanes[lane] = larger(lanes[lane], entry.logit());
                bad[lane] |= no_logit(entry.logit());
            }
            *block = lanes.into_iter().fold(f64::NEG_INFINITY, larger);
        }
        bad.contains(&true)
    }
}

#[inline(always)]
fn no_logit(value: f64) -> bool {
    value.is_nan() || value >= f64::INFINITY
}

#[inline(always)]
fn larger(one: f64, other: f64) -> f64 {
    if other > one { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Argument::TargetLogits;
    use crate::tests::{LENGTHS, Noise, paths};

    #[test]
    #[expect(clippy::cast_possible_truncation, reason = "rounding is as good as any")]
    #[expect(clippy::float_cmp, reason = "found in the row, not computed")]
    fn ranks_are_those_of_a_sorted_row() {
        let mut noise = Noise(1);
        for len in LENGTHS.into_iter().chain([70_000]) {
            for steps in [3.0, 1e9] {
                let row: Vec<f32> =
                    (0..len).map(|_| ((noise.uniform() - 0.5) * steps).round() as f32).collect();
                let mut sorted: Vec<f64> = row.iter().copied().map(f64::from).collect();
                sorted.sort_by(|one, other| other.total_cmp(one));
                let first = row.iter().position(|logit| f64::from(*logit) == sorted[0]);
                for path in paths() {
                    let maxima = Maxima::of(path, TargetLogits, Row::of(&row)).expect("logits");
                    assert_eq!(maxima.id().ok(), first, "{len}");
                    assert_eq!(maxima.largest, sorted[0], "{len}");
                    for n in [1, 2, 5, 64, 300, 2000, 30_000, len] {
                        let n = n.min(len);
                        let found = maxima.nth_largest(n).expect("memory");
                        assert_eq!(found, sorted[n - 1], "{n} of {len}");
                        let kept: Vec<_> = (0..len)
                            .map(|id| (id, f64::from(row[id])))
                            .filter(|(_, logit)| *logit >= found)
                            .collect();
                        assert_eq!(maxima.not_below(found), Ok(kept), "{n} of {len}");
                    }
                }
            }
        }
    }
}
