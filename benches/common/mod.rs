//! What the benches share: the rows that they work on, and the copy that bounds all of them.

use draftverify::{Scalar, Wide};

/// Draft rows, target rows and the likeliest token of each draft row.
pub(crate) struct Pair<T> {
    pub(crate) draft: Vec<T>,
    pub(crate) target: Vec<T>,
    pub(crate) token_ids: Vec<i64>,
}

/// Rows as a target and a good draft give them: the softmax of logits from N(0, 3), the draft's
/// logits off by N(0, 0.7). The same rows in every run.
pub(crate) fn pair<T: Scalar>(rows: usize, vocabulary: usize) -> Pair<T> {
    let mut normals = Normals { state: 0 };
    let mut pair = Pair { draft: Vec::new(), target: Vec::new(), token_ids: Vec::new() };
    for _ in 0..rows {
        let (mut draft, mut target): (Vec<f64>, Vec<f64>) = (0..vocabulary)
            .map(|_| {
                let (one, other) = normals.next_two();
                ((3.0 * one + 0.7 * other).exp(), (3.0 * one).exp())
            })
            .unzip();
        for row in [&mut draft, &mut target] {
            let sum: f64 = row.iter().sum();
            for power in row.iter_mut() {
                *power /= sum;
            }
        }
        let token = (0..vocabulary).max_by(|a, b| draft[*a].total_cmp(&draft[*b]));
        pair.token_ids.push(token.and_then(|token| i64::try_from(token).ok()).unwrap_or(0));
        let stored = |prob| T::narrow(T::Wide::from_f64(prob));
        pair.draft.extend(draft.into_iter().map(stored));
        pair.target.extend(target.into_iter().map(stored));
    }
    pair
}

/// Normal numbers out of a counter: splitmix64 (Steele, Lea and Flood 2014), then Box and Muller.
struct Normals {
    state: u64,
}

impl Normals {
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        // 52 bits behind the binary point of a number from 1 to 2.
        f64::from_bits(((bits ^ (bits >> 31)) >> 12) | 1.0_f64.to_bits()) - 1.0
    }

    fn next_two(&mut self) -> (f64, f64) {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let (sine, cosine) = (std::f64::consts::TAU * self.uniform()).sin_cos();
        (radius * cosine, radius * sine)
    }
}

/// A copy that moves as many bytes as a step has to: a step reads two rows and writes one, so the
/// copy reads one and a half and writes as many.
pub(crate) struct Copy {
    memory: Vec<u8>,
    half: usize,
    /// Where the second half begins.
    to: usize,
}

impl Copy {
    /// The bytes that a step over `entries` entries has to move.
    pub(crate) fn bytes_moved<T>(entries: usize) -> usize {
        3 * entries * size_of::<T>()
    }

    pub(crate) fn like_a_step_over<T>(entries: usize) -> Self {
        let half = Self::bytes_moved::<T>(entries) / 2;
        // Copies to a place in its page just behind that of the source, as two allocations tend to
        // have, take `rep movsb` thirty times as long on some processors: keep half a page away.
        let to = half.next_multiple_of(4096) + 2048;
        // Not zeros: the system hands those out as one page until they are written to.
        Self { memory: vec![1; to + half], half, to }
    }

    /// Copy, and answer true: it cannot fail.
    pub(crate) fn run(&mut self) -> bool {
        let (from, to) = std::hint::black_box(&mut self.memory).split_at_mut(self.to);
        to.copy_from_slice(&from[..self.half]);
        true
    }
}
