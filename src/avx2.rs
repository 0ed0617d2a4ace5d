//! The kernels of a sub-block for processors with AVX2, FMA and F16C.
//!
//! What `lanes::Portable` says in plain loops, with registers: sixteen entries at a time are
//! widened, subtracted, kept if wanted, and added to four registers of four lanes. The same
//! operations on the same lanes in the same order, hence the same bits.

use std::arch::x86_64::{
    __m256d, _mm_add_pd, _mm_add_sd, _mm_cvtsd_f64, _mm_unpackhi_pd, _mm256_add_pd,
    _mm256_castpd_si256, _mm256_castpd256_pd128, _mm256_castsi256_pd, _mm256_extractf128_pd,
    _mm256_max_pd, _mm256_min_pd, _mm256_mul_pd, _mm256_or_si256, _mm256_set1_pd,
    _mm256_setzero_pd, _mm256_setzero_si256, _mm256_slli_epi64, _mm256_sub_pd,
};
use std::mem::MaybeUninit;

use crate::exp::{HIGHEST, LOWEST, ROUND};
use crate::lanes::{Instructions, LANES, Portable};
use crate::registers::{Group, GroupOf, Vector};
use crate::scalar::{Scalar, Wide};

/// The lanes folded 8-4-2-1.
#[inline(always)]
unsafe fn fold(lanes: [__m256d; 4]) -> f64 {
    // SAFETY: the processor has AVX2: see `Entries`.
    unsafe {
        let eight = [_mm256_add_pd(lanes[0], lanes[2]), _mm256_add_pd(lanes[1], lanes[3])];
        let four = _mm256_add_pd(eight[0], eight[1]);
        let two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
        _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
    }
}

/// The last entries of a row as a group of sixteen, filled up with zeros.
#[inline(always)]
fn padded<T: Copy>(rest: &[T], zero: T) -> [T; LANES] {
    let mut group = [zero; LANES];
    group[..rest.len()].copy_from_slice(rest);
    group
}

/// Entries as slots to be written again.
#[inline(always)]
fn slots_of<W: Copy>(entries: &mut [W; LANES]) -> &mut [MaybeUninit<W>; LANES] {
    // SAFETY: `MaybeUninit<W>` has the layout of `W`, and what is written through the result, in
    // this file, is initialised.
    unsafe { &mut *std::ptr::from_mut(entries).cast() }
}

/// Made only where the processor has the features: see `Path`.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

impl Instructions for Avx2 {
    const FUSED: bool = true;
    type Divisor<W: Wide> = <<W as Vector>::Group as Group>::Divisor;

    #[inline(always)]
    fn divisor<W: Wide>(mass: W, entries: usize) -> Self::Divisor<W> {
        // SAFETY: the processor has AVX2, FMA and F16C: `Path::run` has seen to it.
        unsafe { W::Group::divisor(mass, entries) }
    }

    #[inline(always)]
    fn excess_sum<T: Scalar>(
        draft: &[T],
        target: &[T],
        mut kept: Option<&mut [MaybeUninit<T::Wide>]>,
    ) -> (f64, bool) {
        let (drafts, draft_rest) = draft.as_chunks::<LANES>();
        let (targets, target_rest) = target.as_chunks::<LANES>();
        // SAFETY: the processor has AVX2, FMA and F16C: `Path::run` has seen to it.
        unsafe {
            let mut lanes = [_mm256_setzero_pd(); 4];
            let mut seen = _mm256_setzero_si256();
            for (index, (draft, target)) in drafts.iter().zip(targets).enumerate() {
                let ((draft, draft_bits), (target, target_bits)) =
                    (T::load(draft), T::load(target));
                seen = _mm256_or_si256(seen, _mm256_or_si256(draft_bits, target_bits));
                let excess = GroupOf::<T>::excess(draft, target);
                if let Some(kept) = &mut kept {
                    excess.write(&mut kept.as_chunks_mut().0[index]);
                }
                excess.add_to(&mut lanes);
            }
            if !draft_rest.is_empty() {
                let zero = T::narrow(T::Wide::ZERO);
                let (draft, draft_bits) = T::load(&padded(draft_rest, zero));
                let (target, target_bits) = T::load(&padded(target_rest, zero));
                seen = _mm256_or_si256(seen, _mm256_or_si256(draft_bits, target_bits));
                let excess = GroupOf::<T>::excess(draft, target);
                if let Some(kept) = &mut kept {
                    let mut group = [MaybeUninit::uninit(); LANES];
                    excess.write(&mut group);
                    let slots = kept.as_chunks_mut::<LANES>().1;
                    slots.copy_from_slice(&group[..slots.len()]);
                }
                excess.add_to(&mut lanes);
            }
            (fold(lanes), T::suspect(seen))
        }
    }

    #[inline(always)]
    fn divide<W: Wide>(differences: &mut [W], divisor: &Self::Divisor<W>) {
        let (groups, rest) = differences.as_chunks_mut::<LANES>();
        // SAFETY: the processor has AVX2, FMA and F16C: `Path::run` has seen to it.
        unsafe {
            for group in groups {
                W::Group::read(group).divided_by(divisor).write(slots_of(group));
            }
            if !rest.is_empty() {
                let mut group = padded(rest, W::ZERO);
                W::Group::read(&group).divided_by(divisor).write(slots_of(&mut group));
                rest.copy_from_slice(&group[..rest.len()]);
            }
        }
    }

    #[inline(always)]
    fn quotients<T: Scalar>(
        draft: &[T],
        target: &[T],
        divisor: &Self::Divisor<T::Wide>,
        out: &mut [MaybeUninit<T>],
    ) {
        let (drafts, draft_rest) = draft.as_chunks::<LANES>();
        let (targets, target_rest) = target.as_chunks::<LANES>();
        let (slots, slots_rest) = out.as_chunks_mut::<LANES>();
        // SAFETY: the processor has AVX2, FMA and F16C: `Path::run` has seen to it.
        unsafe {
            for ((draft, target), slots) in drafts.iter().zip(targets).zip(slots) {
                let excess = GroupOf::<T>::excess(T::load(draft).0, T::load(target).0);
                T::store(excess.divided_by(divisor), slots);
            }
            if !draft_rest.is_empty() {
                let zero = T::narrow(T::Wide::ZERO);
                let draft = T::load(&padded(draft_rest, zero)).0;
                let target = T::load(&padded(target_rest, zero)).0;
                let mut group = [MaybeUninit::uninit(); LANES];
                T::store(GroupOf::<T>::excess(draft, target).divided_by(divisor), &mut group);
                slots_rest.copy_from_slice(&group[..slots_rest.len()]);
            }
        }
    }

    /// A maximum or minimum of which one is NaN is the second operand.
    #[inline(always)]
    fn split_exponents<T: Scalar>(
        logits: &[T],
        reference: f64,
        scale: f64,
        fractions: &mut [MaybeUninit<f64>],
        powers: &mut [MaybeUninit<f64>],
    ) {
        let (groups, rest) = logits.as_chunks::<LANES>();
        let (fractions, fractions_rest) = fractions.as_chunks_mut::<LANES>();
        let (powers, powers_rest) = powers.as_chunks_mut::<LANES>();
        // SAFETY: the processor has AVX2, FMA and F16C: `Path::run` has seen to it.
        unsafe {
            let (reference, scale) = (_mm256_set1_pd(reference), _mm256_set1_pd(scale));
            let (lowest, highest) = (_mm256_set1_pd(LOWEST), _mm256_set1_pd(HIGHEST));
            let round = _mm256_set1_pd(ROUND);
            for ((group, fractions), powers) in groups.iter().zip(fractions).zip(powers) {
                let mut registers = T::load(group).0.widened();
                let mut found = registers;
                // No closures, which would not be inlined.
                for (register, power) in registers.iter_mut().zip(&mut found) {
                    let t = _mm256_mul_pd(_mm256_sub_pd(*register, reference), scale);
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
}
