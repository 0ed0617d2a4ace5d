//! Torch's tensors on the CPU, seen as NumPy arrays in the time of some attribute lookups.
//!
//! Torch describes a tensor through DLPack's table of C functions, which its class carries as
//! `__dlpack_c_exchange_api__` (DLPack 1.3). `tensor.numpy()` and what else Python has to ask take
//! ten times as long. Where there is no such table, or where anything about a tensor is unusual,
//! the answer is `None`, and `draftverify._kinds` looks at the tensor in Torch's own words.

use std::ffi::{c_int, c_long, c_void};
use std::ptr;

use half::{bf16, f16};
use numpy::npyffi::{NPY_TYPES, NpyTypes, PY_ARRAY_API, get_type_object};
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyCapsuleMethods};

use super::array::Dtype;
use super::dlpack::{CPU, Fresh, Table, Tensor};
use super::{by_dtype, step_of_rows};
use crate::rows::{Layout, Rows, RowsMut};
use crate::scalar::Scalar;
use crate::step::Step;

/// Dimensions that tensors of this library's arguments have at most; others are looked at slowly.
const DIMENSIONS: usize = 4;

/// What of Torch is called.
pub(super) struct Torch {
    class: Py<PyAny>,
    table: Table,
    is_tracing: Py<PyAny>,
    modes: Py<PyAny>,
    transforms: Py<PyAny>,
    is_included: Py<PyAny>,
    pre_dispatch: Py<PyAny>,
    is_neg: Py<PyAny>,
    untyped_storage: Py<PyAny>,
    storage: Py<PyAny>,
    data_ptr: Py<PyAny>,
    nbytes: Py<PyAny>,
    from_numpy: Py<PyAny>,
    bfloat16: Py<PyAny>,
}

impl Torch {
    /// Torch, if this is the class of its tensors: no subclass.
    fn of(tensor: &Bound<'_, PyAny>) -> Option<&'static Self> {
        static TORCH: PyOnceLock<Option<Torch>> = PyOnceLock::new();

        let py = tensor.py();
        let class = tensor.get_type_ptr();
        if TORCH.get(py).is_none() {
            if !tensor.get_type().name().is_ok_and(|name| name == "Tensor") {
                return None;
            }
            let torch = py.import("sys").ok()?.getattr("modules").ok()?.get_item("torch").ok()?;
            if !torch.getattr("Tensor").ok()?.is(tensor.get_type()) {
                return None;
            }
            // Nothing, for good, where some part is missing: that is an older Torch.
            let _ = TORCH.set(py, Self::look_up(&torch).ok().flatten());
        }
        let torch = TORCH.get(py)?.as_ref()?;
        (torch.class.as_ptr() == class.cast()).then_some(torch)
    }

    fn look_up(torch: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let class = torch.getattr("Tensor")?;
        let table = class.getattr("__dlpack_c_exchange_api__")?.cast_into::<PyCapsule>()?;
        let table = table.pointer_checked(Some(c"dlpack_exchange_api"))?.cast::<Table>();
        // SAFETY: a capsule of that name holds DLPack's table, which begins with its version in all
        // versions, and is as declared here in those whose major number is 1.
        let Some(table) = (unsafe {
            ((&raw const (*table.as_ptr()).major).read() == 1).then(|| *table.as_ptr())
        }) else {
            return Ok(None);
        };
        let inner = torch.getattr("_C")?;
        let storage = torch.getattr("UntypedStorage")?;
        Ok(Some(Self {
            is_neg: class.getattr("is_neg")?.unbind(),
            untyped_storage: class.getattr("untyped_storage")?.unbind(),
            class: class.unbind(),
            data_ptr: storage.getattr("data_ptr")?.unbind(),
            nbytes: storage.getattr("nbytes")?.unbind(),
            storage: storage.unbind(),
            is_included: inner.getattr("_dispatch_tls_is_dispatch_key_included")?.unbind(),
            pre_dispatch: inner.getattr("DispatchKey")?.getattr("PreDispatch")?.unbind(),
            table,
            is_tracing: inner.getattr("_is_tracing")?.unbind(),
            modes: inner.getattr("_len_torch_dispatch_stack")?.unbind(),
            transforms: inner.getattr("_functorch")?.getattr("peek_interpreter_stack")?.unbind(),
            from_numpy: torch.getattr("from_numpy")?.unbind(),
            bfloat16: torch.getattr("bfloat16")?.unbind(),
        }))
    }

    /// Whether Torch does what it is told and nothing else: it is not tracing, no mode looks on, and
    /// no `torch.func` transforms.
    fn is_plain(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self.is_tracing.bind(py).call0()?.is_truthy()?
            && self.modes.bind(py).call0()?.extract::<usize>()? == 0
            && self.transforms.bind(py).call0()?.is_none()
            // Modes that look on earlier than others are not among those counted above.
            && !self.is_included.bind(py).call1((self.pre_dispatch.bind(py),))?.is_truthy()?)
    }

    /// A fresh array as a tensor.
    pub(super) fn tensor<'py>(
        &self,
        array: Bound<'py, PyAny>,
        bfloat16: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = array.py();
        let tensor = self.from_numpy.bind(py).call1((array,))?;
        if bfloat16 {
            return tensor.call_method1(intern!(py, "view"), (self.bfloat16.bind(py),));
        }
        Ok(tensor)
    }

    /// The storage of a tensor whose numbers are those in memory.
    ///
    /// Asking for it may run code of anybody's, where a mode of Torch's functions is on: all tensors
    /// of a call are asked before any of them is described. The functions of the class are called,
    /// not what may have been put in their place on the object.
    fn storage<'py>(&self, tensor: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = tensor.py();
        // The description says nothing of numbers that are to be negated.
        if self.is_neg.bind(py).call1((tensor,))?.is_truthy()? {
            return Ok(None);
        }
        let storage = self.untyped_storage.bind(py).call1((tensor,))?;
        Ok(storage.get_type().is(self.storage.bind(py)).then_some(storage))
    }

    /// Where a tensor's entries are, if that is plain to see.
    fn describe(
        &self,
        tensor: &Bound<'_, PyAny>,
        storage: &Bound<'_, PyAny>,
    ) -> PyResult<Option<View>> {
        let py = tensor.py();
        let (Some(describe), mut found) = (self.table.describe, Tensor::NONE) else {
            return Ok(None);
        };
        // SAFETY: the object is of the class that the function was found with. It fills the struct,
        // or sets an exception and answers something else than 0.
        if unsafe { describe(tensor.as_ptr().cast(), &raw mut found) } != 0 {
            return Err(PyErr::fetch(py));
        }
        let dimensions = usize::try_from(found.ndim).unwrap_or(usize::MAX);
        let described = dimensions == 0 || !(found.shape.is_null() || found.strides.is_null());
        if found.device_type != CPU || found.lanes != 1 || dimensions > DIMENSIONS || !described {
            return Ok(None);
        }
        let size = i64::from(found.bits) / 8;
        let mut view = View { found, ..View::NONE };
        let mut span = size;
        for axis in 0..dimensions {
            // SAFETY: both have an entry for each dimension, and live as long as the tensor is as it
            // is; no code of anybody's runs before they have been read.
            let (length, stride) = unsafe { (*found.shape.add(axis), *found.strides.add(axis)) };
            if length < 1 || stride < 0 {
                return Ok(None);
            }
            let stride = stride.saturating_mul(size);
            span = span.saturating_add((length - 1).saturating_mul(stride));
            view.shape[axis] = isize::try_from(length)?;
            view.strides[axis] = isize::try_from(stride)?;
        }
        // Storage can be freed or shrunk under a tensor, and what Torch wraps for its own purposes
        // has none.
        view.first = found.data.addr().saturating_add(usize::try_from(found.byte_offset)?);
        let begin: usize = self.data_ptr.bind(py).call1((storage,))?.extract()?;
        let held: usize = self.nbytes.bind(py).call1((storage,))?.extract()?;
        let end = view.first.saturating_add(usize::try_from(span)?);
        let inside = begin != 0 && view.first >= begin && end <= begin.saturating_add(held);
        Ok(inside.then_some(view))
    }

    /// Where the entries of several plain tensors are.
    fn views<const N: usize>(
        &self,
        tensors: [&Bound<'_, PyAny>; N],
    ) -> PyResult<Option<[View; N]>> {
        let class = self.class.as_ptr();
        if tensors.iter().any(|tensor| tensor.get_type_ptr() != class.cast()) {
            return Ok(None);
        }
        let mut storages = [const { None }; N];
        for (storage, tensor) in storages.iter_mut().zip(tensors) {
            let Some(found) = self.storage(tensor)? else { return Ok(None) };
            *storage = Some(found);
        }
        let mut views = [View::NONE; N];
        for ((view, tensor), storage) in
            views.iter_mut().zip(tensors).zip(storages.iter().flatten())
        {
            let Some(found) = self.describe(tensor, storage)? else { return Ok(None) };
            *view = found;
        }
        Ok(Some(views))
    }

    /// The tensor as an array that may not be written to. bfloat16 is seen as 16-bit integers.
    fn array<'py>(tensor: &Bound<'py, PyAny>, mut view: View) -> PyResult<Option<Seen<'py>>> {
        let py = tensor.py();
        let kind = match (view.found.code, view.found.bits) {
            (2, 16) => NPY_TYPES::NPY_HALF,
            (2, 32) => NPY_TYPES::NPY_FLOAT,
            (2, 64) => NPY_TYPES::NPY_DOUBLE,
            (4 | 0, 16) => NPY_TYPES::NPY_SHORT,
            (0, 8) => NPY_TYPES::NPY_BYTE,
            (0, 32) => NPY_TYPES::NPY_INT,
            (0, 64) if size_of::<c_long>() == 8 => NPY_TYPES::NPY_LONG,
            (0, 64) => NPY_TYPES::NPY_LONGLONG,
            (1, 8) => NPY_TYPES::NPY_UBYTE,
            _ => return Ok(None),
        };
        // SAFETY: the dtype is one of NumPy's own. `PyArray_NewFromDescr` takes over the reference to
        // it, reads as many lengths and strides as there are dimensions, and gives back a new
        // reference or an error. The entries lie in the tensor's storage, as was just checked, which
        // lives as long as the tensor, to which the array gets a reference of its own. Whoever
        // shrinks the storage meanwhile breaks it for Torch's own operators too.
        unsafe {
            let dtype = PY_ARRAY_API.PyArray_DescrFromType(py, kind as c_int);
            let array = Bound::from_owned_ptr_or_err(
                py,
                PY_ARRAY_API.PyArray_NewFromDescr(
                    py,
                    get_type_object(py, NpyTypes::PyArray_Type),
                    dtype,
                    view.found.ndim,
                    view.shape.as_mut_ptr(),
                    view.strides.as_mut_ptr(),
                    ptr::with_exposed_provenance_mut(view.first),
                    0,
                    ptr::null_mut(),
                ),
            )?;
            let base = tensor.clone().into_ptr();
            if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), base) != 0 {
                return Err(PyErr::fetch(py));
            }
            Ok(Some((array, view.found.code == 4)))
        }
    }
}

/// A tensor's entries: shape, and strides in bytes.
#[derive(Clone, Copy)]
struct View {
    found: Tensor,
    first: usize,
    shape: [isize; DIMENSIONS],
    strides: [isize; DIMENSIONS],
}

impl View {
    const NONE: Self =
        Self { found: Tensor::NONE, first: 0, shape: [0; DIMENSIONS], strides: [0; DIMENSIONS] };

    fn dtype(&self) -> Option<Dtype> {
        match (self.found.code, self.found.bits) {
            (2, 16) => Some(Dtype::Float16),
            (4, 16) => Some(Dtype::Bfloat16),
            (2, 32) => Some(Dtype::Float32),
            (2, 64) => Some(Dtype::Float64),
            _ => None,
        }
    }

    /// The vector as a row.
    ///
    /// # Safety
    /// The entries are of this type, and the tensor is alive and stays as it is.
    unsafe fn row<T: Scalar>(&self) -> Rows<'_, T> {
        let layout = Layout {
            rows: 1,
            vocabulary: self.shape[0].cast_unsigned(),
            row_stride: 0,
            entry_stride: self.strides[0],
            swapped: false,
        };
        // SAFETY: `describe` has seen that all entries lie in the tensor's storage.
        unsafe { Rows::from_raw(ptr::with_exposed_provenance_mut(self.first), layout) }
    }
}

/// The step of two plain vectors, with a residual that Torch has allocated; `None` if they are
/// anything unusual.
pub(super) fn step<'py>(
    draft: &Bound<'py, PyAny>,
    target: &Bound<'py, PyAny>,
    token: i64,
) -> PyResult<Option<(Step, Bound<'py, PyAny>)>> {
    fn typed<T: Scalar>(
        py: Python<'_>,
        [draft, target]: [&View; 2],
        token: i64,
        out: *mut c_void,
    ) -> PyResult<Step> {
        // SAFETY: the type was matched. The tensors are borrowed, and what remains to be said about
        // their memory is at the head of `python`. The output was made for this call, is as long as
        // the inputs and packed.
        let (draft, target, out) = unsafe {
            let (draft, target) = (draft.row::<T>(), target.row::<T>());
            let entry_stride = size_of::<T>().cast_signed();
            let (vocabulary, row_stride) = (draft.vocabulary(), 0);
            let layout = Layout { rows: 1, vocabulary, row_stride, entry_stride, swapped: false };
            (draft, target, RowsMut::from_raw(out.cast(), layout))
        };
        step_of_rows(py, draft, target, token, &out)
    }

    let py = draft.py();
    let Some((torch, [draft, target])) = plain([draft, target])? else { return Ok(None) };
    let Some(dtype) = draft.dtype().filter(|dtype| target.dtype() == Some(*dtype)) else {
        return Ok(None);
    };
    if (draft.found.ndim, target.found.ndim) != (1, 1) || draft.shape != target.shape {
        return Ok(None);
    }
    let Some(residual) = Fresh::vector(&torch.table, &draft.found, draft.shape[0] as i64) else {
        return Ok(None);
    };
    let step = by_dtype!(dtype, typed(py, [&draft, &target], token, residual.first()))?;
    Ok(Some((step, residual.into_object(py)?)))
}

/// Torch, and where the entries of several plain tensors are. `None` if one of them is anything
/// unusual, or if Torch cannot say.
fn plain<const N: usize>(
    tensors: [&Bound<'_, PyAny>; N],
) -> PyResult<Option<(&'static Torch, [View; N])>> {
    let Some(torch) = tensors.first().and_then(|tensor| Torch::of(tensor)) else {
        return Ok(None);
    };
    let py = tensors[0].py();
    let views =
        torch.is_plain(py).and_then(|plain| if plain { torch.views(tensors) } else { Ok(None) });
    match views {
        Ok(views) => Ok(views.map(|views| (torch, views))),
        // The long way will say what is wrong. What is no error, as an interrupt, goes on.
        Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A tensor as an array, and whether it is bfloat16.
type Seen<'py> = (Bound<'py, PyAny>, bool);

/// Several tensors as arrays; `None` if one of them is anything
/// unusual.
pub(super) fn arrays<'py, const N: usize>(
    tensors: [&Bound<'py, PyAny>; N],
) -> PyResult<Option<(&'static Torch, [Seen<'py>; N])>> {
    let Some((torch, views)) = plain(tensors)? else { return Ok(None) };
    let mut found = Vec::with_capacity(N);
    for (tensor, view) in tensors.into_iter().zip(views) {
        found.extend(Torch::array(tensor, view)?);
    }
    Ok(found.try_into().ok().map(|arrays| (torch, arrays)))
}

/// See a plain tensor of Torch on the CPU as an array that may not be written to.
///
/// bfloat16 comes as 16-bit integers. ``None`` for anything else, and for all tensors of a Torch
/// that does not describe them in C.
#[pyfunction]
pub(super) fn plain_tensor<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(arrays([tensor])?.map(|(_, [(array, _)])| array))
}
