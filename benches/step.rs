//! One row: `cargo bench --bench step`, no Python.
//!
//! Kernels write into the same output each time. `naive` is the contract in the plainest words,
//! `portable` the kernels in plain Rust, `best` those for this processor, all on one thread; `step`
//! is the public function, which answers the accept probability too and asks for help with a row
//! that is long enough. `ndarray` is what one would write without this crate, which checks nothing
//! and knows no 16-bit types. `memcpy` moves the same bytes: nothing can be faster.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use draftverify::bench::{residual_best, residual_portable};
use draftverify::half::{bf16, f16};
use draftverify::{Scalar, speculative_decode_step};
use ndarray::{Array1, ArrayView1, LinalgScalar, ScalarOperand};

mod common;
#[allow(dead_code, reason = "the twins of other kernels")]
#[path = "../src/naive.rs"]
mod naive;
/// Where the naive twin looks for it.
mod scalar {
    pub(crate) use draftverify::{Scalar, Wide};
}

const VOCABULARIES: [usize; 5] = [2, 1024, 32_000, 128_256, 262_144];

type ThreeLines<T> = fn(&ArrayView1<'_, T>, &ArrayView1<'_, T>) -> Array1<T>;

fn main() {
    let mut criterion = Criterion::default()
        .without_plots()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    one_row::<f32>(&mut criterion, Some(three_lines));
    one_row::<f64>(&mut criterion, Some(three_lines));
    one_row::<f16>(&mut criterion, None);
    one_row::<bf16>(&mut criterion, None);
    criterion.final_summary();
}

fn one_row<T: Scalar>(criterion: &mut Criterion, ndarray: Option<ThreeLines<T>>) {
    for vocabulary in VOCABULARIES {
        let mut group = criterion.benchmark_group(format!("step/{}/{vocabulary}", T::NAME));
        group.throughput(Throughput::Bytes(common::Copy::bytes_moved::<T>(vocabulary) as u64));

        let common::Pair { draft, target, token_ids } = common::pair::<T>(1, vocabulary);
        let (draft, target, token) = (&draft[..], &target[..], token_ids[0]);
        let mut out = draft.to_vec();
        expect_one_answer(draft, target, token);

        group.bench_function("naive", |bencher| {
            bencher.iter(|| by_naive(black_box(draft), black_box(target)));
        });
        group.bench_function("portable", |bencher| {
            bencher.iter(|| residual_portable(black_box(draft), black_box(target), &mut out));
        });
        group.bench_function("best", |bencher| {
            bencher.iter(|| residual_best(black_box(draft), black_box(target), &mut out));
        });
        group.bench_function("step", |bencher| {
            bencher.iter(|| {
                speculative_decode_step(black_box(draft), black_box(target), token, &mut out)
            });
        });
        if let Some(ndarray) = ndarray {
            group.bench_function("ndarray", |bencher| {
                let (draft, target) = (draft.into(), target.into());
                bencher.iter(|| ndarray(black_box(&draft), black_box(&target)));
            });
        }
        let mut copy = common::Copy::like_a_step_over::<T>(vocabulary);
        group.bench_function("memcpy", |bencher| bencher.iter(|| copy.run()));
        group.finish();
    }
}

/// The naive twin, rounded to the storage type.
fn by_naive<T: Scalar>(draft: &[T], target: &[T]) -> Vec<T> {
    naive::quotients(draft, target).into_iter().map(T::narrow).collect()
}

/// What one writes with ndarray.
fn three_lines<T>(draft: &ArrayView1<'_, T>, target: &ArrayView1<'_, T>) -> Array1<T>
where
    T: LinalgScalar + ScalarOperand + PartialOrd,
{
    let excess =
        (target - draft).mapv_into(|entry| if entry > T::zero() { entry } else { T::zero() });
    let mass = excess.sum();
    excess / mass
}

/// What is timed must compute the same: to the bit, for all that keep to the contract.
fn expect_one_answer<T: Scalar>(draft: &[T], target: &[T], token: i64) {
    let bits = |row: &[T]| row.iter().map(|entry| entry.bits()).collect::<Vec<_>>();
    let (expected, mass) = (bits(&by_naive(draft, target)), naive::mass(draft, target));
    let mut out = draft.to_vec();
    for residual in [residual_portable, residual_best] {
        assert_eq!(residual(draft, target, &mut out), Ok(mass), "{} mass", T::NAME);
        assert!(bits(&out) == expected, "{} residual of {} entries", T::NAME, draft.len());
    }
    let step = speculative_decode_step(draft, target, token, &mut out);
    assert_eq!(step.map(|step| step.mass), Ok(mass), "{} mass of the step", T::NAME);
    assert!(bits(&out) == expected, "{} step over {} entries", T::NAME, draft.len());
}
