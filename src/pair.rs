//! The rows of both models at a position of a chain, and the weights that an id is drawn from there.

use std::ops::Range;

use crate::draw::{Entries, Weights};
use crate::lanes::{Instructions, SUB_BLOCK, excess, lane_sum};
use crate::residual::SHARED_ROW;
use crate::row::{Row, Source};
use crate::scalar::{Scalar, Wide};

/// A row of the draft, or the law of a draft that can propose one token alone, or none at all.
#[derive(Clone, Copy)]
pub(crate) enum Draft<'a, T> {
    Row(Row<'a, T>),
    OneHot { len: usize, token: Option<i64> },
}

impl<T> Draft<'_, T> {
    /// Whether it is the law of a token outside of a range.
    #[inline(always)]
    fn is_zero(&self, range: &Range<usize>) -> bool {
        let Self::OneHot { token, .. } = self else { return false };
        let token = token.and_then(|token| usize::try_from(token).ok());
        token.is_none_or(|token| !range.contains(&token))
    }
}

impl<T: Scalar> Source<T> for Draft<'_, T> {
    #[inline(always)]
    fn len(&self) -> usize {
        match self {
            Self::Row(row) => row.len(),
            Self::OneHot { len, .. } => *len,
        }
    }

    #[inline(always)]
    fn entry(&self, index: usize) -> T {
        match self {
            Self::Row(row) => row.entry(index),
            Self::OneHot { token, .. } => {
                let one = *token == i64::try_from(index).ok();
                T::narrow(if one { T::Wide::ONE } else { T::Wide::ZERO })
            }
        }
    }

    fn part(&self, range: Range<usize>) -> Self {
        match self {
            Self::Row(row) => Self::Row(row.part(range)),
            Self::OneHot { token, .. } => {
                let token = token.map(|token| token - range.start.cast_signed() as i64);
                Self::OneHot { len: range.len(), token }
            }
        }
    }

    #[inline(always)]
    fn load<'b>(&'b self, start: usize, len: usize, buffer: &'b mut [T]) -> &'b [T] {
        match self {
            Self::Row(row) => row.load(start, len, buffer),
            Self::OneHot { token, .. } => {
                let entries = &mut buffer[..len];
                entries.fill(T::narrow(T::Wide::ZERO));
                let token = token.and_then(|token| usize::try_from(token).ok());
                let place = token.and_then(|token| token.checked_sub(start));
                if let Some(entry) = place.and_then(|place| entries.get_mut(place)) {
                    *entry = T::narrow(T::Wide::ONE);
                }
                entries
            }
        }
    }
}

/// The rows of both models at a position.
#[derive(Clone, Copy)]
pub(crate) struct Pair<'a, T> {
    pub(crate) draft: Draft<'a, T>,
    pub(crate) target: Row<'a, T>,
}

impl<T: Scalar> Pair<'_, T> {
    /// The entries of a sub-block where they lie, if they lie one after the other. Making room for
    /// copies would take a third of the time that a sum takes.
    #[inline(always)]
    fn in_place(&self, range: &Range<usize>) -> Option<[&[T]; 2]> {
        let draft = match &self.draft {
            Draft::Row(row) => &row.as_slice()?[range.clone()],
            one_hot if one_hot.is_zero(range) => &T::ZEROS[..range.len()],
            Draft::OneHot { .. } => return None,
        };
        Some([draft, &self.target.as_slice()?[range.clone()]])
    }

    /// The entries of a sub-block, in place where possible, else copied to the buffers.
    #[inline(always)]
    fn load<'b>(
        &'b self,
        range: Range<usize>,
        buffers: &'b mut [[T; SUB_BLOCK]; 2],
    ) -> [&'b [T]; 2] {
        let [draft, target] = buffers;
        let (start, width) = (range.start, range.len());
        [self.draft.load(start, width, draft), self.target.load(start, width, target)]
    }

    fn entry(&self, index: usize) -> (T, T) {
        (self.draft.entry(index), self.target.entry(index))
    }
}

/// Room for a sub-block of both rows.
#[inline(always)]
fn buffers<T: Scalar>() -> [[T; SUB_BLOCK]; 2] {
    [[T::narrow(T::Wide::ZERO); SUB_BLOCK]; 2]
}

/// max(target - draft, 0) in the rows' arithmetic type.
#[derive(Clone, Copy)]
pub(crate) struct Excess<'a, T>(pub(crate) Pair<'a, T>);

impl<T: Scalar> Weights for Excess<'_, T> {
    const SHARED: usize = SHARED_ROW;

    fn len(&self) -> usize {
        Source::len(&self.0.target)
    }

    #[inline(always)]
    fn sum<I: Instructions>(&self, range: Range<usize>) -> (f64, bool) {
        if let Some([draft, target]) = self.0.in_place(&range) {
            return I::excess_sum(draft, target, None);
        }
        let mut buffers = buffers();
        let [draft, target] = self.0.load(range, &mut buffers);
        I::excess_sum(draft, target, None)
    }
}

impl<T: Scalar> Entries for Excess<'_, T> {
    #[inline(always)]
    fn entries<I: Instructions>(&self, range: Range<usize>, slots: &mut [f64]) {
        for (index, slot) in range.zip(slots) {
            let (draft, target) = self.0.entry(index);
            *slot = excess(draft.widen(), target.widen()).to_f64();
        }
    }
}

/// max(scale * target - draft, 0) in `f64`.
#[derive(Clone, Copy)]
pub(crate) struct Scaled<'a, T> {
    pub(crate) pair: Pair<'a, T>,
    pub(crate) scale: f64,
}

impl<T: Scalar> Scaled<'_, T> {
    #[inline(always)]
    fn weight(&self, draft: T, target: T) -> f64 {
        excess(draft.widen().to_f64(), self.scale * target.widen().to_f64())
    }

    #[inline(always)]
    fn sum_of(&self, draft: &[T], target: &[T]) -> (f64, bool) {
        let mut weights = [0.0; SUB_BLOCK];
        let mut seen = T::Bits::default();
        for ((slot, draft), target) in weights.iter_mut().zip(draft).zip(target) {
            seen = seen | draft.bits() | target.bits();
            *slot = self.weight(*draft, *target);
        }
        (lane_sum(&weights[..target.len()]), seen & T::SUSPECT != T::Bits::default())
    }
}

impl<T: Scalar> Weights for Scaled<'_, T> {
    const SHARED: usize = SHARED_ROW;

    fn len(&self) -> usize {
        Source::len(&self.pair.target)
    }

    #[inline(always)]
    fn sum<I: Instructions>(&self, range: Range<usize>) -> (f64, bool) {
        if let Some([draft, target]) = self.pair.in_place(&range) {
            return self.sum_of(draft, target);
        }
        let mut buffers = buffers();
        let [draft, target] = self.pair.load(range, &mut buffers);
        self.sum_of(draft, target)
    }
}

impl<T: Scalar> Entries for Scaled<'_, T> {
    #[inline(always)]
    fn entries<I: Instructions>(&self, range: Range<usize>, slots: &mut [f64]) {
        for (index, slot) in range.zip(slots) {
            let (draft, target) = self.pair.entry(index);
            *slot = self.weight(draft, target);
        }
    }
}
