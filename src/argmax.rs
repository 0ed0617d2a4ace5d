//! The most probable id of a row.

use crate::lanes::{Instructions, Kernel, LANES, Path, SUB_BLOCK};
use crate::row::{Row, Source};
use crate::scalar::{Scalar, Wide};

/// The lowest of the ids whose entry is the largest, and whether some entry of the row may be no
/// probability. The row is not empty.
pub(crate) fn argmax<T: Scalar>(path: Path, row: Row<'_, T>) -> (usize, bool) {
    let Largest { start, value, suspect } = path.run(LargestPass { row });
    let end = row.len().min(start + SUB_BLOCK);
    let found = (start..end).find(|id| row.entry(*id).widen() == value);
    (found.unwrap_or(start), suspect)
}

/// The largest entry, and the start of the first sub-block that holds it.
struct Largest<W> {
    start: usize,
    value: W,
    suspect: bool,
}

struct LargestPass<'a, T> {
    row: Row<'a, T>,
}

impl<T: Scalar> Kernel for LargestPass<'_, T> {
    type Output = Largest<T::Wide>;

    #[inline(always)]
    fn run<I: Instructions>(self) -> Largest<T::Wide> {
        let mut buffer = [T::narrow(T::Wide::ZERO); SUB_BLOCK];
        let mut seen = T::Bits::default();
        let (mut start, mut value) = (0, self.row.entry(0).widen());
        for block in (0..self.row.len()).step_by(SUB_BLOCK) {
            let width = SUB_BLOCK.min(self.row.len() - block);
            let entries = self.row.load(block, width, &mut buffer);
            let (groups, rest) = entries.as_chunks::<LANES>();
            let mut lanes = [value; LANES];
            for group in groups {
                for (lane, entry) in lanes.iter_mut().zip(group) {
                    *lane = larger(*lane, entry.widen());
                    seen = seen | entry.bits();
                }
            }
            for (lane, entry) in lanes.iter_mut().zip(rest) {
                *lane = larger(*lane, entry.widen());
                seen = seen | entry.bits();
            }
            let largest = lanes.into_iter().fold(value, larger);
            if largest > value {
                (start, value) = (block, largest);
            }
        }
        Largest { start, value, suspect: seen & T::SUSPECT != T::Bits::default() }
    }
}

#[inline(always)]
fn larger<W: Wide>(one: W, other: W) -> W {
    if other > one { other } else { one }
}
