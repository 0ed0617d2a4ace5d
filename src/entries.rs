//! How sixteen entries of each storage type get into the registers of `registers.rs` and out again.

#![allow(
    clippy::wildcard_imports,
    reason = "three dozen intrinsics, whose prefix says where they come from"
)]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use half::{bf16, f16};

use crate::divisor::Divisor;
use crate::lanes::LANES;
use crate::registers::{Group, Vector};
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

/// Sixteen float32, those with even places in the first register and the odd ones in the second: how
/// 16-bit types are widened with one operation for eight.
#[derive(Clone, Copy)]
#[doc(hidden)]
pub struct Alternating([__m256; 2]);

impl Alternating {
    /// The entries one after the other.
    #[inline(always)]
    unsafe fn in_order(self) -> [__m256; 2] {
        let Self([even, odd]) = self;
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe {
            // Entries 0 to 3 and 8 to 11, and the others.
            let (first, second) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
            [
                _mm256_permute2f128_ps(first, second, 0x20),
                _mm256_permute2f128_ps(first, second, 0x31),
            ]
        }
    }
}

impl Group for Alternating {
    type Wide = f32;
    type Divisor = Divisor;

    #[inline(always)]
    unsafe fn write(self, slots: &mut [MaybeUninit<f32>; LANES]) {
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe { self.in_order().write(slots) }
    }

    #[inline(always)]
    unsafe fn excess(draft: Self, target: Self) -> Self {
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe { Self(Group::excess(draft.0, target.0)) }
    }

    #[inline(always)]
    unsafe fn divided_by<const N: usize>(groups: [Self; N], divisor: &Divisor) -> [Self; N] {
        let mut registers = [groups[0].0; N];
        for (registers, group) in registers.iter_mut().zip(groups) {
            *registers = group.0;
        }
        // SAFETY: the processor has AVX2 and FMA: see `Vector`.
        let registers = unsafe { Group::divided_by(registers, divisor) };
        let mut groups = groups;
        for (group, registers) in groups.iter_mut().zip(registers) {
            group.0 = registers;
        }
        groups
    }

    #[inline(always)]
    unsafe fn widened(self) -> [__m256d; 4] {
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe { self.in_order().widened() }
    }

    #[inline(always)]
    unsafe fn limited(self, limit: f32) -> [(__m256, Option<__m256>); 2] {
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe { self.in_order().limited(limit) }
    }

    /// Lanes 0 4 8 12, then 2 6 10 14, then those after each of these.
    #[inline(always)]
    unsafe fn add_to(self, lanes: &mut [__m256d; 4]) {
        // SAFETY: the processor has AVX2 and FMA: see `Vector`.
        unsafe { self.0.add_to(lanes) }
    }

    #[inline(always)]
    unsafe fn folded_to_four(lanes: [__m256d; 4]) -> __m256d {
        // SAFETY: the processor has AVX2: see `Vector`.
        unsafe {
            // Register `k` ends up with the sums that go to 0, 2, 1 and 3, twice each.
            let mut four = [_mm256_setzero_pd(); 2];
            let (pairs, _) = lanes.as_chunks::<2>();
            for (sums, [one, other]) in four.iter_mut().zip(pairs) {
                // 0 + 8, 4 + 12, 2 + 10 and 6 + 14 of the even lanes.
                let low = _mm256_permute2f128_pd(*one, *other, 0x20);
                let eight = _mm256_add_pd(low, _mm256_permute2f128_pd(*one, *other, 0x31));
                *sums = _mm256_hadd_pd(eight, eight);
            }
            let [even, odd] = four;
            _mm256_unpacklo_pd(even, odd)
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
