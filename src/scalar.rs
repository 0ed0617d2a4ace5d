//! The four storage types of a row, and the arithmetic type each is widened to.
//!
//! Narrow types (float16, bfloat16, float32) compute in `f32`, `f64` computes in `f64`; sums are
//! always `f64`. Everything here is branch-free integer and float code on single values, so that
//! the loops in `lanes` vectorise, whichever instructions the processor has.

use std::mem::MaybeUninit;
use std::ops::{BitAnd, BitOr, Div, Sub};

use half::{bf16, f16};

use crate::lanes::SUB_BLOCK;
#[cfg(target_arch = "x86_64")]
use crate::{entries::Entries, registers::Vector};

/// Elsewhere registers are the compiler's business.
#[cfg(not(target_arch = "x86_64"))]
mod registers {
    pub trait Entries {}
    impl<T> Entries for T {}
    pub trait Vector {}
    impl<T> Vector for T {}
}
#[cfg(not(target_arch = "x86_64"))]
use registers::{Entries, Vector};

/// Seals [`Scalar`] and says what a storage type is widened to.
#[doc(hidden)]
pub trait Storage: Copy {
    /// The type in which differences and quotients are computed.
    type Wide: Wide;
}

impl Storage for f32 {
    type Wide = f32;
}

impl Storage for f64 {
    type Wide = f64;
}

impl Storage for f16 {
    type Wide = f32;
}

impl Storage for bf16 {
    type Wide = f32;
}

/// A storage type of probabilities: [`f32`], [`f64`], [`half::f16`] or [`half::bf16`].
///
/// The trait is sealed: the order of sums and the roundings that the crate promises hold for these
/// four types.
pub trait Scalar: Storage + Entries + Send + Sync + std::fmt::Debug + 'static {
    #[doc(hidden)]
    /// The bits of an entry, as an unsigned integer.
    type Bits: Copy
        + std::fmt::Debug
        + Default
        + Eq
        + BitOr<Output = Self::Bits>
        + BitAnd<Output = Self::Bits>;

    /// The name of the type in the array world, for example `"bfloat16"`.
    const NAME: &'static str;
    #[doc(hidden)]
    /// What a row that cannot be answered is filled with.
    const NAN: Self;
    #[doc(hidden)]
    /// A sub-block of a row that is 0 there.
    const ZEROS: &'static [Self; SUB_BLOCK];
    #[doc(hidden)]
    /// The sign bit and the top bit of the exponent. Both are 0 in every probability; where one of
    /// them is set, the entry is negative, -0.0, NaN, infinite, or at least 2.
    const SUSPECT: Self::Bits;
    /// Widen without rounding. Exact for every finite value.
    fn widen(self) -> Self::Wide;
    #[doc(hidden)]
    /// Round a value in `0.0..=1.0` to the storage type, to nearest, ties to even.
    fn narrow(wide: Self::Wide) -> Self;
    #[doc(hidden)]
    /// The bits of the entry.
    fn bits(self) -> Self::Bits;
    #[doc(hidden)]
    /// The entry with its bytes in reverse order.
    #[must_use]
    fn swap_bytes(self) -> Self;
    /// The same slots for the arithmetic type, where it is the storage type: then differences can
    /// wait in the output for their division.
    #[doc(hidden)]
    fn as_wide(slots: &mut [MaybeUninit<Self>]) -> Option<&mut [MaybeUninit<Self::Wide>]>;

    /// Widen to `f64` without rounding.
    fn to_f64(self) -> f64 {
        self.widen().to_f64()
    }

    /// Widen to `f64` without rounding, infinities and NaN too, in a way that vectorises.
    #[doc(hidden)]
    #[inline(always)]
    fn logit(self) -> f64 {
        self.widen().to_f64()
    }
}

/// The arithmetic type of a row: `f32` or `f64`.
pub trait Wide:
    Storage<Wide = Self>
    + Vector
    + Copy
    + Send
    + Sync
    + PartialOrd
    + Sub<Output = Self>
    + Div<Output = Self>
{
    /// Positive zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// The largest finite value, for messages.
    const MAX: f64;

    /// Widen without rounding.
    fn to_f64(self) -> f64;
    /// Round to nearest, ties to even; infinite where the value is out of range.
    fn from_f64(value: f64) -> Self;
}

impl Wide for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const MAX: f64 = f32::MAX as f64;

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the contract rounds the mass to float32")]
    fn from_f64(value: f64) -> Self {
        value as f32
    }
}

impl Wide for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const MAX: f64 = f64::MAX;

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }
}

impl Scalar for f32 {
    type Bits = u32;

    const NAME: &'static str = "float32";
    const NAN: Self = f32::NAN;
    const ZEROS: &'static [Self; SUB_BLOCK] = &[0.0; SUB_BLOCK];
    const SUSPECT: u32 = 0xC000_0000;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        wide
    }

    #[inline(always)]
    fn bits(self) -> u32 {
        self.to_bits()
    }

    fn as_wide(slots: &mut [MaybeUninit<Self>]) -> Option<&mut [MaybeUninit<Self>]> {
        Some(slots)
    }

    #[inline(always)]
    fn swap_bytes(self) -> Self {
        f32::from_bits(self.to_bits().swap_bytes())
    }
}

impl Scalar for f64 {
    type Bits = u64;

    const NAME: &'static str = "float64";
    const NAN: Self = f64::NAN;
    const ZEROS: &'static [Self; SUB_BLOCK] = &[0.0; SUB_BLOCK];
    const SUSPECT: u64 = 0xC000_0000_0000_0000;

    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }

    #[inline(always)]
    fn narrow(wide: f64) -> Self {
        wide
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        self.to_bits()
    }

    fn as_wide(slots: &mut [MaybeUninit<Self>]) -> Option<&mut [MaybeUninit<Self>]> {
        Some(slots)
    }

    #[inline(always)]
    fn swap_bytes(self) -> Self {
        f64::from_bits(self.to_bits().swap_bytes())
    }
}

impl Scalar for bf16 {
    type Bits = u16;

    const NAME: &'static str = "bfloat16";
    const NAN: Self = bf16::NAN;
    const ZEROS: &'static [Self; SUB_BLOCK] = &[bf16::ZERO; SUB_BLOCK];
    const SUSPECT: u16 = 0xC000;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    /// A bfloat16 is the upper half of a float32: add just under half a unit of the last place
    /// kept, and the whole half where the last place is odd. No carry can leave `0.0..=1.0`.
    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        bf16::from_bits(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16)
    }

    #[inline(always)]
    fn bits(self) -> u16 {
        self.to_bits()
    }

    fn as_wide(_: &mut [MaybeUninit<Self>]) -> Option<&mut [MaybeUninit<f32>]> {
        None
    }

    #[inline(always)]
    fn swap_bytes(self) -> Self {
        bf16::from_bits(self.to_bits().swap_bytes())
    }
}

impl Scalar for f16 {
    type Bits = u16;

    const NAME: &'static str = "float16";
    const NAN: Self = f16::NAN;
    const ZEROS: &'static [Self; SUB_BLOCK] = &[f16::ZERO; SUB_BLOCK];
    const SUSPECT: u16 = 0xC000;

    /// Move exponent and mantissa to their places in a float32 and multiply by the difference of
    /// the exponent biases, 2^(127 - 15). The product is exact, for subnormals too. Infinities and
    /// NaN come out finite: callers reject them by their bits first.
    #[inline(always)]
    fn widen(self) -> f32 {
        const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
        let bits = u32::from(self.to_bits());
        let magnitude = f32::from_bits((bits & 0x7FFF) << 13) * REBIAS;
        f32::from_bits(magnitude.to_bits() | ((bits & 0x8000) << 16))
    }

    /// Below 2^-14 a float16 is a multiple of 2^-24: so is the last place of a float32 between 0.5
    /// and 1, and adding 0.5 rounds exactly there. Above, drop 13 mantissa bits as for bfloat16.
    /// Both ways are computed and one is selected, which vectorises.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "values up to 1.0 need 14 bits")]
    fn narrow(wide: f32) -> Self {
        const SMALLEST_NORMAL: f32 = 1.0 / 16_384.0;
        let bits = wide.to_bits();
        let subnormal = (wide + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
        let normal = (bits + 0x0FFF + ((bits >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
        f16::from_bits(if wide < SMALLEST_NORMAL { subnormal } else { normal } as u16)
    }

    #[inline(always)]
    fn bits(self) -> u16 {
        self.to_bits()
    }

    fn as_wide(_: &mut [MaybeUninit<Self>]) -> Option<&mut [MaybeUninit<f32>]> {
        None
    }

    #[inline(always)]
    fn swap_bytes(self) -> Self {
        f16::from_bits(self.to_bits().swap_bytes())
    }

    /// The error messages show any value, infinities and NaN too.
    fn to_f64(self) -> f64 {
        f16::to_f64(self)
    }

    /// `widen` with the exponent of infinities and NaN put where a float32 has it.
    #[inline(always)]
    fn logit(self) -> f64 {
        let special = if self.to_bits() & 0x7C00 == 0x7C00 { 0x7F80_0000 } else { 0 };
        f64::from(f32::from_bits(self.widen().to_bits() | special))
    }
}
