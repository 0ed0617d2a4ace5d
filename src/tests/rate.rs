//! The acceptance rate against its naive twin, and what is refused.

use super::layouts::{SPREADS, row_in, spread_out};
use super::{LENGTHS, Noise, Sample, for_each_type, paths};
use crate::naive;
use crate::rate::rate_of;
use crate::residual::Workers;
use crate::row::Row;
use crate::{Argument, Error, Place, Rows, acceptance_rate, acceptance_rates};

for_each_type!(
    rate_is_the_naive_one,
    layouts_do_not_matter,
    a_shared_row_is_the_same,
    rows_have_the_bits_of_single_calls,
    small_rows_are_exact,
    bad_entries_are_refused_anywhere,
    odd_entries_are_used_as_given,
);

fn rate<T: Sample>(draft: &[T], target: &[T], workers: Workers) -> Result<f64, Error> {
    let answers =
        paths().into_iter().map(|path| rate_of(path, workers, Row::of(draft), Row::of(target)));
    let answers: Vec<_> = answers.map(|rate| rate.map(f64::to_bits)).collect();
    // As text, in which NaN equals itself.
    let same = answers.iter().all(|answer| format!("{answer:?}") == format!("{:?}", answers[0]));
    assert!(same, "{answers:?}");
    answers[0].clone().map(f64::from_bits)
}

fn rate_is_the_naive_one<T: Sample>() {
    let mut noise = Noise(11);
    for len in LENGTHS {
        let (draft, target) = (noise.row::<T>(len), noise.row::<T>(len));
        let expected = naive::rate(&draft, &target).to_bits();
        let found = rate(&draft, &target, Workers::Caller).map(f64::to_bits);
        assert_eq!(found, Ok(expected), "{len} entries");
        let swapped = rate(&target, &draft, Workers::Caller).map(f64::to_bits);
        assert_eq!(swapped, Ok(expected), "{len} entries: a minimum has no order");
        assert_eq!(acceptance_rate(&draft, &target).map(f64::to_bits), Ok(expected), "{len}");
    }
}

fn layouts_do_not_matter<T: Sample>() {
    let mut noise = Noise(12);
    for len in LENGTHS {
        let (draft, target) = (noise.row::<T>(len), noise.row::<T>(len));
        let expected = rate(&draft, &target, Workers::Caller);
        for spread in SPREADS {
            let (draft_bytes, target_bytes) =
                (spread_out(&draft, spread), spread_out(&target, spread));
            let spread_draft = row_in::<T>(&draft_bytes, spread, len);
            let spread_target = row_in::<T>(&target_bytes, spread, len);
            for path in paths() {
                let rate = |draft, target| rate_of(path, Workers::Caller, draft, target);
                assert_eq!(rate(spread_draft, Row::of(&target)), expected, "{spread:?}, {len}");
                assert_eq!(rate(Row::of(&draft), spread_target), expected, "{spread:?}, {len}");
                assert_eq!(rate(spread_draft, spread_target), expected, "{spread:?}, {len}");
            }
        }
    }
}

/// Rows that are cut into chunks for several threads: whole chunks, a rest, one entry more.
fn a_shared_row_is_the_same<T: Sample>() {
    let mut noise = Noise(13);
    for len in [1 << 18, (1 << 18) + 1, 300_000] {
        let (draft, mut target) = (noise.row::<T>(len), noise.row::<T>(len));
        let shared = rate(&draft, &target, Workers::Several);
        assert_eq!(shared, Ok(naive::rate(&draft, &target)), "{len} entries");
        assert_eq!(shared, rate(&draft, &target, Workers::Caller), "{len} entries");
        target[len - 1] = T::NAN;
        assert!(rate(&draft, &target, Workers::Several).is_err(), "{len}: the last is NaN");
    }
}

fn rows_have_the_bits_of_single_calls<T: Sample>() {
    let mut noise = Noise(14);
    // The last two are large enough for the pool.
    for (rows, vocabulary) in [(0, 3), (1, 300), (5, 1), (3, 257), (9, 9000), (700, 100)] {
        let (draft, target) =
            (noise.row::<T>(rows * vocabulary), noise.row::<T>(rows * vocabulary));
        let draft_rows = Rows::new(&draft, vocabulary).expect("whole rows");
        let target_rows = Rows::new(&target, vocabulary).expect("whole rows");
        let rates = acceptance_rates(draft_rows, target_rows).expect("good rows");
        let single = draft.chunks(vocabulary).zip(target.chunks(vocabulary));
        let single: Vec<f64> =
            single.map(|(draft, target)| acceptance_rate(draft, target).expect("good")).collect();
        assert_eq!(rates, single, "{rows} rows of {vocabulary}");
    }
}

fn small_rows_are_exact<T: Sample>() {
    let of = |values: &[f64]| values.iter().map(|value| T::of(*value)).collect::<Vec<_>>();
    let cases: [(&[f64], &[f64], f64); 5] = [
        (&[1.0], &[1.0], 1.0),
        (&[0.75, 0.25], &[0.5, 0.5], 0.75),
        (&[1.0, 0.0], &[0.0, 1.0], 0.0),
        (&[0.125, 0.5, 0.375], &[0.5, 0.25, 0.25], 0.625),
        (&[0.0, -0.0], &[-0.0, -0.0], 0.0),
    ];
    for (draft, target, expected) in cases {
        let found = rate(&of(draft), &of(target), Workers::Caller).map(f64::to_bits);
        assert_eq!(found, Ok(expected.to_bits()), "{draft:?}, {target:?}");
    }
}

/// A single bad entry, at any place of a row, on either side, also under a smaller neighbour.
fn bad_entries_are_refused_anywhere<T: Sample>() {
    let mut noise = Noise(15);
    for len in [1, 16, 17, 256, 300] {
        for bad in [-0.25, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for index in 0..len {
                for argument in [Argument::Draft, Argument::Target] {
                    let (mut draft, mut target) = (noise.row::<T>(len), noise.row::<T>(len));
                    let row = if argument == Argument::Draft { &mut draft } else { &mut target };
                    row[index] = T::of(bad);
                    let found = rate(&draft, &target, Workers::Caller).map_err(|e| e.to_string());
                    let place = Place::Only;
                    let expected = Error::Value { argument, place, index, value: bad };
                    assert_eq!(found, Err(expected.to_string()), "{len} entries");
                }
            }
        }
    }
}

fn odd_entries_are_used_as_given<T: Sample>() {
    let found = rate(&[T::of(3.5), T::of(-0.0)], &[T::of(2.5), T::of(0.5)], Workers::Caller);
    assert_eq!(found, Ok(2.5));
}

#[test]
fn shapes_are_checked() {
    fn length<R>(what: &'static str, found: usize, expected: usize) -> Result<R, Error> {
        Err(Error::Length { argument: "target_probs", what, found, expected })
    }

    let empty = Err(Error::Shape { entries: 0, vocabulary: 0 });
    assert_eq!(acceptance_rate::<f32>(&[], &[]), empty);
    assert_eq!(acceptance_rate(&[0.5_f32, 0.5], &[1.0]), length("entries", 1, 2));
    let rows = |rows: usize, vocabulary| Rows::strided(&[0.5_f32; 2], rows, vocabulary, 0);
    let rates = |draft, target| acceptance_rates(draft, target).map(|rates| rates.len());
    let [two, one, short] = [rows(2, 2), rows(1, 2), rows(2, 1)].map(|rows| rows.expect("fits"));
    assert_eq!(rates(two, one), length("rows", 1, 2));
    assert_eq!(rates(two, short), length("entries a row", 1, 2));
    assert_eq!(rates(two, two), Ok(2));
}

#[test]
fn the_lowest_bad_row_is_named() {
    for rows in [3, 600] {
        let (mut draft, target) = (vec![0.5_f32; rows * 100], vec![0.5_f32; rows * 100]);
        let last = rows - 1;
        draft[last * 100 + 7] = f32::INFINITY;
        draft[(last - 1) * 100 + 99] = -1.0;
        let [draft_rows, target_rows] =
            [&draft, &target].map(|row| Rows::new(row, 100).expect("whole rows"));
        let (argument, place) = (Argument::Draft, Place::Row(last - 1));
        let expected = Error::Value { argument, place, index: 99, value: -1.0 };
        assert_eq!(acceptance_rates(draft_rows, target_rows), Err(expected), "{rows} rows");
    }
}
