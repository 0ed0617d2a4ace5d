//! What can be wrong with the input, and how it is said.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::float_env;

/// One of the two rows that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// The draft model's probabilities.
    Draft,
    /// The target model's probabilities.
    Target,
    /// The draft model's logits.
    DraftLogits,
    /// The target model's logits.
    TargetLogits,
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Draft => "draft_probs",
            Self::Target => "target_probs",
            Self::DraftLogits => "draft_logits",
            Self::TargetLogits => "target_logits",
        })
    }
}

/// Which of the rows that were given an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// There is only one.
    Only,
    /// One of many rows.
    Row(usize),
    /// A position of a chain: that of a drafted token or, one further, of the bonus token.
    Position {
        /// The chain.
        request: usize,
        /// Counted from 0 within the chain.
        position: usize,
    },
}

/// Why there is no answer. Every message names the argument, what was expected, what came and the
/// cure.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// Entries that are not a whole number of rows of at least one entry.
    Shape {
        /// How many entries there are.
        entries: usize,
        /// How many a row should have.
        vocabulary: usize,
    },
    /// Arguments of one call that should have the same length have not.
    Length {
        /// The argument that differs.
        argument: &'static str,
        /// What is counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A token id outside the vocabulary.
    TokenRange {
        /// Where it stands.
        place: Place,
        /// The id.
        token: i64,
        /// The number of entries of a row.
        vocabulary: usize,
    },
    /// A token that the draft model cannot have proposed.
    TokenImpossible {
        /// The draft.
        argument: Argument,
        /// Where it stands.
        place: Place,
        /// The id.
        token: i64,
        /// The number of entries of a row.
        vocabulary: usize,
    },
    /// An entry that is no probability: NaN, infinite or negative.
    Value {
        /// Where it is.
        argument: Argument,
        /// The row it is in.
        place: Place,
        /// The first bad index of that row.
        index: usize,
        /// The entry there.
        value: f64,
    },
    /// The mass of the residual is too large for the type it is divided in.
    MassOverflow {
        /// The row.
        place: Place,
        /// The mass, computed in `f64`.
        mass: f64,
        /// The largest mass that the rows' type allows.
        limit: f64,
    },
    /// A uniform number that is not in `0.0..1.0`.
    Uniform {
        /// The draw that it is for.
        place: Place,
        /// The number.
        value: f64,
    },
    /// A row that an id has to be drawn from, and that has none of positive probability.
    NoToken {
        /// Where it is.
        argument: Argument,
        /// The row.
        place: Place,
    },
    /// A temperature or a filter that is out of range.
    Parameter {
        /// Which.
        argument: &'static str,
        /// What is expected.
        expected: &'static str,
        /// What was given.
        value: f64,
        /// The chain.
        request: usize,
    },
    /// There is no memory for the answers.
    Memory,
    /// A mistake inside this crate, caught before it could do harm.
    Internal(String),
}

impl Error {
    /// Say which of several rows the error is about.
    #[must_use]
    pub(crate) fn in_row(self, index: usize) -> Self {
        self.at(Place::Row(index))
    }

    /// Say which row of which chain the error is about.
    #[must_use]
    pub(crate) fn at(mut self, found: Place) -> Self {
        match &mut self {
            Self::TokenRange { place, .. }
            | Self::TokenImpossible { place, .. }
            | Self::Value { place, .. }
            | Self::MassOverflow { place, .. }
            | Self::Uniform { place, .. }
            | Self::NoToken { place, .. } => *place = found,
            Self::Shape { .. }
            | Self::Length { .. }
            | Self::Parameter { .. }
            | Self::Memory
            | Self::Internal(_) => {}
        }
        self
    }
}

/// How a row is named in a message: not at all where there is only one.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only => Ok(()),
            Self::Row(row) => write!(f, " in row {row}"),
            Self::Position { request, position } => {
                write!(f, " at position {position} of request {request}")
            }
        }
    }
}

/// The argument that carries the token: a single one, or one of several.
fn token_argument(place: Place) -> &'static str {
    if place == Place::Only { "drafted_token" } else { "draft_token_ids" }
}

/// `nan` and `inf` as Python writes them.
struct Value(f64);

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_nan() {
            return f.write_str("nan");
        }
        // Else a thread that takes subnormal numbers for 0 would write out hundreds of digits.
        float_env::in_default(|| write!(f, "{:?}", self.0))
    }
}

impl fmt::Display for Error {
    #[expect(clippy::too_many_lines, reason = "one text for each kind of error")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape { entries, vocabulary } => write!(
                f,
                "rows: expected whole rows of at least one entry, got {entries} entries for a \
                 vocabulary of {vocabulary}; check the vocabulary size and the strides"
            ),
            Self::Length { argument, what, found, expected } => write!(
                f,
                "{argument}: expected {expected} {what} as the other arguments have, got \
                 {found}; pass arguments of the same rows and vocabulary"
            ),
            Self::TokenRange { place, token, vocabulary } => write!(
                f,
                "{}: expected an id from 0 to {} (the rows have {vocabulary} entries), got \
                 {token}{}; {}",
                token_argument(*place),
                vocabulary.saturating_sub(1),
                place,
                if *token < 0 {
                    "ids do not wrap: leave padding out"
                } else {
                    "check that the ids belong to this vocabulary"
                }
            ),
            Self::TokenImpossible {
                argument: Argument::DraftLogits | Argument::TargetLogits,
                place,
                token,
                vocabulary,
            } => write!(
                f,
                "{}: expected an id that the draft can propose, got {token}{place}, whose \
                 probability by draft_logits is 0: -inf, filtered away, or at temperature 0 not \
                 the most probable (the rows have {vocabulary} entries); pass the logits, the \
                 temperature and the filters that the token was drawn with",
                token_argument(*place)
            ),
            Self::TokenImpossible { place, token, vocabulary, .. } => write!(
                f,
                "{}: expected an id that the draft can propose, got {token}{} with \
                 draft_probs[{token}] == 0 (the rows have {vocabulary} entries); pass the \
                 probabilities that the token was drawn from",
                token_argument(*place),
                place
            ),
            Self::Value {
                argument: argument @ (Argument::DraftLogits | Argument::TargetLogits),
                place,
                index,
                value,
            } => write!(
                f,
                "{argument}: expected logits that are finite or -inf, one of them finite, got {} at \
                 index {index}{place}; check the model's output for overflow, and masks for rows \
                 that allow nothing",
                Value(*value)
            ),
            Self::Value { argument, place, index, value } => write!(
                f,
                "{argument}: expected finite probabilities >= 0, got {} at index {index}{}; {}",
                Value(*value),
                place,
                if *value < 0.0 && value.is_finite() {
                    "pass the output of a softmax, not logits or log-probabilities"
                } else {
                    "check the model's output for overflow"
                }
            ),
            Self::MassOverflow { place, mass, limit } => write!(
                f,
                "target_probs: expected rows whose excess over draft_probs sums to at most {:?}, \
                 got {}{}; pass probabilities, which sum to 1",
                limit,
                Value(*mass),
                place
            ),
            Self::Uniform { place, value } => write!(
                f,
                "uniforms: expected numbers >= 0 and < 1, got {}{place}; {}",
                Value(*value),
                if value.to_bits() == 1.0_f64.to_bits() {
                    "a generator of (0, 1] gives 1 - u in [0, 1); where a cast to float32 rounds \
                     up to 1, draw float32"
                } else {
                    "pass independent numbers, uniform in [0, 1)"
                }
            ),
            Self::NoToken { argument, place } => write!(
                f,
                "{argument}: expected a row with an entry > 0 to draw an id from, got zeros \
                 alone{place}; check the model's output"
            ),
            Self::Parameter { argument, expected, value, request } => write!(
                f,
                "{argument}: expected {expected}, got {} for request {request}; pass one in range \
                 for every request",
                Value(*value)
            ),
            Self::Memory => f.write_str("no memory for so many answers; pass fewer rows at a time"),
            Self::Internal(what) => {
                write!(f, "internal error in draftverify: {what}; please report it")
            }
        }
    }
}

impl std::error::Error for Error {}

/// Expect so many of what an argument has.
pub(crate) fn expect(
    argument: &'static str,
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::Length { argument, what, found, expected }) }
}

/// Run `body`; a panic in it, which would be a mistake of ours, becomes an ordinary error.
///
/// A server must survive it, and Python's `PanicException` is not caught by `except Exception`.
/// Unwind safety: whatever `body` was writing is an output, which the caller drops or was told not
/// to use after an error.
#[cfg_attr(not(feature = "python"), allow(dead_code, reason = "used by the Python glue"))]
pub(crate) fn contain<R>(body: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(Error::Internal(text_of(&*panic))))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}
