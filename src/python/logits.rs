//! Chains of logits, for `draftverify._logits`.

use half::{bf16, f16};
use numpy::{Element, PyUntypedArray};
use pyo3::Borrowed;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;

use super::array::{Array, Dtype};
use super::chains::{Answer, Request, Requests, method_of, numbers_of};
use super::{by_dtype, misuse};
use crate::chain::Method;
use crate::filter::Filters;
use crate::logits::{LogitsChain, verify_chain_logits};
use crate::scalar::Scalar;

/// One number for all requests, or one for each.
pub(super) enum Setting<N> {
    All(N),
    Each(Vec<N>),
}

// Not derived: that would make a TypeError of a lack of memory.
impl<'a, 'py, N> FromPyObject<'a, 'py> for Setting<N>
where
    N: Element + Copy + FromPyObjectOwned<'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(setting: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if setting.cast::<PyUntypedArray>().is_err() {
            return setting.extract().map(Self::All);
        }
        numbers_of(&setting)?.map(Self::Each).ok_or_else(misuse)
    }
}

impl<N: Copy> Setting<N> {
    fn of(&self, request: usize) -> Option<N> {
        match self {
            Self::All(number) => Some(*number),
            Self::Each(numbers) => numbers.get(request).copied(),
        }
    }
}

/// What the laws are made with: both temperatures, the target's first, the three filters, and whether
/// the drafts are filtered.
pub(super) type Settings =
    (Setting<f64>, Setting<f64>, Setting<i64>, Setting<f64>, Setting<f64>, bool);

/// Verify checked chains: ``(num_accepted, token_ids)``. Rows and requests are as for
/// ``verify_chains``.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 makes them for the call")]
pub(super) fn verify_logits_chains<'py>(
    draft: Option<&Bound<'py, PyAny>>,
    target: &Bound<'py, PyAny>,
    requests: Requests,
    method: &str,
    bfloat16: bool,
    settings: Settings,
) -> PyResult<Answer<'py>> {
    let rows = Array::known_pair(draft, target, bfloat16).ok_or_else(misuse)?;
    verified(target.py(), rows, &requests, method_of(method)?, &settings)
}

/// Verify the chains of arrays of known dtype.
pub(super) fn verified<'py>(
    py: Python<'py>,
    rows: (Option<Array<'_, 'py>>, Array<'_, 'py>),
    requests: &Requests,
    method: Method,
    settings: &Settings,
) -> PyResult<Answer<'py>> {
    fn typed<'py, T: Scalar>(
        py: Python<'py>,
        (draft, target): (Option<Array<'_, 'py>>, Array<'_, 'py>),
        requests: &Requests,
        method: Method,
        settings: &Settings,
    ) -> PyResult<Answer<'py>> {
        let (temperature, draft_temperature, top_k, top_p, min_p, filter_draft) = settings;
        let chain = |request: Request| {
            let number = request.number;
            Some(LogitsChain::<T> {
                draft_logits: Requests::draft_rows(draft, request)?,
                target_logits: requests.target_rows(target, request)?,
                draft_token_ids: requests.token_ids(request)?,
                uniforms: requests.uniforms(request)?,
                bonus_token_id: requests.bonus(request),
                temperature: temperature.of(number)?,
                draft_temperature: draft_temperature.of(number)?,
                filters: Filters {
                    top_k: usize::try_from(top_k.of(number)?).ok()?,
                    top_p: top_p.of(number)?,
                    min_p: min_p.of(number)?,
                },
                filter_draft: *filter_draft,
            })
        };
        requests.verified(py, target, chain, |chains| verify_chain_logits(chains, method))
    }

    by_dtype!(rows.1.dtype, typed(py, rows, requests, method, settings))
}
