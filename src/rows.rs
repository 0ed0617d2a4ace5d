//! Rows in memory: where the entries of one row, or of many, lie.
//!
//! Kernels take slices. [`Rows`] and [`RowsMut`] describe what callers really have: rows with a
//! stride between them (a slice of a larger tensor, a padded vocabulary, one row broadcast to
//! many), entries with a stride within a row, at any address, in either byte order. A row that is
//! a plain slice is handed to the kernels as one; any other row is read sub-block by sub-block
//! through a small buffer, so that no copy of a row is ever made.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::error::Error;
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

    pub(crate) fn len(&self) -> usize {
        self.layout.rows
    }

    pub(crate) fn vocabulary(&self) -> usize {
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
        let entry_stride = size_of::<T>().cast_signed();
        Ok(Self {
            rows: entries / vocabulary,
            vocabulary,
            row_stride: vocabulary.cast_signed() * entry_stride,
            entry_stride,
            swapped: false,
        })
    }
}

/// Bytes to entry or row `index`. Cannot overflow for an index inside an allocation, whose size
/// fits an `isize`; the one offset past that never happens, since indices are checked.
#[inline(always)]
fn offset(index: usize, stride: isize) -> isize {
    index.cast_signed() * stride
}

/// One row that is only read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a, T> {
    first: *const T,
    len: usize,
    stride: isize,
    swapped: bool,
    entries: PhantomData<&'a [T]>,
}

/// One row that is written.
#[derive(Debug)]
pub(crate) struct RowMut<'a, T> {
    first: *mut T,
    len: usize,
    stride: isize,
    swapped: bool,
    entries: PhantomData<&'a mut [T]>,
}

/// Whether entries of this layout form a plain Rust slice.
fn is_slice<T>(first: *const T, len: usize, stride: isize, swapped: bool) -> bool {
    (stride == size_of::<T>().cast_signed() || len == 1) && !swapped && first.is_aligned()
}

impl<'a, T: Scalar> Row<'a, T> {
    pub(crate) fn of(entries: &'a [T]) -> Self {
        Self {
            first: entries.as_ptr(),
            len: entries.len(),
            stride: size_of::<T>().cast_signed(),
            swapped: false,
            entries: PhantomData,
        }
    }

    /// The row as a slice, where it is one.
    pub(crate) fn as_slice(&self) -> Option<&'a [T]> {
        if !is_slice(self.first, self.len, self.stride, self.swapped) {
            return None;
        }
        // SAFETY: aligned, packed, native; readable for `'a` as `Rows::from_raw` demands. That
        // nobody writes meanwhile is what the caller of a Rust function guarantees by the borrow
        // and the caller of a Python function by not changing inputs during the call.
        Some(unsafe { std::slice::from_raw_parts(self.first, self.len) })
    }
}

/// A row that can be read, entry by entry or some entries at a time.
pub(crate) trait Source<T: Scalar>: Copy {
    fn len(&self) -> usize;
    fn entry(&self, index: usize) -> T;
    /// The entries `start..start + len`, in place where possible, else copied to `buffer`.
    fn load<'b>(&'b self, start: usize, len: usize, buffer: &'b mut [T]) -> &'b [T];
}

impl<T: Scalar> Source<T> for &[T] {
    #[inline(always)]
    fn len(&self) -> usize {
        <[T]>::len(self)
    }

    #[inline(always)]
    fn entry(&self, index: usize) -> T {
        self[index]
    }

    #[inline(always)]
    fn load<'b>(&'b self, start: usize, len: usize, _: &'b mut [T]) -> &'b [T] {
        &self[start..start + len]
    }
}

impl<T: Scalar> Source<T> for Row<'_, T> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn entry(&self, index: usize) -> T {
        assert!(index < self.len, "entry {index} of {}", self.len);
        // SAFETY: entry `index` of the row is readable, see `Rows::from_raw`; the address may be
        // misaligned, hence `read_unaligned`.
        let raw = unsafe { self.first.byte_offset(offset(index, self.stride)).read_unaligned() };
        if self.swapped { raw.swap_bytes() } else { raw }
    }

    #[inline(always)]
    fn load<'b>(&'b self, start: usize, len: usize, buffer: &'b mut [T]) -> &'b [T] {
        let entries = &mut buffer[..len];
        for (index, entry) in entries.iter_mut().enumerate() {
            *entry = self.entry(start + index);
        }
        entries
    }
}

impl<T: Scalar> RowMut<'_, T> {
    pub(crate) fn of(entries: &mut [T]) -> RowMut<'_, T> {
        RowMut {
            first: entries.as_mut_ptr(),
            len: entries.len(),
            stride: size_of::<T>().cast_signed(),
            swapped: false,
            entries: PhantomData,
        }
    }

    /// The row as a slice, where it is one.
    pub(crate) fn as_slice(&mut self) -> Option<&mut [MaybeUninit<T>]> {
        if !is_slice(self.first, self.len, self.stride, self.swapped) {
            return None;
        }
        // SAFETY: aligned, packed, native; writable and unshared for as long as `self` is
        // borrowed. `MaybeUninit` because a fresh array holds nothing yet. The kernels only ever
        // write initialised entries through it.
        Some(unsafe { std::slice::from_raw_parts_mut(self.first.cast(), self.len) })
    }

    /// Write `entries` at `start` and behind.
    #[inline(always)]
    pub(crate) fn store_all(&mut self, start: usize, entries: &[T]) {
        if let Some(slots) = self.as_slice() {
            for (slot, entry) in slots[start..start + entries.len()].iter_mut().zip(entries) {
                slot.write(*entry);
            }
        } else {
            for (index, entry) in entries.iter().enumerate() {
                self.store(start + index, *entry);
            }
        }
    }

    #[inline(always)]
    fn store(&mut self, index: usize, entry: T) {
        assert!(index < self.len, "entry {index} of {}", self.len);
        let raw = if self.swapped { entry.swap_bytes() } else { entry };
        // SAFETY: entry `index` of the row is writable and unshared, see `RowsMut::from_raw`; the
        // address may be misaligned, hence `write_unaligned`.
        unsafe { self.first.byte_offset(offset(index, self.stride)).write_unaligned(raw) }
    }

    pub(crate) fn fill(&mut self, entry: T) {
        for index in 0..self.len {
            self.store(index, entry);
        }
    }
}
