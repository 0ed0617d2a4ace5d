//! Acceptance rates, for `draftverify._statistics`.

use half::{bf16, f16};
use numpy::{PyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;

use super::array::{Array, Dtype};
use super::{by_dtype, misuse, run};
use crate::lanes::Path;
use crate::memory::try_collect;
use crate::rate::{acceptance_rates, rate_of};
use crate::residual::Workers;
use crate::scalar::Scalar;

/// The acceptance rates of checked rows, or of a vector: then an error names no row.
#[pyfunction]
pub(super) fn rate_rows<'py>(
    draft: &Bound<'py, PyAny>,
    target: &Bound<'py, PyAny>,
    bfloat16: bool,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    fn typed<T: Scalar>(py: Python<'_>, [draft, target]: [Array<'_, '_>; 2]) -> PyResult<Vec<f64>> {
        let vector = draft.object.ndim() == 1;
        let draft = draft.rows::<T>().ok_or_else(misuse)?;
        let target = target.rows::<T>().ok_or_else(misuse)?;
        if draft.vocabulary() == 0 {
            return Err(misuse());
        }
        run(py, draft.len().saturating_mul(draft.vocabulary()), || {
            if vector {
                let (draft, target) = (draft.row(0), target.row(0));
                return try_collect(
                    [rate_of(Path::best(), Workers::Several, draft, target)].into_iter(),
                );
            }
            acceptance_rates(draft, target)
        })
    }

    let py = draft.py();
    let arrays = [draft, target].map(|array| Array::known(array, bfloat16));
    let [Some(draft), Some(target)] = arrays else {
        return Err(misuse());
    };
    if target.dtype != draft.dtype || target.object.shape() != draft.object.shape() {
        return Err(misuse());
    }
    let rates = by_dtype!(draft.dtype, typed(py, [draft, target]))?;
    Ok(PyArray1::from_vec(py, rates))
}
