//! Chains of what is most usual, seen without Python: for `draftverify._chains` and `._logits`.
//!
//! NumPy arrays proper or plain tensors of Torch, rows of one dtype in the padded layout, ids of int64
//! and uniforms of float32 or float64, of shapes that fit. Behind rows that have filled the caches each
//! line of Python takes some microseconds. For anything else the answer is `None`: what it is, and
//! what is wrong with it, is found out in Python.

use numpy::{Ix2, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyString};

use super::array::{Array, is_ndarray, packed};
use super::chains::{self, Requests};
use super::logits::{self, Setting};
use super::misuse;
use super::torch::{self, Torch};
use crate::chain::Method;
use crate::memory::collect;

/// What is answered, in the library of the rows.
type Answer<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

struct Plain<'py> {
    torch: Option<&'static Torch>,
    draft: Bound<'py, PyAny>,
    target: Bound<'py, PyAny>,
    bfloat16: bool,
    requests: Requests,
}

impl<'py> Plain<'py> {
    /// Look at draft, target, ids and uniforms.
    fn of(arguments: [&Bound<'py, PyAny>; 4]) -> PyResult<Option<Self>> {
        let (torch, arrays) = if is_ndarray(arguments[0]) {
            (None, arguments.map(|array| (array.clone(), false)))
        } else {
            let Some((torch, arrays)) = torch::arrays(arguments)? else { return Ok(None) };
            (Some(torch), arrays)
        };
        let [(draft, bfloat16), (target, other), (ids, _), (uniforms, _)] = arrays;
        let Some(shape) = shape_of(&draft, &target, bfloat16).filter(|_| bfloat16 == other) else {
            return Ok(None);
        };
        let Some(requests) = requests_of(shape, &ids, &uniforms)? else { return Ok(None) };
        Ok(Some(Self { torch, draft, target, bfloat16, requests }))
    }

    fn rows(&self) -> PyResult<(Option<Array<'_, 'py>>, Array<'_, 'py>)> {
        Array::known_pair(Some(&self.draft), &self.target, self.bfloat16).ok_or_else(misuse)
    }

    fn wrapped(&self, (accepted, token_ids): chains::Answer<'py>) -> PyResult<Option<Answer<'py>>> {
        let (accepted, token_ids) = (accepted.into_any(), token_ids.into_any());
        Ok(Some(match self.torch {
            None => (accepted, token_ids),
            Some(torch) => (torch.tensor(accepted, false)?, torch.tensor(token_ids, false)?),
        }))
    }
}

/// The number of requests and of places for each, if the rows belong together.
fn shape_of(
    draft: &Bound<'_, PyAny>,
    target: &Bound<'_, PyAny>,
    bfloat16: bool,
) -> Option<(usize, usize)> {
    let (draft, target) = Array::known_pair(Some(draft), target, bfloat16)?;
    let (draft, target) = (draft?.object, target.object);
    let &[requests, width, vocabulary] = draft.shape() else { return None };
    let fits = target.shape() == [requests, width + 1, vocabulary]
        && requests > 0
        && vocabulary > 0
        && i32::try_from(vocabulary).is_ok();
    fits.then_some((requests, width))
}

fn requests_of(
    (number, width): (usize, usize),
    ids: &Bound<'_, PyAny>,
    uniforms: &Bound<'_, PyAny>,
) -> PyResult<Option<Requests>> {
    let shaped = |array: &Bound<'_, PyAny>, width| {
        array.cast::<PyUntypedArray>().is_ok_and(|array| array.shape() == [number, width])
    };
    if !shaped(ids, width) || !shaped(uniforms, width + 1) {
        return Ok(None);
    }
    let Some(ids) = packed::<i64, Ix2>(ids) else { return Ok(None) };
    let Some(uniforms) = chains::uniforms_of::<Ix2>(uniforms)? else { return Ok(None) };
    let ids = collect(ids.try_readonly()?.as_slice()?.iter().copied())?;
    Ok(Some(Requests::padded(number, width, ids, uniforms)))
}

/// A method that draws. The other one needs neither draft rows nor uniforms.
fn drawing(method: &Bound<'_, PyAny>) -> Option<Method> {
    let method = method.cast_exact::<PyString>().ok()?.to_str().ok()?;
    chains::method_of(method).ok().filter(|method| *method != Method::Greedy)
}

/// Verify chains of probabilities: ``(num_accepted, token_ids)``.
#[pyfunction]
pub(super) fn verify_plain_chains<'py>(
    draft: &Bound<'py, PyAny>,
    target: &Bound<'py, PyAny>,
    token_ids: &Bound<'py, PyAny>,
    uniforms: &Bound<'py, PyAny>,
    method: &Bound<'py, PyAny>,
) -> PyResult<Option<Answer<'py>>> {
    let Some(method) = drawing(method) else { return Ok(None) };
    let Some(plain) = Plain::of([draft, target, token_ids, uniforms])? else { return Ok(None) };
    plain.wrapped(chains::verified(draft.py(), plain.rows()?, &plain.requests, method)?)
}

/// Verify chains of logits that nothing is filtered of: ``(num_accepted, token_ids)``. The settings
/// are those of ``verify_logits_chains`` as the caller has given them.
#[pyfunction]
pub(super) fn verify_plain_logits_chains<'py>(
    draft: &Bound<'py, PyAny>,
    target: &Bound<'py, PyAny>,
    token_ids: &Bound<'py, PyAny>,
    uniforms: &Bound<'py, PyAny>,
    method: &Bound<'py, PyAny>,
    settings: [Bound<'py, PyAny>; 6],
) -> PyResult<Option<Answer<'py>>> {
    let float = |object: &Bound<'_, PyAny>| Some(object.cast_exact::<PyFloat>().ok()?.value());
    let [temperature, draft_temperature, top_k, top_p, min_p, filter_draft] = settings;
    if [top_k, top_p, min_p].iter().any(|filter| !filter.is_none()) {
        return Ok(None);
    }
    let target_temperature = float(&temperature);
    let draft_temperature =
        if draft_temperature.is_none() { target_temperature } else { float(&draft_temperature) };
    let (Some(method), Some(temperature), Some(draft_temperature), Ok(filter_draft)) = (
        drawing(method),
        target_temperature,
        draft_temperature,
        filter_draft.cast_exact::<PyBool>(),
    ) else {
        return Ok(None);
    };
    let Some(plain) = Plain::of([draft, target, token_ids, uniforms])? else { return Ok(None) };
    let settings = (
        Setting::All(temperature),
        Setting::All(draft_temperature),
        Setting::All(0),
        Setting::All(1.0),
        Setting::All(0.0),
        filter_draft.is_true(),
    );
    plain.wrapped(logits::verified(draft.py(), plain.rows()?, &plain.requests, method, &settings)?)
}
