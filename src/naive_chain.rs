//! The naive twin of chains, for the tests: the rules in the plainest words.

use std::ops::Range;

use crate::naive::{excess, sub_block, tree};
use crate::scalar::{Scalar, Wide};

/// The id that `uniform` selects among weights: the first whose running sum exceeds the threshold,
/// sub-block by sub-block, then entry by entry.
pub(crate) fn draw(weights: &[f64], uniform: f64) -> Option<usize> {
    let sums: Vec<f64> = weights.chunks(256).map(sub_block).collect();
    let threshold = uniform * tree(&sums);
    let positive = |ids: Range<usize>| ids.filter(|id| weights[*id] > 0.0);
    let mut running = 0.0;
    for (block, sum) in sums.iter().enumerate() {
        if running + sum > threshold {
            let ids = || positive(block * 256..weights.len().min(block * 256 + 256));
            let exceeds = |id: &usize| {
                running += weights[*id];
                running > threshold
            };
            return ids().find(exceeds).or(ids().next_back());
        }
        running += sum;
    }
    positive(0..weights.len()).next_back()
}

/// A chain in the plainest form: rows of both models, one more of the target, tokens.
pub(crate) struct Chain<T> {
    pub(crate) draft: Vec<Vec<T>>,
    pub(crate) target: Vec<Vec<T>>,
    pub(crate) tokens: Vec<usize>,
    pub(crate) uniforms: Vec<f64>,
}

impl<T: Scalar> Chain<T> {
    fn ratio(&self, at: usize) -> f64 {
        let token = self.tokens[at];
        self.target[at][token].to_f64() / self.draft[at][token].to_f64()
    }

    fn final_id(&self, kept: usize, weights: &[f64]) -> usize {
        let target: Vec<f64> = self.target[kept].iter().map(|t| t.to_f64()).collect();
        let weights = if weights.iter().any(|w| *w > 0.0) { weights } else { &target };
        draw(weights, self.uniforms[self.tokens.len()]).expect("some id")
    }

    pub(crate) fn standard(&self) -> (usize, usize) {
        for (at, token) in self.tokens.iter().enumerate() {
            let (draft, target) = (self.draft[at][*token], self.target[at][*token]);
            if self.uniforms[at] * draft.to_f64() >= target.to_f64() {
                let excess = excess(&self.draft[at], &self.target[at]);
                let weights: Vec<f64> = excess.into_iter().map(Wide::to_f64).collect();
                return (at, self.final_id(at, &weights));
            }
        }
        (self.tokens.len(), self.final_id(self.tokens.len(), &[]))
    }

    /// max(scale * target - draft, 0) of a position.
    fn scaled(&self, at: usize, scale: f64) -> Vec<f64> {
        let pairs = self.draft[at].iter().zip(&self.target[at]);
        pairs.map(|(d, t)| (scale * t.to_f64() - d.to_f64()).max(0.0)).collect()
    }

    pub(crate) fn block(&self) -> (usize, usize) {
        let length = self.tokens.len();
        let (mut joint, mut kept, mut scale) = (1.0_f64, 0, 1.0);
        for at in 1..=length {
            joint = (joint * self.ratio(at - 1)).min(1.0);
            let passes = if at == length {
                joint
            } else {
                let sums: Vec<f64> = self.scaled(at, joint).chunks(256).map(sub_block).collect();
                let mass = tree(&sums);
                if mass + (1.0 - joint) == 0.0 { 1.0 } else { mass / (mass + (1.0 - joint)) }
            };
            if self.uniforms[at - 1] < passes {
                (kept, scale) = (at, joint);
            }
        }
        let weights = if kept < length { self.scaled(kept, scale) } else { Vec::new() };
        (kept, self.final_id(kept, &weights))
    }

    pub(crate) fn greedy(&self) -> (usize, usize) {
        let best = |row: &[T]| {
            (0..row.len())
                .rev()
                .max_by(|a, b| row[*a].to_f64().total_cmp(&row[*b].to_f64()))
                .expect("not empty")
        };
        let best: Vec<usize> = self.target.iter().map(|row| best(row)).collect();
        let kept = self.tokens.iter().zip(&best).take_while(|(token, best)| token == best).count();
        (kept, best[kept])
    }
}
