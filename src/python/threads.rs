//! How many threads: Python's side of it.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;

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
    let number = threads.extract::<usize>();
    let is_bool = threads.is_instance_of::<PyBool>();
    match number {
        Ok(number) if !is_bool && (1..=MAX_THREADS).contains(&number) => {
            parallel::set_num_threads(number);
            Ok(())
        }
        number => {
            let found = threads
                .repr()
                .map_or("an integer too long to show".into(), |text| text.to_string());
            let message = format!(
                "threads: expected an integer from 1 to {MAX_THREADS}, got {found}; pass 1 to keep \
                 to the calling thread"
            );
            let no_integer =
                number.is_err_and(|error| error.is_instance_of::<PyTypeError>(threads.py()));
            Err(if no_integer || is_bool {
                PyTypeError::new_err(message)
            } else {
                PyValueError::new_err(message)
            })
        }
    }
}

/// Answer the number of threads that large work is spread over.
///
/// Returns
/// -------
/// int
///     What `set_num_threads` was given; at first ``RAYON_NUM_THREADS`` from the environment if
///     that is a number above 0, else the number of processors that the process may use; at most
///     1024.
///
/// Examples
/// --------
/// >>> get_num_threads() >= 1
/// True
#[pyfunction]
pub(super) fn get_num_threads() -> usize {
    parallel::num_threads()
}
