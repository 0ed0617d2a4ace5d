//! Many rows through `accept_residual`: `cargo bench --bench rows`, no Python.
//!
//! On one thread and on all that the process may use; `memcpy` moves the same bytes on one thread.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use draftverify::half::{bf16, f16};
use draftverify::{OnBadRow, Rows, RowsMut, Scalar, accept_residual, num_threads, set_num_threads};

mod common;

const VOCABULARY: usize = 32_000;
const ROWS: [usize; 4] = [1, 8, 32, 256];

fn main() {
    let mut criterion = Criterion::default()
        .without_plots()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    many_rows::<f32>(&mut criterion);
    many_rows::<f64>(&mut criterion);
    many_rows::<f16>(&mut criterion);
    many_rows::<bf16>(&mut criterion);
    criterion.final_summary();
}

fn many_rows<T: Scalar>(criterion: &mut Criterion) {
    let all = num_threads();
    let mut threads = vec![1, all];
    threads.dedup();
    for rows in ROWS {
        let entries = rows * VOCABULARY;
        let name = format!("rows/{}/{rows}x{VOCABULARY}", T::NAME);
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(common::Copy::bytes_moved::<T>(entries) as u64));

        let pair = common::pair::<T>(rows, VOCABULARY);
        let mut out = pair.draft.clone();
        for threads in &threads {
            set_num_threads(*threads);
            group.bench_function(format!("threads={threads}"), |bencher| {
                bencher.iter(|| answer(black_box(&pair), &mut out));
            });
        }
        set_num_threads(all);
        let mut copy = common::Copy::like_a_step_over::<T>(entries);
        group.bench_function("memcpy", |bencher| bencher.iter(|| copy.run()));
        group.finish();
    }
}

fn answer<T: Scalar>(pair: &common::Pair<T>, out: &mut [T]) -> Vec<draftverify::Step> {
    let rows = |entries| Rows::new(entries, VOCABULARY);
    rows(&pair.draft)
        .and_then(|draft| {
            let (target, out) = (rows(&pair.target)?, RowsMut::new(out, VOCABULARY)?);
            accept_residual(draft, target, &pair.token_ids, out, OnBadRow::Fail)
        })
        .expect("rows of probabilities")
}
