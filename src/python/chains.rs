//! Chains of drafted tokens, for `draftverify._chains`.

use half::{bf16, f16};
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;

use super::array::{Array, Dtype};
use super::{by_dtype, misuse, run};
use crate::chain::{Method, Verdict};
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
pub(super) struct Requests<'a> {
    lengths: &'a [i64],
    width: Option<usize>,
    token_ids: &'a [i64],
    uniforms: Option<&'a [f64]>,
    bonus_token_ids: Option<&'a [i64]>,
}

/// One request: its number, where its ids begin, and how many there are.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) number: usize,
    pub(super) start: usize,
    pub(super) length: usize,
}

impl<'a> Requests<'a> {
    /// All requests, in order; none if a length is no length.
    pub(super) fn each(&self) -> Option<Vec<Request>> {
        let mut start = 0;
        let requests = self.lengths.iter().enumerate();
        let requests = requests.map(|(number, length)| {
            let length = usize::try_from(*length).ok()?;
            let request = Request { number, start, length };
            start += self.width.unwrap_or(length);
            (length <= self.width.unwrap_or(length)).then_some(request)
        });
        requests.collect()
    }

    pub(super) fn token_ids(&self, request: Request) -> Option<&'a [i64]> {
        self.token_ids.get(request.start..request.start + request.length)
    }

    /// One more than there are ids; nothing where none are used.
    pub(super) fn uniforms(&self, request: Request) -> Option<&'a [f64]> {
        let start = request.start + request.number;
        self.uniforms.map_or(Some(&[]), |all| all.get(start..=start + request.length))
    }

    pub(super) fn bonus(&self, request: Request) -> Option<i64> {
        self.bonus_token_ids.and_then(|ids| ids.get(request.number).copied())
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

    /// The answers: how many are kept; those, the final token, and -1 behind it.
    pub(super) fn answer<'py>(
        &self,
        py: Python<'py>,
        verdicts: &[Verdict],
    ) -> PyResult<Answer<'py>> {
        let requests = self.each().ok_or_else(misuse)?;
        let longest = requests.iter().map(|request| request.length).max();
        let width = 1 + self.width.or(longest).unwrap_or(0);
        let mut token_ids = vec![-1; requests.len() * width];
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
        let accepted = accepted.collect::<Result<Vec<_>, _>>().map_err(|_| misuse())?;
        let token_ids = PyArray1::from_vec(py, token_ids).reshape([requests.len(), width])?;
        Ok((PyArray1::from_vec(py, accepted), token_ids))
    }
}

/// What the arrays of numbers are, borrowed for the call.
pub(super) struct Numbers<'py> {
    pub(super) token_ids: PyReadonlyArray1<'py, i64>,
    pub(super) uniforms: Option<PyReadonlyArray1<'py, f64>>,
    pub(super) lengths: PyReadonlyArray1<'py, i64>,
    pub(super) bonus_token_ids: Option<PyReadonlyArray1<'py, i64>>,
}

impl Numbers<'_> {
    pub(super) fn requests(&self, width: Option<usize>) -> PyResult<Requests<'_>> {
        Ok(Requests {
            lengths: self.lengths.as_slice()?,
            width,
            token_ids: self.token_ids.as_slice()?,
            uniforms: self.uniforms.as_ref().map(PyReadonlyArray1::as_slice).transpose()?,
            bonus_token_ids: self
                .bonus_token_ids
                .as_ref()
                .map(PyReadonlyArray1::as_slice)
                .transpose()?,
        })
    }
}

/// Verify checked chains: ``(num_accepted, token_ids)``.
///
/// The rows are (B, K, V) where ``width`` is K, else (T, V); the ids and uniforms are flat.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "as many as the public function has")]
pub(super) fn verify_chains<'py>(
    draft: Option<&Bound<'py, PyAny>>,
    target: &Bound<'py, PyAny>,
    token_ids: PyReadonlyArray1<'py, i64>,
    uniforms: Option<PyReadonlyArray1<'py, f64>>,
    lengths: PyReadonlyArray1<'py, i64>,
    width: Option<usize>,
    method: &str,
    bonus_token_ids: Option<PyReadonlyArray1<'py, i64>>,
    bfloat16: bool,
) -> PyResult<Answer<'py>> {
    fn typed<T: Scalar>(
        py: Python<'_>,
        draft: Option<Array<'_, '_>>,
        target: Array<'_, '_>,
        requests: &Requests<'_>,
        method: Method,
    ) -> PyResult<Vec<Verdict>> {
        let chain = |request: Request| {
            Some(Chain::<T> {
                draft_probs: Requests::draft_rows(draft, request)?,
                target_probs: requests.target_rows(target, request)?,
                draft_token_ids: requests.token_ids(request)?,
                uniforms: requests.uniforms(request)?,
                bonus_token_id: requests.bonus(request),
            })
        };
        let each = requests.each().ok_or_else(misuse)?;
        let chains: Option<Vec<_>> = each.into_iter().map(chain).collect();
        let chains = chains.ok_or_else(misuse)?;
        let vocabulary = chains.first().map_or(0, |chain| chain.target_probs.vocabulary());
        run(py, chains.len().saturating_mul(vocabulary), || verify_chain(&chains, method))
    }

    let py = target.py();
    let (draft, target) = Array::known_pair(draft, target, bfloat16).ok_or_else(misuse)?;
    let numbers = Numbers { token_ids, uniforms, lengths, bonus_token_ids };
    let requests = numbers.requests(width)?;
    let method = method_of(method)?;
    let verdicts = by_dtype!(target.dtype, typed(py, draft, target, &requests, method))?;
    requests.answer(py, &verdicts)
}
