//! Chains of logits: against the naive twin, at the extremes, on every path.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "small numbers go back and forth between ids and floats"
)]
#![allow(clippy::float_cmp, reason = "0 and infinities are exact")]

use super::layouts::{SPREADS, row_in, spread_out};
use super::{LENGTHS, Noise, Sample, for_each_type, paths};
use crate::draw::Sums;
use crate::error::Argument::{DraftLogits, TargetLogits};
use crate::filter::Filters;
use crate::lanes::Path;
use crate::law::{Draft, Law, Residual};
use crate::logits::{LogitsChain, verify_chain_logits};
use crate::residual::Workers;
use crate::row::Row;
use crate::rows::Rows;
use crate::{Error, Method, Place, Scalar, naive_logits, num_threads, set_num_threads};

for_each_type!(
    verdicts_are_those_of_the_naive_twin,
    laws_are_softmax,
    paths_threads_and_layouts_give_the_same_bits,
    no_id_of_probability_0_is_drawn,
    what_is_no_logit_is_refused,
);

const INF: f64 = f64::INFINITY;
const BELOW_ONE: f64 = 1.0 - f64::EPSILON / 2.0;

/// A row of logits; some are -inf, and where asked for many are equal.
fn logits<T: Sample>(noise: &mut Noise, len: usize, grid: Option<f64>) -> Vec<T> {
    let mut row: Vec<T> = (0..len)
        .map(|_| {
            let logit = (0..6).map(|_| noise.uniform()).sum::<f64>() * 4.0 - 12.0;
            let logit = grid.map_or(logit, |grid| (logit / grid).round() * grid);
            T::of(if noise.uniform() < 0.05 { -INF } else { logit })
        })
        .collect();
    let some = (noise.uniform() * len as f64) as usize;
    row[some] = T::of(0.25);
    row
}

fn pick<C: Copy>(noise: &mut Noise, choices: &[C]) -> C {
    choices[(noise.uniform() * choices.len() as f64) as usize]
}

fn chain<'a, T: Scalar>(
    draft: Option<&'a [T]>,
    target: &'a [T],
    vocabulary: usize,
    ids: &'a [i64],
    uniforms: &'a [f64],
) -> LogitsChain<'a, T> {
    let rows = |entries| Rows::new(entries, vocabulary).expect("whole rows");
    LogitsChain {
        draft_logits: draft.map(rows),
        target_logits: rows(target),
        draft_token_ids: ids,
        uniforms,
        bonus_token_id: None,
        temperature: 1.0,
        draft_temperature: 1.0,
        filters: Filters::OFF,
        filter_draft: false,
    }
}

fn verdict<T: Scalar>(chain: LogitsChain<'_, T>, method: Method) -> (usize, i64) {
    let verdicts = verify_chain_logits(&[chain], method).expect("a verdict");
    (verdicts[0].num_accepted, verdicts[0].final_token_id)
}

fn error<T: Scalar>(chain: LogitsChain<'_, T>, method: Method) -> Error {
    verify_chain_logits(&[chain], method).expect_err("refused")
}

/// An id of a law of probabilities.
fn drawn(noise: &mut Noise, law: &[f64]) -> usize {
    let mut left = noise.uniform();
    for (id, probability) in law.iter().enumerate() {
        left -= probability;
        if left < 0.0 {
            return id;
        }
    }
    law.iter().position(|probability| *probability > 0.0).expect("a law")
}

fn verdicts_are_those_of_the_naive_twin<T: Sample>() {
    let mut noise = Noise(1);
    let mut seen = [0_usize; 6];
    for case in 0..1500 {
        let vocabulary = pick(&mut noise, &[1, 2, 3, 17, 256, 300, 700]);
        let length = pick(&mut noise, &[0, 1, 2, 3, 4]);
        let grid = pick(&mut noise, &[None, Some(0.25), Some(2.0)]);
        let temperature = pick(&mut noise, &[0.0, 1e-3, 0.4, 1.0, 1.0, 1.7, 1e3]);
        let draft_temperature = pick(&mut noise, &[0.0, 0.3, temperature, 1.0, 2.5]);
        let filters = Filters {
            top_k: pick(&mut noise, &[0, 0, 1, 2, 7, 290, 2000]),
            top_p: pick(&mut noise, &[1.0, 1.0, 0.041, 0.513, 0.907, 0.9973]),
            min_p: pick(&mut noise, &[0.0, 0.0, 1e-5, 0.0311, 0.487, 1.0]),
        };
        let filter_draft = noise.uniform() < 0.5;
        let method = pick(&mut noise, &[Method::Standard, Method::Block]);
        let mut rows = |count: usize| -> Vec<T> {
            (0..count).flat_map(|_| logits(&mut noise, vocabulary, grid)).collect()
        };
        let (draft, mut target) = (rows(length), rows(length + 1));
        if case % 2 == 0 {
            // A good draft.
            for (target, draft) in target.iter_mut().zip(&draft) {
                *target = T::of(draft.to_f64() + 0.75 * (noise.uniform() - 0.5));
            }
        }
        let one_hot = noise.uniform() < 0.2;
        let wide = |row: &[T]| row.iter().map(|entry| entry.to_f64()).collect::<Vec<_>>();
        let draft_filters = if filter_draft { filters } else { Filters::OFF };
        let mut drafts: Vec<Vec<f64>> = draft
            .chunks(vocabulary)
            .map(|row| naive_logits::law(&wide(row), draft_temperature, draft_filters))
            .collect();
        let targets: Vec<Vec<f64>> = target
            .chunks(vocabulary)
            .map(|row| naive_logits::law(&wide(row), temperature, filters))
            .collect();
        let tokens: Vec<usize> = drafts.iter().map(|law| drawn(&mut noise, law)).collect();
        if one_hot {
            for (law, token) in drafts.iter_mut().zip(&tokens) {
                law.fill(0.0);
                law[*token] = 1.0;
            }
        }
        let uniforms: Vec<f64> = (0..=length).map(|_| noise.uniform()).collect();
        let ids: Vec<i64> = tokens.iter().map(|token| *token as i64).collect();
        let expected = naive_logits::verify(method, &drafts, &targets, &tokens, &uniforms);
        let draft = (!one_hot).then_some(&*draft);
        let chain = LogitsChain {
            temperature,
            draft_temperature,
            filters,
            filter_draft,
            ..chain(draft, &target, vocabulary, &ids, &uniforms)
        };
        let found = verdict(chain, method);
        assert_eq!(found, (expected.0, expected.1 as i64), "case {case}: {method:?} {chain:?}");
        seen[expected.0] += 1;
        if temperature == 0.0 {
            assert_eq!(verdict(chain, Method::Greedy), found, "greedy, case {case}");
        }
    }
    assert!(seen[..5].iter().all(|count| *count > 30), "every length is seen: {seen:?}");
}

/// Probabilities as the crate computes them, one by one.
fn probabilities<T: Sample>(path: Path, row: &[T], temperature: f64, filters: Filters) -> Vec<f64> {
    let (law, sums) =
        Law::of(path, Workers::Caller, TargetLogits, Row::of(row), temperature, filters)
            .expect("a law");
    assert_eq!(sums.mass.to_bits(), law.total.to_bits(), "the sums are the law's");
    (0..row.len())
        .map(|id| law.exponent(id).map_or(0.0, |exponent| exponent.exp2() / law.total))
        .collect()
}

/// Also where the sum with reference 0 would be out of range, or everything in it lost.
fn laws_are_softmax<T: Sample>() {
    let mut noise = Noise(2);
    let filters = [
        Filters::OFF,
        Filters { top_k: 300, ..Filters::OFF },
        Filters { top_p: 0.7, ..Filters::OFF },
        Filters { min_p: 1e-3, ..Filters::OFF },
    ];
    for path in paths() {
        for (shift, temperature) in
            [(0.0, 1.0), (600.0, 1.0), (-600.0, 1.0), (0.0, 0.01), (-3.0, 1e-3), (9.0, 1e3)]
        {
            for filters in filters {
                let row: Vec<T> = logits(&mut noise, 1000, None)
                    .into_iter()
                    .map(|logit: T| T::of(logit.to_f64() + shift))
                    .collect();
                let wide: Vec<f64> = row.iter().map(|logit| logit.to_f64()).collect();
                let expected = naive_logits::law(&wide, temperature, filters);
                let found = probabilities(path, &row, temperature, filters);
                for (id, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let off = (found - expected).abs();
                    assert!(off <= 1e-10 * expected + 1e-300, "id {id}: {found:e} {expected:e}");
                }
            }
        }
    }
}

/// The bits of the sums of a law and of a residual, and of what is drawn.
fn law_bits<T: Scalar>(
    path: Path,
    workers: Workers,
    rows: [Row<'_, T>; 2],
    filters: Filters,
) -> [u64; 4] {
    let law = |row| Law::of(path, workers, TargetLogits, row, 0.8, filters).expect("a law");
    let ((draft, _), (target, sums)) = (law(rows[0]), law(rows[1]));
    let residual = Residual::new(target, Draft::Law(draft), 0.9);
    let masses = Sums::of(path, workers, residual).expect("memory");
    let drawn = |id: Option<usize>| id.expect("some weight") as u64;
    [
        target.total.to_bits(),
        masses.mass.to_bits(),
        drawn(sums.draw(path, target.weights, 0.37)),
        drawn(masses.draw(path, residual, 0.73)),
    ]
}

fn paths_threads_and_layouts_give_the_same_bits<T: Sample>() {
    let mut noise = Noise(3);
    let filters = [Filters::OFF, Filters { top_k: 1500, top_p: 0.98, min_p: 1e-4 }];
    let before = num_threads();
    for len in LENGTHS.into_iter().chain([70_003]) {
        // Too few to differ.
        if len < 3 {
            continue;
        }
        let (draft, target): (Vec<T>, Vec<T>) =
            (logits(&mut noise, len, None), logits(&mut noise, len, Some(1e-3)));
        for filters in filters {
            let rows = [Row::of(&draft), Row::of(&target)];
            let expected = law_bits(Path::Portable, Workers::Caller, rows, filters);
            for path in paths() {
                for threads in [1, 2] {
                    set_num_threads(threads);
                    let found = law_bits(path, Workers::Several, rows, filters);
                    assert_eq!(found, expected, "{path:?}, {threads} threads, {len} entries");
                }
                for spread in SPREADS.into_iter().filter(|_| len < 5000) {
                    let buffer = spread_out(&target, spread);
                    let rows = [Row::of(&draft), row_in::<T>(&buffer, spread, len)];
                    let found = law_bits(path, Workers::Caller, rows, filters);
                    assert_eq!(found, expected, "{path:?}, {spread:?}, {len} entries");
                }
            }
        }
    }
    set_num_threads(before);
}

/// Requests side by side, and rows with padding between them, answer what they answer alone.
#[test]
fn requests_do_not_depend_on_each_other() {
    let mut noise = Noise(4);
    let (vocabulary, stride) = (900, 1000);
    let mut target: Vec<f32> = logits(&mut noise, 60 * stride, None);
    for row in target.chunks_mut(stride) {
        (row[3], row[5]) = (0.5, 0.25);
    }
    let packed: Vec<f32> =
        target.chunks(stride).flat_map(|row| row[..vocabulary].to_vec()).collect();
    let uniforms: Vec<f64> = (0..60).map(|_| noise.uniform()).collect();
    let ids = [3, 5];
    let chains: Vec<_> = (0..20)
        .map(|request| {
            let part = &packed[3 * request * vocabulary..3 * (request + 1) * vocabulary];
            let uniforms = &uniforms[3 * request..3 * (request + 1)];
            chain(Some(&part[..2 * vocabulary]), part, vocabulary, &ids, uniforms)
        })
        .collect();
    let strided = Rows::strided(&target, 60, vocabulary, stride).expect("rows");
    for method in [Method::Standard, Method::Block, Method::Greedy] {
        let alone: Vec<_> = chains.iter().map(|chain| verdict(*chain, method)).collect();
        let padded: Vec<_> = chains
            .iter()
            .enumerate()
            .map(|(request, chain)| {
                let target_logits = strided.part(3 * request..3 * request + 3);
                verdict(LogitsChain { target_logits, ..*chain }, method)
            })
            .collect();
        let together = verify_chain_logits(&chains, method).expect("verdicts");
        let together: Vec<_> =
            together.iter().map(|verdict| (verdict.num_accepted, verdict.final_token_id)).collect();
        assert_eq!(together, alone, "{method:?}");
        assert_eq!(padded, alone, "{method:?}, padded");
    }
    assert_eq!(verify_chain_logits::<f32>(&[], Method::Standard), Ok(vec![]));
}

fn at<T>(temperature: f64, chain: LogitsChain<'_, T>) -> LogitsChain<'_, T> {
    LogitsChain { temperature, draft_temperature: temperature, ..chain }
}

#[test]
fn any_finite_logits_are_compared() {
    for size in [1e4, 1e30, 3e38] {
        for temperature in [1e-30, 1e-3, 1.0, 1e3, 1e30] {
            let case = format!("{size:e} at {temperature:e}");
            let far = size / temperature > 1e5;
            // The draft all but never proposes what the target all but always wants.
            let (draft, target) = ([size as f32, -size as f32], [-size as f32, size as f32]);
            let both = [target, target].concat();
            let id = [1];
            let kept = at(temperature, chain(Some(&draft), &both, 2, &id, &[BELOW_ONE, 0.5]));
            if far {
                assert_eq!(verdict(kept, Method::Standard), (1, 1), "{case}");
                assert_eq!(verdict(kept, Method::Block), (1, 1), "{case}");
            }
            // What the draft wants is kept by a uniform number of 0 alone.
            let id = [0];
            for (uniform, kept) in [(0.0, true), (f64::from_bits(1), false), (0.5, false)] {
                let uniforms = [uniform, BELOW_ONE];
                let chain = at(temperature, chain(Some(&draft), &both, 2, &id, &uniforms));
                if far {
                    let expected = (usize::from(kept), 1);
                    assert_eq!(verdict(chain, Method::Standard), expected, "{case}, {uniform:e}");
                }
            }
            // Where the two agree, or all are equal, everything is kept.
            for row in [draft, [size as f32; 2]] {
                let both = [row, row].concat();
                for id in [[0], [1]] {
                    let chain =
                        at(temperature, chain(Some(&row), &both, 2, &id, &[BELOW_ONE, 0.25]));
                    for method in [Method::Standard, Method::Block] {
                        assert_eq!(verdict(chain, method), (1, 0), "{case}, {row:?}, {id:?}");
                    }
                }
            }
        }
    }
    // Thousands apart, and still compared: 5000 below at the draft, 4999.5 below at the target.
    let (draft, target) = ([0.0, -5000.0], [0.0, -5000.5, 0.0, 0.0]);
    let id = [1];
    for (uniform, kept) in [(0.606_530, 1), (0.606_531, 0)] {
        let uniforms = [uniform, 0.0];
        let found = verdict(chain(Some(&draft), &target, 2, &id, &uniforms), Method::Standard);
        assert_eq!(found.0, kept, "exp(-1/2) against {uniform}");
    }
}

fn no_id_of_probability_0_is_drawn<T: Sample>() {
    let row = |logits: &[f64]| logits.iter().map(|logit| T::of(*logit)).collect::<Vec<_>>();
    let uniforms = [0.0, f64::from_bits(1), 0.5, BELOW_ONE];
    // All but one -inf, at the ends and within.
    for vocabulary in [1, 2, 300, 1000] {
        for only in [0, vocabulary / 2, vocabulary - 1] {
            let mut target = vec![-INF; vocabulary];
            target[only] = -7.5;
            let target = row(&target);
            for uniform in uniforms {
                let uniforms = [uniform];
                let chain = chain(None, &target, vocabulary, &[], &uniforms);
                for method in [Method::Standard, Method::Block, Method::Greedy] {
                    assert_eq!(verdict(chain, method), (0, only as i64), "{uniform:e}");
                }
            }
        }
    }
    // Of equal ones with -inf at both ends, the first and the last.
    let target = row(&[-INF, 2.0, 2.0, -INF, 2.0, -INF]);
    let ends = [(0.0, 1), (0.5, 2), (BELOW_ONE, 4)];
    for (uniform, expected) in ends {
        let uniforms = [uniform];
        let chain = chain(None, &target, 6, &[], &uniforms);
        assert_eq!(verdict(chain, Method::Standard), (0, expected), "{uniform:e}");
    }
    // A rejected one is not drawn again, nor is any that the draft has no less of.
    let draft = row(&[0.0, -1.0, 0.0, -1.0]);
    let target = row(&[-1.0, 0.0, -INF, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let id = [2];
    for (first, draft) in [(0.0, Some(&*draft)), (0.0, None)] {
        for (uniform, expected) in [(0.0, [1, 0]), (BELOW_ONE, [3, 3])] {
            let uniforms = [first, uniform];
            let chain = chain(draft, &target, 4, &id, &uniforms);
            let expected = expected[usize::from(draft.is_none())];
            for method in [Method::Standard, Method::Block] {
                assert_eq!(verdict(chain, method), (0, expected), "{uniform:e}");
            }
        }
    }
}

/// Emitted pairs of tokens follow the target, whatever the draft, over triples of uniforms that fill
/// the cube evenly: multiples of the powers of the root of x^4 = x + 1, modulo 1.
#[test]
fn what_is_emitted_follows_the_target() {
    const POINTS: usize = 4000;
    const ROOT: f64 = 1.220_744_084_605_759_5;
    let draft = [0.3_f64, 1.0, -INF, 0.1, 0.5, 0.2, 0.4, -1.0];
    let target = [1.0_f64, 0.0, 0.5, -1.0, 0.0, 1.5, 1.0, -0.5, 0.2, 0.1, -0.3, 0.4];
    let filters = [Filters::OFF, Filters { top_k: 3, top_p: 0.9, min_p: 0.1 }];
    let uniforms = |point: usize| [1, 2, 3].map(|power| (point as f64 / ROOT.powi(power)).fract());
    for (filters, filter_draft, one_hot) in [
        (filters[0], false, false),
        (filters[0], false, true),
        (filters[1], false, false),
        (filters[1], true, false),
    ] {
        for method in [Method::Standard, Method::Block] {
            let draft_filters = if filter_draft { filters } else { Filters::OFF };
            let draft_law = |row| naive_logits::law(row, 0.7, draft_filters);
            let drafts = [draft_law(&draft[..4]), draft_law(&draft[4..])];
            let targets: Vec<_> =
                target.chunks(4).map(|row| naive_logits::law(row, 1.3, filters)).collect();
            let mut law = [[0.0; 4]; 4];
            for first in 0..4 {
                for second in 0..4 {
                    let proposed = drafts[0][first] * drafts[1][second];
                    if proposed == 0.0 {
                        continue;
                    }
                    let ids = [first as i64, second as i64];
                    for point in 0..POINTS {
                        let uniforms = uniforms(point);
                        let chain = LogitsChain {
                            temperature: 1.3,
                            draft_temperature: 0.7,
                            filters,
                            filter_draft,
                            ..chain((!one_hot).then_some(&draft[..]), &target, 4, &ids, &uniforms)
                        };
                        let (kept, last) = chain
                            .verify(method, 0, Path::Portable, Workers::Caller)
                            .map(|found| (found.num_accepted, found.final_token_id as usize))
                            .expect("a verdict");
                        let weight = proposed / POINTS as f64;
                        match kept {
                            0 => (0..4).for_each(|next| {
                                law[last][next] += weight * targets[1][next];
                            }),
                            1 => law[first][last] += weight,
                            _ => law[first][second] += weight,
                        }
                    }
                }
            }
            for first in 0..4 {
                for second in 0..4 {
                    let expected = targets[0][first] * targets[1][second];
                    let off = (law[first][second] - expected).abs();
                    assert!(off < 0.003, "{method:?} {filters:?} {first} {second}: {off}");
                    assert!(expected > 0.0 || off == 0.0, "{method:?}: {first} {second} is drawn");
                }
            }
        }
    }
}

fn what_is_no_logit_is_refused<T: Sample>() {
    let len = 600;
    let good = vec![T::of(0.5); len];
    let (id, uniforms) = ([7], [0.5, 0.5]);
    for bad in [f64::NAN, -f64::NAN, INF] {
        for index in [0, 299, len - 1] {
            let mut row = good.clone();
            row[index] = T::of(bad);
            let check = |chain, argument, position, method| {
                let Error::Value { argument: named, place, index: found, value } =
                    error(chain, method)
                else {
                    panic!("{bad} at {index} is something else");
                };
                let expected = Place::Position { request: 0, position };
                assert_eq!((named, place, found), (argument, expected, index), "{bad}");
                assert!(value == bad || (value.is_nan() && bad.is_nan()), "{value} is {bad}");
            };
            let both = [good.clone(), row.clone()].concat();
            let other = [row.clone(), good.clone()].concat();
            let fine = [good.clone(), good.clone()].concat();
            for method in [Method::Standard, Method::Block] {
                let of = |draft, target| chain(Some(draft), target, len, &id, &uniforms);
                check(of(&row, &fine), DraftLogits, 0, method);
                check(of(&good, &other), TargetLogits, 0, method);
                check(of(&good, &both), TargetLogits, 1, method);
                let filters = Filters { top_k: 3, ..Filters::OFF };
                check(LogitsChain { filters, ..of(&good, &both) }, TargetLogits, 1, method);
                check(
                    LogitsChain { draft_temperature: 0.0, ..of(&row, &fine) },
                    DraftLogits,
                    0,
                    method,
                );
            }
            let greedy = chain(Some(&good), &other, len, &id, &uniforms);
            check(greedy, TargetLogits, 0, Method::Greedy);
        }
    }
    let nothing = vec![T::of(-INF); len];
    for method in [Method::Standard, Method::Greedy] {
        let refused = error(chain(None, &nothing, len, &[], &uniforms[..1]), method);
        let place = Place::Position { request: 0, position: 0 };
        let expected = Error::Value { argument: TargetLogits, place, index: 0, value: -INF };
        assert_eq!(refused, expected, "{method:?}");
    }
}

#[test]
fn what_the_draft_cannot_have_proposed_is_refused() {
    let draft = [1.0, 0.5, -INF, 1.0];
    let target = [0.0; 8];
    let uniforms = [0.5, 0.5];
    let top = Filters { top_k: 2, ..Filters::OFF };
    // Filters off and on the draft, the draft's temperature, and the ids that can come.
    let cases: [(_, _, _, &[i64]); 5] = [
        (Filters::OFF, false, 1.0, &[0, 1, 3]),
        (top, false, 1.0, &[0, 1, 3]),
        (top, true, 1.0, &[0, 3]),
        (Filters { top_p: 0.3, ..Filters::OFF }, true, 1.0, &[0]),
        (Filters::OFF, false, 0.0, &[0]),
    ];
    for (filters, filter_draft, draft_temperature, possible) in cases {
        for token in 0..4 {
            let id = [token];
            let chain = chain(Some(&draft), &target, 4, &id, &uniforms);
            let chain = LogitsChain { draft_temperature, filters, filter_draft, ..chain };
            let found = verify_chain_logits(&[chain], Method::Standard);
            if possible.contains(&token) {
                assert!(found.is_ok(), "{token} can come: {filters:?} {draft_temperature}");
                continue;
            }
            let place = Place::Position { request: 0, position: 0 };
            let expected =
                Error::TokenImpossible { argument: DraftLogits, place, token, vocabulary: 4 };
            assert_eq!(found, Err(expected.clone()), "{token}: {filters:?} {draft_temperature}");
            let text = expected.to_string();
            assert!(text.contains("by draft_logits is 0: -inf, filtered away"), "{text}");
            let greedy = LogitsChain { temperature: 0.0, ..chain };
            assert!(verify_chain_logits(&[greedy], Method::Block).is_ok(), "not read at 0");
        }
    }
}

#[test]
fn arguments_are_checked_before_rows_are_read() {
    let (draft, target) = ([f32::NAN; 2], [f32::NAN; 4]);
    let (id, uniforms) = ([1], [0.5, 0.5]);
    let good = chain(Some(&draft), &target, 2, &id, &uniforms);
    let parameter = |chain| match error(chain, Method::Standard) {
        Error::Parameter { argument, request: 0, .. } => argument,
        other => panic!("{other}"),
    };
    for bad in [-1.0, -f64::MIN_POSITIVE, f64::NAN, 1e300_f64.next_up(), INF] {
        assert_eq!(parameter(LogitsChain { temperature: bad, ..good }), "temperature", "{bad}");
        let chain = LogitsChain { draft_temperature: bad, ..good };
        assert_eq!(parameter(chain), "draft_temperature", "{bad}");
    }
    for bad in [0.0, -0.5, 1.0 + f64::EPSILON, f64::NAN] {
        let filters = Filters { top_p: bad, ..Filters::OFF };
        assert_eq!(parameter(LogitsChain { filters, ..good }), "top_p", "{bad}");
    }
    for bad in [-0.5, 1.0 + f64::EPSILON, f64::NAN] {
        let filters = Filters { min_p: bad, ..Filters::OFF };
        assert_eq!(parameter(LogitsChain { filters, ..good }), "min_p", "{bad}");
    }
    let error = |chain| error(chain, Method::Standard);
    let text = error(LogitsChain { temperature: f64::NAN, ..good }).to_string();
    assert!(
        text.starts_with("temperature: expected a number above 0 and up to 1e300, or 0 "),
        "{text}"
    );
    assert!(text.contains(", got nan for request 0; "), "{text}");

    let length = |chain| matches!(error(chain), Error::Length { .. });
    assert!(length(LogitsChain { target_logits: good.target_logits.part(0..1), ..good }), "rows");
    assert!(length(LogitsChain { bonus_token_id: Some(0), ..good }), "no row for the bonus");
    assert!(length(LogitsChain { draft_logits: Some(good.target_logits), ..good }), "draft rows");
    assert!(length(LogitsChain { uniforms: &uniforms[..1], ..good }), "uniforms");
    let narrow = Rows::new(&draft[..1], 1).ok();
    assert!(length(LogitsChain { draft_logits: narrow, ..good }), "vocabularies");

    let place = |position| Place::Position { request: 0, position };
    let range = error(LogitsChain { draft_token_ids: &[2], ..good });
    assert_eq!(range, Error::TokenRange { place: place(0), token: 2, vocabulary: 2 });
    let uniform = error(LogitsChain { uniforms: &[0.5, 1.0], ..good });
    assert_eq!(uniform, Error::Uniform { place: place(1), value: 1.0 });

    // Greedy wants no uniforms.
    let target = [0.0_f32, 1.0, 2.0, 1.0];
    let greedy = chain(None, &target, 2, &id, &[]);
    assert_eq!(verdict(greedy, Method::Greedy), (1, 0));
    assert_eq!(verdict(LogitsChain { temperature: 0.0, ..greedy }, Method::Standard), (1, 0));
    // The bonus token of another hand.
    let one = [0.0_f32, 1.0];
    let row = Rows::new(&one, 2).expect("a row");
    let bonus =
        LogitsChain { draft_logits: None, target_logits: row, bonus_token_id: Some(9), ..good };
    for method in [Method::Standard, Method::Block, Method::Greedy] {
        assert_eq!(verdict(LogitsChain { uniforms: &[0.1, 0.5], ..bonus }, method), (1, 9));
    }
}

/// The errors of the lowest request and position come first, whoever finds them.
#[test]
fn the_first_error_is_told() {
    let mut target = vec![0.0_f32; 64 * 1024];
    target[40 * 1024 + 5] = f32::NAN;
    target[41 * 1024] = f32::NAN;
    target[60 * 1024] = f32::NAN;
    let chains: Vec<_> =
        target.chunks(2048).map(|rows| chain(None, rows, 1024, &[3], &[0.0, 0.0])).collect();
    let place = Place::Position { request: 20, position: 0 };
    match verify_chain_logits(&chains, Method::Standard) {
        Err(Error::Value { place: found, index: 5, .. }) => assert_eq!(found, place),
        other => panic!("{other:?}"),
    }
}

#[test]
fn filters_keep_what_they_say() {
    let third = 1.0 / 3.0;
    let off = Filters::OFF;
    let rows: [(Filters, &[f64], &[f64]); 11] = [
        // All that tie with the k-th.
        (Filters { top_k: 2, ..off }, &[1.0, 2.0, 1.0, 0.0, 1.0], &[0.0; 0]),
        (Filters { top_k: 1, ..off }, &[1.0, 1.0, 0.0, 1.0], &[third, third, 0.0, third]),
        (Filters { top_k: 9, ..off }, &[0.0, -INF, 0.0], &[0.5, 0.0, 0.5]),
        // The lowest ids of those that tie.
        (Filters { top_p: 0.5, ..off }, &[0.0; 4], &[0.5, 0.5, 0.0, 0.0]),
        (Filters { top_p: 0.51, ..off }, &[0.0; 4], &[third, third, third, 0.0]),
        (Filters { top_p: 1e-9, ..off }, &[0.0, 5.0, 5.0], &[0.0, 1.0, 0.0]),
        // The zeros are equal.
        (Filters { top_p: 0.5, ..off }, &[-0.0, 0.0], &[1.0, 0.0]),
        // At least the fraction, the most probable ones in any case.
        (Filters { min_p: 1.0, ..off }, &[0.0, 5.0, 5.0], &[0.0, 0.5, 0.5]),
        (Filters { min_p: 1e-320, ..off }, &[-800.0, 0.0, -INF], &[0.0, 1.0, 0.0]),
        // Of what `top_k` has left, 0.6 of the probability; `min_p` then takes no more.
        (Filters { top_k: 2, top_p: 0.6, min_p: 0.9 }, &[0.0, 3.0, 3.0], &[0.0, 0.5, 0.5]),
        (Filters { top_k: 2, top_p: 0.5, min_p: 1.0 }, &[0.0, 3.0, 3.0], &[0.0, 1.0, 0.0]),
    ];
    for (filters, row, expected) in rows {
        let found = probabilities(Path::best(), row, 1.0, filters);
        if expected.is_empty() {
            let kept: Vec<_> = found.iter().map(|probability| *probability > 0.0).collect();
            assert_eq!(kept, [true, true, true, false, true], "{filters:?}");
        } else {
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-12, "{filters:?}: {found} {expected}");
            }
        }
    }
}

/// Wide laws, of which the first look does not see enough, and ties from end to end.
#[test]
fn top_p_looks_as_far_as_it_must() {
    let mut noise = Noise(5);
    for grid in [None, Some(0.5), Some(100.0)] {
        let row: Vec<f32> = logits(&mut noise, 20_000, grid);
        let wide: Vec<f64> = row.iter().copied().map(f64::from).collect();
        for top_p in [0.02, 0.4, 0.93, 0.9999] {
            for top_k in [0, 100, 3000] {
                let filters = Filters { top_k, top_p, min_p: 0.0 };
                let expected = naive_logits::law(&wide, 5.0, filters);
                let found = probabilities(Path::best(), &row, 5.0, filters);
                let differ = found
                    .iter()
                    .zip(&expected)
                    .filter(|(found, expected)| (**found - **expected).abs() > 1e-10 * **expected);
                assert_eq!(differ.count(), 0, "{grid:?} {filters:?}");
            }
        }
    }
}
