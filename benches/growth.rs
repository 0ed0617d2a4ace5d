//! How the cost grows: `cargo bench --bench growth`, no Python.
//!
//! Time against the vocabulary, and against the number of rows, with the slope of the logarithm of
//! the time over that of the size from each line to the next: 1 is linear, and a line that stands
//! out is a cliff. A fit over the larger sizes, where the call itself no longer counts, ends each
//! table. `--quick` takes fewer and shorter looks.

use std::env;
use std::hint::black_box;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use draftverify::{
    OnBadRow, Rows, RowsMut, accept_residual, num_threads, set_num_threads, speculative_decode_step,
};

mod common;

/// Work is done in turns of about this long.
const TURN: Duration = Duration::from_millis(2);
/// From this many entries on the slope is fitted.
const FITTED_FROM: usize = 4096;
/// The vocabulary of the rows whose number grows.
const VOCABULARY: usize = 1024;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let given = |name: &str| arguments.iter().any(|argument| argument == name);
    // As other benches have it: a free argument is a part of the name of what is to be run, and
    // without `--bench`, which `cargo bench` adds, nothing is measured at length.
    if arguments.iter().any(|argument| !argument.starts_with('-') && !"growth".contains(argument)) {
        return Ok(());
    }
    let quick = given("--quick") || given("--test") || !given("--bench");
    let look = Duration::from_millis(if quick { 10 } else { 500 });
    let out = &mut io::stdout().lock();

    let all = num_threads();
    let shared = format!("threads={all}");
    writeln!(out, "One float32 row, by its length: speculative_decode_step")?;
    let columns = ["1 thread", &shared, "1 thread, fresh output", "memcpy, same bytes"];
    table(out, ("entries", 1), &columns, (1..=22).map(|power| 1 << power), |entries| {
        let pair = common::pair::<f32>(1, entries);
        let step = |residual: &mut [f32]| {
            let (draft, target) = (black_box(&pair.draft), black_box(&pair.target));
            black_box(speculative_decode_step(draft, target, pair.token_ids[0], residual)).is_ok()
        };
        let (mut one, mut other) = (pair.draft.clone(), pair.draft.clone());
        let mut copy = common::Copy::like_a_step_over::<f32>(entries);
        let contenders: &mut [Contender<'_>] = &mut [
            (1, &mut || step(&mut one)),
            (all, &mut || step(&mut other)),
            // Zeroed by the system, as a fresh array is: pages come as they are written to.
            (1, &mut || step(&mut vec![0.0; entries])),
            (1, &mut || copy.run()),
        ];
        in_turns(look, contenders)
    })?;

    writeln!(out, "\nfloat32 rows of {VOCABULARY} entries, by their number: accept_residual")?;
    let columns = ["1 thread", &shared, "memcpy, same bytes"];
    table(out, ("rows", VOCABULARY), &columns, (0..=12).map(|power| 1 << power), |rows| {
        let pair = common::pair::<f32>(rows, VOCABULARY);
        let verify = |residual: &mut [f32]| {
            let rows = |entries| Rows::new(black_box(entries), VOCABULARY);
            let (Ok(draft), Ok(target), Ok(residual)) =
                (rows(&pair.draft), rows(&pair.target), RowsMut::new(residual, VOCABULARY))
            else {
                return false;
            };
            let ids = &pair.token_ids;
            black_box(accept_residual(draft, target, ids, residual, OnBadRow::Fail)).is_ok()
        };
        let (mut one, mut other) = (pair.draft.clone(), pair.draft.clone());
        let mut copy = common::Copy::like_a_step_over::<f32>(rows * VOCABULARY);
        let contenders: &mut [Contender<'_>] = &mut [
            (1, &mut || verify(&mut one)),
            (all, &mut || verify(&mut other)),
            (1, &mut || copy.run()),
        ];
        in_turns(look, contenders)
    })
}

/// One line per size: for each column the time, the time per entry, and the slope since the line
/// before. Below, the slopes of the fits.
fn table(
    out: &mut impl Write,
    (size_name, entries_each): (&str, usize),
    columns: &[&str],
    sizes: impl Iterator<Item = usize>,
    mut measure: impl FnMut(usize) -> Vec<f64>,
) -> io::Result<()> {
    write!(out, "{:>8}", "")?;
    for column in columns {
        write!(out, "  {column:>21}")?;
    }
    write!(out, "\n{size_name:>8}")?;
    for _ in columns {
        write!(out, "  {:>8} {:>6} {:>5}", "ns", "/entry", "slope")?;
    }
    writeln!(out)?;
    let mut lines: Vec<(usize, Vec<f64>)> = Vec::new();
    for size in sizes {
        let times = measure(size);
        write!(out, "{size:>8}")?;
        for (column, nanoseconds) in times.iter().enumerate() {
            let per_entry = nanoseconds / count(size * entries_each);
            write!(out, "  {nanoseconds:>8.0} {per_entry:>6.3}")?;
            match lines.last() {
                Some((before, earlier)) => {
                    let points = [(*before, earlier[column]), (size, *nanoseconds)];
                    write!(out, " {:>5.2}", slope(&points))?;
                }
                None => write!(out, " {:>5}", "")?,
            }
        }
        writeln!(out)?;
        out.flush()?;
        lines.push((size, times));
    }
    let fitted: Vec<_> =
        lines.iter().filter(|(size, _)| size * entries_each >= FITTED_FROM).collect();
    let from = fitted.first().map_or(0, |(size, _)| *size);
    write!(out, "slope from {from} {size_name} on:")?;
    for column in 0..columns.len() {
        let points: Vec<_> = fitted.iter().map(|(size, times)| (*size, times[column])).collect();
        write!(out, "  {:.3}", slope(&points))?;
    }
    writeln!(out)
}

/// A number of threads and what is to be timed with them, which says whether all went well.
type Contender<'a> = (usize, &'a mut dyn FnMut() -> bool);

/// The time of a call of each contender in nanoseconds: the lower quartile over turns of some
/// milliseconds, taken one after the other so that all meet the same disturbances. Others on the
/// machine can only add time.
fn in_turns(look: Duration, contenders: &mut [Contender<'_>]) -> Vec<f64> {
    let before = num_threads();
    let mut turns: Vec<(u32, Vec<f64>)> = Vec::new();
    for (threads, call) in contenders.iter_mut() {
        set_num_threads(*threads);
        assert!(call() && call(), "rows of probabilities");
        let calls = TURN.div_duration_f64(time(1, call).max(Duration::from_nanos(20)));
        turns.push((truncated(calls).max(1), Vec::new()));
    }
    let start = Instant::now();
    while start.elapsed() < look || turns[0].1.len() < 3 {
        for ((threads, call), (calls, times)) in contenders.iter_mut().zip(&mut turns) {
            set_num_threads(*threads);
            times.push(time(*calls, call).as_secs_f64() * 1e9 / f64::from(*calls));
        }
    }
    set_num_threads(before);
    let lower_quartile = |(_, mut times): (u32, Vec<f64>)| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 4]
    };
    turns.into_iter().map(lower_quartile).collect()
}

fn time(calls: u32, call: &mut dyn FnMut() -> bool) -> Duration {
    let start = Instant::now();
    for _ in 0..calls {
        call();
    }
    start.elapsed()
}

/// The slope of the straight line that fits best through the logarithms.
fn slope(points: &[(usize, f64)]) -> f64 {
    let logarithms: Vec<_> = points.iter().map(|(x, y)| (count(*x).ln(), y.ln())).collect();
    let mean = |of: fn(&(f64, f64)) -> f64| {
        logarithms.iter().map(of).sum::<f64>() / count(logarithms.len())
    };
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let products: f64 = logarithms.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let squares: f64 = logarithms.iter().map(|point| (point.0 - x).powi(2)).sum();
    products / squares
}

#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^53")]
fn count(size: usize) -> f64 {
    size as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "whole calls that fit in a turn, between 0 and some 100 000"
)]
fn truncated(calls: f64) -> u32 {
    calls as u32
}
