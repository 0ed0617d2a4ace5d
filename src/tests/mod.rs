//! Tests of the crate as a whole: every kernel against its naive twin, for the four types, on
//! every path of this processor, wherever the entries lie.

mod chain;
mod errors;
mod fuzz;
mod glance;
mod glances;
mod kernels;
mod layouts;
mod logits;
mod messages;
mod rate;
mod rows;
mod scalar;

use half::{bf16, f16};

use crate::lanes::Path;
use crate::naive;
use crate::scalar::Scalar;

/// What the tests need of a type beyond [`Scalar`]: values in, and the rounding of another hand.
pub(crate) trait Sample: Scalar {
    fn of(value: f64) -> Self;
    fn of_bits(bits: u64) -> Self;
    fn rounded(wide: Self::Wide) -> Self;
}

impl Sample for f32 {
    #[expect(clippy::cast_possible_truncation, reason = "rounding is what is asked for")]
    fn of(value: f64) -> Self {
        value as f32
    }

    #[expect(clippy::cast_possible_truncation, reason = "any 32 bits will do")]
    fn of_bits(bits: u64) -> Self {
        f32::from_bits(bits as u32)
    }

    fn rounded(wide: f32) -> Self {
        wide
    }
}

impl Sample for f64 {
    fn of(value: f64) -> Self {
        value
    }

    fn of_bits(bits: u64) -> Self {
        f64::from_bits(bits)
    }

    fn rounded(wide: f64) -> Self {
        wide
    }
}

impl Sample for f16 {
    fn of(value: f64) -> Self {
        f16::from_f64(value)
    }

    #[expect(clippy::cast_possible_truncation, reason = "any 16 bits will do")]
    fn of_bits(bits: u64) -> Self {
        f16::from_bits(bits as u16)
    }

    fn rounded(wide: f32) -> Self {
        f16::from_f32(wide)
    }
}

impl Sample for bf16 {
    fn of(value: f64) -> Self {
        bf16::from_f64(value)
    }

    #[expect(clippy::cast_possible_truncation, reason = "any 16 bits will do")]
    fn of_bits(bits: u64) -> Self {
        bf16::from_bits(bits as u16)
    }

    fn rounded(wide: f32) -> Self {
        bf16::from_f32(wide)
    }
}

/// One test for each of the four types out of a generic function of the same name.
macro_rules! for_each_type {
    ($($name:ident),+ $(,)?) => { $(mod $name {
        #[test]
        fn float16() {
            super::$name::<half::f16>();
        }

        #[test]
        fn bfloat16() {
            super::$name::<half::bf16>();
        }

        #[test]
        fn float32() {
            super::$name::<f32>();
        }

        #[test]
        fn float64() {
            super::$name::<f64>();
        }
    })+ };
}
pub(crate) use for_each_type;

/// The paths that this processor can run.
pub(crate) fn paths() -> Vec<Path> {
    let mut paths = vec![Path::Portable];
    paths.extend((Path::best() != Path::Portable).then(Path::best));
    paths
}

/// Numbers that look random and are the same in every run: a linear congruential generator (Knuth,
/// The Art of Computer Programming, volume 2, section 3.3.4).
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 32
    }

    /// In `0.0..1.0`.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are kept by the shift")]
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * 2.0_f64.powi(-53)
    }

    /// A row as a softmax gives it: a few large entries, most small, some zero.
    pub(crate) fn row<T: Sample>(&mut self, len: usize) -> Vec<T> {
        let weights: Vec<f64> = (0..len)
            .map(|_| if self.bits() >> 61 == 0 { 0.0 } else { (self.uniform() * 14.0).exp() })
            .collect();
        let total: f64 = weights.iter().sum::<f64>().max(1.0);
        weights.into_iter().map(|weight| T::of(weight / total)).collect()
    }
}

/// Lengths around every boundary of lanes, sub-blocks and tree levels.
pub(crate) const LENGTHS: [usize; 24] = [
    1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 255, 256, 257, 271, 272, 511, 512, 513, 767, 769, 1025,
    4096, 4097, 20_011,
];

/// The residual of a row by the naive twin, rounded by the `half` crate.
pub(crate) fn naive_residual<T: Sample>(draft: &[T], target: &[T]) -> Vec<T> {
    naive::quotients(draft, target).into_iter().map(T::rounded).collect()
}

pub(crate) fn bits<T: Scalar>(row: &[T]) -> Vec<T::Bits> {
    row.iter().map(|entry| entry.bits()).collect()
}
