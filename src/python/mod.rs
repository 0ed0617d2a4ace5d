//! The Python glue: arrays to rows, dtypes to types, errors to exceptions. The only file that
//! knows Python.
//!
//! `speculative_decode_step` is the public function itself: what it knows (two NumPy vectors or
//! Torch tensors of one floating dtype and an `int`) it answers here, and hands everything else to
//! `draftverify._api.step`, which converts or refuses. That order keeps the cost of a call low.
//! The other functions are for that module alone. They check again what memory safety needs,
//! except that `out` overlaps no input, which is checked there.
//!
//! # Memory that Python could change
//! Kernels read the arrays' memory as slices, above a size without the GIL. Another thread could
//! meanwhile
//! - *resize or free an array*: each call holds references to its arrays, and NumPy refuses to
//!   resize an array that others refer to unless told not to check;
//! - *write to an input*: no entry is ever used as an index or a length, so the result is numbers
//!   that mix old and new entries, as with NumPy's own functions, which release the GIL too;
//! - *read the output*: a fresh array is not visible before the call returns, and `out=` belongs to
//!   the caller.
//!
//! What remains is the caller's mistake, and it is documented: inputs must not be changed during a
//! call.

mod array;
mod chains;
mod dlpack;
mod logits;
mod plain;
mod rate;
mod rows;
mod threads;
mod torch;

use half::{bf16, f16};
use numpy::PyUntypedArrayMethods;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyInt};

use self::array::{Array, Dtype, fresh};
use crate::error::{Error, contain};
use crate::lanes::Path;
use crate::residual::Workers;
use crate::rows::{Rows, RowsMut};
use crate::scalar::Scalar;
use crate::step::{Step, step_of};

/// From this many entries on the arithmetic takes microseconds, and letting other Python threads
/// run meanwhile is worth giving up the GIL and getting it back.
const DETACH_ENTRIES: usize = 16_384;

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::accept_vectors;

    #[pymodule_export]
    use super::chains::verify_chains;

    #[pymodule_export]
    use super::logits::verify_logits_chains;

    #[pymodule_export]
    use super::plain::{verify_plain_chains, verify_plain_logits_chains};

    #[pymodule_export]
    use super::rate::rate_rows;

    #[pymodule_export]
    use super::rows::{accept_entries, accept_plain_rows, accept_rows};

    #[pymodule_export]
    use super::speculative_decode_step;

    #[pymodule_export]
    use super::threads::{get_num_threads, set_num_threads};

    #[pymodule_export]
    use super::torch::plain_tensor;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}

/// Call a function with the type that a dtype stands for.
macro_rules! by_dtype {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            Dtype::Float16 => $function::<f16>($($argument),*),
            Dtype::Bfloat16 => $function::<bf16>($($argument),*),
            Dtype::Float32 => $function::<f32>($($argument),*),
            Dtype::Float64 => $function::<f64>($($argument),*),
        }
    };
}

use by_dtype;

/// Give up the GIL for large work; see `DETACH_ENTRIES`.
fn run<R: Send>(
    py: Python<'_>,
    entries: usize,
    body: impl FnOnce() -> Result<R, Error> + Send,
) -> PyResult<R> {
    let result = if entries < DETACH_ENTRIES { contain(body) } else { py.detach(|| contain(body)) };
    Ok(result?)
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Internal(_) => PyRuntimeError::new_err(message),
            Error::Memory => PyMemoryError::new_err(message),
            _ => PyValueError::new_err(message),
        }
    }
}

/// The step of the only rows of each, on the threads that it is worth.
fn step_of_rows<T: Scalar>(
    py: Python<'_>,
    draft: Rows<'_, T>,
    target: Rows<'_, T>,
    token: i64,
    out: &RowsMut<'_, T>,
) -> PyResult<Step> {
    run(py, draft.vocabulary(), || {
        // SAFETY: the only row, asked for once.
        let mut out = unsafe { out.row(0) };
        step_of(Path::best(), Workers::Several, draft.row(0), target.row(0), token, &mut out)
    })
}

/// The step of two vectors of the same dtype and length, and its residual in a fresh array. `None`
/// if the arrays are others.
fn step_of_arrays<'py>(
    py: Python<'py>,
    draft: Array<'_, 'py>,
    target: Array<'_, 'py>,
    token: i64,
) -> PyResult<Option<(Step, Bound<'py, PyAny>)>> {
    fn typed<'py, T: Scalar>(
        py: Python<'py>,
        draft: Array<'_, 'py>,
        target: Array<'_, 'py>,
        token: i64,
    ) -> PyResult<Option<(Step, Bound<'py, PyAny>)>> {
        let (Some(draft_rows), Some(target_rows)) = (draft.rows::<T>(), target.rows::<T>()) else {
            return Ok(None);
        };
        let residual = fresh(py, draft.type_num, &[draft_rows.vocabulary()])?;
        let out = Array::known(&residual, true).filter(|out| out.dtype == draft.dtype);
        // SAFETY: the array was made here and nobody else has it.
        let Some(out) = out.and_then(|out| unsafe { out.rows_mut::<T>() }) else {
            return Ok(None);
        };
        let step = step_of_rows(py, draft_rows, target_rows, token, &out)?;
        Ok(Some((step, residual)))
    }

    let same = draft.dtype == target.dtype && draft.object.shape() == target.object.shape();
    if !same || draft.object.ndim() != 1 || draft.object.is_empty() {
        return Ok(None);
    }
    by_dtype!(draft.dtype, typed(py, draft, target, token))
}

/// Verify one drafted token.
///
/// The probability of keeping a token that was drawn from ``draft_probs``, and the distribution
/// that its replacement is drawn from if it is not kept, so that what is emitted follows
/// ``target_probs`` exactly.
///
/// Parameters
/// ----------
/// draft_probs : array, shape (V,)
///     The draft model's probabilities: finite, not negative, summing to one. float16, bfloat16,
///     float32 or float64; a NumPy, Torch, JAX or CuPy array, one of another library of the array
///     API standard, or a list of numbers (taken as float64). Any strides, alignment and byte order.
/// target_probs : array, shape (V,)
///     The target model's probabilities over the same vocabulary: same library, dtype and device.
/// drafted_token : int
///     The proposal, ``0 <= drafted_token < V`` with ``draft_probs[drafted_token] > 0``. Python and
///     NumPy integers and 0-d integer arrays are integers; bools are not.
///
/// Returns
/// -------
/// dict
///     ``"accept_prob"``: a Python float, ``min(1, target_probs[t] / draft_probs[t])`` in float64.
///
///     ``"residual"``: a fresh array of shape (V,) in the inputs' library and dtype:
///     ``max(target_probs - draft_probs, 0)`` divided by its sum; all zero where the sum is 0. It
///     does not depend on the token.
///
/// Raises
/// ------
/// TypeError
///     Arrays of another kind or dtype, or of two kinds or dtypes; a token that is no integer.
/// ValueError
///     Shapes that differ or are not (V,) with V >= 1; a token outside the vocabulary or with
///     ``draft_probs[t] == 0``; entries that are NaN, infinite or negative; a sum of
///     ``max(target_probs - draft_probs, 0)`` that overflows float32 (float64 for float64).
/// ImportError, NotImplementedError
///     ``DRAFTVERIFY_BACKEND=cupy`` in the environment, and no CuPy that works; another device.
///
/// Notes
/// -----
/// Rows are used as given: nothing is normalised. Differences and quotients are float32 (float64
/// for float64 rows), the sum is float64 in an order that depends on V alone: the result has the
/// same bits whatever the strides, the processor's instructions and the array library. Inputs are
/// not changed and must not be changed by another thread during the call. No gradient is recorded.
///
/// The rule is that of Leviathan, Kalman and Matias, "Fast Inference from Transformers via
/// Speculative Decoding", ICML 2023, algorithm 1 (arXiv 2211.17192).
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> draft, target = np.array([0.8, 0.2]), np.array([0.4, 0.6])
/// >>> step = speculative_decode_step(draft, target, 0)
/// >>> step["accept_prob"]
/// 0.5
/// >>> step["residual"]
/// array([0., 1.])
#[pyfunction]
#[expect(clippy::doc_markdown, reason = "the text is Python's docstring, in reStructuredText")]
fn speculative_decode_step<'py>(
    draft_probs: &Bound<'py, PyAny>,
    target_probs: &Bound<'py, PyAny>,
    drafted_token: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    static SLOW: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

    let py = draft_probs.py();
    let token = drafted_token.cast_exact::<PyInt>().ok().and_then(|token| token.extract().ok());
    if let Some(token) = token
        && let Some(draft) = Array::known(draft_probs, false)
        && let Some(target) = Array::known(target_probs, false)
        && let Some((step, residual)) = step_of_arrays(py, draft, target, token)?
    {
        return dictionary(step, residual);
    }
    if let Some(token) = token
        && let Some((step, residual)) = torch::step(draft_probs, target_probs, token)?
    {
        return dictionary(step, residual);
    }
    let slow = SLOW.get_or_try_init(py, || {
        py.import("draftverify._api")?.getattr("step").map(Bound::unbind)
    })?;
    slow.bind(py).call1((draft_probs, target_probs, drafted_token))
}

/// What `speculative_decode_step` answers.
fn dictionary(step: Step, residual: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    let py = residual.py();
    let answer = PyDict::new(py);
    answer.set_item(intern!(py, "accept_prob"), step.accept_prob)?;
    answer.set_item(intern!(py, "residual"), residual)?;
    Ok(answer.into_any())
}

/// What the arrays of a private function must be.
fn misuse() -> PyErr {
    PyTypeError::new_err("draftverify._core: arrays that draftverify._api has not checked")
}

/// The step of two vectors that were checked: ``(accept_prob, residual)``.
#[pyfunction]
fn accept_vectors<'py>(
    draft: &Bound<'py, PyAny>,
    target: &Bound<'py, PyAny>,
    token: i64,
    bfloat16: bool,
) -> PyResult<(f64, Bound<'py, PyAny>)> {
    let draft = Array::known(draft, bfloat16).ok_or_else(misuse)?;
    let target = Array::known(target, bfloat16).ok_or_else(misuse)?;
    let answer = step_of_arrays(draft.object.py(), draft, target, token)?;
    answer.map(|(step, residual)| (step.accept_prob, residual)).ok_or_else(misuse)
}
