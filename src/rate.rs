//! The acceptance rate of a row: how probable it is that a drafted token is kept.
//!
//! It is the sum of min(draft, target), added in the fixed order of `lanes.rs`: Leviathan, Kalman
//! and Matias, ICML 2023 (arXiv 2211.17192), theorem 3.5 and corollary 3.6. Where both rows sum to
//! one it is one minus the mass of the residual.

use crate::error::{Argument, Error, expect};
use crate::float_env;
use crate::lanes::{Instructions, Kernel, Path, SUB_BLOCK, lane_sum, sub_blocks};
use crate::parallel;
use crate::residual::{Workers, look};
use crate::row::{Row, Source};
use crate::rows::Rows;
use crate::scalar::{Scalar, Wide};
use crate::step::each_row;
use crate::tree::Tree;

/// The probability that a token drawn from `draft_probs` is kept: the sum of min(draft, target).
///
/// Rows are used as given: those that sum to a little more than one can have a rate above 1.
///
/// # Errors
/// [`Error::Shape`] for empty rows, [`Error::Length`] for rows of different lengths,
/// [`Error::Value`] for entries that are NaN, infinite or negative.
///
/// # Examples
/// ```
/// let rate = draftverify::acceptance_rate(&[0.75_f32, 0.25], &[0.5, 0.5])?;
/// assert_eq!(rate, 0.75);
/// # Ok::<(), draftverify::Error>(())
/// ```
pub fn acceptance_rate<T: Scalar>(draft_probs: &[T], target_probs: &[T]) -> Result<f64, Error> {
    if draft_probs.is_empty() {
        return Err(Error::Shape { entries: 0, vocabulary: 0 });
    }
    expect("target_probs", "entries", target_probs.len(), draft_probs.len())?;
    let (draft, target) = (Row::of(draft_probs), Row::of(target_probs));
    rate_of(Path::best(), Workers::Several, draft, target)
}

/// The acceptance rates of many rows, in parallel. Row `i` gives the bits that [`acceptance_rate`]
/// gives for it alone.
///
/// # Errors
/// [`Error::Length`] if the arguments are not of the same rows and vocabulary; [`Error::Value`] for
/// entries that are NaN, infinite or negative, lowest row first.
///
/// # Examples
/// ```
/// use draftverify::{Rows, acceptance_rates};
///
/// let draft = [0.75_f32, 0.25, 1.0, 0.0];
/// let target = [0.5_f32, 0.5, 0.0, 1.0];
/// let rates = acceptance_rates(Rows::new(&draft, 2)?, Rows::new(&target, 2)?)?;
/// assert_eq!(rates, [0.75, 0.0]);
/// # Ok::<(), draftverify::Error>(())
/// ```
pub fn acceptance_rates<T: Scalar>(
    draft_probs: Rows<'_, T>,
    target_probs: Rows<'_, T>,
) -> Result<Vec<f64>, Error> {
    let (draft, target) = (draft_probs, target_probs);
    expect("target_probs", "entries a row", target.vocabulary(), draft.vocabulary())?;
    expect("target_probs", "rows", target.len(), draft.len())?;
    each_row(draft.len(), draft.vocabulary(), |index, workers| {
        let rate = rate_of(Path::best(), workers, draft.row(index), target.row(index));
        rate.map_err(|error| error.in_row(index))
    })
}

/// The rate of one row, wherever its entries lie. The lengths agree and are not 0.
pub(crate) fn rate_of<T: Scalar>(
    path: Path,
    workers: Workers,
    draft: Row<'_, T>,
    target: Row<'_, T>,
) -> Result<f64, Error> {
    let len = draft.len();
    let chunk = workers.chunk(len);
    let chunks = parallel::map(len.div_ceil(chunk), |index| {
        let range = index * chunk..len.min((index + 1) * chunk);
        path.run(OverlapPass { draft: draft.part(range.clone()), target: target.part(range) })
    })?;
    float_env::in_default(|| {
        let mut tree = Tree::new();
        for (sum, _) in &chunks {
            tree.push(*sum);
        }
        if chunks.iter().any(|(_, suspect)| *suspect) {
            look(Argument::Draft, draft)?;
            look(Argument::Target, target)?;
        }
        Ok(tree.total())
    })
}

/// The sum of min(draft, target), and whether some entry may be no probability.
struct OverlapPass<'a, T> {
    draft: Row<'a, T>,
    target: Row<'a, T>,
}

impl<T: Scalar> Kernel for OverlapPass<'_, T> {
    type Output = (f64, bool);

    /// As in `Portable::excess_sum`, two simple loops are faster than one that does both.
    #[inline(always)]
    fn run<I: Instructions>(self) -> Self::Output {
        let zero = T::narrow(T::Wide::ZERO);
        let (mut draft_buffer, mut target_buffer) = ([zero; SUB_BLOCK], [zero; SUB_BLOCK]);
        let mut smaller = [0.0; SUB_BLOCK];
        let (mut tree, mut seen) = (Tree::new(), T::Bits::default());
        for (start, width) in sub_blocks(self.draft.len()) {
            let draft = self.draft.load(start, width, &mut draft_buffer);
            let target = self.target.load(start, width, &mut target_buffer);
            for ((slot, draft), target) in smaller.iter_mut().zip(draft).zip(target) {
                seen = seen | draft.bits() | target.bits();
                let (draft, target) = (draft.widen(), target.widen());
                *slot = if target < draft { target } else { draft }.to_f64();
            }
            tree.push(lane_sum(&smaller[..width]));
        }
        (tree.total(), seen & T::SUSPECT != T::Bits::default())
    }
}
