//! The fixed pairwise tree over the sums of sub-blocks.
//!
//! The tree of `n` leaves in index order is: the leaf itself for `n == 1`, else the tree of the
//! first `2^k` leaves plus the tree of the rest, with `2^k` the largest power of two below `n`.
//! It depends on `n` alone, so sums do not depend on who computes which part.

/// Enough for every count of sub-blocks that fits an address space.
const LEVELS: usize = 64;

/// A binary counter of partial sums: bit `k` of `count` says that `sums[k]` holds a finished tree
/// of `2^k` leaves. Pushing a leaf is adding one, and every carry is one addition of the tree.
pub(crate) struct Tree {
    sums: [f64; LEVELS],
    count: usize,
}

impl Tree {
    pub(crate) fn new() -> Self {
        Self { sums: [0.0; LEVELS], count: 0 }
    }

    /// Append the sum of the next sub-block.
    #[inline(always)]
    pub(crate) fn push(&mut self, leaf: f64) {
        let mut sum = leaf;
        let carries = self.count.trailing_ones() as usize;
        for left in &self.sums[..carries] {
            sum += left;
        }
        self.sums[carries] = sum;
        self.count += 1;
    }

    /// The sum of all leaves: what is unfinished is folded from the right.
    #[inline(always)]
    pub(crate) fn total(&self) -> f64 {
        let mut sum = 0.0;
        for (level, left) in self.sums.iter().enumerate() {
            if self.count >> level == 0 {
                break;
            }
            if self.count >> level & 1 == 1 {
                sum += left;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive;

    /// Leaves of very different size, so that another tree would round differently.
    #[test]
    fn counter_is_the_recursive_tree() {
        let mut state = 1_u64;
        for n in (0..200).chain([255, 256, 257, 1000, 1023, 1024, 1025]) {
            let leaves: Vec<f64> = (0..n)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    f64::from((state >> 33) as u32) * 2.0_f64.powi((state >> 60) as i32 * 3 - 20)
                })
                .collect();
            let mut tree = Tree::new();
            for leaf in &leaves {
                tree.push(*leaf);
            }
            assert_eq!(tree.total().to_bits(), naive::tree(&leaves).to_bits(), "{n} leaves");
        }
    }
}
