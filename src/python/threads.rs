//! How many threads: Python's side of it.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};

use crate::parallel::{self, MAX_THREADS};

/// Spread large work over this many threads from now on.
///
/// For all calls of the process, from any thread. Results have the same bits for every number.
///
/// Parameters
/// ----------
/// threads : int
///     From 1 to 1024; the calling thread is one of them. 1 starts no thread at all.
///
/// Raises
/// ------
/// TypeError
///     Not an integer.
/// ValueError
///     Out of that range.
///
/// Examples
/// --------
/// >>> before = get_num_threads()
/// >>> set_num_threads(2)
/// >>> get_num_threads()
/// 2
/// >>> set_num_threads(before)
#[pyfunction]
#[expect(clippy::doc_markdown, reason = "the text is Python's docstring, in reStructuredText")]
pub(super) fn set_num_threads(threads: &Bound<'_, PyAny>) -> PyResult<()> {
    let is_integer = threads.is_instance_of::<PyInt>() && !threads.is_instance_of::<PyBool>();
    let number = threads.extract::<usize>().ok();
    if let Some(number) = number.filter(|number| is_integer && (1..=MAX_THREADS).contains(number)) {
        parallel::set_num_threads(number);
        return Ok(());
    }
    let found = threads.repr()?;
    let message = format!("threads: expected an integer from 1 to {MAX_THREADS}, got {found}");
    Err(if is_integer { PyValueError::new_err(message) } else { PyTypeError::new_err(message) })
}

/// Answer the number of threads that large work is spread over.
///
/// Returns
/// -------
/// int
///     What `set_num_threads` was given; at first ``RAYON_NUM_THREADS`` from the environment, else
///     the number of processors that the process may use.
///
/// Examples
/// --------
/// >>> get_num_threads() >= 1
/// True
#[pyfunction]
pub(super) fn get_num_threads() -> usize {
    parallel::num_threads()
}
