//! One row: a slice where it is one, else entries that are read and written one by one.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::scalar::Scalar;

/// Bytes to entry or row `index`. Cannot overflow for an index inside an allocation, whose size
/// fits an `isize`; the one offset past that never happens, since indices are checked.
#[inline(always)]
pub(crate) fn offset(index: usize, stride: isize) -> isize {
    index.cast_signed() * stride
}

/// One row that is only read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a, T> {
    pub(crate) first: *const T,
    pub(crate) len: usize,
    pub(crate) stride: isize,
    pub(crate) swapped: bool,
    pub(crate) entries: PhantomData<&'a [T]>,
}

/// One row that is written.
#[derive(Debug)]
pub(crate) struct RowMut<'a, T> {
    pub(crate) first: *mut T,
    pub(crate) len: usize,
    pub(crate) stride: isize,
    pub(crate) swapped: bool,
    pub(crate) entries: PhantomData<&'a mut [T]>,
}

// SAFETY: like `Rows` and `RowsMut`, whose comments say why: `Row` only reads, and a shared `RowMut`
// writes only through the unsafe `part`.
unsafe impl<T: Scalar> Sync for Row<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Scalar> Sync for RowMut<'_, T> {}

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
    /// The entries of a range, as a row of its own.
    fn part(&self, range: Range<usize>) -> Self;
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
    fn part(&self, range: Range<usize>) -> Self {
        &self[range]
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
    fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start < range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the address of an entry of the row, whose entries are in one allocation.
        let first = unsafe { self.first.byte_offset(offset(range.start, self.stride)) };
        Self { first, len: range.len(), ..*self }
    }

    #[inline(always)]
    fn load<'b>(&'b self, start: usize, len: usize, buffer: &'b mut [T]) -> &'b [T] {
        if let Some(entries) = self.as_slice() {
            return &entries[start..start + len];
        }
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

    /// The entries of a range, as a row of its own.
    ///
    /// # Safety
    /// While the result lives, no other result for an entry of the range does, nor is it written
    /// through `self`.
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> RowMut<'_, T> {
        assert!(range.start < range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the address of an entry of the row, whose entries are in one allocation.
        let first = unsafe { self.first.byte_offset(offset(range.start, self.stride)) };
        RowMut { first, len: range.len(), ..*self }
    }

    /// Write `entries` at `start` and behind.
    #[inline(always)]
    pub(crate) fn store_all(&mut self, start: usize, entries: &[T]) {
        for (index, entry) in (start..).zip(entries) {
            self.store(index, *entry);
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
