//! NumPy arrays as rows: dtype, layout and memory.

use std::ops::Range;
use std::os::raw::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

use numpy::ndarray::Dimension;
use numpy::npyffi::{
    NPY_ARRAY_ALIGNED, NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_WRITEABLE, NPY_TYPES, NpyTypes,
    PY_ARRAY_API, get_type_object,
};
use numpy::{Element, PyArray, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::rows::{Layout, Rows, RowsMut};
use crate::scalar::Scalar;

// NumPy's numbers of the dtypes that are looked at.
const FLOAT16: c_int = NPY_TYPES::NPY_HALF as c_int;
const FLOAT32: c_int = NPY_TYPES::NPY_FLOAT as c_int;
const FLOAT64: c_int = NPY_TYPES::NPY_DOUBLE as c_int;
const INT16: c_int = NPY_TYPES::NPY_SHORT as c_int;
const UINT16: c_int = NPY_TYPES::NPY_USHORT as c_int;
/// Entries one after the other, at addresses that suit their type.
const PACKED: c_int = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
const USER_DEFINED: c_int = NPY_TYPES::NPY_USERDEF as c_int;

/// The floating dtypes of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dtype {
    Float16,
    Bfloat16,
    Float32,
    Float64,
}

/// An array of known dtype.
#[derive(Clone, Copy)]
pub(super) struct Array<'a, 'py> {
    pub(super) object: &'a Bound<'py, PyUntypedArray>,
    pub(super) dtype: Dtype,
    pub(super) type_num: c_int,
    swapped: bool,
}

impl<'a, 'py> Array<'a, 'py> {
    /// `None` for all but NumPy arrays proper of a floating dtype. With `bfloat16`, arrays of
    /// 16-bit integers hold the bits of that type, since NumPy alone has no such dtype.
    pub(super) fn known(object: &'a Bound<'py, PyAny>, bfloat16: bool) -> Option<Self> {
        if !is_ndarray(object) {
            return None;
        }
        let py = object.py();
        // SAFETY: the type was just compared.
        let object = unsafe { object.cast_unchecked::<PyUntypedArray>() };
        // SAFETY: an array holds a reference to its dtype, and both structures begin with these
        // fields in every NumPy that the C API of version 2 serves.
        let (type_num, byte_order, scalar) = unsafe {
            let dtype = &(*(*object.as_array_ptr()).fields.descr).fields;
            (dtype.type_num, dtype.byteorder.cast_unsigned(), dtype.typeobj)
        };
        let dtype = match type_num {
            INT16 | UINT16 if bfloat16 => Dtype::Bfloat16,
            FLOAT16 => Dtype::Float16,
            FLOAT32 => Dtype::Float32,
            FLOAT64 => Dtype::Float64,
            USER_DEFINED.. => {
                // SAFETY: the type of the dtype's scalars, which the dtype keeps alive.
                let scalar = unsafe { PyType::from_borrowed_type_ptr(py, scalar) };
                let bfloat16 = is_bfloat16(type_num, || {
                    object.dtype().itemsize() == 2
                        && scalar.name().is_ok_and(|name| name == "bfloat16")
                });
                if !bfloat16 {
                    return None;
                }
                Dtype::Bfloat16
            }
            _ => return None,
        };
        let foreign = if cfg!(target_endian = "little") { b'>' } else { b'<' };
        Some(Self { object, dtype, type_num, swapped: byte_order == foreign })
    }

    /// The rows of both models, or of the target alone, of one dtype.
    pub(super) fn known_pair(
        draft: Option<&'a Bound<'py, PyAny>>,
        target: &'a Bound<'py, PyAny>,
        bfloat16: bool,
    ) -> Option<(Option<Self>, Self)> {
        let target = Self::known(target, bfloat16)?;
        let Some(draft) = draft else { return Some((None, target)) };
        let draft = Self::known(draft, bfloat16).filter(|draft| draft.dtype == target.dtype)?;
        Some((Some(draft), target))
    }

    /// Where the entries are. A vector is one row.
    fn layout(&self) -> Option<Layout> {
        let (rows, vocabulary, row_stride, entry_stride) =
            match (self.object.shape(), self.object.strides()) {
                (&[vocabulary], &[entry_stride]) => (1, vocabulary, 0, entry_stride),
                (&[rows, vocabulary], &[row_stride, entry_stride]) => {
                    (rows, vocabulary, row_stride, entry_stride)
                }
                _ => return None,
            };
        Some(Layout { rows, vocabulary, row_stride, entry_stride, swapped: self.swapped })
    }

    fn first<T>(&self) -> *mut T {
        // SAFETY: reads the data pointer of a live array.
        unsafe { (*self.object.as_array_ptr()).fields.data.cast() }
    }

    /// The rows of an array whose dtype was matched with `T`.
    pub(super) fn rows<T: Scalar>(&self) -> Option<Rows<'a, T>> {
        let layout = self.layout()?;
        // SAFETY: NumPy keeps shape, strides and data pointer of an array consistent, and its
        // memory initialised or at least allocated; the borrow of the object keeps it alive. For
        // changes by other threads see the head of `python`.
        Some(unsafe { Rows::from_raw(self.first::<T>(), layout) })
    }

    /// The rows of one request: of an array with a row of requests, those from the front; of an
    /// array of rows, those from `start` on.
    pub(super) fn request_rows<T: Scalar>(
        &self,
        request: usize,
        start: usize,
        rows: usize,
    ) -> Option<Rows<'a, T>> {
        let (&[requests, positions, vocabulary], &[request_stride, row_stride, entry_stride]) =
            (self.object.shape(), self.object.strides())
        else {
            let all = self.rows::<T>()?;
            return (start + rows <= all.len()).then(|| all.part(start..start + rows));
        };
        if request >= requests || rows > positions {
            return None;
        }
        let swapped = self.swapped;
        let layout = Layout { rows, vocabulary, row_stride, entry_stride, swapped };
        // SAFETY: as for `rows`; the request is one of the array, and an array without entries is
        // not read.
        Some(unsafe {
            Rows::from_raw(
                self.first::<T>().byte_offset(request.cast_signed() * request_stride),
                layout,
            )
        })
    }

    /// The rows of an array to be written.
    ///
    /// # Safety
    /// No entry shares memory with another one or with an input, and nobody else uses the array.
    pub(super) unsafe fn rows_mut<T: Scalar>(&self) -> Option<RowsMut<'a, T>> {
        let layout = self.layout()?;
        // SAFETY: reads the flags of a live array.
        let flags = unsafe { (*self.object.as_array_ptr()).fields.flags };
        if flags & NPY_ARRAY_WRITEABLE == 0 {
            return None;
        }
        // SAFETY: as for `rows`; that the memory is not shared is the caller's promise.
        Some(unsafe { RowsMut::from_raw(self.first::<T>(), layout) })
    }
}

impl Array<'_, '_> {
    /// Whether the entries lie one after the other, at addresses that suit them, and may be written
    /// to.
    pub(super) fn is_packed_and_writable(&self) -> bool {
        // SAFETY: reads the flags of a live array.
        let flags = unsafe { (*self.object.as_array_ptr()).fields.flags };
        !self.swapped && flags & (PACKED | NPY_ARRAY_WRITEABLE) == PACKED | NPY_ARRAY_WRITEABLE
    }

    /// Whether the first byte of the one comes behind the last of the other, for every other array.
    pub(super) fn is_apart_from(&self, others: &[&Bound<'_, PyUntypedArray>]) -> bool {
        let own = bytes_of(self.object);
        others.iter().all(|other| {
            let other = bytes_of(other);
            own.end <= other.start || other.end <= own.start
        })
    }
}

/// Whether an object is a NumPy array proper, of no class that is derived.
pub(super) fn is_ndarray(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: reads a pointer from NumPy's table of types, filled when NumPy is imported.
    let ndarray = unsafe { get_type_object(object.py(), NpyTypes::PyArray_Type) };
    object.get_type_ptr() == ndarray
}

/// A NumPy array proper of a dtype and a number of axes whose entries lie one after the other.
pub(super) fn packed<'a, 'py, N: Element, D: Dimension>(
    object: &'a Bound<'py, PyAny>,
) -> Option<&'a Bound<'py, PyArray<N, D>>> {
    if !is_ndarray(object) {
        return None;
    }
    let array = object.cast::<PyArray<N, D>>().ok()?;
    // SAFETY: reads the flags of a live array.
    let flags = unsafe { (*array.as_array_ptr()).fields.flags };
    (flags & PACKED == PACKED).then_some(array)
}

/// The addresses from the first byte of an array to behind its last one.
fn bytes_of(array: &Bound<'_, PyUntypedArray>) -> Range<usize> {
    // SAFETY: reads the data pointer of a live array.
    let first = unsafe { (*array.as_array_ptr()).fields.data } as usize;
    if array.is_empty() {
        return first..first;
    }
    let (mut start, mut end) = (first, first + array.dtype().itemsize());
    for (length, stride) in array.shape().iter().zip(array.strides()) {
        let reach = (length - 1) * stride.unsigned_abs();
        if *stride < 0 { start -= reach } else { end += reach }
    }
    start..end
}

/// Whether a dtype that NumPy does not know by itself is bfloat16. Its number is fixed once it is
/// registered in a process, so that the name is looked at once.
fn is_bfloat16(type_num: c_int, looks_so: impl FnOnce() -> bool) -> bool {
    static BFLOAT16: AtomicI32 = AtomicI32::new(-1);
    if BFLOAT16.load(Ordering::Relaxed) == type_num {
        return true;
    }
    let found = looks_so();
    if found {
        BFLOAT16.store(type_num, Ordering::Relaxed);
    }
    found
}

/// A fresh packed array, not yet initialised.
pub(super) fn fresh<'py>(
    py: Python<'py>,
    type_num: c_int,
    shape: &[usize],
) -> PyResult<Bound<'py, PyAny>> {
    let dimensions = c_int::try_from(shape.len())?;
    // SAFETY: `type_num` is that of a live dtype. `PyArray_NewFromDescr` takes over the reference
    // to the dtype, reads as many lengths from `shape` as there are, where NumPy has put such before,
    // and gives back a new reference or an error.
    unsafe {
        let dtype = PY_ARRAY_API.PyArray_DescrFromType(py, type_num);
        let ndarray = get_type_object(py, NpyTypes::PyArray_Type);
        let (strides, data, like) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            ndarray,
            dtype,
            dimensions,
            shape.as_ptr().cast_mut().cast(),
            strides,
            data,
            0,
            like,
        );
        Bound::from_owned_ptr_or_err(py, array)
    }
}
