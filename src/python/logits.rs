//! Chains of logits, for `draftverify._logits`.

use half::{bf16, f16};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use super::array::{Array, Dtype};
use super::chains::{Answer, Numbers, Request, Requests, method_of};
use super::{by_dtype, misuse, run};
use crate::chain::{Method, Verdict};
use crate::filter::Filters;
use crate::logits::{LogitsChain, verify_chain_logits};
use crate::scalar::Scalar;

/// What the laws are made with, one of each for every request.
#[derive(FromPyObject)]
pub(super) struct Settings<'py> {
    temperature: PyReadonlyArray1<'py, f64>,
    draft_temperature: PyReadonlyArray1<'py, f64>,
    top_k: PyReadonlyArray1<'py, i64>,
    top_p: PyReadonlyArray1<'py, f64>,
    min_p: PyReadonlyArray1<'py, f64>,
    filter_draft: bool,
}

/// The same as slices.
#[derive(Clone, Copy)]
struct Laws<'a> {
    temperature: &'a [f64],
    draft_temperature: &'a [f64],
    top_k: &'a [i64],
    top_p: &'a [f64],
    min_p: &'a [f64],
    filter_draft: bool,
}

impl Laws<'_> {
    fn filters(&self, request: usize) -> Option<Filters> {
        Some(Filters {
            top_k: usize::try_from(*self.top_k.get(request)?).ok()?,
            top_p: *self.top_p.get(request)?,
            min_p: *self.min_p.get(request)?,
        })
    }
}

/// Verify checked chains: ``(num_accepted, token_ids)``. Rows and numbers are as for
/// ``verify_chains``; the settings are attributes.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "as many as the public function has")]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 hands the settings over")]
pub(super) fn verify_logits_chains<'py>(
    draft: Option<&Bound<'py, PyAny>>,
    target: &Bound<'py, PyAny>,
    token_ids: PyReadonlyArray1<'py, i64>,
    uniforms: Option<PyReadonlyArray1<'py, f64>>,
    lengths: PyReadonlyArray1<'py, i64>,
    width: Option<usize>,
    method: &str,
    bonus_token_ids: Option<PyReadonlyArray1<'py, i64>>,
    bfloat16: bool,
    settings: Settings<'py>,
) -> PyResult<Answer<'py>> {
    fn typed<T: Scalar>(
        py: Python<'_>,
        [draft, target]: [Option<Array<'_, '_>>; 2],
        requests: &Requests<'_>,
        method: Method,
        laws: Laws<'_>,
    ) -> PyResult<Vec<Verdict>> {
        let chain = |request: Request| {
            Some(LogitsChain::<T> {
                draft_logits: Requests::draft_rows(draft, request)?,
                target_logits: requests.target_rows(target?, request)?,
                draft_token_ids: requests.token_ids(request)?,
                uniforms: requests.uniforms(request)?,
                bonus_token_id: requests.bonus(request),
                temperature: *laws.temperature.get(request.number)?,
                draft_temperature: *laws.draft_temperature.get(request.number)?,
                filters: laws.filters(request.number)?,
                filter_draft: laws.filter_draft,
            })
        };
        let each = requests.each().ok_or_else(misuse)?;
        let chains: Option<Vec<_>> = each.into_iter().map(chain).collect();
        let chains = chains.ok_or_else(misuse)?;
        let vocabulary = chains.first().map_or(0, |chain| chain.target_logits.vocabulary());
        run(py, chains.len().saturating_mul(vocabulary), || verify_chain_logits(&chains, method))
    }

    let py = target.py();
    let (draft, target) = Array::known_pair(draft, target, bfloat16).ok_or_else(misuse)?;
    let numbers = Numbers { token_ids, uniforms, lengths, bonus_token_ids };
    let requests = numbers.requests(width)?;
    let laws = Laws {
        temperature: settings.temperature.as_slice()?,
        draft_temperature: settings.draft_temperature.as_slice()?,
        top_k: settings.top_k.as_slice()?,
        top_p: settings.top_p.as_slice()?,
        min_p: settings.min_p.as_slice()?,
        filter_draft: settings.filter_draft,
    };
    let method = method_of(method)?;
    let rows = [draft, Some(target)];
    let verdicts = by_dtype!(target.dtype, typed(py, rows, &requests, method, laws))?;
    requests.answer(py, &verdicts)
}
