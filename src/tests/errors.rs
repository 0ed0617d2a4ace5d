//! What is refused, in which order, and what the errors say.

use half::f16;

use crate::error::Argument::{Draft, Target};
use crate::{
    Error, OnBadRow, Place, Rows, RowsMut, accept_probs, accept_residual, speculative_decode_step,
};

const NAN: f32 = f32::NAN;

fn step(draft: &[f32], target: &[f32], token: i64) -> Error {
    let mut out = vec![0.0; draft.len()];
    speculative_decode_step(draft, target, token, &mut out).expect_err("refused")
}

#[test]
fn shapes_come_before_tokens_and_tokens_before_values() {
    assert_eq!(step(&[], &[], 0), Error::Shape { entries: 0, vocabulary: 0 });
    let expected =
        Error::Length { argument: "target_probs", what: "entries", found: 1, expected: 2 };
    assert_eq!(step(&[0.0, NAN], &[NAN], 7), expected);
    let short = speculative_decode_step(&[0.5, 0.5], &[NAN, 0.5], 7, &mut [0.0]);
    let expected = Error::Length { argument: "residual", what: "entries", found: 1, expected: 2 };
    assert_eq!(short, Err(expected));
    let expected = |token| Error::TokenRange { place: Place::Only, token, vocabulary: 2 };
    for token in [-1, 2, i64::MIN, i64::MAX] {
        assert_eq!(step(&[NAN, 0.0], &[0.5, 0.5], token), expected(token));
    }
    let expected =
        Error::TokenImpossible { argument: Draft, place: Place::Only, token: 1, vocabulary: 2 };
    assert_eq!(step(&[NAN, 0.0], &[0.5, 0.5], 1), expected);
    assert_eq!(step(&[1.0, -0.0], &[0.5, 0.5], 1), expected);
}

#[test]
fn values_are_reported_draft_first_with_the_first_index() {
    let value =
        |argument, index, value| Error::Value { argument, place: Place::Only, index, value };
    assert_eq!(step(&[1.0, -0.5, -0.25], &[-1.0, 0.0, 0.0], 0), value(Draft, 1, -0.5));
    assert_eq!(
        step(&[0.5, 0.5], &[3.0, f32::NEG_INFINITY], 0),
        value(Target, 1, f64::NEG_INFINITY)
    );
    assert_eq!(step(&[f32::INFINITY, 0.5], &[0.5, 0.5], 0), value(Draft, 0, f64::INFINITY));
    let Error::Value { value, .. } = step(&[0.5, 0.5], &[NAN, 0.5], 0) else { panic!("a value") };
    assert!(value.is_nan(), "the token's own entry counts");
}

/// A float16 infinity is shown as such, though the kernels' widening does not keep it.
#[test]
fn half_infinities_are_refused() {
    let (one, half) = (f16::ONE, f16::from_f32(0.5));
    for bad in [f16::INFINITY, f16::NEG_INFINITY, f16::NAN] {
        let refused = speculative_decode_step(&[half, half], &[bad, one], 1, &mut [f16::ZERO; 2]);
        let Err(Error::Value { argument: Target, index: 0, value, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(value.to_bits(), bad.to_f64().to_bits(), "{bad}");
    }
}

#[test]
fn entries_above_one_are_computed_and_an_overflowing_mass_is_refused() {
    let mut out = [0.0_f32; 3];
    let step = speculative_decode_step(&[1.0, 0.0, 3.0], &[7.0, 2.0, -0.0], 0, &mut out);
    assert_eq!(step.map(|step| step.mass), Ok(8.0));
    assert_eq!(out.map(f32::to_bits), [0.75, 0.25, 0.0].map(f32::to_bits));

    let largest = speculative_decode_step(&[1.0, 0.0], &[0.0, f32::MAX], 0, &mut out[..2]);
    assert_eq!(largest.map(|step| step.mass), Ok(f64::from(f32::MAX)));
    assert_eq!(out[..2], [0.0, 1.0]);
    let over = speculative_decode_step(&[1.0, 0.0, 0.0], &[0.0, f32::MAX, f32::MAX], 0, &mut out);
    let (mass, limit) = (2.0 * f64::from(f32::MAX), f64::from(f32::MAX));
    assert_eq!(over, Err(Error::MassOverflow { place: Place::Only, mass, limit }));

    let target = [0.0, f64::MAX, f64::MAX];
    let over = speculative_decode_step(&[1.0, 0.0, 0.0], &target, 0, &mut [0.0; 3]);
    let (mass, limit) = (f64::INFINITY, f64::MAX);
    assert_eq!(over, Err(Error::MassOverflow { place: Place::Only, mass, limit }));
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    assert_eq!(
        Rows::new(&[0.5_f32; 5], 2).map(|_| ()),
        Err(Error::Shape { entries: 5, vocabulary: 2 })
    );
    assert_eq!(
        Rows::new(&[0.5_f32; 5], 0).map(|_| ()),
        Err(Error::Shape { entries: 5, vocabulary: 0 })
    );
    let refused = RowsMut::new(&mut [0.5_f32; 5], 3).map(|_| ());
    assert_eq!(refused, Err(Error::Shape { entries: 5, vocabulary: 3 }));

    let (entries, mut out) = ([0.5_f32; 12], [0.0_f32; 12]);
    let rows =
        |count: usize, vocabulary| Rows::new(&entries[..count], vocabulary).expect("whole rows");
    assert_eq!(
        (rows(12, 3).len(), rows(12, 3).vocabulary(), rows(12, 3).is_empty()),
        (4, 3, false)
    );
    assert!(rows(0, 3).is_empty(), "no rows are legal");
    let mut run = |draft, target, ids: &[i64], out_len: usize, out_vocabulary| {
        let out = RowsMut::new(&mut out[..out_len], out_vocabulary).expect("whole rows");
        accept_residual(draft, target, ids, out, OnBadRow::Fail).expect_err("refused")
    };
    let length =
        |argument, what, found, expected| Error::Length { argument, what, found, expected };
    let ids = [0, 0, 0];
    assert_eq!(
        run(rows(6, 2), rows(12, 4), &ids, 6, 2),
        length("target_probs", "entries a row", 4, 2)
    );
    assert_eq!(run(rows(6, 2), rows(8, 2), &ids, 6, 2), length("target_probs", "rows", 4, 3));
    assert_eq!(
        run(rows(6, 2), rows(6, 2), &ids[..2], 6, 2),
        length("draft_token_ids", "ids", 2, 3)
    );
    assert_eq!(run(rows(6, 2), rows(6, 2), &ids, 9, 3), length("residual", "entries a row", 3, 2));
    assert_eq!(run(rows(6, 2), rows(6, 2), &ids, 4, 2), length("residual", "rows", 2, 3));
    assert_eq!(
        accept_probs(rows(6, 2), rows(6, 3), &ids),
        Err(length("target_probs", "entries a row", 3, 2))
    );
}

/// All tokens before any value; then the lowest row, whatever is wrong there.
#[test]
fn errors_of_rows_name_the_row() {
    let mut draft = [0.5_f32; 8];
    let mut target = [0.5_f32; 8];
    (draft[2], target[1]) = (-1.0, NAN);
    let refused = |draft: &[f32], target: &[f32], ids: &[i64]| {
        let mut out = [7.0; 8];
        let rows = (Rows::new(draft, 2).expect("rows"), Rows::new(target, 2).expect("rows"));
        let all = RowsMut::new(&mut out, 2).expect("rows");
        let error = accept_residual(rows.0, rows.1, ids, all, OnBadRow::Fail).expect_err("refused");
        (error, out)
    };
    let (error, _) = refused(&draft, &target, &[0, 1, 0, 0]);
    assert!(
        matches!(error, Error::Value { argument: Target, place: Place::Row(0), index: 1, .. }),
        "{error:?}"
    );
    let expected = Error::Value { argument: Draft, place: Place::Row(1), index: 0, value: -1.0 };
    assert_eq!(refused(&draft, &[0.5; 8], &[0, 1, 0, 0]).0, expected);

    let (error, out) = refused(&draft, &target, &[0, 1, -1, 2]);
    assert_eq!(error, Error::TokenRange { place: Place::Row(2), token: -1, vocabulary: 2 });
    assert_eq!(out.map(f32::to_bits), [7.0_f32.to_bits(); 8], "nothing is written");
    draft[7] = 0.0;
    let (error, out) = refused(&draft, &target, &[0, 1, 0, 1]);
    assert_eq!(
        error,
        Error::TokenImpossible { argument: Draft, place: Place::Row(3), token: 1, vocabulary: 2 }
    );
    assert_eq!(out.map(f32::to_bits), [7.0_f32.to_bits(); 8], "nothing is written");

    let huge = [0.0, f32::MAX, 0.0, f32::MAX, f32::MAX, f32::MAX, 0.0, 0.0];
    let error = refused(&[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0], &huge, &[0; 4]).0;
    assert!(matches!(error, Error::MassOverflow { place: Place::Row(2), .. }), "{error:?}");
}

#[test]
fn accept_probs_checks_what_it_reads() {
    fn rows(entries: &[f32]) -> Rows<'_, f32> {
        Rows::new(entries, 2).expect("rows")
    }

    let good = accept_probs(rows(&[0.5_f32, NAN]), rows(&[0.25, -1.0]), &[0]);
    assert_eq!(good, Ok(vec![0.5]), "the other entries are not read");
    for (draft, target, token) in [
        (-0.5, 0.5, Draft),
        (NAN, 0.5, Draft),
        (f32::INFINITY, NAN, Draft),
        (0.5, NAN, Target),
        (0.5, -0.5, Target),
    ] {
        let (draft, target) = ([0.5_f32, 0.5, 0.5, draft], [0.5, 0.5, 0.5, target]);
        let refused = accept_probs(rows(&draft), rows(&target), &[0, 1]);
        let Err(Error::Value { argument, place: Place::Row(1), index: 1, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(argument, token, "{draft:?} and {target:?}");
    }
    let refused = accept_probs(rows(&[0.5_f32, 0.0]), rows(&[0.5, 0.5]), &[1]);
    assert_eq!(
        refused,
        Err(Error::TokenImpossible {
            argument: Draft,
            place: Place::Row(0),
            token: 1,
            vocabulary: 2
        })
    );
    let refused = accept_probs(rows(&[0.5_f32, 0.0]), rows(&[0.5, 0.5]), &[2]);
    assert_eq!(refused, Err(Error::TokenRange { place: Place::Row(0), token: 2, vocabulary: 2 }));
    // Ids outside the vocabulary come first, whatever their row.
    let refused = accept_probs(rows(&[0.5_f32, 0.0, 0.5, 0.5]), rows(&[0.5; 4]), &[1, -1]);
    assert_eq!(refused, Err(Error::TokenRange { place: Place::Row(1), token: -1, vocabulary: 2 }));
}

/// Rows with a stride: what lies between them is neither read nor written.
#[test]
fn strided_rows_are_rows() {
    let mut noise = super::Noise(11);
    let (draft, target) = (noise.row::<f32>(3 * 10), noise.row::<f32>(3 * 10));
    let mut out = [-7.0_f32; 3 * 9 - 2];
    let ids = [0, 0, 0];
    let (mut draft, mut target) = (draft, target);
    for row in 0..3 {
        draft[row * 10] = 0.25;
        (draft[(row * 10 + 7).min(29)], target[(row * 10 + 9).min(29)]) = (NAN, NAN);
    }
    let rows = |entries| Rows::strided(entries, 3, 7, 10).expect("within the slice");
    let residual = RowsMut::strided(&mut out, 3, 7, 9).expect("within the slice");
    let steps = accept_residual(rows(&draft), rows(&target), &ids, residual, OnBadRow::Fail);
    for (row, step) in steps.expect("padding is not read").into_iter().enumerate() {
        let mut alone = [0.0; 7];
        let range = row * 10..row * 10 + 7;
        let expected =
            speculative_decode_step(&draft[range.clone()], &target[range], 0, &mut alone);
        assert_eq!(Ok(step), expected, "row {row}");
        assert_eq!(out[row * 9..row * 9 + 7], alone, "row {row}");
        assert!(row == 2 || out[row * 9 + 7..row * 9 + 9] == [-7.0; 2], "row {row}: padding");
    }
    let shape = |entries, vocabulary| Error::Shape { entries, vocabulary };
    for (count, vocabulary, stride, fits) in [
        (3, 7, 10, true),
        (3, 10, 10, true),
        (4, 7, 10, false),
        (3, 11, 10, false),
        (30, 1, 1, true),
        (31, 1, 1, false),
        (100, 30, 0, true),
        (1, 30, usize::MAX, true),
        (1, 30, usize::MAX / 2, true),
        (2, 1, usize::MAX, false),
        (3, 0, 10, false),
        (0, 7, 10, true),
        (usize::MAX, 7, 10, false),
    ] {
        let found = Rows::strided(&draft, count, vocabulary, stride).map(|rows| rows.len());
        let expected = if fits { Ok(count) } else { Err(shape(30, vocabulary)) };
        assert_eq!(found, expected, "{count} rows of {vocabulary}, {stride} apart");
    }
    for stride in [0, 6] {
        let overlapping = RowsMut::strided(&mut draft, 3, 7, stride).map(|_| ());
        assert_eq!(overlapping, Err(shape(30, 7)), "rows {stride} apart");
    }
    assert!(RowsMut::strided(&mut draft, 1, 7, 0).is_ok(), "one row overlaps nothing");
    let adjacent = RowsMut::strided(&mut draft, 3, 7, 7);
    assert_eq!(adjacent.map(|rows| (rows.len(), rows.is_empty())), Ok((3, false)));
    let none = RowsMut::strided(&mut draft, 0, 7, 7);
    assert_eq!(none.map(|rows| (rows.len(), rows.is_empty())), Ok((0, true)));
}
