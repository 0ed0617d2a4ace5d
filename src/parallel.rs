//! Work on several threads: the only file that names rayon.
//!
//! Work is cut into items whose results do not depend on who computes them, and the calling thread
//! works too: items are claimed from a counter, one after the other, by the caller and by whichever
//! workers are awake. The caller waits for items that a worker has begun, never for a worker that
//! still sleeps, so that asking for help costs little where none comes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::{env, hint, mem, process, thread};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::Error;
use crate::memory::{collect, room};

/// No machine of today gains from more, and a mistyped number must not start a million threads.
pub(crate) const MAX_THREADS: usize = 1024;

/// The number of threads, 0 as long as nobody asked.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// How many threads large work is spread over, the calling one included.
///
/// At first `RAYON_NUM_THREADS` from the environment if that is a number above 0, else the number
/// of processors that this process may use.
#[must_use]
pub fn num_threads() -> usize {
    let threads = THREADS.load(Ordering::Relaxed);
    if threads > 0 {
        return threads;
    }
    let asked = env::var("RAYON_NUM_THREADS").ok().and_then(|number| number.parse().ok());
    let found = asked.filter(|number| *number > 0);
    let found = found.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let found = found.min(MAX_THREADS);
    // Whoever asked for a number meanwhile has it.
    match THREADS.compare_exchange(0, found, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => found,
        Err(set) => set,
    }
}

/// Spread large work over `threads` threads from now on, the calling one included; 0 counts
/// as 1, and more than 1024 as 1024. Results do not depend on it.
pub fn set_num_threads(threads: usize) {
    THREADS.store(threads.clamp(1, MAX_THREADS), Ordering::Relaxed);
}

/// Answer `body(item)` for all items, in order, each computed once, on any thread.
///
/// # Errors
/// [`Error::Memory`].
pub(crate) fn map<R: Send + Sync>(
    items: usize,
    body: impl Fn(usize) -> R + Sync,
) -> Result<Vec<R>, Error> {
    let answers: Vec<OnceLock<R>> = collect((0..items).map(|_| OnceLock::new()))?;
    for_each(items, &|item| {
        let _ = answers[item].set(body(item));
    });
    let mut found = room(items)?;
    found.extend(answers.into_iter().filter_map(OnceLock::into_inner));
    Ok(found)
}

/// Call `body(item)` once for every item, on any thread.
///
/// # Panics
/// If `body` does.
pub(crate) fn for_each(items: usize, body: &(dyn Fn(usize) + Sync)) {
    let pool = if items > 1 { pool() } else { None };
    let Some(pool) = pool else { return (0..items).for_each(body) };
    let work = Arc::new(Work::new(items, body));
    for _ in 1..pool.threads.min(items) {
        let work = Arc::clone(&work);
        pool.workers.spawn(move || work.help());
    }
    work.help();
    work.wait();
    assert!(!work.panicked.load(Ordering::Relaxed), "a panic on a worker thread");
}

/// Items that several threads work on.
struct Work {
    items: usize,
    /// The next item that nobody has claimed.
    next: AtomicUsize,
    /// How many items are finished.
    done: AtomicUsize,
    panicked: AtomicBool,
    /// Borrowed from the caller of `for_each`, see `help`.
    body: *const (dyn Fn(usize) + Sync),
}

// SAFETY: all fields but `body` are made to be shared. What `body` points to is `Sync`, and is
// reached only as `help` argues.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

impl Work {
    fn new(items: usize, body: &(dyn Fn(usize) + Sync)) -> Self {
        // SAFETY: only the lifetime is forgotten. Workers may hold `Work` for longer than `body`
        // lives; `help` says why they do not use it then.
        let body: *const (dyn Fn(usize) + Sync) = unsafe {
            mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(body)
        };
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { items, next, done, panicked: AtomicBool::new(false), body }
    }

    /// Claim items and work on them until none is left.
    fn help(&self) {
        loop {
            let item = self.next.fetch_add(1, Ordering::Relaxed);
            if item >= self.items {
                return;
            }
            // SAFETY: this item was claimed here and is not done, so the caller of `for_each` is
            // still inside `wait`, and what it borrowed for the call is alive. A worker that comes
            // late claims nothing and has returned above.
            let body = unsafe { &*self.body };
            if catch_unwind(AssertUnwindSafe(|| body(item))).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            // Whoever sees the count also sees what the item has written.
            self.done.fetch_add(1, Ordering::Release);
        }
    }

    /// Wait until all items are done. They all have been claimed, and take microseconds.
    fn wait(&self) {
        let mut rounds = 0_u32;
        while self.done.load(Ordering::Acquire) < self.items {
            rounds += 1;
            // A worker may have lost its processor in the middle of an item: let it run.
            if rounds < 200 { hint::spin_loop() } else { thread::yield_now() }
        }
    }
}

/// The threads that help, and for whom.
struct Pool {
    process: u32,
    threads: usize,
    workers: ThreadPool,
}

/// The pool of this process, for the number of threads that was asked for. None if that is 1, or
/// if the pool cannot be had now: then the caller works alone.
fn pool() -> Option<Arc<Pool>> {
    static POOL: Mutex<Option<Arc<Pool>>> = Mutex::new(None);

    let (process, threads) = (process::id(), num_threads());
    if threads == 1 {
        return None;
    }
    // Not `lock`: a process that was forked while another thread held the lock would wait for ever.
    let mut slot = POOL.try_lock().ok()?;
    if let Some(pool) = &*slot
        && (pool.process, pool.threads) == (process, threads)
    {
        return Some(Arc::clone(pool));
    }
    let name = |index| format!("draftverify-{index}");
    let workers =
        ThreadPoolBuilder::new().num_threads(threads - 1).thread_name(name).build().ok()?;
    let pool = Arc::new(Pool { process, threads, workers });
    let before = slot.replace(Arc::clone(&pool));
    // A forked child inherits the memory of a pool but not its threads. It makes its own, and must
    // not drop the other, which would talk to threads that are not there.
    if let Some(before) = before.filter(|before| before.process != process) {
        mem::forget(before);
    }
    Some(pool)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_item_is_answered_once_and_in_order() {
        let counts: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
        for items in [0, 1, 2, 3, 100, 1000] {
            let expected: Vec<_> = (0..items).map(|item| item * 3).collect();
            let answers = map(items, |item| {
                counts[item].fetch_add(1, Ordering::Relaxed);
                item * 3
            });
            assert_eq!(answers, Ok(expected), "{items} items");
        }
        let expected =
            |item| 6 - [1, 2, 3, 100, 1000].iter().filter(|end| item >= **end).count() - 1;
        for (item, count) in counts.iter().enumerate() {
            assert_eq!(count.load(Ordering::Relaxed), expected(item), "item {item}");
        }
    }

    /// With two threads, two items that wait for each other end: they run at the same time.
    #[test]
    fn workers_help_when_there_are_some() {
        let before = num_threads();
        set_num_threads(2);
        assert_eq!(num_threads(), 2, "as set");
        let barrier = std::sync::Barrier::new(2);
        let threads = map(2, |_| {
            barrier.wait();
            thread::current().id()
        })
        .expect("memory");
        set_num_threads(1);
        let alone = map(100, |_| thread::current().id()).expect("memory");
        set_num_threads(0);
        assert_eq!(num_threads(), 1, "0 counts as 1");
        set_num_threads(usize::MAX);
        assert_eq!(num_threads(), MAX_THREADS, "a million is a mistake");
        set_num_threads(before);
        assert_eq!(threads.into_iter().collect::<HashSet<_>>().len(), 2, "two threads");
        assert_eq!(alone.into_iter().collect::<HashSet<_>>().len(), 1, "the caller alone");
    }

    #[test]
    fn a_panic_of_any_item_is_the_callers() {
        for bad in [0, 7, 49] {
            let caught = catch_unwind(|| for_each(50, &|item| assert_ne!(item, bad, "on purpose")));
            assert!(caught.is_err(), "item {bad}");
        }
    }
}
