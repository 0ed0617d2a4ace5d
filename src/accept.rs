//! Accept one drafted token.
//!
//! A token drawn from `draft` is kept with probability min(1, target\[t\] / draft\[t\]):
//! Leviathan, Kalman and Matias, ICML 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023
//! (arXiv 2302.01318), theorem 1.

use crate::error::{Argument, Error, Place};
use crate::row::Source;
use crate::scalar::Scalar;

/// The index of a token that the draft can have proposed.
///
/// Comparing with zero comes before any look at values: a NaN there is reported as a bad value.
pub(crate) fn proposed<T: Scalar, S: Source<T>>(draft: S, token: i64) -> Result<usize, Error> {
    let vocabulary = draft.len();
    let index = in_vocabulary(token, vocabulary)?;
    if draft.entry(index).to_f64() == 0.0 {
        return Err(Error::TokenImpossible {
            argument: Argument::Draft,
            place: Place::Only,
            token,
            vocabulary,
        });
    }
    Ok(index)
}

pub(crate) fn in_vocabulary(token: i64, vocabulary: usize) -> Result<usize, Error> {
    usize::try_from(token).ok().filter(|index| *index < vocabulary).ok_or(Error::TokenRange {
        place: Place::Only,
        token,
        vocabulary,
    })
}

/// min(1, target / draft) in `f64`, for entries that are probabilities and a draft above 0.
///
/// A comparison decides, not `f64::min`, which would turn a NaN into 1.
pub(crate) fn ratio<T: Scalar>(draft: T, target: T) -> f64 {
    let (draft, target) = (draft.to_f64(), target.to_f64());
    if target < draft { target / draft } else { 1.0 }
}

/// The accept probability of a token alone, with just the two entries that it needs checked.
pub(crate) fn accept<T: Scalar, S: Source<T>>(
    draft: S,
    target: S,
    token: i64,
) -> Result<f64, Error> {
    let (draft, target) = entries(draft, target, token)?;
    Ok(ratio(draft, target))
}

/// The entries of both rows at a token that the draft can have proposed, checked.
pub(crate) fn entries<T: Scalar>(
    draft: impl Source<T>,
    target: impl Source<T>,
    token: i64,
) -> Result<(T, T), Error> {
    let index = proposed(draft, token)?;
    let entries = (draft.entry(index), target.entry(index));
    for (argument, entry) in [(Argument::Draft, entries.0), (Argument::Target, entries.1)] {
        if !is_probability(entry) {
            return Err(Error::Value {
                argument,
                place: Place::Only,
                index,
                value: entry.to_f64(),
            });
        }
    }
    Ok(entries)
}

/// Whether an entry is finite and not negative. Entries above 1 are computed as given.
pub(crate) fn is_probability<T: Scalar>(entry: T) -> bool {
    let value = entry.to_f64();
    value >= 0.0 && value.is_finite()
}
