//! The kernels on a path of one's choice, for the benches.

use crate::error::{Argument, Error};
use crate::filter::Filters;
use crate::lanes::Path;
use crate::law::Law;
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

/// The sum of the weights of a row of logits on the calling thread.
pub fn law_portable<T: Scalar>(row: &[T]) -> f64 {
    law(Path::Portable, row)
}

/// The sum of the weights of a row of logits by the best kernels of this processor, on the calling
/// thread.
pub fn law_best<T: Scalar>(row: &[T]) -> f64 {
    law(Path::best(), row)
}

fn law<T: Scalar>(path: Path, row: &[T]) -> f64 {
    let row = Row::of(row);
    Law::of(path, Workers::Caller, Argument::TargetLogits, row, 1.0, Filters::OFF)
        .map_or(f64::NAN, |(law, _)| law.total)
}
