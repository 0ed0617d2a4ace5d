//! A chain of four drafted tokens over a large vocabulary: `cargo bench --bench chain`, no Python.
//!
//! From probabilities and from logits, on one thread and on all that the process may use. Some
//! chains in turn: how far a chain is read depends on where it is rejected. The target's rows and
//! the draft's differ as those of `common::pair`.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use draftverify::{
    Chain, Filters, LogitsChain, Method, Rows, num_threads, set_num_threads, verify_chain,
    verify_chain_logits,
};

#[allow(dead_code, reason = "no copy to compare with")]
mod common;

const VOCABULARY: usize = 128_256;
const DRAFTED: usize = 4;
const CHAINS: usize = 5;

fn main() {
    let mut criterion = Criterion::default()
        .without_plots()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let pair = common::pair::<f32>(CHAINS * (DRAFTED + 1), VOCABULARY);
    let logits = |row: &[f32]| row.iter().map(|probability| probability.ln()).collect::<Vec<_>>();
    let (draft_logits, target_logits) = (logits(&pair.draft), logits(&pair.target));
    // Numbers spread evenly, one for the token and one for the uniform number of every row.
    let spread = |row: usize, step: f64| (step * u32::try_from(row).map_or(0.0, f64::from)).fract();
    let ids: Vec<i64> = pair
        .draft
        .chunks(VOCABULARY)
        .enumerate()
        .map(|(row, draft)| drawn(draft, spread(row, 0.754_877_666)))
        .collect();
    let uniforms: Vec<f64> = (0..ids.len()).map(|row| spread(row, 0.569_840_290)).collect();

    let rows = |entries| Rows::new(entries, VOCABULARY).expect("whole rows");
    let (draft, target) = (rows(&pair.draft), rows(&pair.target));
    let (draft_logits, target_logits) = (rows(&draft_logits), rows(&target_logits));
    let parts = |chain: usize| {
        let first = chain * (DRAFTED + 1);
        (first..first + DRAFTED, first..first + DRAFTED + 1)
    };
    let chains: Vec<_> = (0..CHAINS)
        .map(|chain| {
            let (drafted, all) = parts(chain);
            Chain {
                draft_probs: Some(draft.part(drafted.clone())),
                target_probs: target.part(all.clone()),
                draft_token_ids: &ids[drafted],
                uniforms: &uniforms[all],
                bonus_token_id: None,
            }
        })
        .collect();
    let logits_chains: Vec<_> = (0..CHAINS)
        .map(|chain| {
            let (drafted, all) = parts(chain);
            LogitsChain {
                draft_logits: Some(draft_logits.part(drafted.clone())),
                target_logits: target_logits.part(all.clone()),
                draft_token_ids: &ids[drafted],
                uniforms: &uniforms[all],
                bonus_token_id: None,
                temperature: 1.0,
                draft_temperature: 1.0,
                filters: Filters::OFF,
                filter_draft: false,
            }
        })
        .collect();

    let all = num_threads();
    let mut threads = vec![1, all];
    threads.dedup();
    let mut group = criterion.benchmark_group(format!("chain/float32/1x{DRAFTED}x{VOCABULARY}"));
    group.throughput(Throughput::Elements(CHAINS as u64));
    for threads in threads {
        set_num_threads(threads);
        for method in [Method::Standard, Method::Block] {
            group.bench_function(
                format!("probabilities/{method:?}/threads={threads}"),
                |bencher| {
                    bencher.iter(|| {
                        for chain in &chains {
                            black_box(
                                verify_chain(&[*black_box(chain)], method).expect("a verdict"),
                            );
                        }
                    });
                },
            );
            group.bench_function(format!("logits/{method:?}/threads={threads}"), |bencher| {
                bencher.iter(|| {
                    for chain in &logits_chains {
                        let chain = [*black_box(chain)];
                        black_box(verify_chain_logits(&chain, method).expect("a verdict"));
                    }
                });
            });
        }
    }
    set_num_threads(all);
    group.finish();
    criterion.final_summary();
}

/// The token that a uniform number draws from a row of probabilities.
fn drawn(row: &[f32], uniform: f64) -> i64 {
    let mut running = 0.0;
    let found = row.iter().position(|probability| {
        running += f64::from(*probability);
        running > uniform
    });
    found.and_then(|id| i64::try_from(id).ok()).expect("rows that sum to 1")
}
