//! Draw an id from the weights of a row, given a uniform number.
//!
//! The weights are not normalised: with `v = uniform * mass` the id is the first whose running sum
//! exceeds `v`. The running sum goes over the sums of the sub-blocks, one after the other, until one
//! of them carries it above `v`; within that sub-block it goes on entry by entry. The sums are those
//! of the fixed order of `lanes.rs`, so that who draws changes nothing. Only ids of positive weight
//! are ever drawn.

use std::ops::Range;

use crate::error::Error;
use crate::lanes::{Instructions, Kernel, Path, SUB_BLOCK};
use crate::memory::room;
use crate::parallel;
use crate::residual::Workers;
use crate::tree::Tree;

/// Sub-blocks that one thread works on at a time.
const CHUNK: usize = 32;

/// Weights of the ids of a vocabulary, finite and not negative, as far as their sums go.
pub(crate) trait Weights: Copy + Sync {
    /// From this many entries on several threads share a row.
    const SHARED: usize;

    /// The size of the vocabulary, not 0.
    fn len(&self) -> usize;

    /// The sum of a sub-block in the fixed order, and whether something in it is not as it should
    /// be: then the caller looks at the row entry by entry. `#[inline(always)]`, as all that it
    /// calls in a loop.
    fn sum<I: Instructions>(&self, range: Range<usize>) -> (f64, bool);
}

/// Weights that an id can be drawn from.
pub(crate) trait Entries: Weights {
    /// The weights of a sub-block that `sum` has added. `#[inline(always)]`, as `sum`.
    fn entries<I: Instructions>(&self, range: Range<usize>, slots: &mut [f64]);
}

/// The sums of the sub-blocks of a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    blocks: Vec<f64>,
    /// Their sum, in the fixed order.
    pub(crate) mass: f64,
    /// Whether some sub-block was not as it should be.
    pub(crate) suspect: bool,
}

impl Sums {
    pub(crate) fn of<W: Weights>(path: Path, workers: Workers, weights: W) -> Result<Self, Error> {
        let len = weights.len();
        let blocks = len.div_ceil(SUB_BLOCK);
        let chunks = blocks.div_ceil(CHUNK);
        let pass = |chunk: usize| {
            let blocks = chunk * CHUNK..blocks.min((chunk + 1) * CHUNK);
            path.run(SumPass { weights, blocks })
        };
        let mut sums = Self { blocks: room(blocks)?, mass: 0.0, suspect: false };
        let mut tree = Tree::new();
        let mut add = |chunk: usize, (found, suspect): ([f64; CHUNK], bool)| {
            for sum in &found[..CHUNK.min(blocks - chunk * CHUNK)] {
                sums.blocks.push(*sum);
                tree.push(*sum);
            }
            sums.suspect |= suspect;
        };
        if workers.share(len, W::SHARED) {
            for (chunk, found) in parallel::map(chunks, pass)?.into_iter().enumerate() {
                add(chunk, found);
            }
        } else {
            for chunk in 0..chunks {
                add(chunk, pass(chunk));
            }
        }
        sums.mass = tree.total();
        Ok(sums)
    }

    /// The id that a uniform number in `0.0..1.0` selects; none if there is no weight at all.
    pub(crate) fn draw<W: Entries>(&self, path: Path, weights: W, uniform: f64) -> Option<usize> {
        Some(self.find(path, weights, uniform)?.id)
    }

    /// The id that a uniform number selects where it is the same for all weights that are off from
    /// these by no more than `off_by` altogether, adding them included.
    ///
    /// With the weights up to an id adding up to `a` and those behind it to `b`, the id or one in front
    /// of it is selected if `uniform * (a + b) < a`: if `(1 - uniform) * a - uniform * b` is positive.
    /// Each weight counts there with one of the two factors.
    pub(crate) fn draw_surely<W: Entries>(
        &self,
        path: Path,
        weights: W,
        uniform: f64,
        off_by: f64,
    ) -> Option<usize> {
        let Found { id, before, after } = self.find(path, weights, uniform)?;
        let (threshold, margin) = (uniform * self.mass, uniform.max(1.0 - uniform) * off_by);
        (before + margin < threshold && threshold + margin < after).then_some(id)
    }

    fn find<W: Entries>(&self, path: Path, weights: W, uniform: f64) -> Option<Found> {
        let threshold = uniform * self.mass;
        let within = |block: usize, before: f64| {
            path.run(FindPass { weights, start: block * SUB_BLOCK, before, threshold })
        };
        let mut before = 0.0;
        for (block, sum) in self.blocks.iter().enumerate() {
            let after = before + sum;
            if after > threshold {
                return within(block, before);
            }
            before = after;
        }
        // Rounding can leave none: then the last id of any weight.
        let last = self.blocks.iter().rposition(|sum| *sum > 0.0)?;
        within(last, f64::NEG_INFINITY)
    }
}

/// An id, and the running sums before and after its weight.
struct Found {
    id: usize,
    before: f64,
    after: f64,
}

/// The first id of a sub-block whose running sum exceeds the threshold, else the last of any weight.
struct FindPass<W> {
    weights: W,
    start: usize,
    before: f64,
    threshold: f64,
}

impl<W: Entries> Kernel for FindPass<W> {
    type Output = Option<Found>;

    #[inline(always)]
    fn run<I: Instructions>(self) -> Option<Found> {
        let range = self.start..self.weights.len().min(self.start + SUB_BLOCK);
        let mut buffer = [0.0; SUB_BLOCK];
        let entries = &mut buffer[..range.len()];
        self.weights.entries::<I>(range.clone(), entries);
        let (mut running, mut found) = (self.before, None);
        for (id, weight) in range.zip(&*entries) {
            if *weight > 0.0 {
                let before = running;
                running += weight;
                found = Some(Found { id, before, after: running });
                if running > self.threshold {
                    break;
                }
            }
        }
        found
    }
}

/// The sums of some sub-blocks, at most a chunk.
struct SumPass<W> {
    weights: W,
    blocks: Range<usize>,
}

impl<W: Weights> Kernel for SumPass<W> {
    type Output = ([f64; CHUNK], bool);

    #[inline(always)]
    fn run<I: Instructions>(self) -> Self::Output {
        let (mut sums, mut suspect) = ([0.0; CHUNK], false);
        for (block, slot) in self.blocks.zip(&mut sums) {
            let start = block * SUB_BLOCK;
            let (sum, found) =
                self.weights.sum::<I>(start..self.weights.len().min(start + SUB_BLOCK));
            *slot = sum;
            suspect |= found;
        }
        (sums, suspect)
    }
}
