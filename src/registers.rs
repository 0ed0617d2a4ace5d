//! Sixteen entries in the registers of a processor with AVX2, FMA and F16C: the few operations that the
//! kernels of `avx2.rs` are made of.

#![allow(
    clippy::wildcard_imports,
    reason = "three dozen intrinsics, whose prefix says where they come from"
)]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use half::{bf16, f16};

use crate::divisor::Divisor;
use crate::lanes::LANES;
use crate::scalar::{Scalar, Storage};

/// Finding out whether a row can do without divisions takes as long as some hundred of them.
const FEW: usize = 1024;

/// Sixteen entries of a storage type: how they get into registers and out again.
///
/// # Safety
/// Of all functions of this trait and of [`Group`]: the processor has AVX2, FMA and F16C. They are
/// inlined into functions for which that was asked. Memory is reached through references alone.
#[doc(hidden)]
pub trait Entries: Storage {
    /// The entries widened, and the union of their bits.
    unsafe fn load(entries: &[Self; LANES]) -> (GroupOf<Self>, __m256i);
    /// Whether one of the bits of `Scalar::SUSPECT` is among the bits seen.
    unsafe fn suspect(seen: __m256i) -> bool;
    /// Round entries in `0..=1` to the storage type.
    unsafe fn store(group: GroupOf<Self>, slots: &mut [MaybeUninit<Self>; LANES]);
}

/// An arithmetic type, sixteen of which make a group of registers.
#[doc(hidden)]
pub trait Vector: Sized {
    type Group: Group<Wide = Self>;
}

impl Vector for f32 {
    type Group = [__m256; 2];
}

impl Vector for f64 {
    type Group = [__m256d; 4];
}

/// Sixteen entries in registers, widened.
pub(crate) type GroupOf<T> = <<T as Storage>::Wide as Vector>::Group;

/// Sixteen entries of the arithmetic type in registers.
#[doc(hidden)]
pub trait Group: Copy {
    type Wide: Copy;
    type Divisor: Copy;

    unsafe fn read(entries: &[Self::Wide; LANES]) -> Self;
    unsafe fn write(self, slots: &mut [MaybeUninit<Self::Wide>; LANES]);
    /// max(target - draft, 0) as `lanes::excess` has it: the maximum answers its second operand
    /// where both are zeros or one is NaN.
    unsafe fn excess(draft: Self, target: Self) -> Self;
    /// What to divide so many entries by.
    unsafe fn divisor(mass: Self::Wide, entries: usize) -> Self::Divisor;
    /// The quotients, rounded as IEEE divisions are.
    unsafe fn divided_by(self, divisor: &Self::Divisor) -> Self;
    /// As float64; register `k` holds the entries from `4 k` on.
    unsafe fn widened(self) -> [__m256d; 4];

    /// Add entry `j` to lane `j`; register `k` holds the lanes from `4 k` on.
    #[inline(always)]
    unsafe fn add_to(self, lanes: &mut [__m256d; 4]) {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe {
            for (lane, entry) in lanes.iter_mut().zip(self.widened()) {
                *lane = _mm256_add_pd(*lane, entry);
            }
        }
    }
}

/// Eight float32 in each register.
impl Group for [__m256; 2] {
    type Wide = f32;
    type Divisor = Divisor;

    #[inline(always)]
    unsafe fn read(entries: &[f32; LANES]) -> Self {
        let first = entries.as_ptr();
        // SAFETY: two times eight of the sixteen entries; unaligned loads.
        unsafe { [_mm256_loadu_ps(first), _mm256_loadu_ps(first.add(8))] }
    }

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
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe {
            let zero = _mm256_setzero_ps();
            [
                _mm256_max_ps(_mm256_sub_ps(target[0], draft[0]), zero),
                _mm256_max_ps(_mm256_sub_ps(target[1], draft[1]), zero),
            ]
        }
    }

    #[inline(always)]
    unsafe fn divisor(mass: f32, entries: usize) -> Divisor {
        if entries < FEW { Divisor::plain(mass) } else { Divisor::new(mass) }
    }

    #[inline(always)]
    unsafe fn divided_by(self, divisor: &Divisor) -> Self {
        // SAFETY: the processor has AVX2 and FMA: see `Entries`.
        unsafe {
            // Zeros become the largest integers: as dividends they are as good as large ones.
            let one = _mm256_set1_epi32(1);
            let low = _mm256_sub_epi32(_mm256_castps_si256(self[0]), one);
            let high = _mm256_sub_epi32(_mm256_castps_si256(self[1]), one);
            let smallest = _mm256_min_epu32(low, high);
            let bound = _mm256_set1_epi32(divisor.smallest.to_bits().cast_signed() - 1);
            let enough = _mm256_cmpeq_epi32(_mm256_max_epu32(smallest, bound), smallest);
            if _mm256_movemask_epi8(enough) == -1 {
                let (high, low) = (_mm256_set1_ps(divisor.high), _mm256_set1_ps(divisor.low));
                [
                    _mm256_fmadd_ps(self[0], high, _mm256_mul_ps(self[0], low)),
                    _mm256_fmadd_ps(self[1], high, _mm256_mul_ps(self[1], low)),
                ]
            } else {
                let mass = _mm256_set1_ps(divisor.mass);
                [_mm256_div_ps(self[0], mass), _mm256_div_ps(self[1], mass)]
            }
        }
    }

    #[inline(always)]
    unsafe fn widened(self) -> [__m256d; 4] {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe {
            [
                _mm256_cvtps_pd(_mm256_castps256_ps128(self[0])),
                _mm256_cvtps_pd(_mm256_extractf128_ps(self[0], 1)),
                _mm256_cvtps_pd(_mm256_castps256_ps128(self[1])),
                _mm256_cvtps_pd(_mm256_extractf128_ps(self[1], 1)),
            ]
        }
    }
}

/// Four float64 in each register.
impl Group for [__m256d; 4] {
    type Wide = f64;
    type Divisor = f64;

    #[inline(always)]
    unsafe fn read(entries: &[f64; LANES]) -> Self {
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
        // SAFETY: the processor has AVX2: see `Entries`.
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
    unsafe fn divisor(mass: f64, _: usize) -> f64 {
        mass
    }

    #[inline(always)]
    unsafe fn divided_by(self, divisor: &f64) -> Self {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe {
            let divisor = _mm256_set1_pd(*divisor);
            [
                _mm256_div_pd(self[0], divisor),
                _mm256_div_pd(self[1], divisor),
                _mm256_div_pd(self[2], divisor),
                _mm256_div_pd(self[3], divisor),
            ]
        }
    }

    #[inline(always)]
    unsafe fn widened(self) -> [__m256d; 4] {
        self
    }
}

impl Entries for f32 {
    #[inline(always)]
    unsafe fn load(entries: &[f32; LANES]) -> (GroupOf<Self>, __m256i) {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe {
            let [low, high] = GroupOf::<Self>::read(entries);
            ([low, high], _mm256_castps_si256(_mm256_or_ps(low, high)))
        }
    }

    #[inline(always)]
    unsafe fn suspect(seen: __m256i) -> bool {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe { _mm256_testz_si256(seen, _mm256_set1_epi32(f32::SUSPECT.cast_signed())) == 0 }
    }

    #[inline(always)]
    unsafe fn store(group: GroupOf<Self>, slots: &mut [MaybeUninit<f32>; LANES]) {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe { group.write(slots) }
    }
}

impl Entries for f64 {
    #[inline(always)]
    unsafe fn load(entries: &[f64; LANES]) -> (GroupOf<Self>, __m256i) {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe {
            let group = GroupOf::<Self>::read(entries);
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
    unsafe fn store(group: GroupOf<Self>, slots: &mut [MaybeUninit<f64>; LANES]) {
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
    #[inline(always)]
    unsafe fn load(entries: &[f16; LANES]) -> (GroupOf<Self>, __m256i) {
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
    unsafe fn store(group: GroupOf<Self>, slots: &mut [MaybeUninit<f16>; LANES]) {
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

/// Round to the upper 16 bits, as `Scalar::narrow` of bfloat16 does.
#[inline(always)]
unsafe fn upper_half(wide: __m256) -> __m256i {
    // SAFETY: the processor has AVX2: see `Entries`.
    unsafe {
        let bits = _mm256_castps_si256(wide);
        let odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        let half_unit = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
        _mm256_srli_epi32(_mm256_add_epi32(bits, half_unit), 16)
    }
}

impl Entries for bf16 {
    #[inline(always)]
    unsafe fn load(entries: &[bf16; LANES]) -> (GroupOf<Self>, __m256i) {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe {
            let bits = read_16_bits(entries);
            let low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(bits));
            let high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(bits, 1));
            let (low, high) = (_mm256_slli_epi32(low, 16), _mm256_slli_epi32(high, 16));
            ([_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)], bits)
        }
    }

    #[inline(always)]
    unsafe fn suspect(seen: __m256i) -> bool {
        // SAFETY: the processor has AVX2: see `Entries`.
        unsafe { _mm256_testz_si256(seen, _mm256_set1_epi16(bf16::SUSPECT.cast_signed())) == 0 }
    }

    /// Packing works within halves of a register: the permutation puts the quarters in order.
    #[inline(always)]
    unsafe fn store(group: GroupOf<Self>, slots: &mut [MaybeUninit<bf16>; LANES]) {
        // SAFETY: the processor has AVX2: see `Entries`. The store fills all 32 bytes of the
        // sixteen slots and is unaligned.
        unsafe {
            let (low, high) = (upper_half(group[0]), upper_half(group[1]));
            let packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0b11_01_10_00);
            _mm256_storeu_si256(slots.as_mut_ptr().cast(), packed);
        }
    }
}
