//! What errors say.

use crate::error::{Argument, Error, Place, contain};

#[test]
fn messages_name_argument_expectation_finding_and_cure() {
    let value =
        Error::Value { argument: Argument::Target, place: Place::Only, index: 3, value: f64::NAN };
    assert_eq!(
        value.to_string(),
        "target_probs: expected finite probabilities >= 0, got nan at index 3; check the \
         model's output for overflow"
    );
    let negative =
        Error::Value { argument: Argument::Draft, place: Place::Only, index: 0, value: -0.5 }
            .to_string();
    assert!(
        negative.ends_with("; pass the output of a softmax, not logits or log-probabilities"),
        "{negative}"
    );
    let infinite = Error::Value {
        argument: Argument::Draft,
        place: Place::Only,
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

    let range = Error::TokenRange { place: Place::Only, token: -1, vocabulary: 2 };
    let text = range.to_string();
    assert!(text.starts_with("drafted_token: expected an id from 0 to 1 (the rows"), "{text}");
    assert!(text.ends_with("got -1; ids do not wrap: leave padding out"), "{text}");
    let beyond = Error::TokenRange { place: Place::Only, token: 2, vocabulary: 2 }.to_string();
    assert!(beyond.ends_with("got 2; check that the ids belong to this vocabulary"), "{beyond}");
    let text = range.in_row(4).to_string();
    assert!(text.starts_with("draft_token_ids: ") && text.contains("got -1 in row 4;"), "{text}");

    let impossible = Error::TokenImpossible {
        argument: Argument::Draft,
        place: Place::Only,
        token: 5,
        vocabulary: 8,
    };
    let text = impossible.to_string();
    assert!(text.contains("got 5 with draft_probs[5] == 0 (the rows have 8 entries)"), "{text}");
    let text = impossible.in_row(2).to_string();
    assert!(text.contains("draft_token_ids: ") && text.contains("got 5 in row 2 with"), "{text}");

    let mass = Error::MassOverflow { place: Place::Only, mass: f64::INFINITY, limit: f64::MAX };
    let text = mass.in_row(1).to_string();
    assert!(text.contains("at most 1.7976931348623157e308, got inf in row 1;"), "{text}");

    let shape = Error::Shape { entries: 7, vocabulary: 3 }.in_row(0).to_string();
    assert!(shape.contains("got 7 entries for a vocabulary of 3;"), "{shape}");
    let length = Error::Length { argument: "draft_token_ids", what: "ids", found: 2, expected: 3 };
    let text = length.in_row(0).to_string();
    assert!(
        text.contains("draft_token_ids: expected 3 ids as the other arguments have, got 2;"),
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
