//! Powers of two in registers: what `exp.rs` and `glance.rs` say of single numbers, for sixteen logits
//! at a time.
//!
//! # Safety
//! Of all functions: the processor has AVX2, FMA and F16C. They are inlined into functions for which
//! that was asked. Memory is reached through references alone.

#![allow(
    clippy::wildcard_imports,
    reason = "two dozen intrinsics, whose prefix says where they come from"
)]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::avx2::ask_ahead;
use crate::exp::{HIGHEST, LOWEST, ROUND};
use crate::glance::{COEFFICIENTS, DEGREE, ROUND_F32, Scale};
use crate::lanes::{Instructions, LANES, Portable};
use crate::registers::Group;
use crate::scalar::Scalar;

/// A maximum or minimum of which one is NaN is the second operand.
#[inline(always)]
pub(crate) unsafe fn split_exponents<T: Scalar>(
    logits: &[T],
    reference: f64,
    scale: f64,
    fractions: &mut [MaybeUninit<f64>],
    powers: &mut [MaybeUninit<f64>],
) {
    let (groups, rest) = logits.as_chunks::<LANES>();
    let (fractions, fractions_rest) = fractions.as_chunks_mut::<LANES>();
    let (powers, powers_rest) = powers.as_chunks_mut::<LANES>();
    // SAFETY: the processor has AVX2, FMA and F16C: see above.
    unsafe {
        let (first, factor) = (_mm256_set1_pd(reference), _mm256_set1_pd(scale));
        let (lowest, highest) = (_mm256_set1_pd(LOWEST), _mm256_set1_pd(HIGHEST));
        let round = _mm256_set1_pd(ROUND);
        for ((group, fractions), powers) in groups.iter().zip(fractions).zip(powers) {
            let mut registers = T::load(group).0.widened();
            let mut found = registers;
            // No closures, which would not be inlined.
            for (register, power) in registers.iter_mut().zip(&mut found) {
                let t = _mm256_mul_pd(_mm256_sub_pd(*register, first), factor);
                let t = _mm256_min_pd(highest, _mm256_max_pd(lowest, t));
                let shifted = _mm256_add_pd(t, round);
                *register = _mm256_sub_pd(t, _mm256_sub_pd(shifted, round));
                let bits = _mm256_slli_epi64(_mm256_castpd_si256(shifted), 52);
                *power = _mm256_castsi256_pd(bits);
            }
            registers.write(fractions);
            found.write(powers);
        }
    }
    Portable::split_exponents(rest, reference, scale, fractions_rest, powers_rest);
}

/// Multiplying and adding with one rounding spares the way by `f64` that `glance::weight` takes.
#[inline(always)]
pub(crate) unsafe fn glances<T: Scalar>(
    logits: &[T],
    scale: Scale,
    slots: &mut [MaybeUninit<f32>],
) {
    let (groups, rest) = logits.as_chunks::<LANES>();
    let (slots, slots_rest) = slots.as_chunks_mut::<LANES>();
    // SAFETY: the processor has AVX2, FMA and F16C: see above.
    unsafe {
        for (group, slots) in groups.iter().zip(slots) {
            ask_ahead(group);
            let [low, high] = T::load(group).0.limited(scale.limit);
            // One after the other: a loop would not be unrolled, and have its registers in memory.
            [eight(low, scale), eight(high, scale)].write(slots);
        }
    }
    Portable::glances(rest, scale, slots_rest);
}

/// The powers for eight logits within the limit, given as float32 and what is missing there.
#[inline(always)]
unsafe fn eight((logits, missing): (__m256, Option<__m256>), scale: Scale) -> __m256 {
    // SAFETY: the processor has AVX2, FMA and F16C: see above.
    unsafe {
        let (high, low) = (_mm256_set1_ps(scale.high), _mm256_set1_ps(scale.low));
        let round = _mm256_set1_ps(ROUND_F32);
        let shifted = _mm256_fmadd_ps(logits, high, round);
        let mut fraction = _mm256_fmadd_ps(logits, high, _mm256_sub_ps(round, shifted));
        fraction = _mm256_fmadd_ps(logits, low, fraction);
        if let Some(missing) = missing {
            fraction = _mm256_fmadd_ps(missing, high, fraction);
        }
        let mut power = _mm256_set1_ps(COEFFICIENTS[DEGREE]);
        for degree in (0..DEGREE).rev() {
            power = _mm256_fmadd_ps(power, fraction, _mm256_set1_ps(COEFFICIENTS[degree]));
        }
        let integer = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
        _mm256_mul_ps(power, _mm256_castsi256_ps(integer))
    }
}
