//! Sixteen entries in the registers of a processor with AVX2 and FMA: the few operations that the
//! kernels of `avx2.rs` are made of.

#![allow(
    clippy::wildcard_imports,
    reason = "three dozen intrinsics, whose prefix says where they come from"
)]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::divisor::Divisor;
use crate::lanes::LANES;

/// Finding out whether a row can do without divisions takes as long as some hundred of them.
const FEW: usize = 1024;

/// An arithmetic type, sixteen of which make a group of registers.
///
/// # Safety
/// Of all functions of this trait and of [`Group`]: the processor has AVX2 and FMA. They are
/// inlined into functions for which that was asked. Memory is reached through references alone.
#[doc(hidden)]
pub trait Vector: Copy {
    type Group: Group<Wide = Self, Divisor = Self::Divisor>;
    type Divisor: Copy;

    unsafe fn read(entries: &[Self; LANES]) -> Self::Group;
    /// What to divide so many entries by.
    unsafe fn divisor(mass: Self, entries: usize) -> Self::Divisor;
}

impl Vector for f32 {
    type Group = [__m256; 2];
    type Divisor = Divisor;

    #[inline(always)]
    unsafe fn read(entries: &[f32; LANES]) -> Self::Group {
        let first = entries.as_ptr();
        // SAFETY: two times eight of the sixteen entries; unaligned loads.
        unsafe { [_mm256_loadu_ps(first), _mm256_loadu_ps(first.add(8))] }
    }

    #[inline(always)]
    unsafe fn divisor(mass: f32, entries: usize) -> Divisor {
        if entries < FEW { Divisor::plain(mass) } else { Divisor::new(mass) }
    }
}

impl Vector for f64 {
    type Group = [__m256d; 4];
    type Divisor = f64;

    #[inline(always)]
    unsafe fn read(entries: &[f64; LANES]) -> Self::Group {
        let first = entries.as_ptr();
        // SAFETY: four times four of the sixteen entries; unaligned loads.
        unsafe {
            [
                _mm256_loadu_pd(first),
                _mm256_loadu_pd(first.add(4)),
                _mm256_loadu_pd(first.add(8)),
                _mm256_loadu_pd(first.add(12)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn divisor(mass: f64, _: usize) -> f64 {
        mass
    }
}

/// Sixteen entries in registers, widened.
#[doc(hidden)]
pub trait Group: Copy {
    type Wide: Copy;
    type Divisor: Copy;

    unsafe fn write(self, slots: &mut [MaybeUninit<Self::Wide>; LANES]);
    /// max(target - draft, 0) as `lanes::excess` has it: the maximum answers its second operand
    /// where both are zeros or one is NaN.
    unsafe fn excess(draft: Self, target: Self) -> Self;
    /// The quotients of some groups, rounded as IEEE divisions are.
    unsafe fn divided_by<const N: usize>(groups: [Self; N], divisor: &Self::Divisor) -> [Self; N];
    /// As float64; register `k` holds the entries from `4 k` on.
    unsafe fn widened(self) -> [__m256d; 4];
    /// As float32 in order, those beyond +-limit as that, NaN as limit; and what is missing in them,
    /// where an entry has more places than that.
    unsafe fn limited(self, limit: f32) -> [(__m256, Option<__m256>); 2];
    /// Add entry `j`, an excess, to lane `j`. Where the lanes are, the group knows.
    unsafe fn add_to(self, lanes: &mut [__m256d; 4]);
    /// The lanes folded 8-4: `lanes[j] + lanes[j + 8]` and `lanes[j + 4] + lanes[j + 12]`, added.
    unsafe fn folded_to_four(lanes: [__m256d; 4]) -> __m256d;
}

/// Eight float32 in each register.
impl Group for [__m256; 2] {
    type Wide = f32;
    type Divisor = Divisor;

    #[inline(always)]
    unsafe fn write(self, slots: &mut [MaybeUninit<f32>; LANES]) {
        let first = slots.as_mut_ptr().cast();
        // SAFETY: two times eight of the sixteen slots; unaligned stores.
        unsafe {
            _mm256_storeu_ps(first, self[0]);
            _mm256_storeu_ps(first.add(8), self[1]);
        }
    }

    #[inline(always)]
    unsafe fn excess(draft: Self, target: Self) -> Self {
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe {
            let zero = _mm256_setzero_ps();
            [
                _mm256_max_ps(_mm256_sub_ps(target[0], draft[0]), zero),
                _mm256_max_ps(_mm256_sub_ps(target[1], draft[1]), zero),
            ]
        }
    }

    #[inline(always)]
    unsafe fn divided_by<const N: usize>(mut groups: [Self; N], divisor: &Divisor) -> [Self; N] {
        // SAFETY: the processor has AVX2 and FMA: see `Vector`.
        unsafe {
            // Zeros become the largest integers: as dividends they are as good as large ones.
            let one = _mm256_set1_epi32(1);
            let mut smallest = _mm256_set1_epi32(-1);
            for register in groups.as_flattened() {
                let before = _mm256_sub_epi32(_mm256_castps_si256(*register), one);
                smallest = _mm256_min_epu32(smallest, before);
            }
            let bound = _mm256_set1_epi32(divisor.smallest.to_bits().cast_signed() - 1);
            let enough = _mm256_cmpeq_epi32(_mm256_max_epu32(smallest, bound), smallest);
            if _mm256_movemask_epi8(enough) == -1 {
                let (high, low) = (_mm256_set1_ps(divisor.high), _mm256_set1_ps(divisor.low));
                for register in groups.as_flattened_mut() {
                    *register = _mm256_fmadd_ps(*register, high, _mm256_mul_ps(*register, low));
                }
            } else {
                let mass = _mm256_set1_ps(divisor.mass);
                for register in groups.as_flattened_mut() {
                    *register = _mm256_div_ps(*register, mass);
                }
            }
            groups
        }
    }

    #[inline(always)]
    unsafe fn widened(self) -> [__m256d; 4] {
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe {
            [
                _mm256_cvtps_pd(_mm256_castps256_ps128(self[0])),
                _mm256_cvtps_pd(_mm256_extractf128_ps(self[0], 1)),
                _mm256_cvtps_pd(_mm256_castps256_ps128(self[1])),
                _mm256_cvtps_pd(_mm256_extractf128_ps(self[1], 1)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn limited(self, limit: f32) -> [(__m256, Option<__m256>); 2] {
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe {
            let (lowest, highest) = (_mm256_set1_ps(-limit), _mm256_set1_ps(limit));
            // The minimum answers its second operand where the first is NaN.
            let low = _mm256_max_ps(_mm256_min_ps(self[0], highest), lowest);
            let high = _mm256_max_ps(_mm256_min_ps(self[1], highest), lowest);
            [(low, None), (high, None)]
        }
    }

    /// An excess `x` has no sign, so that its bits, moved up by the 29 by which a float64 significand
    /// is longer, are those of the float64 `x * 2^-896`: the exponent is off by the difference of the
    /// two biases, and a subnormal `x` becomes a subnormal, both exactly. Multiplied by `2^896` and
    /// added with one rounding, that is `lane + x` rounded. (An infinite one, which no row of
    /// probabilities has, is taken for 2^128.)
    ///
    /// Of eight entries the even ones go to the first register of lanes and the odd ones to the
    /// second. Widening them by conversions keeps them in order, but takes a third longer: two
    /// units convert, and the same two add.
    #[inline(always)]
    unsafe fn add_to(self, lanes: &mut [__m256d; 4]) {
        // SAFETY: the processor has AVX2 and FMA: see `Vector`.
        unsafe {
            let moved = _mm256_set1_epi64x(0x7FFF_FFFF << 29);
            let scale = _mm256_set1_pd(f64::from_bits((1023 + 896) << 52));
            let (pairs, _) = lanes.as_chunks_mut::<2>();
            for ([even_lanes, odd_lanes], register) in pairs.iter_mut().zip(self) {
                let bits = _mm256_castps_si256(register);
                let even = _mm256_and_si256(_mm256_slli_epi64(bits, 29), moved);
                let odd = _mm256_and_si256(_mm256_srli_epi64(bits, 3), moved);
                *even_lanes = _mm256_fmadd_pd(_mm256_castsi256_pd(even), scale, *even_lanes);
                *odd_lanes = _mm256_fmadd_pd(_mm256_castsi256_pd(odd), scale, *odd_lanes);
            }
        }
    }

    #[inline(always)]
    unsafe fn folded_to_four(lanes: [__m256d; 4]) -> __m256d {
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe {
            let (even, odd) =
                (_mm256_add_pd(lanes[0], lanes[2]), _mm256_add_pd(lanes[1], lanes[3]));
            // Lanes 0 1 4 5 and 2 3 6 7.
            let (first, second) = (_mm256_unpacklo_pd(even, odd), _mm256_unpackhi_pd(even, odd));
            let low = _mm256_permute2f128_pd(first, second, 0x20);
            _mm256_add_pd(low, _mm256_permute2f128_pd(first, second, 0x31))
        }
    }
}

/// Eight float64 within +-limit, NaN as limit, in float32, and what is missing there.
#[inline(always)]
unsafe fn narrowed(entries: [__m256d; 2], limit: f32) -> (__m256, Option<__m256>) {
    // SAFETY: the processor has AVX2: see `Vector`.
    unsafe {
        let (highest, lowest) =
            (_mm256_set1_pd(f64::from(limit)), _mm256_set1_pd(f64::from(-limit)));
        // The minimum answers its second operand where the first is NaN.
        let one = _mm256_max_pd(_mm256_min_pd(entries[0], highest), lowest);
        let other = _mm256_max_pd(_mm256_min_pd(entries[1], highest), lowest);
        let (one_f32, other_f32) = (_mm256_cvtpd_ps(one), _mm256_cvtpd_ps(other));
        let one_missing = _mm256_cvtpd_ps(_mm256_sub_pd(one, _mm256_cvtps_pd(one_f32)));
        let other_missing = _mm256_cvtpd_ps(_mm256_sub_pd(other, _mm256_cvtps_pd(other_f32)));
        let missing = _mm256_set_m128(other_missing, one_missing);
        (_mm256_set_m128(other_f32, one_f32), Some(missing))
    }
}

/// Four float64 in each register.
impl Group for [__m256d; 4] {
    type Wide = f64;
    type Divisor = f64;

    #[inline(always)]
    unsafe fn write(self, slots: &mut [MaybeUninit<f64>; LANES]) {
        let first = slots.as_mut_ptr().cast();
        // SAFETY: four times four of the sixteen slots; unaligned stores.
        unsafe {
            _mm256_storeu_pd(first, self[0]);
            _mm256_storeu_pd(first.add(4), self[1]);
            _mm256_storeu_pd(first.add(8), self[2]);
            _mm256_storeu_pd(first.add(12), self[3]);
        }
    }

    #[inline(always)]
    unsafe fn excess(draft: Self, target: Self) -> Self {
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe {
            let zero = _mm256_setzero_pd();
            [
                _mm256_max_pd(_mm256_sub_pd(target[0], draft[0]), zero),
                _mm256_max_pd(_mm256_sub_pd(target[1], draft[1]), zero),
                _mm256_max_pd(_mm256_sub_pd(target[2], draft[2]), zero),
                _mm256_max_pd(_mm256_sub_pd(target[3], draft[3]), zero),
            ]
        }
    }

    #[inline(always)]
    unsafe fn divided_by<const N: usize>(mut groups: [Self; N], divisor: &f64) -> [Self; N] {
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe {
            let divisor = _mm256_set1_pd(*divisor);
            for register in groups.as_flattened_mut() {
                *register = _mm256_div_pd(*register, divisor);
            }
            groups
        }
    }

    #[inline(always)]
    unsafe fn widened(self) -> [__m256d; 4] {
        self
    }

    #[inline(always)]
    unsafe fn limited(self, limit: f32) -> [(__m256, Option<__m256>); 2] {
        let [a, b, c, d] = self;
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe { [narrowed([a, b], limit), narrowed([c, d], limit)] }
    }

    /// Register `k` holds the lanes from `4 k` on.
    #[inline(always)]
    unsafe fn add_to(self, lanes: &mut [__m256d; 4]) {
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe {
            for (lane, entry) in lanes.iter_mut().zip(self) {
                *lane = _mm256_add_pd(*lane, entry);
            }
        }
    }

    #[inline(always)]
    unsafe fn folded_to_four(lanes: [__m256d; 4]) -> __m256d {
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe {
            _mm256_add_pd(_mm256_add_pd(lanes[0], lanes[2]), _mm256_add_pd(lanes[1], lanes[3]))
        }
    }
}
