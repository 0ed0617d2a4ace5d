//! The naive twin of every kernel, for the tests: the contract in the plainest words.

use crate::scalar::{Scalar, Wide};

/// max(target - draft, 0) of every entry.
pub(crate) fn excess<T: Scalar>(draft: &[T], target: &[T]) -> Vec<T::Wide> {
    let pairs = draft.iter().zip(target);
    pairs
        .map(|(d, t)| if t.widen() > d.widen() { t.widen() - d.widen() } else { T::Wide::ZERO })
        .collect()
}

/// One sub-block: lane `j` adds the entries `j, j + 16, ...`; lanes are folded 8-4-2-1.
pub(crate) fn sub_block(entries: &[f64]) -> f64 {
    let mut lanes: Vec<f64> =
        (0..16).map(|lane| entries.iter().skip(lane).step_by(16).fold(0.0, |a, b| a + b)).collect();
    while lanes.len() > 1 {
        let half = lanes.len() / 2;
        lanes = (0..half).map(|lane| lanes[lane] + lanes[lane + half]).collect();
    }
    lanes[0]
}

/// The pairwise tree of sub-block sums.
pub(crate) fn tree(leaves: &[f64]) -> f64 {
    match leaves.len() {
        0 => 0.0,
        1 => leaves[0],
        n => {
            let split = n.next_power_of_two() / 2;
            tree(&leaves[..split]) + tree(&leaves[split..])
        }
    }
}

/// The mass of a row in the fixed order.
pub(crate) fn mass<T: Scalar>(draft: &[T], target: &[T]) -> f64 {
    let wide: Vec<f64> = excess(draft, target).into_iter().map(Wide::to_f64).collect();
    tree(&wide.chunks(256).map(sub_block).collect::<Vec<_>>())
}

/// The acceptance rate of a row in the fixed order.
pub(crate) fn rate<T: Scalar>(draft: &[T], target: &[T]) -> f64 {
    let pairs = draft.iter().zip(target);
    let smaller: Vec<f64> =
        pairs.map(|(d, t)| d.widen().to_f64().min(t.widen().to_f64())).collect();
    tree(&smaller.chunks(256).map(sub_block).collect::<Vec<_>>())
}

/// The quotients of a row before they are rounded to the storage type.
pub(crate) fn quotients<T: Scalar>(draft: &[T], target: &[T]) -> Vec<T::Wide> {
    let mass = mass(draft, target);
    let divisor = if mass == 0.0 { T::Wide::ONE } else { T::Wide::from_f64(mass) };
    excess(draft, target).into_iter().map(|entry| entry / divisor).collect()
}
