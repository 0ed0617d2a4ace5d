//! How sixteen entries of each storage type get into the registers of `registers.rs` and out again.

#![allow(
    clippy::wildcard_imports,
    reason = "three dozen intrinsics, whose prefix says where they come from"
)]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use half::{bf16, f16};

use crate::lanes::LANES;
use crate::registers::{Alternating, Group, Vector};
use crate::scalar::{Scalar, Storage};

/// Sixteen entries of a storage type: how they get into registers and out again.
///
/// # Safety
/// Of all functions: the processor has AVX2, FMA and F16C. They are inlined into functions for
/// which that was asked. Memory is reached through references alone.
#[doc(hidden)]
pub trait Entries: Storage {
    /// How they lie in registers.
    type Group: Group<Wide = Self::Wide, Divisor = <Self::Wide as Vector>::Divisor>;

    /// The entries widened, and the union of their bits.
    unsafe fn load(entries: &[Self; LANES]) -> (Self::Group, __m256i);
    /// Whether one of the bits of `Scalar::SUSPECT` is among the bits seen.
    unsafe fn suspect(seen: __m256i) -> bool;
    /// Round entries in `0..=1` to the storage type.
    unsafe fn store(group: Self::Group, slots: &mut [MaybeUninit<Self>; LANES]);
}

impl Entries for f32 {
    type Group = [__m256; 2];

    #[inline(always)]
    unsafe fn load(entries: &[f32; LANES]) -> (Self::Group, __m256i) {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe {
            let [low, high] = Self::read(entries);
            ([low, high], _mm256_castps_si256(_mm256_or_ps(low, high)))
        }
    }

    #[inline(always)]
    unsafe fn suspect(seen: __m256i) -> bool {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe { _mm256_testz_si256(seen, _mm256_set1_epi32(f32::SUSPECT.cast_signed())) == 0 }
    }

    #[inline(always)]
    unsafe fn store(group: Self::Group, slots: &mut [MaybeUninit<f32>; LANES]) {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe { group.write(slots) }
    }
}

impl Entries for f64 {
    type Group = [__m256d; 4];

    #[inline(always)]
    unsafe fn load(entries: &[f64; LANES]) -> (Self::Group, __m256i) {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe {
            let group = Self::read(entries);
            let [a, b, c, d] = group;
            (group, _mm256_castpd_si256(_mm256_or_pd(_mm256_or_pd(a, b), _mm256_or_pd(c, d))))
        }
    }

    #[inline(always)]
    unsafe fn suspect(seen: __m256i) -> bool {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe { _mm256_testz_si256(seen, _mm256_set1_epi64x(f64::SUSPECT.cast_signed())) == 0 }
    }

    #[inline(always)]
    unsafe fn store(group: Self::Group, slots: &mut [MaybeUninit<f64>; LANES]) {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe { group.write(slots) }
    }
}

/// Sixteen entries of 16 bits in one register.
#[inline(always)]
unsafe fn read_16_bits<T>(entries: &[T; LANES]) -> __m256i {
    const { assert!(size_of::<T>() == 2, "float16 and bfloat16") };
    // SAFETY: all 32 bytes of the sixteen entries; an unaligned load.
    unsafe { _mm256_loadu_si256(entries.as_ptr().cast()) }
}

impl Entries for f16 {
    type Group = [__m256; 2];

    #[inline(always)]
    unsafe fn load(entries: &[f16; LANES]) -> (Self::Group, __m256i) {
        // SAFETY: the processor has AVX2 and F16C: see `Entries`.
        unsafe {
            let bits = read_16_bits(entries);
            let low = _mm256_cvtph_ps(_mm256_castsi256_si128(bits));
            let high = _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1));
            ([low, high], bits)
        }
    }

    #[inline(always)]
    unsafe fn suspect(seen: __m256i) -> bool {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe { _mm256_testz_si256(seen, _mm256_set1_epi16(f16::SUSPECT.cast_signed())) == 0 }
    }

    #[inline(always)]
    unsafe fn store(group: Self::Group, slots: &mut [MaybeUninit<f16>; LANES]) {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
        // SAFETY: the processor has AVX2 and F16C: see `Entries`. The store fills all 32 bytes of
        // the sixteen slots and is unaligned.
        unsafe {
            let (low, high) =
                (_mm256_cvtps_ph(group[0], NEAREST), _mm256_cvtps_ph(group[1], NEAREST));
            _mm256_storeu_si256(slots.as_mut_ptr().cast(), _mm256_set_m128i(high, low));
        }
    }
}

/// Add what rounds the upper 16 bits of each, as `Scalar::narrow` of bfloat16 does.
#[inline(always)]
unsafe fn with_half_a_unit(wide: __m256) -> __m256i {
    // SAFETY: the processor has AVX2: see `Entries`.
    unsafe {
        let bits = _mm256_castps_si256(wide);
        let odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        let half_unit = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
        _mm256_add_epi32(bits, half_unit)
    }
}

impl Entries for bf16 {
    type Group = Alternating;

    #[inline(always)]
    unsafe fn load(entries: &[bf16; LANES]) -> (Self::Group, __m256i) {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe {
            let bits = read_16_bits(entries);
            let even = _mm256_slli_epi32(bits, 16);
            let odd = _mm256_and_si256(bits, _mm256_set1_epi32(!0xFFFF));
            (Alternating([_mm256_castsi256_ps(even), _mm256_castsi256_ps(odd)]), bits)
        }
    }

    #[inline(always)]
    unsafe fn suspect(seen: __m256i) -> bool {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe { _mm256_testz_si256(seen, _mm256_set1_epi16(bf16::SUSPECT.cast_signed())) == 0 }
    }

    #[inline(always)]
    unsafe fn store(group: Self::Group, slots: &mut [MaybeUninit<bf16>; LANES]) {
        let Alternating([even, odd]) = group;
        // SAFETY: the processor has AVX2: see `Entries`. The store fills all 32 bytes of the
        // sixteen slots and is unaligned.
        unsafe {
            let even = _mm256_srli_epi32(with_half_a_unit(even), 16);
            let both = _mm256_blend_epi16(even, with_half_a_unit(odd), 0b1010_1010);
            _mm256_storeu_si256(slots.as_mut_ptr().cast(), both);
        }
    }
}
