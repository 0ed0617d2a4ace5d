//! The residual of one row: the law of the token that replaces a rejected proposal.
//!
//! It is max(target - draft, 0) divided by its sum, the mass: Leviathan, Kalman and Matias, ICML
//! 2023 (arXiv 2211.17192), section 2.3. Where the sum is 0 it is the zero vector.

use crate::accept::is_probability;
use crate::error::{Argument, Error, Place};
use crate::lanes::{DividePass, Excess, ExcessPass, Path, RecomputePass, SUB_BLOCK, written};
use crate::parallel;
use crate::row::{Row, RowMut, Source};
use crate::scalar::{Scalar, Wide};
use crate::tree::Tree;

/// Entries of a row that one thread works on at a time: whole sub-blocks, a power of two of them, so
/// that their tree is part of the tree of the row.
pub(crate) const CHUNK: usize = 32 * SUB_BLOCK;

/// From this many entries on a single row is worked on by several threads; see DESIGN.md for the
/// measurement.
pub(crate) const SHARED_ROW: usize = 1 << 18;

/// Who works on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workers {
    /// The calling thread: other rows keep the others busy.
    Caller,
    /// Several threads, where the row is long enough.
    Several,
}

impl Workers {
    /// Whether several threads share what has this length, if it is shared `from` some length on.
    pub(crate) fn share(self, len: usize, from: usize) -> bool {
        self == Self::Several && len >= from && parallel::num_threads() > 1
    }

    /// Entries of a row of this length that are worked on at a time. A caller that is alone in any
    /// case takes the row as a whole: preparing each chunk costs a twelfth of the time.
    pub(crate) fn chunk(self, len: usize) -> usize {
        if self.share(len, SHARED_ROW) { CHUNK } else { len }
    }
}

/// Write the residual of a row to `out` and answer its mass.
///
/// The rows have the same length, which is not 0: callers have checked it. On an error `out` holds
/// nothing of use.
pub(crate) fn residual_of<T: Scalar>(
    path: Path,
    workers: Workers,
    draft: Row<'_, T>,
    target: Row<'_, T>,
    out: &mut RowMut<'_, T>,
) -> Result<f64, Error> {
    let chunk = workers.chunk(draft.len());
    match (draft.as_slice(), target.as_slice()) {
        (Some(draft), Some(target)) => two_passes(path, chunk, draft, target, out),
        _ => two_passes(path, chunk, draft, target, out),
    }
}

fn two_passes<T: Scalar, S: Source<T> + Sync>(
    path: Path,
    chunk: usize,
    draft: S,
    target: S,
    out: &mut RowMut<'_, T>,
) -> Result<f64, Error> {
    let out = &*out;
    let chunks = draft.len().div_ceil(chunk);
    let part = |index: usize| {
        let range = index * chunk..draft.len().min((index + 1) * chunk);
        // SAFETY: chunks share no entry, each is asked for once in a pass, and the passes follow
        // one another.
        let out = unsafe { out.part(range.clone()) };
        (draft.part(range.clone()), target.part(range), out)
    };
    let first = |index| {
        let (draft, target, mut out) = part(index);
        // Where the output has room for the differences, each row is read once: a tenth to a fifth
        // faster than computing them twice.
        let kept = out.as_slice().and_then(T::as_wide);
        path.run(ExcessPass { draft, target, kept })
    };
    let found = if chunks == 1 { first(0) } else { joined(&parallel::map(chunks, first)?) };
    let mass = checked(draft, target, found)?;
    parallel::for_each(chunks, &|index| {
        let (draft, target, mut out) = part(index);
        if let Some(kept) = out.as_slice().and_then(T::as_wide) {
            // SAFETY: the first pass has written every slot.
            path.run(DividePass { differences: unsafe { written(kept) }, mass });
        } else {
            path.run(RecomputePass { draft, target, mass, out: &mut out });
        }
    });
    Ok(found.mass)
}

/// What was found in the chunks of a row, put together.
fn joined(chunks: &[Excess]) -> Excess {
    let mut tree = Tree::new();
    for chunk in chunks {
        tree.push(chunk.mass);
    }
    Excess { mass: tree.total(), suspect: chunks.iter().any(|chunk| chunk.suspect) }
}

/// The number to divide by, if all entries are probabilities and the mass is within range.
///
/// An empty residual divides its zeros by 1.
fn checked<T: Scalar, S: Source<T>>(draft: S, target: S, found: Excess) -> Result<T::Wide, Error> {
    if found.suspect {
        look(Argument::Draft, draft)?;
        look(Argument::Target, target)?;
    }
    if found.mass == 0.0 {
        return Ok(T::Wide::ONE);
    }
    let divisor = T::Wide::from_f64(found.mass);
    if divisor.to_f64().is_finite() {
        Ok(divisor)
    } else {
        Err(Error::MassOverflow { place: Place::Only, mass: found.mass, limit: T::Wide::MAX })
    }
}

/// The slow look at a row in which some entry may be no probability.
#[cold]
pub(crate) fn look<T: Scalar, S: Source<T>>(argument: Argument, row: S) -> Result<(), Error> {
    let bad = (0..row.len()).find(|index| !is_probability(row.entry(*index)));
    bad.map_or(Ok(()), |index| {
        Err(Error::Value { argument, place: Place::Only, index, value: row.entry(index).to_f64() })
    })
}
