//! The naive twin of the verification of logits, for the tests: laws as arrays of probabilities, full
//! sorts, the library's exponential, and the rules as the papers have them.

use crate::chain::Method;
use crate::filter::Filters;

/// softmax(logits / temperature) restricted by the filters, which are applied to arrays.
pub(crate) fn law(logits: &[f64], temperature: f64, filters: Filters) -> Vec<f64> {
    let mut ranked: Vec<usize> = (0..logits.len()).collect();
    ranked.sort_by(|one, other| {
        logits[*other].partial_cmp(&logits[*one]).expect("no NaN").then(one.cmp(other))
    });
    let largest = logits[ranked[0]];
    if temperature == 0.0 {
        return (0..logits.len()).map(|id| if id == ranked[0] { 1.0 } else { 0.0 }).collect();
    }
    let mut law: Vec<f64> =
        logits.iter().map(|logit| ((logit - largest) / temperature).exp()).collect();
    if (1..=logits.len()).contains(&filters.top_k) {
        let last = logits[ranked[filters.top_k - 1]];
        keep(&mut law, |id, _| logits[id] >= last);
    }
    if filters.top_p < 1.0 {
        let (total, mut running) = (law.iter().sum::<f64>(), 0.0);
        let mut kept = vec![false; law.len()];
        for id in ranked {
            kept[id] = running < filters.top_p * total;
            running += law[id];
        }
        keep(&mut law, |id, _| kept[id]);
    }
    let largest = law.iter().copied().fold(0.0, f64::max);
    keep(&mut law, |_, weight| weight >= filters.min_p * largest);
    let total: f64 = law.iter().sum();
    law.into_iter().map(|weight| weight / total).collect()
}

fn keep(law: &mut [f64], kept: impl Fn(usize, f64) -> bool) {
    for (id, weight) in law.iter_mut().enumerate() {
        *weight = if kept(id, *weight) { *weight } else { 0.0 };
    }
}

/// How many tokens are kept and the final one, from the laws at the positions of a chain.
pub(crate) fn verify(
    method: Method,
    draft: &[Vec<f64>],
    target: &[Vec<f64>],
    tokens: &[usize],
    uniforms: &[f64],
) -> (usize, usize) {
    let last = uniforms[tokens.len()];
    let excess = |position: usize, scale: f64| -> Vec<f64> {
        let pairs = target[position].iter().zip(&draft[position]);
        pairs.map(|(target, draft)| (scale * target - draft).max(0.0)).collect()
    };
    let (mut kept, mut scale) = (0, 1.0);
    match method {
        Method::Standard => {
            while kept < tokens.len()
                && uniforms[kept] * draft[kept][tokens[kept]] < target[kept][tokens[kept]]
            {
                kept += 1;
            }
        }
        Method::Block => {
            let mut joint = 1.0_f64;
            for (position, token) in tokens.iter().enumerate() {
                let ratio = target[position][*token] / draft[position][*token];
                joint = (joint * ratio).min(1.0);
                let passes = if position + 1 == tokens.len() {
                    joint
                } else {
                    let mass: f64 = excess(position + 1, joint).iter().sum();
                    if joint >= 1.0 { 1.0 } else { mass / (mass + 1.0 - joint) }
                };
                if uniforms[position] < passes {
                    (kept, scale) = (position + 1, joint);
                }
            }
        }
        Method::Greedy => unreachable!("greedy is either at temperature 0"),
    }
    let weights = if kept < tokens.len() { excess(kept, scale) } else { target[kept].clone() };
    (kept, draw(&weights, last))
}

fn draw(weights: &[f64], uniform: f64) -> usize {
    let threshold = uniform * weights.iter().sum::<f64>();
    let mut running = 0.0;
    for (id, weight) in weights.iter().enumerate() {
        running += weight;
        if running > threshold {
            return id;
        }
    }
    weights.iter().rposition(|weight| *weight > 0.0).expect("some weight")
}
