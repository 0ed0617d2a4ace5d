//! Chains of drafted tokens, for `draftverify._chains`.

use half::{bf16, f16};
use numpy::ndarray::Dimension;
use numpy::{
    Element, Ix1, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyUntypedArrayMethods,
};
use pyo3::Borrowed;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::array::{Array, Dtype, packed};
use super::{by_dtype, misuse, run};
use crate::chain::{Method, Verdict};
use crate::error::Error;
use crate::float_env;
use crate::memory::{collect, try_collect};
use crate::probabilities::{Chain, verify_chain};
use crate::rows::Rows;
use crate::scalar::Scalar;

/// How a rule is called in Python.
pub(super) fn method_of(name: &str) -> PyResult<Method> {
    match name {
        "standard" => Ok(Method::Standard),
        "block" => Ok(Method::Block),
        "greedy" => Ok(Method::Greedy),
        _ => Err(misuse()),
    }
}

/// How many drafted tokens of each request are kept, and what is emitted.
pub(super) type Answer<'py> = (Bound<'py, PyArray1<i32>>, Bound<'py, PyArray2<i32>>);

/// Where the drafted tokens of the requests lie: one after the other, or with `width` places each.
///
/// The numbers are copies: nobody changes them between a check and its use.
pub(super) struct Requests {
    number: usize,
    width: Option<usize>,
    lengths: Option<Vec<i64>>,
    token_ids: Option<Vec<i64>>,
    uniforms: Option<Vec<f64>>,
    bonus_token_ids: Option<Vec<i64>>,
}

// Not derived: that would make a TypeError of a lack of memory.
impl<'a, 'py> FromPyObject<'a, 'py> for Requests {
    type Error = PyErr;

    fn extract(requests: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        // A tuple whose parts have names.
        let parts = requests.cast::<PyTuple>()?;
        let part = |index| parts.get_item(index);
        Ok(Self {
            number: part(0)?.extract()?,
            width: part(1)?.extract()?,
            lengths: numbers_of(&part(2)?)?,
            token_ids: numbers_of(&part(3)?)?,
            uniforms: match part(4)? {
                none if none.is_none() => None,
                array => Some(uniforms_of::<Ix1>(&array)?.ok_or_else(misuse)?),
            },
            bonus_token_ids: numbers_of(&part(5)?)?,
        })
    }
}

/// A copy of a packed array.
pub(super) fn numbers_of<N: Element + Copy>(array: &Bound<'_, PyAny>) -> PyResult<Option<Vec<N>>> {
    let array: Option<PyReadonlyArray1<'_, N>> = array.extract()?;
    array.map(|array| Ok(collect(array.as_slice()?.iter().copied())?)).transpose()
}

/// A copy of packed uniforms, float32 widened; `None` for anything else. NumPy does not widen: it takes
/// subnormal numbers for 0 where the calling thread does.
pub(super) fn uniforms_of<D: Dimension>(array: &Bound<'_, PyAny>) -> PyResult<Option<Vec<f64>>> {
    if let Some(doubles) = packed::<f64, D>(array) {
        return Ok(Some(collect(doubles.try_readonly()?.as_slice()?.iter().copied())?));
    }
    let Some(floats) = packed::<f32, D>(array) else { return Ok(None) };
    let floats = floats.try_readonly()?;
    let floats = floats.as_slice()?.iter().copied();
    Ok(Some(float_env::in_default(|| collect(floats.map(f64::from)))?))
}

/// One request: its number, where its ids begin, and how many there are.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) number: usize,
    pub(super) start: usize,
    pub(super) length: usize,
}

impl Requests {
    /// Requests with a place for `width` ids each.
    pub(super) fn padded(
        number: usize,
        width: usize,
        token_ids: Vec<i64>,
        uniforms: Vec<f64>,
    ) -> Self {
        let (token_ids, uniforms) = (Some(token_ids), Some(uniforms));
        let (lengths, bonus_token_ids) = (None, None);
        Self { number, width: Some(width), lengths, token_ids, uniforms, bonus_token_ids }
    }

    /// All requests, in order.
    fn each(&self) -> PyResult<Vec<Request>> {
        let mut start = 0;
        let request = |number| {
            let length = match (&self.lengths, self.width) {
                (Some(lengths), _) => lengths.get(number).copied().map(usize::try_from),
                (None, Some(width)) => Some(Ok(self.drafted(number, width)?)),
                (None, None) => None,
            };
            let Some(Ok(length)) = length else { return Err(misuse()) };
            let request = Request { number, start, length };
            start += self.width.unwrap_or(length);
            Ok(request)
        };
        try_collect((0..self.number).map(request))
    }

    /// How many tokens of a request stand in front of a run of -1.
    fn drafted(&self, number: usize, width: usize) -> PyResult<usize> {
        let ids = self.token_ids.as_deref().unwrap_or_default();
        let ids = ids.get(number * width..(number + 1) * width).ok_or_else(misuse)?;
        let length = ids.iter().position(|id| *id == -1).unwrap_or(width);
        if ids[length..].iter().all(|id| *id == -1) {
            return Ok(length);
        }
        Err(PyValueError::new_err(format!(
            "draft_token_ids: expected -1 behind the drafted tokens alone, got -1 at position {length} \
             of request {number} with an id behind it; pass lengths, or end the chain there"
        )))
    }

    pub(super) fn token_ids(&self, request: Request) -> Option<&[i64]> {
        self.token_ids.as_ref()?.get(request.start..request.start + request.length)
    }

    /// One more than there are ids; nothing where none are used.
    pub(super) fn uniforms(&self, request: Request) -> Option<&[f64]> {
        let start = request.start + request.number;
        let all = self.uniforms.as_ref();
        all.map_or(Some(&[]), |all| all.get(start..=start + request.length))
    }

    pub(super) fn bonus(&self, request: Request) -> Option<i64> {
        self.bonus_token_ids.as_ref()?.get(request.number).copied()
    }

    /// The rows of the target: one more than there are ids, unless the bonus is drawn elsewhere.
    pub(super) fn target_rows<'t, T: Scalar>(
        &self,
        target: Array<'t, '_>,
        request: Request,
    ) -> Option<Rows<'t, T>> {
        let more = usize::from(self.bonus_token_ids.is_none());
        target.request_rows(
            request.number,
            request.start + more * request.number,
            request.length + more,
        )
    }

    /// The rows of the draft, one for each id, if there are any: none of none is no mistake.
    #[expect(clippy::option_option, reason = "no draft and no such rows are two things")]
    pub(super) fn draft_rows<'d, T: Scalar>(
        draft: Option<Array<'d, '_>>,
        request: Request,
    ) -> Option<Option<Rows<'d, T>>> {
        let Request { number, start, length } = request;
        draft.map_or(Some(None), |draft| draft.request_rows(number, start, length).map(Some))
    }

    /// Make a chain of every request, verify them, and answer: how many ids are kept; those, the
    /// final token, and -1 behind it.
    pub(super) fn verified<'py, C: Sync>(
        &self,
        py: Python<'py>,
        target: Array<'_, 'py>,
        chain: impl Fn(Request) -> Option<C>,
        verify: impl FnOnce(&[C]) -> Result<Vec<Verdict>, Error> + Send,
    ) -> PyResult<Answer<'py>> {
        let requests = self.each()?;
        let chains = requests.iter().map(|request| chain(*request).ok_or_else(misuse));
        let chains = try_collect(chains)?;
        let vocabulary = target.object.shape().last().copied().unwrap_or(0);
        let verdicts = run(py, chains.len().saturating_mul(vocabulary), || verify(&chains))?;
        self.answer(py, &requests, &verdicts)
    }

    fn answer<'py>(
        &self,
        py: Python<'py>,
        requests: &[Request],
        verdicts: &[Verdict],
    ) -> PyResult<Answer<'py>> {
        let longest = requests.iter().map(|request| request.length).max();
        let width = 1 + self.width.or(longest).unwrap_or(0);
        let places = requests.len().saturating_mul(width);
        let mut token_ids = collect((0..places).map(|_| -1))?;
        for ((request, verdict), row) in
            requests.iter().zip(verdicts).zip(token_ids.chunks_exact_mut(width))
        {
            let ids = self.token_ids(*request).ok_or_else(misuse)?;
            let ids = ids[..verdict.num_accepted].iter().chain([&verdict.final_token_id]);
            for (slot, id) in row.iter_mut().zip(ids) {
                *slot = i32::try_from(*id).map_err(|_| misuse())?;
            }
        }
        let accepted = verdicts.iter().map(|verdict| i32::try_from(verdict.num_accepted));
        let accepted = try_collect(accepted.map(|number| number.map_err(|_| misuse())))?;
        let token_ids = PyArray1::from_vec(py, token_ids).reshape([requests.len(), width])?;
        Ok((PyArray1::from_vec(py, accepted), token_ids))
    }
}

/// Verify checked chains: ``(num_accepted, token_ids)``.
///
/// The rows are (B, K, V) where the requests have a ``width`` of K, else (T, V).
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "PyO3 makes them for the call")]
pub(super) fn verify_chains<'py>(
    draft: Option<&Bound<'py, PyAny>>,
    target: &Bound<'py, PyAny>,
    requests: Requests,
    method: &str,
    bfloat16: bool,
) -> PyResult<Answer<'py>> {
    let rows = Array::known_pair(draft, target, bfloat16).ok_or_else(misuse)?;
    verified(target.py(), rows, &requests, method_of(method)?)
}

/// Verify the chains of arrays of known dtype.
pub(super) fn verified<'py>(
    py: Python<'py>,
    rows: (Option<Array<'_, 'py>>, Array<'_, 'py>),
    requests: &Requests,
    method: Method,
) -> PyResult<Answer<'py>> {
    fn typed<'py, T: Scalar>(
        py: Python<'py>,
        (draft, target): (Option<Array<'_, 'py>>, Array<'_, 'py>),
        requests: &Requests,
        method: Method,
    ) -> PyResult<Answer<'py>> {
        let chain = |request| {
            Some(Chain::<T> {
                draft_probs: Requests::draft_rows(draft, request)?,
                target_probs: requests.target_rows(target, request)?,
                draft_token_ids: requests.token_ids(request)?,
                uniforms: requests.uniforms(request)?,
                bonus_token_id: requests.bonus(request),
            })
        };
        requests.verified(py, target, chain, |chains| verify_chain(chains, method))
    }

    by_dtype!(rows.1.dtype, typed(py, rows, requests, method))
}
