//! The kernels of a sub-block for processors with AVX2, FMA and F16C.
//!
//! What `lanes::Portable` says in plain loops, with registers: sixteen entries at a time are
//! widened, subtracted, kept if wanted, and added to four registers of four lanes. The same
//! operations on the same lanes in the same order, hence the same bits.

use std::arch::x86_64::{
    __m256d, __m256i, _MM_HINT_T0, _mm_add_pd, _mm_add_sd, _mm_cvtsd_f64, _mm_prefetch,
    _mm_unpackhi_pd, _mm256_castpd256_pd128, _mm256_extractf128_pd, _mm256_or_si256,
    _mm256_setzero_pd, _mm256_setzero_si256,
};
use std::mem::MaybeUninit;

use crate::avx2_powers;
use crate::glance::Scale;
use crate::lanes::{Instructions, LANES};
use crate::registers::{Group, Vector};
use crate::scalar::{Scalar, Wide};

/// Groups that are divided at a time: one test says whether all of them can be multiplied instead.
const AT_A_TIME: usize = 4;

const CACHE_LINE: usize = 64;
/// How far ahead memory is asked for, in bytes. Anything from 2 to 8 kB is as good.
const AHEAD: usize = 4096;

/// The lanes folded 8-4-2-1.
#[inline(always)]
unsafe fn fold<G: Group>(lanes: [__m256d; 4]) -> f64 {
    // SAFETY: the processor has AVX2: see `Entries`.
    unsafe {
        let four = G::folded_to_four(lanes);
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

/// The sums of a sub-block while they grow.
struct Running {
    lanes: [__m256d; 4],
    /// The union of all bits.
    seen: __m256i,
}

impl Running {
    /// Take in sixteen entries of both rows, and answer their excesses.
    ///
    /// # Safety
    /// As for `Entries`.
    #[inline(always)]
    unsafe fn add<T: Scalar>(&mut self, draft: &[T; LANES], target: &[T; LANES]) -> T::Group {
        // SAFETY: the processor has AVX2, FMA and F16C: the caller has seen to it.
        unsafe {
            let ((draft, draft_bits), (target, target_bits)) = (T::load(draft), T::load(target));
            self.seen = _mm256_or_si256(self.seen, _mm256_or_si256(draft_bits, target_bits));
            let excess = T::Group::excess(draft, target);
            excess.add_to(&mut self.lanes);
            excess
        }
    }
}

/// Divide some groups in place.
///
/// # Safety
/// As for `Entries`.
#[inline(always)]
unsafe fn divide_groups<W: Wide, const N: usize>(
    entries: &mut [[W; LANES]; N],
    divisor: &W::Divisor,
) {
    // SAFETY: the processor has AVX2, FMA and F16C: the caller has seen to it.
    unsafe {
        let mut groups = [W::read(&entries[0]); N];
        for (group, entries) in groups.iter_mut().zip(&*entries) {
            *group = W::read(entries);
        }
        for (group, entries) in W::Group::divided_by(groups, divisor).into_iter().zip(entries) {
            group.write(slots_of(entries));
        }
    }
}

/// Write the excesses of some groups, divided and rounded.
///
/// # Safety
/// As for `Entries`.
#[inline(always)]
unsafe fn quotients_of_groups<T: Scalar, const N: usize>(
    draft: &[[T; LANES]; N],
    target: &[[T; LANES]; N],
    divisor: &<T::Wide as Vector>::Divisor,
    slots: &mut [[MaybeUninit<T>; LANES]; N],
) {
    // SAFETY: the processor has AVX2, FMA and F16C: the caller has seen to it.
    unsafe {
        let mut groups = [T::load(&draft[0]).0; N];
        for (group, (draft, target)) in groups.iter_mut().zip(draft.iter().zip(target)) {
            *group = T::Group::excess(T::load(draft).0, T::load(target).0);
        }
        for (group, slots) in T::Group::divided_by(groups, divisor).into_iter().zip(slots) {
            T::store(group, slots);
        }
    }
}

/// Ask for what lies some way behind a group that is read now. For loops with so much to do for each
/// entry that the processor does not look ahead far enough by itself.
#[inline(always)]
pub(crate) fn ask_ahead<T>(group: &[T; LANES]) {
    for line in (0..size_of_val(group)).step_by(CACHE_LINE) {
        let address = group.as_ptr().wrapping_byte_add(AHEAD + line);
        // SAFETY: a hint, which reads nothing; an address that is nobody's, as behind the end of
        // a row, is ignored.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
}

/// Made only where the processor has the features: see `Path`.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

impl Instructions for Avx2 {
    type Divisor<W: Wide> = <W as Vector>::Divisor;

    #[inline(always)]
    fn divisor<W: Wide>(mass: W, entries: usize) -> Self::Divisor<W> {
        // SAFETY: the processor has AVX2, FMA and F16C: `Path::run` has seen to it.
        unsafe { W::divisor(mass, entries) }
    }

    #[inline(always)]
    fn excess_sum<T: Scalar>(
        draft: &[T],
        target: &[T],
        kept: Option<&mut [MaybeUninit<T::Wide>]>,
    ) -> (f64, bool) {
        let (drafts, draft_rest) = draft.as_chunks::<LANES>();
        let (targets, target_rest) = target.as_chunks::<LANES>();
        let pairs = drafts.iter().zip(targets);
        // SAFETY: the processor has AVX2, FMA and F16C: `Path::run` has seen to it.
        unsafe {
            let (lanes, seen) = ([_mm256_setzero_pd(); 4], _mm256_setzero_si256());
            let mut sum = Running { lanes, seen };
            let mut kept_rest: &mut [_] = &mut [];
            // Two loops: a branch in one would cost as much as a third of the sum.
            if let Some(kept) = kept {
                let (slots, slots_rest) = kept.as_chunks_mut::<LANES>();
                kept_rest = slots_rest;
                for ((draft, target), slots) in pairs.zip(slots) {
                    sum.add(draft, target).write(slots);
                }
            } else {
                for (draft, target) in pairs {
                    ask_ahead(draft);
                    ask_ahead(target);
                    sum.add(draft, target);
                }
            }
            if !draft_rest.is_empty() {
                let zero = T::narrow(T::Wide::ZERO);
                let excess = sum.add(&padded(draft_rest, zero), &padded(target_rest, zero));
                let mut group = [MaybeUninit::uninit(); LANES];
                excess.write(&mut group);
                kept_rest.copy_from_slice(&group[..kept_rest.len()]);
            }
            (fold::<T::Group>(sum.lanes), T::suspect(sum.seen))
        }
    }

    /// Entries up to a multiple of 32 bytes are divided apart: registers that lie across two lines of
    /// the cache take twice as long to be written.
    #[inline(always)]
    fn divide<W: Wide>(differences: &mut [W], divisor: &Self::Divisor<W>) {
        let first = differences.as_ptr().align_offset(32).min(differences.len());
        let (first, differences) = differences.split_at_mut(first);
        let (many, rest) = differences.as_chunks_mut::<LANES>();
        let (many, one) = many.as_chunks_mut::<AT_A_TIME>();
        // SAFETY: the processor has AVX2, FMA and F16C: `Path::run` has seen to it.
        unsafe {
            for groups in many {
                divide_groups(groups, divisor);
            }
            for group in one {
                divide_groups(std::array::from_mut(group), divisor);
            }
            for few in [first, rest] {
                if few.is_empty() {
                    continue;
                }
                let mut group = padded(few, W::ZERO);
                divide_groups(std::array::from_mut(&mut group), divisor);
                few.copy_from_slice(&group[..few.len()]);
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
        let (many_drafts, drafts) = drafts.as_chunks::<AT_A_TIME>();
        let (many_targets, targets) = targets.as_chunks::<AT_A_TIME>();
        let (many_slots, slots) = slots.as_chunks_mut::<AT_A_TIME>();
        // SAFETY: the processor has AVX2, FMA and F16C: `Path::run` has seen to it.
        unsafe {
            for ((draft, target), slots) in many_drafts.iter().zip(many_targets).zip(many_slots) {
                quotients_of_groups(draft, target, divisor, slots);
            }
            for ((draft, target), slots) in drafts.iter().zip(targets).zip(slots) {
                let (draft, target) = (std::array::from_ref(draft), std::array::from_ref(target));
                quotients_of_groups(draft, target, divisor, std::array::from_mut(slots));
            }
            if !draft_rest.is_empty() {
                let zero = T::narrow(T::Wide::ZERO);
                let (draft, target) = ([padded(draft_rest, zero)], [padded(target_rest, zero)]);
                let mut group = [MaybeUninit::uninit(); LANES];
                quotients_of_groups(&draft, &target, divisor, std::array::from_mut(&mut group));
                slots_rest.copy_from_slice(&group[..slots_rest.len()]);
            }
        }
    }

    #[inline(always)]
    fn split_exponents<T: Scalar>(
        logits: &[T],
        reference: f64,
        scale: f64,
        fractions: &mut [MaybeUninit<f64>],
        powers: &mut [MaybeUninit<f64>],
    ) {
        // SAFETY: the processor has AVX2, FMA and F16C: `Path::run` has seen to it.
        unsafe { avx2_powers::split_exponents(logits, reference, scale, fractions, powers) }
    }

    #[inline(always)]
    fn glances<T: Scalar>(logits: &[T], scale: Scale, slots: &mut [MaybeUninit<f32>]) {
        // SAFETY: as above.
        unsafe { avx2_powers::glances(logits, scale, slots) }
    }
}
