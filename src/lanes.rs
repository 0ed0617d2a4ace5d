//! The fixed-order sum and the residual passes, and the one place where the processor's
//! instructions are chosen.
//!
//! A row is cut into sub-blocks of 256 entries. Within a sub-block 16 lanes run side by side: lane
//! `j` adds the entries `j, j + 16, j + 32, ...` in order, then the lanes are folded 8-4-2-1. The
//! sums of the sub-blocks go through the tree of `tree.rs`. Missing entries of the last sub-block
//! count as +0.0, which changes no sum of non-negative numbers. All of it depends on the length of
//! the row alone: the same code, compiled for wider registers, adds the same numbers in the same
//! order.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
use crate::avx2::Avx2;
use crate::exp::split_exponent;
use crate::float_env;
use crate::glance::{Scale, weight};
use crate::row::{RowMut, Source};
use crate::scalar::{Scalar, Wide};
use crate::tree::Tree;

/// Entries of a sub-block.
pub(crate) const SUB_BLOCK: usize = 256;
/// Partial sums that run side by side.
pub(crate) const LANES: usize = 16;

/// What one pass over a row finds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Excess {
    /// The sum of max(target - draft, 0) in the fixed order.
    pub(crate) mass: f64,
    /// Whether some entry may be no probability: the row must be looked at entry by entry.
    pub(crate) suspect: bool,
}

/// max(target - draft, 0), as +0.0 where the difference is zero, -0.0 or NaN.
#[inline(always)]
pub(crate) fn excess<W: Wide>(draft: W, target: W) -> W {
    let difference = target - draft;
    if difference > W::ZERO { difference } else { W::ZERO }
}

/// First pass: the mass of a row. With `kept`, the excess of every entry stays there.
pub(crate) struct ExcessPass<'a, T: Scalar, S> {
    pub(crate) draft: S,
    pub(crate) target: S,
    pub(crate) kept: Option<&'a mut [MaybeUninit<T::Wide>]>,
}

impl<T: Scalar, S: Source<T>> Kernel for ExcessPass<'_, T, S> {
    type Output = Excess;

    #[inline(always)]
    fn run<I: Instructions>(mut self) -> Excess {
        let zero = T::narrow(T::Wide::ZERO);
        let (mut draft_buffer, mut target_buffer) = ([zero; SUB_BLOCK], [zero; SUB_BLOCK]);
        let (mut tree, mut suspect) = (Tree::new(), false);
        for (start, width) in sub_blocks(self.draft.len()) {
            let draft = self.draft.load(start, width, &mut draft_buffer);
            let target = self.target.load(start, width, &mut target_buffer);
            let kept = self.kept.as_deref_mut().map(|kept| &mut kept[start..start + width]);
            let (sum, found) = I::excess_sum(draft, target, kept);
            tree.push(sum);
            suspect |= found;
        }
        Excess { mass: tree.total(), suspect }
    }
}

/// Second pass where the first one kept the differences: divide them in place.
pub(crate) struct DividePass<'a, W> {
    pub(crate) differences: &'a mut [W],
    pub(crate) mass: W,
}

impl<W: Wide> Kernel for DividePass<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<I: Instructions>(self) {
        let divisor = I::divisor(self.mass, self.differences.len());
        I::divide(self.differences, &divisor);
    }
}

/// Second pass where nothing was kept: compute the differences once more, divide, round, store.
pub(crate) struct RecomputePass<'a, 'b, T: Scalar, S> {
    pub(crate) draft: S,
    pub(crate) target: S,
    pub(crate) mass: T::Wide,
    pub(crate) out: &'a mut RowMut<'b, T>,
}

impl<T: Scalar, S: Source<T>> Kernel for RecomputePass<'_, '_, T, S> {
    type Output = ();

    #[inline(always)]
    fn run<I: Instructions>(self) {
        let zero = T::narrow(T::Wide::ZERO);
        let (mut draft_buffer, mut target_buffer) = ([zero; SUB_BLOCK], [zero; SUB_BLOCK]);
        let divisor = I::divisor(self.mass, self.draft.len());
        for (start, width) in sub_blocks(self.draft.len()) {
            let draft = self.draft.load(start, width, &mut draft_buffer);
            let target = self.target.load(start, width, &mut target_buffer);
            if let Some(slots) = self.out.as_slice() {
                I::quotients(draft, target, &divisor, &mut slots[start..start + width]);
            } else {
                let mut buffer = [MaybeUninit::uninit(); SUB_BLOCK];
                let slots = &mut buffer[..width];
                I::quotients(draft, target, &divisor, slots);
                // SAFETY: `quotients` has written all slots: draft and target are as many.
                self.out.store_all(start, unsafe { written(slots) });
            }
        }
    }
}

/// Slots that were all written, as the entries they hold.
///
/// # Safety
/// Every slot has been written.
#[inline(always)]
pub(crate) unsafe fn written<W>(slots: &mut [MaybeUninit<W>]) -> &mut [W] {
    // SAFETY: `MaybeUninit<W>` has the layout of `W`, and each holds one, as the caller says.
    unsafe { &mut *(std::ptr::from_mut(slots) as *mut [W]) }
}

/// Start and width of every sub-block of a row.
#[inline(always)]
pub(crate) fn sub_blocks(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(SUB_BLOCK).map(move |start| (start, SUB_BLOCK.min(len - start)))
}

/// The sum of at most a sub-block of entries in the fixed order.
#[inline(always)]
pub(crate) fn lane_sum<W: Wide>(entries: &[W]) -> f64 {
    let (groups, rest) = entries.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for group in groups {
        for (lane, entry) in lanes.iter_mut().zip(group) {
            *lane += entry.to_f64();
        }
    }
    for (lane, entry) in lanes.iter_mut().zip(rest) {
        *lane += entry.to_f64();
    }
    folded(lanes)
}

/// The lanes folded 8-4-2-1.
#[inline(always)]
pub(crate) fn folded(mut lanes: [f64; LANES]) -> f64 {
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

/// What is done with one sub-block, in the terms of some processor.
///
/// Draft, target and slots have the same length, at most that of a sub-block.
pub(crate) trait Instructions {
    /// A number prepared to be divided by.
    type Divisor<W: Wide>: Copy;

    /// Prepare to divide so many entries, none above `mass`, by it.
    fn divisor<W: Wide>(mass: W, entries: usize) -> Self::Divisor<W>;

    /// Divide the entries, rounded as IEEE divisions are.
    fn divide<W: Wide>(entries: &mut [W], divisor: &Self::Divisor<W>);

    /// The sum of the excesses, and whether some entry may be no probability. With `kept`, every
    /// excess is written there.
    fn excess_sum<T: Scalar>(
        draft: &[T],
        target: &[T],
        kept: Option<&mut [MaybeUninit<T::Wide>]>,
    ) -> (f64, bool);

    /// Write every excess divided by `divisor` and rounded.
    fn quotients<T: Scalar>(
        draft: &[T],
        target: &[T],
        divisor: &Self::Divisor<T::Wide>,
        slots: &mut [MaybeUninit<T>],
    );

    /// Write fraction and power, as of `exp::split_exponent`, of every (logit - reference) * scale.
    fn split_exponents<T: Scalar>(
        logits: &[T],
        reference: f64,
        scale: f64,
        fractions: &mut [MaybeUninit<f64>],
        powers: &mut [MaybeUninit<f64>],
    );

    /// Write 2^(logit * scale) as `glance::weight` has it, other roundings aside.
    fn glances<T: Scalar>(logits: &[T], scale: Scale, slots: &mut [MaybeUninit<f32>]);
}

/// Plain loops, for any processor.
pub(crate) struct Portable;

impl Instructions for Portable {
    type Divisor<W: Wide> = W;

    #[inline(always)]
    fn divisor<W: Wide>(mass: W, _: usize) -> W {
        mass
    }

    #[inline(always)]
    fn divide<W: Wide>(entries: &mut [W], divisor: &W) {
        for entry in entries {
            *entry = *entry / *divisor;
        }
    }

    /// The differences are stored first and summed then, out of the first-level cache: two simple
    /// loops that need few registers are faster than one that does both.
    #[inline(always)]
    fn excess_sum<T: Scalar>(
        draft: &[T],
        target: &[T],
        kept: Option<&mut [MaybeUninit<T::Wide>]>,
    ) -> (f64, bool) {
        let mut buffer = [MaybeUninit::uninit(); SUB_BLOCK];
        let slots = kept.unwrap_or(&mut buffer[..draft.len()]);
        let mut seen = T::Bits::default();
        for ((slot, draft), target) in slots.iter_mut().zip(draft).zip(target) {
            seen = seen | draft.bits() | target.bits();
            slot.write(excess(draft.widen(), target.widen()));
        }
        // SAFETY: the loop has written all slots: draft and target are as many.
        let sum = lane_sum(unsafe { written(slots) });
        (sum, seen & T::SUSPECT != T::Bits::default())
    }

    #[inline(always)]
    fn quotients<T: Scalar>(
        draft: &[T],
        target: &[T],
        divisor: &Self::Divisor<T::Wide>,
        slots: &mut [MaybeUninit<T>],
    ) {
        for ((slot, draft), target) in slots.iter_mut().zip(draft).zip(target) {
            slot.write(T::narrow(excess(draft.widen(), target.widen()) / *divisor));
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
        for ((logit, fraction), power) in logits.iter().zip(fractions).zip(powers) {
            let split = split_exponent((logit.logit() - reference) * scale);
            fraction.write(split.0);
            power.write(split.1);
        }
    }

    #[inline(always)]
    fn glances<T: Scalar>(logits: &[T], scale: Scale, slots: &mut [MaybeUninit<f32>]) {
        const FUSED: bool = cfg!(target_arch = "aarch64");
        for (logit, slot) in logits.iter().zip(slots) {
            slot.write(weight::<T, FUSED>(*logit, scale));
        }
    }
}

/// A pass over a row in the terms of [`Instructions`]. `run` must be `#[inline(always)]`, as all
/// that it calls in a loop: only what is inlined uses the wider registers.
pub(crate) trait Kernel {
    type Output;
    fn run<I: Instructions>(self) -> Self::Output;
}

/// The instructions that a kernel is run with. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// What every processor of the architecture has: SSE2 on x86-64, NEON on aarch64.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Path {
    /// The best path of this processor. `DRAFTVERIFY_PATH=portable` in the environment of the
    /// process keeps to the portable one, to compare results and times.
    pub(crate) fn best() -> Self {
        static BEST: OnceLock<Path> = OnceLock::new();
        *BEST.get_or_init(|| {
            #[cfg(target_arch = "x86_64")]
            if std::env::var_os("DRAFTVERIFY_PATH").is_none_or(|path| path != "portable")
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
            {
                return Self::Avx2;
            }
            Self::Portable
        })
    }

    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn with_avx2<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<Avx2>()
        }

        // Here, because every thread that works on a row has an environment of its own.
        float_env::in_default(|| match self {
            Self::Portable => kernel.run::<Portable>(),
            // SAFETY: without these features the call would be an illegal instruction.
            // `Path::Avx2` is made in `best` alone, after the processor was asked for them.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { with_avx2(kernel) },
        })
    }
}
