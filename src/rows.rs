//! Rows in memory: where the entries of one row, or of many, lie.
//!
//! Kernels take slices. [`Rows`] and [`RowsMut`] describe what callers really have: rows with a
//! stride between them (a slice of a larger tensor, a padded vocabulary, one row broadcast to
//! many), entries with a stride within a row, at any address, in either byte order. A row that is
//! a plain slice is handed to the kernels as one; any other row is read sub-block by sub-block
//! through a small buffer, so that no copy of a row is ever made.

use std::marker::PhantomData;
use std::ops::Range;

use crate::error::Error;
use crate::row::{Row, RowMut, offset};
use crate::scalar::Scalar;

/// Where entries lie: address of the first, distances in bytes, byte order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) rows: usize,
    pub(crate) vocabulary: usize,
    /// Bytes from one row to the next; may be zero or negative.
    pub(crate) row_stride: isize,
    /// Bytes from one entry to the next; may be zero or negative.
    pub(crate) entry_stride: isize,
    /// Whether the bytes of an entry are in the order that is not this machine's.
    pub(crate) swapped: bool,
}

/// Rows of a vocabulary that are only read.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a, T> {
    first: *const T,
    layout: Layout,
    entries: PhantomData<&'a [T]>,
}

/// Rows of a vocabulary that are written. No two of its entries share memory.
#[derive(Debug)]
pub struct RowsMut<'a, T> {
    first: *mut T,
    layout: Layout,
    entries: PhantomData<&'a mut [T]>,
}

// SAFETY: `Rows` gives out reads of `T` alone and borrows the memory for `'a`, like `&'a [T]`,
// which may be sent and shared because `Scalar` types are `Send + Sync`.
unsafe impl<T: Scalar> Send for Rows<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Scalar> Sync for Rows<'_, T> {}
// SAFETY: `RowsMut` owns its borrow like `&'a mut [T]`. A shared `&RowsMut` writes only through
// the unsafe `row`, whose callers promise that no row is written from two places at once.
unsafe impl<T: Scalar> Send for RowsMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Scalar> Sync for RowsMut<'_, T> {}

impl<'a, T: Scalar> Rows<'a, T> {
    /// Rows of `vocabulary` entries, one after the other.
    ///
    /// # Errors
    /// [`Error::Shape`] if `entries` is not a whole number of rows, or `vocabulary` is 0.
    pub fn new(entries: &'a [T], vocabulary: usize) -> Result<Self, Error> {
        let layout = Layout::packed::<T>(entries.len(), vocabulary)?;
        Ok(Self { first: entries.as_ptr(), layout, entries: PhantomData })
    }

    /// `rows` rows of `vocabulary` entries, each beginning `row_stride` entries behind the one
    /// before: rows of a padded vocabulary, or with a stride of 0 one row many times.
    ///
    /// # Errors
    /// [`Error::Shape`] if the rows are not within `entries`, or `vocabulary` is 0.
    pub fn strided(
        entries: &'a [T],
        rows: usize,
        vocabulary: usize,
        row_stride: usize,
    ) -> Result<Self, Error> {
        let layout = Layout::strided::<T>(entries.len(), rows, vocabulary, row_stride)?;
        Ok(Self { first: entries.as_ptr(), layout, entries: PhantomData })
    }

    /// Rows at any place in memory.
    ///
    /// # Safety
    /// For every row `i < layout.rows` and entry `j < layout.vocabulary`, the `size_of::<T>()`
    /// bytes at `first + i * row_stride + j * entry_stride` are initialised, inside one live
    /// allocation, and stay readable for `'a`. Nothing in here is an index or a length, so bytes
    /// that another thread changes meanwhile can spoil results, never memory.
    #[cfg_attr(not(feature = "python"), allow(dead_code, reason = "used by the Python glue"))]
    pub(crate) unsafe fn from_raw(first: *const T, layout: Layout) -> Self {
        Self { first, layout, entries: PhantomData }
    }

    /// The number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layout.rows
    }

    /// Whether there is no row at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layout.rows == 0
    }

    /// The number of entries of a row.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.layout.vocabulary
    }

    /// Some of the rows: those of one request out of many.
    ///
    /// # Panics
    /// If there are no such rows, as with a slice.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.layout.rows, "rows {start}..{end} of {}", self.len());
        // With no row there is no address to go to.
        let first = if start == end { self.first } else { self.row(start).first };
        Self { first, layout: Layout { rows: end - start, ..self.layout }, entries: PhantomData }
    }

    /// # Panics
    /// If there is no row `index`: an internal mistake.
    pub(crate) fn row(&self, index: usize) -> Row<'a, T> {
        assert!(index < self.layout.rows, "row {index} of {}", self.layout.rows);
        // SAFETY: the index was checked, so the address is that of the first entry of a row,
        // which whoever made `self` promised to be readable.
        let first = unsafe { self.first.byte_offset(offset(index, self.layout.row_stride)) };
        Row {
            first,
            len: self.layout.vocabulary,
            stride: self.layout.entry_stride,
            swapped: self.layout.swapped,
            entries: PhantomData,
        }
    }
}

impl<'a, T: Scalar> RowsMut<'a, T> {
    /// Rows of `vocabulary` entries, one after the other.
    ///
    /// # Errors
    /// [`Error::Shape`] if `entries` is not a whole number of rows, or `vocabulary` is 0.
    pub fn new(entries: &'a mut [T], vocabulary: usize) -> Result<Self, Error> {
        let layout = Layout::packed::<T>(entries.len(), vocabulary)?;
        Ok(Self { first: entries.as_mut_ptr(), layout, entries: PhantomData })
    }

    /// `rows` rows of `vocabulary` entries, each beginning `row_stride` entries behind the one
    /// before. What lies between them is not written.
    ///
    /// # Errors
    /// [`Error::Shape`] if the rows are not within `entries` or overlap, or `vocabulary` is 0.
    pub fn strided(
        entries: &'a mut [T],
        rows: usize,
        vocabulary: usize,
        row_stride: usize,
    ) -> Result<Self, Error> {
        if rows > 1 && row_stride < vocabulary {
            return Err(Error::Shape { entries: entries.len(), vocabulary });
        }
        let layout = Layout::strided::<T>(entries.len(), rows, vocabulary, row_stride)?;
        Ok(Self { first: entries.as_mut_ptr(), layout, entries: PhantomData })
    }

    /// Rows at any place in memory.
    ///
    /// # Safety
    /// For every row `i < layout.rows` and entry `j < layout.vocabulary`, the `size_of::<T>()`
    /// bytes at `first + i * row_stride + j * entry_stride` are inside one live allocation,
    /// writable for `'a`, and shared with no other such entry and with nothing else that is read
    /// or written during `'a`. They need not be initialised.
    #[cfg_attr(not(feature = "python"), allow(dead_code, reason = "used by the Python glue"))]
    pub(crate) unsafe fn from_raw(first: *mut T, layout: Layout) -> Self {
        Self { first, layout, entries: PhantomData }
    }

    /// The number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layout.rows
    }

    /// Whether there is no row at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layout.rows == 0
    }

    /// The number of entries of a row.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.layout.vocabulary
    }

    /// The output of one row.
    ///
    /// # Safety
    /// While the result lives, no other result for the same `index` does. Rows share no memory, so
    /// different rows may be written at the same time from different threads.
    ///
    /// # Panics
    /// If there is no row `index`: an internal mistake.
    pub(crate) unsafe fn row(&self, index: usize) -> RowMut<'_, T> {
        assert!(index < self.layout.rows, "row {index} of {}", self.layout.rows);
        // SAFETY: the index was checked, so the address is that of the first entry of a row.
        let first = unsafe { self.first.byte_offset(offset(index, self.layout.row_stride)) };
        RowMut {
            first,
            len: self.layout.vocabulary,
            stride: self.layout.entry_stride,
            swapped: self.layout.swapped,
            entries: PhantomData,
        }
    }
}

impl Layout {
    fn packed<T>(entries: usize, vocabulary: usize) -> Result<Self, Error> {
        if vocabulary == 0 || !entries.is_multiple_of(vocabulary) {
            return Err(Error::Shape { entries, vocabulary });
        }
        Self::strided::<T>(entries, entries / vocabulary, vocabulary, vocabulary)
    }

    fn strided<T>(
        entries: usize,
        rows: usize,
        vocabulary: usize,
        row_stride: usize,
    ) -> Result<Self, Error> {
        // The end of the last row; no row at all ends nowhere.
        let end = match rows.checked_sub(1) {
            Some(before) => {
                before.checked_mul(row_stride).and_then(|at| at.checked_add(vocabulary))
            }
            None => Some(0),
        };
        if vocabulary == 0 || end.is_none_or(|end| end > entries) {
            return Err(Error::Shape { entries, vocabulary });
        }
        let entry_stride = size_of::<T>().cast_signed();
        // With one row the stride means nothing, and may be too large for an address.
        let row_stride = if rows > 1 { row_stride.cast_signed() * entry_stride } else { 0 };
        Ok(Self { rows, vocabulary, row_stride, entry_stride, swapped: false })
    }
}
