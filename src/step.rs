//! The public functions: a step of one token, and steps of many rows.

use crate::accept::{accept, in_vocabulary, proposed, ratio};
use crate::error::{Error, expect};
use crate::float_env;
use crate::lanes::Path;
use crate::memory::{room, try_collect};
use crate::parallel;
use crate::residual::{Workers, residual_of};
use crate::row::{Row, RowMut, Source};
use crate::rows::{Rows, RowsMut};
use crate::scalar::Scalar;

/// Rows are handed to threads in groups of about this many entries: some microseconds of work, so
/// that handing out does not count. A call with no more than that is answered by the caller alone.
const GROUP_ENTRIES: usize = 16_384;

/// What a step says about one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The probability of keeping the drafted token, min(1, target\[t\] / draft\[t\]).
    pub accept_prob: f64,
    /// The sum of max(target - draft, 0) over the row: one minus the acceptance rate where both
    /// rows sum to one.
    pub mass: f64,
}

/// What [`accept_residual`] does about a row that it cannot answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBadRow {
    /// Return the error of the first such row.
    Fail,
    /// Answer NaN as the accept probability, as the mass and in the whole residual of that row,
    /// and go on. Ids outside the vocabulary are an error all the same.
    AnswerNan,
}

/// Verify one drafted token: write the residual, answer the accept probability and the mass.
///
/// Both rows are probabilities over the same vocabulary; `drafted_token` was drawn from the first.
/// The residual does not depend on the token; it is all zero where no entry of the
/// target exceeds the draft's.
///
/// # Errors
/// [`Error::Shape`] for empty rows, [`Error::Length`] for rows of different lengths,
/// [`Error::TokenRange`] and [`Error::TokenImpossible`] for a token that cannot have been drawn,
/// [`Error::Value`] for entries that are NaN, infinite or negative, [`Error::MassOverflow`]. The
/// content of `residual` is unspecified after the last two.
///
/// # Examples
/// ```
/// let mut residual = [0.0_f32; 2];
/// let step = draftverify::speculative_decode_step(&[0.8, 0.2], &[0.4, 0.6], 0, &mut residual)?;
/// assert_eq!(step.accept_prob, 0.5);
/// assert_eq!(residual, [0.0, 1.0]);
/// # Ok::<(), draftverify::Error>(())
/// ```
pub fn speculative_decode_step<T: Scalar>(
    draft_probs: &[T],
    target_probs: &[T],
    drafted_token: i64,
    residual: &mut [T],
) -> Result<Step, Error> {
    if draft_probs.is_empty() {
        return Err(Error::Shape { entries: 0, vocabulary: 0 });
    }
    expect("target_probs", "entries", target_probs.len(), draft_probs.len())?;
    expect("residual", "entries", residual.len(), draft_probs.len())?;
    let (draft, target) = (Row::of(draft_probs), Row::of(target_probs));
    step_of(Path::best(), Workers::Several, draft, target, drafted_token, &mut RowMut::of(residual))
}

/// The step of one row, wherever its entries lie. The lengths agree and are not 0.
pub(crate) fn step_of<T: Scalar>(
    path: Path,
    workers: Workers,
    draft: Row<'_, T>,
    target: Row<'_, T>,
    token: i64,
    out: &mut RowMut<'_, T>,
) -> Result<Step, Error> {
    float_env::in_default(|| {
        let index = proposed(draft, token)?;
        let mass = residual_of(path, workers, draft, target, out)?;
        Ok(Step { accept_prob: ratio(draft.entry(index), target.entry(index)), mass })
    })
}

/// Verify one drafted token per row, rows in parallel. Row `i` gives the bits that
/// [`speculative_decode_step`] gives for it alone.
///
/// Ids are signed, as servers hand them over, so that a padding of -1 is an error with its value
/// and never a wrapped index.
///
/// # Errors
/// [`Error::Length`] if the arguments are not of the same rows and vocabulary; then the token
/// errors of all rows come before the value errors of any, lowest row first. Nothing is written
/// before shapes and tokens have been checked; after a value error the content of `residual` is
/// unspecified.
///
/// # Examples
/// ```
/// use draftverify::{OnBadRow, Rows, RowsMut, accept_residual};
///
/// let draft = [0.8_f32, 0.2, 0.5, 0.5];
/// let target = [0.4_f32, 0.6, 0.5, 0.5];
/// let mut residual = [0.0; 4];
/// let steps = accept_residual(
///     Rows::new(&draft, 2)?,
///     Rows::new(&target, 2)?,
///     &[0, 1],
///     RowsMut::new(&mut residual, 2)?,
///     OnBadRow::Fail,
/// )?;
/// assert_eq!(steps[0].accept_prob, 0.5);
/// assert_eq!(steps[1].mass, 0.0);
/// assert_eq!(residual, [0.0, 1.0, 0.0, 0.0]);
/// # Ok::<(), draftverify::Error>(())
/// ```
#[expect(clippy::needless_pass_by_value, reason = "the exclusive borrow ends with the call")]
pub fn accept_residual<T: Scalar>(
    draft_probs: Rows<'_, T>,
    target_probs: Rows<'_, T>,
    draft_token_ids: &[i64],
    residual: RowsMut<'_, T>,
    on_bad_row: OnBadRow,
) -> Result<Vec<Step>, Error> {
    let (draft, target, token_ids) = (draft_probs, target_probs, draft_token_ids);
    expect_same_rows(draft, target, token_ids)?;
    expect("residual", "entries a row", residual.vocabulary(), draft.vocabulary())?;
    expect("residual", "rows", residual.len(), draft.len())?;
    expect_in_vocabulary(token_ids, draft.vocabulary())?;
    if on_bad_row == OnBadRow::Fail {
        float_env::in_default(|| {
            each_token(token_ids, |index, token| proposed(draft.row(index), token))
                .try_for_each(|token| token.map(drop))
        })?;
    }
    let path = Path::best();
    each_row(draft.len(), draft.vocabulary(), |index, workers| {
        // SAFETY: every row is asked for once.
        let mut out = unsafe { residual.row(index) };
        let (draft, target) = (draft.row(index), target.row(index));
        let step = step_of(path, workers, draft, target, token_ids[index], &mut out);
        if step.is_err() && on_bad_row == OnBadRow::AnswerNan {
            out.fill(T::NAN);
            return Ok(Step { accept_prob: f64::NAN, mass: f64::NAN });
        }
        step.map_err(|error| error.in_row(index))
    })
}

/// Answer every row, or every chain of rows, in order, or fail with the error of the lowest that has
/// one. Several threads share them or, where there is only one, may share that.
pub(crate) fn each_row<R: Send + Sync>(
    rows: usize,
    vocabulary: usize,
    answer: impl Fn(usize, Workers) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let workers = if rows == 1 { Workers::Several } else { Workers::Caller };
    let group = GROUP_ENTRIES.div_ceil(vocabulary);
    if rows <= group {
        return try_collect((0..rows).map(|index| answer(index, workers)));
    }
    let groups = parallel::map(rows.div_ceil(group), |index| {
        let rows = index * group..rows.min((index + 1) * group);
        try_collect(rows.map(|index| answer(index, workers)))
    })?;
    let mut answers = room(rows)?;
    for group in groups {
        // The first group with an error has the lowest row, and its first error is that row's.
        answers.extend(group?);
    }
    Ok(answers)
}

/// The accept probabilities alone: two entries of every row are read and checked, no more.
///
/// # Errors
/// As [`accept_residual`], for the entries that are read.
///
/// # Examples
/// ```
/// use draftverify::{Rows, accept_probs};
///
/// let (draft, target) = ([0.8_f32, 0.2], [0.4_f32, 0.6]);
/// let accepted = accept_probs(Rows::new(&draft, 2)?, Rows::new(&target, 2)?, &[0])?;
/// assert_eq!(accepted, [0.5]);
/// # Ok::<(), draftverify::Error>(())
/// ```
pub fn accept_probs<T: Scalar>(
    draft_probs: Rows<'_, T>,
    target_probs: Rows<'_, T>,
    draft_token_ids: &[i64],
) -> Result<Vec<f64>, Error> {
    let (draft, target, token_ids) = (draft_probs, target_probs, draft_token_ids);
    expect_same_rows(draft, target, token_ids)?;
    expect_in_vocabulary(token_ids, draft.vocabulary())?;
    float_env::in_default(|| {
        each_token(token_ids, |index, token| proposed(draft.row(index), token))
            .try_for_each(|token| token.map(drop))?;
        let mut accepted = room(token_ids.len())?;
        for answer in
            each_token(token_ids, |row, token| accept(draft.row(row), target.row(row), token))
        {
            accepted.push(answer?);
        }
        Ok(accepted)
    })
}

/// Apply `check` to the token of every row; name the row in an error.
fn each_token<R>(
    token_ids: &[i64],
    check: impl Fn(usize, i64) -> Result<R, Error>,
) -> impl Iterator<Item = Result<R, Error>> {
    let tokens = token_ids.iter().enumerate();
    tokens.map(move |(index, token)| check(index, *token).map_err(|e| e.in_row(index)))
}

fn expect_in_vocabulary(token_ids: &[i64], vocabulary: usize) -> Result<(), Error> {
    each_token(token_ids, |_, token| in_vocabulary(token, vocabulary))
        .try_for_each(|token| token.map(drop))
}

fn expect_same_rows<T: Scalar>(
    draft: Rows<'_, T>,
    target: Rows<'_, T>,
    token_ids: &[i64],
) -> Result<(), Error> {
    expect("target_probs", "entries a row", target.vocabulary(), draft.vocabulary())?;
    expect("target_probs", "rows", target.len(), draft.len())?;
    expect("draft_token_ids", "ids", token_ids.len(), draft.len())
}
