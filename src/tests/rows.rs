//! Many rows: each as if it were alone.

use super::{Noise, Sample, bits, for_each_type};
use crate::row::Source;
use crate::{
    Error, OnBadRow, Place, Rows, RowsMut, Step, accept_probs, accept_residual,
    speculative_decode_step,
};

for_each_type!(rows_have_the_bits_of_single_steps, bad_rows_answer_nan_alone);

struct Batch<T> {
    draft: Vec<T>,
    target: Vec<T>,
    ids: Vec<i64>,
    vocabulary: usize,
}

impl<T: Sample> Batch<T> {
    fn new(rows: usize, vocabulary: usize) -> Self {
        let mut noise = Noise(7);
        let mut draft = noise.row::<T>(rows * vocabulary);
        let target = noise.row::<T>(rows * vocabulary);
        let mut ids = Vec::new();
        for row in draft.chunks_mut(vocabulary) {
            let id = usize::try_from(noise.bits() % vocabulary as u64).expect("small");
            row[id] = T::of(0.125);
            ids.push(id.cast_signed() as i64);
        }
        Self { draft, target, ids, vocabulary }
    }

    fn run(&self, on_bad_row: OnBadRow) -> (Result<Vec<Step>, Error>, Vec<T>) {
        let mut residual = vec![T::of(0.5); self.draft.len()];
        let draft = Rows::new(&self.draft, self.vocabulary).expect("whole rows");
        let target = Rows::new(&self.target, self.vocabulary).expect("whole rows");
        let out = RowsMut::new(&mut residual, self.vocabulary).expect("whole rows");
        let steps = accept_residual(draft, target, &self.ids, out, on_bad_row);
        (steps, residual)
    }
}

fn rows_have_the_bits_of_single_steps<T: Sample>() {
    // The last two are large enough for the pool.
    for (rows, vocabulary) in [(0, 3), (1, 300), (5, 1), (3, 257), (9, 9000), (700, 100)] {
        let batch = Batch::<T>::new(rows, vocabulary);
        for on_bad_row in [OnBadRow::Fail, OnBadRow::AnswerNan] {
            let (steps, residual) = batch.run(on_bad_row);
            let steps = steps.expect("good rows");
            assert_eq!(steps.len(), rows, "one step a row");
            let draft = Rows::new(&batch.draft, vocabulary).expect("whole rows");
            let target = Rows::new(&batch.target, vocabulary).expect("whole rows");
            let alone = accept_probs(draft, target, &batch.ids).expect("good rows");
            for (row, step) in steps.iter().enumerate() {
                let range = row * vocabulary..(row + 1) * vocabulary;
                let mut out = vec![T::of(0.0); vocabulary];
                let (draft, target) = (&batch.draft[range.clone()], &batch.target[range.clone()]);
                let single = speculative_decode_step(draft, target, batch.ids[row], &mut out);
                assert_eq!(single.as_ref(), Ok(step), "row {row}");
                assert_eq!(bits(&out), bits(&residual[range]), "row {row}");
                assert_eq!(alone[row].to_bits(), step.accept_prob.to_bits(), "row {row}");
            }
        }
    }
}

fn bad_rows_answer_nan_alone<T: Sample>() {
    let good = Batch::<T>::new(8, 300);
    let (expected, expected_residual) = good.run(OnBadRow::Fail);
    let expected = expected.expect("good rows");

    let mut batch = Batch::<T>::new(8, 300);
    batch.target[2 * 300 + 299] = T::NAN;
    batch.draft[5 * 300 + 17] = T::of(-1.0);
    let id = usize::try_from(batch.ids[6]).expect("in range");
    batch.draft[6 * 300 + id] = T::of(0.0);
    let (steps, residual) = batch.run(OnBadRow::AnswerNan);
    for (row, step) in steps.expect("ids in range").iter().enumerate() {
        let found = &residual[row * 300..(row + 1) * 300];
        if [2, 5, 6].contains(&row) {
            assert!(step.accept_prob.is_nan() && step.mass.is_nan(), "row {row}: {step:?}");
            assert!(found.iter().all(|entry| entry.to_f64().is_nan()), "row {row}");
        } else {
            assert_eq!(*step, expected[row], "row {row}");
            assert_eq!(
                bits(found),
                bits(&expected_residual[row * 300..(row + 1) * 300]),
                "row {row}"
            );
        }
    }
    batch.ids[7] = 300;
    let (steps, residual) = batch.run(OnBadRow::AnswerNan);
    assert_eq!(steps, Err(Error::TokenRange { place: Place::Row(7), token: 300, vocabulary: 300 }));
    let untouched = vec![T::of(0.5); residual.len()];
    assert_eq!(bits(&residual), bits(&untouched), "nothing is written");
}

/// Of rows that lie seven apart, entry by entry: what a part holds, empty ones at either end too.
#[test]
fn a_part_is_a_range_of_the_rows() {
    let entries: Vec<f64> = (0..35).map(f64::from).collect();
    let rows = Rows::strided(&entries, 5, 4, 7).expect("within the slice");
    for start in 0..=5 {
        for end in start..=5 {
            let part = rows.part(start..end);
            assert_eq!((part.len(), part.vocabulary()), (end - start, 4), "{start}..{end}");
            for row in 0..part.len() {
                let found: Vec<f64> = (0..4).map(|at| part.row(row).entry(at)).collect();
                let first = (start + row) * 7;
                assert_eq!(found, entries[first..first + 4], "row {row} of {start}..{end}");
            }
        }
    }
    #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
    for range in [0..6, 6..6, 3..2] {
        let part = std::panic::catch_unwind(|| rows.part(range.clone()).len());
        assert!(part.is_err(), "{range:?}");
    }
}
