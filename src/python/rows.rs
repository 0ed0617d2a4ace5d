//! Rows of drafted tokens, for `draftverify._api`.

use half::{bf16, f16};
use numpy::{Ix1, PyArray1, PyArrayMethods, PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyBool;

use super::array::{Array, Dtype, fresh, packed};
use super::torch::{self, Torch};
use super::{by_dtype, misuse, run};
use crate::memory::collect;
use crate::scalar::Scalar;
use crate::step::{self, OnBadRow, Step};

fn ids_of<'py>(ids: &Bound<'py, PyArray1<i64>>) -> PyResult<PyReadonlyArray1<'py, i64>> {
    Ok(ids.try_readonly()?)
}

/// The answers for each row: accept probability and mass.
type Numbers<'py> = [Bound<'py, PyArray1<f64>>; 2];

/// The steps of rows of one dtype.
///
/// # Safety
/// The entries of the last array, which takes the residuals, share no memory with each other or with
/// another array, and nobody else uses them during the call.
unsafe fn steps<'py>(
    py: Python<'py>,
    [draft, target, out]: [Array<'_, 'py>; 3],
    token_ids: &[i64],
    check: bool,
) -> PyResult<Numbers<'py>> {
    fn typed<T: Scalar>(
        py: Python<'_>,
        [draft, target, out]: [Array<'_, '_>; 3],
        token_ids: &[i64],
        on_bad_row: OnBadRow,
    ) -> PyResult<Vec<Step>> {
        let draft = draft.rows::<T>().ok_or_else(misuse)?;
        let target = target.rows::<T>().ok_or_else(misuse)?;
        // SAFETY: the caller of `steps` has promised it.
        let out = unsafe { out.rows_mut::<T>() }.ok_or_else(misuse)?;
        run(py, draft.len().saturating_mul(draft.vocabulary()), || {
            step::accept_residual(draft, target, token_ids, out, on_bad_row)
        })
    }

    if target.dtype != draft.dtype || out.dtype != draft.dtype {
        return Err(misuse());
    }
    let on_bad_row = if check { OnBadRow::Fail } else { OnBadRow::AnswerNan };
    let steps = by_dtype!(draft.dtype, typed(py, [draft, target, out], token_ids, on_bad_row))?;
    let accept_prob = collect(steps.iter().map(|step| step.accept_prob))?;
    let mass = collect(steps.iter().map(|step| step.mass))?;
    Ok([accept_prob, mass].map(|numbers| PyArray1::from_vec(py, numbers)))
}

/// The steps of checked rows, residuals written to ``out``: ``[accept_prob, mass]``.
#[pyfunction]
pub(super) fn accept_rows<'py>(
    draft: &Bound<'py, PyAny>,
    target: &Bound<'py, PyAny>,
    token_ids: &Bound<'py, PyArray1<i64>>,
    out: &Bound<'py, PyAny>,
    check: bool,
    bfloat16: bool,
) -> PyResult<Numbers<'py>> {
    let arrays = [draft, target, out].map(|array| Array::known(array, bfloat16));
    let [Some(draft), Some(target), Some(out)] = arrays else {
        return Err(misuse());
    };
    let token_ids = ids_of(token_ids)?;
    // SAFETY: `draftverify._api` has made the array, or checked that its entries share no memory
    // with each other or with an input.
    unsafe { steps(out.object.py(), [draft, target, out], token_ids.as_slice()?, check) }
}

/// An answer of `accept_residual`: ``(accept_prob, residual, mass)``.
type Answer<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// `accept_residual` of what is most usual: NumPy arrays proper or plain tensors of Torch, of shapes
/// that fit, with ids of int64. ``None`` for anything else, which `draftverify._api` looks at.
#[pyfunction]
pub(super) fn accept_plain_rows<'py>(
    draft: &Bound<'py, PyAny>,
    target: &Bound<'py, PyAny>,
    token_ids: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    check: &Bound<'py, PyAny>,
) -> PyResult<Option<Answer<'py>>> {
    let Ok(check) = check.cast_exact::<PyBool>() else { return Ok(None) };
    let check = check.is_true();
    if let Some(draft) = Array::known(draft, false)
        && let Some(target) = Array::known(target, false)
    {
        return plain_rows(None, [draft, target], token_ids, out, check);
    }
    // A tensor that is to be written to is looked at more closely.
    if out.is_some() {
        return Ok(None);
    }
    let (torch, [draft, target], ids) = if token_ids.get_type().is(draft.get_type()) {
        let Some((torch, [draft, target, (ids, _)])) = torch::arrays([draft, target, token_ids])?
        else {
            return Ok(None);
        };
        (torch, [draft, target], ids)
    } else {
        let Some((torch, rows)) = torch::arrays([draft, target])? else { return Ok(None) };
        (torch, rows, token_ids.clone())
    };
    let ((draft, bfloat16), (target, other)) = (&draft, &target);
    if bfloat16 == other
        && let Some(draft) = Array::known(draft, *bfloat16)
        && let Some(target) = Array::known(target, *bfloat16)
    {
        return plain_rows(Some((torch, *bfloat16)), [draft, target], &ids, None, check);
    }
    Ok(None)
}

fn plain_rows<'py>(
    torch: Option<(&Torch, bool)>,
    [draft, target]: [Array<'_, 'py>; 2],
    token_ids: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    check: bool,
) -> PyResult<Option<Answer<'py>>> {
    let py = draft.object.py();
    let shape = draft.object.shape();
    let fits = draft.dtype == target.dtype && shape == target.object.shape();
    let Some(token_ids) = packed::<i64, Ix1>(token_ids) else { return Ok(None) };
    let &[rows, vocabulary] = shape else { return Ok(None) };
    if !fits || vocabulary == 0 || token_ids.shape() != [rows] {
        return Ok(None);
    }
    let bfloat16 = torch.is_some_and(|(_, bfloat16)| bfloat16);
    let residual = match out {
        None => fresh(py, draft.type_num, shape)?,
        Some(out) => out.clone(),
    };
    let Some(slots) = Array::known(&residual, bfloat16) else { return Ok(None) };
    // Others may be right too: that is found out where there is more time.
    if out.is_some()
        && !(slots.dtype == draft.dtype
            && slots.object.shape() == shape
            && slots.is_packed_and_writable()
            && slots.is_apart_from(&[draft.object, target.object, token_ids.as_untyped()]))
    {
        return Ok(None);
    }
    let ids = token_ids.try_readonly()?;
    // SAFETY: the array was made here, or it is packed, and its memory begins behind the end of all
    // others or ends before their beginning.
    let [accept_prob, mass] = unsafe { steps(py, [draft, target, slots], ids.as_slice()?, check) }?;
    let (accept_prob, mass) = (accept_prob.into_any(), mass.into_any());
    Ok(Some(match torch {
        None => (accept_prob, residual, mass),
        Some((torch, bfloat16)) => (
            torch.tensor(accept_prob, false)?,
            torch.tensor(residual, bfloat16)?,
            torch.tensor(mass, false)?,
        ),
    }))
}

/// The accept probabilities of checked rows.
#[pyfunction]
pub(super) fn accept_entries<'py>(
    draft: &Bound<'py, PyAny>,
    target: &Bound<'py, PyAny>,
    token_ids: &Bound<'py, PyArray1<i64>>,
    bfloat16: bool,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    fn typed<T: Scalar>(
        py: Python<'_>,
        [draft, target]: [Array<'_, '_>; 2],
        token_ids: &[i64],
    ) -> PyResult<Vec<f64>> {
        let draft = draft.rows::<T>().ok_or_else(misuse)?;
        let target = target.rows::<T>().ok_or_else(misuse)?;
        run(py, draft.len(), || step::accept_probs(draft, target, token_ids))
    }

    let py = draft.py();
    let arrays = [draft, target].map(|array| Array::known(array, bfloat16));
    let [Some(draft), Some(target)] = arrays else {
        return Err(misuse());
    };
    if target.dtype != draft.dtype {
        return Err(misuse());
    }
    let arrays = [draft, target];
    let accepted = by_dtype!(draft.dtype, typed(py, arrays, ids_of(token_ids)?.as_slice()?))?;
    Ok(PyArray1::from_vec(py, accepted))
}
