//! The kernels on a path of one's choice, for the benches.

use crate::error::Error;
use crate::lanes::Path;
use crate::residual::{Workers, residual_of};
use crate::row::{Row, RowMut};
use crate::scalar::Scalar;

fn residual<T: Scalar>(path: Path, draft: &[T], target: &[T], out: &mut [T]) -> Result<f64, Error> {
    assert!(
        !draft.is_empty() && draft.len() == target.len() && draft.len() == out.len(),
        "rows of one length"
    );
    let (draft, target) = (Row::of(draft), Row::of(target));
    residual_of(path, Workers::Caller, draft, target, &mut RowMut::of(out))
}

/// The residual of one row by the portable kernels, on the calling thread.
pub fn residual_portable<T: Scalar>(
    draft: &[T],
    target: &[T],
    out: &mut [T],
) -> Result<f64, Error> {
    residual(Path::Portable, draft, target, out)
}

/// The residual of one row by the best kernels of this processor, on the calling thread.
pub fn residual_best<T: Scalar>(draft: &[T], target: &[T], out: &mut [T]) -> Result<f64, Error> {
    residual(Path::best(), draft, target, out)
}
