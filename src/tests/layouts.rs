//! Rows that are no plain slices: the same bits as the slice of the same entries.

use super::{LENGTHS, Noise, Sample, bits, for_each_type, naive_residual, paths};
use crate::lanes::Path;
use crate::residual::Workers;
use crate::residual::{SHARED_ROW, residual_of};
use crate::row::{Row, RowMut, Source};
use crate::rows::{Layout, Rows, RowsMut};
use crate::scalar::Scalar;
use crate::step::step_of;

for_each_type!(
    input_layouts_do_not_matter,
    output_layouts_do_not_matter,
    shared_rows_may_lie_anywhere
);

/// Some way to lay out the entries of a row in a larger buffer of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    /// Bytes before the first entry, so that entries can be misaligned.
    offset: usize,
    /// Entries from one to the next; negative from the end of the buffer backwards.
    step: isize,
    swapped: bool,
}

pub(super) const SPREADS: [Spread; 6] = [
    Spread { offset: 0, step: 1, swapped: true },
    Spread { offset: 1, step: 1, swapped: false },
    Spread { offset: 0, step: 3, swapped: false },
    Spread { offset: 0, step: -1, swapped: false },
    Spread { offset: 3, step: -2, swapped: true },
    Spread { offset: 0, step: 1, swapped: false },
];

impl Spread {
    fn buffer<T>(self, len: usize) -> Vec<u8> {
        vec![0xFF; self.offset + len * self.step.unsigned_abs() * size_of::<T>()]
    }

    fn layout<T>(self, len: usize) -> (usize, Layout) {
        let entry_stride = self.step * size_of::<T>().cast_signed();
        let first = if self.step < 0 { (len - 1) * entry_stride.unsigned_abs() } else { 0 };
        let layout =
            Layout { rows: 1, vocabulary: len, row_stride: 0, entry_stride, swapped: self.swapped };
        (self.offset + first, layout)
    }

    /// The address of every entry, computed in the plainest way.
    fn address(self, index: usize, len: usize, size: usize) -> usize {
        let step = self.step.unsigned_abs() * size;
        let place = if self.step < 0 { len - 1 - index } else { index };
        self.offset + place * step
    }
}

pub(super) fn spread_out<T: Sample>(entries: &[T], spread: Spread) -> Vec<u8> {
    let mut buffer = spread.buffer::<T>(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let stored = if spread.swapped { entry.swap_bytes() } else { *entry };
        let address = spread.address(index, entries.len(), size_of::<T>());
        // SAFETY: the buffer has room for an entry at every address that `spread` makes.
        unsafe { buffer.as_mut_ptr().add(address).cast::<T>().write_unaligned(stored) };
    }
    buffer
}

pub(super) fn row_in<T: Sample>(buffer: &[u8], spread: Spread, len: usize) -> Row<'_, T> {
    let (first, layout) = spread.layout::<T>(len);
    // SAFETY: every entry of the layout lies in the buffer, see `spread_out`.
    unsafe { Rows::from_raw(buffer.as_ptr().add(first).cast::<T>(), layout) }.row(0)
}

fn step_bits<T: Scalar>(
    draft: Row<'_, T>,
    target: Row<'_, T>,
    len: usize,
) -> Vec<(u64, u64, Vec<T::Bits>)> {
    let answers = paths().into_iter().map(|path| {
        let mut out = vec![T::NAN; len];
        let step = step_of(path, Workers::Caller, draft, target, 0, &mut RowMut::of(&mut out))
            .expect("good rows");
        (step.accept_prob.to_bits(), step.mass.to_bits(), bits(&out))
    });
    answers.collect()
}

/// Rows whose first entry can be the token.
fn rows<T: Sample>(noise: &mut Noise, len: usize) -> (Vec<T>, Vec<T>) {
    let (mut draft, target) = (noise.row::<T>(len), noise.row::<T>(len));
    draft[0] = T::of(0.25);
    (draft, target)
}

fn input_layouts_do_not_matter<T: Sample>() {
    let mut noise = Noise(5);
    for len in LENGTHS {
        let (draft, target) = rows::<T>(&mut noise, len);
        let expected = step_bits(Row::of(&draft), Row::of(&target), len);
        for spread in SPREADS {
            let (draft_bytes, target_bytes) =
                (spread_out(&draft, spread), spread_out(&target, spread));
            let spread_draft = row_in::<T>(&draft_bytes, spread, len);
            let spread_target = row_in::<T>(&target_bytes, spread, len);
            let cases = [
                step_bits(spread_draft, Row::of(&target), len),
                step_bits(Row::of(&draft), spread_target, len),
                step_bits(spread_draft, spread_target, len),
            ];
            for answers in cases {
                assert_eq!(answers, expected, "{spread:?}, {len} entries");
            }
        }
    }
}

/// Rows that several threads share, in chunks.
fn shared_rows_may_lie_anywhere<T: Sample>() {
    let mut noise = Noise(7);
    let len = SHARED_ROW + 77;
    let (draft, target) = (noise.row::<T>(len), noise.row::<T>(len));
    let expected = bits(&naive_residual(&draft, &target));
    for spread in SPREADS {
        let inputs = [&draft, &target].map(|row| spread_out(row, spread));
        let [draft, target] = [0, 1].map(|row| row_in::<T>(&inputs[row], spread, len));
        let mut bytes = spread.buffer::<T>(len);
        let (first, layout) = spread.layout::<T>(len);
        // SAFETY: every entry of the layout lies in the buffer, see `spread_out`; nothing else is
        // written there.
        let out = unsafe { RowsMut::from_raw(bytes.as_mut_ptr().add(first).cast::<T>(), layout) };
        // SAFETY: the only row, asked for once.
        let mut out = unsafe { out.row(0) };
        let mass = residual_of(Path::best(), Workers::Several, draft, target, &mut out);
        assert!(mass.is_ok_and(|mass| mass > 0.0), "{spread:?}");
        let found = row_in::<T>(&bytes, spread, len);
        let found: Vec<T> = (0..len).map(|index| found.entry(index)).collect();
        assert_eq!(bits(&found), expected, "{spread:?}");
    }
}

fn output_layouts_do_not_matter<T: Sample>() {
    let mut noise = Noise(6);
    for len in LENGTHS {
        let (draft, target) = rows::<T>(&mut noise, len);
        let expected = step_bits(Row::of(&draft), Row::of(&target), len);
        for spread in SPREADS {
            let answers: Vec<_> = paths()
                .into_iter()
                .map(|path| {
                    let mut buffer = spread.buffer::<T>(len);
                    let (first, layout) = spread.layout::<T>(len);
                    // SAFETY: every entry of the layout lies in the buffer, alone.
                    let out = unsafe {
                        RowsMut::from_raw(buffer.as_mut_ptr().add(first).cast::<T>(), layout)
                    };
                    // SAFETY: the only row, asked for once.
                    let mut out = unsafe { out.row(0) };
                    let step = step_of(
                        path,
                        Workers::Caller,
                        Row::of(&draft),
                        Row::of(&target),
                        0,
                        &mut out,
                    )
                    .expect("good rows");
                    let mut rest = buffer.clone();
                    for index in 0..len {
                        let first = spread.address(index, len, size_of::<T>());
                        rest[first..][..size_of::<T>()].fill(0xFF);
                    }
                    assert!(rest.iter().all(|byte| *byte == 0xFF), "{spread:?}: only entries");
                    let entries: Vec<T> = (0..len)
                        .map(|index| {
                            let address = spread.address(index, len, size_of::<T>());
                            // SAFETY: an entry was written at every such address.
                            let raw = unsafe {
                                buffer.as_ptr().add(address).cast::<T>().read_unaligned()
                            };
                            if spread.swapped { raw.swap_bytes() } else { raw }
                        })
                        .collect();
                    (step.accept_prob.to_bits(), step.mass.to_bits(), bits(&entries))
                })
                .collect();
            assert_eq!(answers, expected, "{spread:?}, {len} entries");
        }
    }
}
