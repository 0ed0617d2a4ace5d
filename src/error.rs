//! What can be wrong with the input, and how it is said.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One of the two rows a step compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// The draft model's probabilities.
    Draft,
    /// The target model's probabilities.
    Target,
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Draft => "draft_probs",
            Self::Target => "target_probs",
        })
    }
}

/// Why there is no answer. Every message names the argument, what was expected, what came and the
/// cure; `row` is `None` where only one row was given.
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
        /// The row it belongs to.
        row: Option<usize>,
        /// The id.
        token: i64,
        /// The number of entries of a row.
        vocabulary: usize,
    },
    /// A token that the draft model cannot have proposed.
    TokenImpossible {
        /// The row it belongs to.
        row: Option<usize>,
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
        row: Option<usize>,
        /// The first bad index of that row.
        index: usize,
        /// The entry there.
        value: f64,
    },
    /// The mass of the residual is too large for the type it is divided in.
    MassOverflow {
        /// The row.
        row: Option<usize>,
        /// The mass, computed in `f64`.
        mass: f64,
        /// The largest mass that the rows' type allows.
        limit: f64,
    },
    /// There is no memory for the answers.
    Memory,
    /// A mistake inside this crate, caught before it could do harm.
    Internal(String),
}

impl Error {
    /// Say which of several rows the error is about.
    #[must_use]
    pub(crate) fn in_row(mut self, index: usize) -> Self {
        match &mut self {
            Self::TokenRange { row, .. }
            | Self::TokenImpossible { row, .. }
            | Self::Value { row, .. }
            | Self::MassOverflow { row, .. } => *row = Some(index),
            Self::Shape { .. } | Self::Length { .. } | Self::Memory | Self::Internal(_) => {}
        }
        self
    }
}

/// How a row is named in a message: nothing where there is only one.
struct Place(Option<usize>);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |row| write!(f, " in row {row}"))
    }
}

/// The argument that carries the token: a single one, or one of several.
fn token_argument(row: Option<usize>) -> &'static str {
    if row.is_some() { "draft_token_ids" } else { "drafted_token" }
}

/// `nan` and `inf` as Python writes them.
struct Value(f64);

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_nan() { f.write_str("nan") } else { write!(f, "{:?}", self.0) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape { entries, vocabulary } => write!(
                f,
                "rows: expected whole rows of at least one entry, got {entries} entries for a \
                 vocabulary of {vocabulary}; check the vocabulary size and the strides"
            ),
            Self::Length { argument, what, found, expected } => write!(
                f,
                "{argument}: expected {expected} {what} as draft_probs has, got {found}; pass \
                 arguments of the same rows and vocabulary"
            ),
            Self::TokenRange { row, token, vocabulary } => write!(
                f,
                "{}: expected an id from 0 to {} (the rows have {vocabulary} entries), got \
                 {token}{}; {}",
                token_argument(*row),
                vocabulary.saturating_sub(1),
                Place(*row),
                if *token < 0 {
                    "ids do not wrap: leave padding out"
                } else {
                    "check that the ids belong to this vocabulary"
                }
            ),
            Self::TokenImpossible { row, token, vocabulary } => write!(
                f,
                "{}: expected an id that the draft can propose, got {token}{} with \
                 draft_probs[{token}] == 0 (the rows have {vocabulary} entries); pass the \
                 probabilities that the token was drawn from",
                token_argument(*row),
                Place(*row)
            ),
            Self::Value { argument, row, index, value } => write!(
                f,
                "{argument}: expected finite probabilities >= 0, got {} at index {index}{}; {}",
                Value(*value),
                Place(*row),
                if *value < 0.0 && value.is_finite() {
                    "pass the output of a softmax, not logits or log-probabilities"
                } else {
                    "check the model's output for overflow"
                }
            ),
            Self::MassOverflow { row, mass, limit } => write!(
                f,
                "target_probs: expected rows whose excess over draft_probs sums to at most {:?}, \
                 got {}{}; pass probabilities, which sum to 1",
                limit,
                Value(*mass),
                Place(*row)
            ),
            Self::Memory => f.write_str("draft_token_ids: no memory for so many answers"),
            Self::Internal(what) => {
                write!(f, "internal error in draftverify: {what}; please report it")
            }
        }
    }
}

impl std::error::Error for Error {}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_argument_expectation_finding_and_cure() {
        let value =
            Error::Value { argument: Argument::Target, row: None, index: 3, value: f64::NAN };
        assert_eq!(
            value.to_string(),
            "target_probs: expected finite probabilities >= 0, got nan at index 3; check the \
             model's output for overflow"
        );
        let negative = Error::Value { argument: Argument::Draft, row: None, index: 0, value: -0.5 }
            .to_string();
        assert!(
            negative.ends_with("; pass the output of a softmax, not logits or log-probabilities"),
            "{negative}"
        );
        let infinite = Error::Value {
            argument: Argument::Draft,
            row: None,
            index: 0,
            value: f64::NEG_INFINITY,
        };
        assert!(
            infinite
                .to_string()
                .ends_with("got -inf at index 0; check the model's output for overflow"),
            "{infinite}"
        );
        let text = value.in_row(7).to_string();
        assert!(text.contains("got nan at index 3 in row 7;"), "{text}");

        let range = Error::TokenRange { row: None, token: -1, vocabulary: 2 };
        let text = range.to_string();
        assert!(text.starts_with("drafted_token: expected an id from 0 to 1 (the rows"), "{text}");
        assert!(text.ends_with("got -1; ids do not wrap: leave padding out"), "{text}");
        let beyond = Error::TokenRange { row: None, token: 2, vocabulary: 2 }.to_string();
        assert!(
            beyond.ends_with("got 2; check that the ids belong to this vocabulary"),
            "{beyond}"
        );
        let text = range.in_row(4).to_string();
        assert!(
            text.starts_with("draft_token_ids: ") && text.contains("got -1 in row 4;"),
            "{text}"
        );

        let impossible = Error::TokenImpossible { row: None, token: 5, vocabulary: 8 };
        let text = impossible.to_string();
        assert!(
            text.contains("got 5 with draft_probs[5] == 0 (the rows have 8 entries)"),
            "{text}"
        );
        let text = impossible.in_row(2).to_string();
        assert!(
            text.contains("draft_token_ids: ") && text.contains("got 5 in row 2 with"),
            "{text}"
        );

        let mass = Error::MassOverflow { row: None, mass: f64::INFINITY, limit: f64::MAX };
        let text = mass.in_row(1).to_string();
        assert!(text.contains("at most 1.7976931348623157e308, got inf in row 1;"), "{text}");

        let shape = Error::Shape { entries: 7, vocabulary: 3 }.in_row(0).to_string();
        assert!(shape.contains("got 7 entries for a vocabulary of 3;"), "{shape}");
        let length =
            Error::Length { argument: "draft_token_ids", what: "ids", found: 2, expected: 3 };
        let text = length.in_row(0).to_string();
        assert!(
            text.contains("draft_token_ids: expected 3 ids as draft_probs has, got 2;"),
            "{text}"
        );
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let caught = contain::<()>(|| panic!("row {} of {}", 3, 2));
        assert_eq!(caught, Err(Error::Internal("row 3 of 2".into())));
        let caught = contain::<()>(|| panic!("plain"));
        assert_eq!(caught, Err(Error::Internal("plain".into())));
        let caught = contain::<()>(|| std::panic::panic_any(7_u8));
        assert_eq!(caught, Err(Error::Internal("a panic".into())));
        assert_eq!(contain(|| Ok(5)), Ok(5));
        let text = Error::Internal("plain".into()).in_row(1).to_string();
        assert_eq!(text, "internal error in draftverify: plain; please report it");
    }
}
