//! Rows side by side on several threads: the only file that names rayon.
//!
//! Which thread works on a row never changes its result, so the number of threads does not either.
//! `RAYON_NUM_THREADS` sets it; rayon's global pool is used.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;

/// Fewer entries than this in all are worked on by the caller alone: waking a worker takes longer
/// than the arithmetic.
const MIN_ENTRIES: usize = 32_768;
/// Rows are handed out in groups of at least this many entries.
const GROUP_ENTRIES: usize = 16_384;

/// Answer `body(index)` for every row, in order, each computed once, on any thread.
pub(crate) fn map_rows<R: Send>(
    rows: usize,
    entries_per_row: usize,
    body: impl Fn(usize) -> R + Sync + Send,
) -> Vec<R> {
    if rows < 2 || rows.saturating_mul(entries_per_row) < MIN_ENTRIES || !may_use_pool() {
        return (0..rows).map(body).collect();
    }
    let group = GROUP_ENTRIES.div_ceil(entries_per_row);
    (0..rows).into_par_iter().with_min_len(group).map(body).collect()
}

/// Whether the pool has threads in this process. A forked child inherits the pool's memory but not
/// its threads, and would wait for them for ever: it works alone.
fn may_use_pool() -> bool {
    static OWNER: AtomicU32 = AtomicU32::new(0);
    let this = process::id();
    let owner = OWNER.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed);
    let pool_is_here = owner.is_ok() || owner == Err(this);
    pool_is_here && rayon::current_num_threads() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_answered_once_and_in_order() {
        for rows in [0, 1, 2, 3, 100, 1000] {
            for entries in [1, 100, 20_000, MIN_ENTRIES] {
                let expected: Vec<_> = (0..rows).map(|row| row * 3).collect();
                assert_eq!(map_rows(rows, entries, |row| row * 3), expected, "{rows} x {entries}");
            }
        }
    }
}
