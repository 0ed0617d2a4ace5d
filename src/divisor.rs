//! Division of many float32 by one, with the bits of the IEEE division and without dividing.
//!
//! With `high = RN(1 / m)` and `low = RN(1 / m - high)`, where RN rounds to float32, the quotient is
//! `RN(d * high + RN(d * low))`: a product and a fused multiply-add, three times as fast as a
//! division. (Brisebarre, Muller and Raina, *Accelerating Correctly Rounded Floating-Point Division
//! when the Divisor Is Known in Advance*, IEEE Transactions on Computers 53(8), 2004.) It is the
//! rounded quotient except where `d / m` is so close to the middle between two float32 that the
//! error of the sum before the last rounding crosses it. Whether that can happen is found out for
//! each `m`, below; where it can, or where numbers are so small that subnormals come into play,
//! entries are divided.
//!
//! **The error.** Scale `m` and `d` to [1, 2), which changes no rounding. Then `|1/m - high|` is at
//! most 2^-25, `low` is off by at most 2^-50 + 2^-54, and `RN(d * low)`, at most 2^-24, by at most
//! 2^-49: the sum before the last rounding is off by less than 2^-47.8.
//!
//! **The dangerous dividends.** Write `m = B / 2^23` and `d = A / 2^23`. For `A >= B` a middle is
//! `M / 2^24` with `M` odd, and `d / m` is `|r| / (2^24 B)` away from it, with the integer
//! `r = 2^24 A - M B`. For `A < B` it is `M / 2^25`, with `r = 2^25 A - M B` and a distance of
//! `|r| / (2^25 B)`. As `B < 2^24`, only `|r| <= 2` is within the error. r = 0 is impossible: `2^24`
//! would divide `M B`. So `M B = -r` modulo 2^24, which has solutions with `M` odd only if `B` and
//! `r` are divisible by the same powers of two: `r` is 1 or -1 for odd `B`, 2 or -2 for an odd
//! multiple of 2, and there is none for other `B`. The solutions are computed, and the
//! quotient is tried on each.

/// A number to divide by.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Divisor {
    pub(crate) mass: f32,
    pub(crate) high: f32,
    pub(crate) low: f32,
    /// From this dividend on, the quotient by product is right. Infinite if it never is for sure.
    pub(crate) smallest: f32,
}

/// Quotients below this may have products whose rounding errors are those of subnormals.
const SMALLEST_QUOTIENT: f32 = f32::from_bits((127 - 60) << 23); // 2^-60

impl Divisor {
    /// For few dividends: they are divided.
    #[inline(always)]
    pub(crate) fn plain(mass: f32) -> Self {
        Self { mass, high: 0.0, low: 0.0, smallest: f32::INFINITY }
    }

    #[inline(always)]
    pub(crate) fn new(mass: f32) -> Self {
        // Within this range nothing that is computed from quotients in 2^-60..=1 is subnormal or
        // overflows, and the lower end for the dividend is a normal number. Outside of it the
        // factors stay 0, since zeros are multiplied whatever `smallest` says.
        if !(2.0_f32.powi(-40)..=2.0_f32.powi(40)).contains(&mass) {
            return Self::plain(mass);
        }
        let high = 1.0 / mass;
        #[expect(clippy::cast_possible_truncation, reason = "rounding is what is asked for")]
        let low = (1.0 / f64::from(mass) - f64::from(high)) as f32;
        let mut divisor = Self { high, low, ..Self::plain(mass) };
        if divisor.is_exact() {
            divisor.smallest = mass * SMALLEST_QUOTIENT;
        }
        divisor
    }

    /// The quotient by product, for a dividend of at least `smallest`.
    #[inline(always)]
    pub(crate) fn quotient(&self, dividend: f32) -> f32 {
        dividend.mul_add(self.high, dividend * self.low)
    }

    /// Whether the quotient by product is the rounded quotient for every dividend.
    #[inline(always)]
    fn is_exact(&self) -> bool {
        let significand = self.mass.to_bits() & 0x007F_FFFF | 0x0080_0000;
        let even = significand.trailing_zeros();
        if even > 1 {
            return true;
        }
        // Newton's iteration for the inverse modulo 2^32: three bits are right at first, and their
        // number doubles each time.
        let odd = significand >> even;
        let mut inverse = odd;
        for _ in 0..4 {
            inverse = inverse.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(inverse)));
        }
        // M B = -r modulo 2^24, divided by the power of two in B: M modulo 2^(24 - even).
        let modulus = 1_u64 << (24 - even);
        [inverse, inverse.wrapping_neg()].into_iter().all(|middle| {
            let sign = if middle == inverse { -1 } else { 1 };
            // Between 2^24 and 2^25 there are as many of them as `modulus` fits there.
            let first = (1 << 24) + u64::from(middle) % modulus;
            (0..1 << even).map(|turn| first + turn * modulus).all(|middle| {
                let product = middle.cast_signed() * i64::from(significand);
                let dividend = product + (sign << even);
                [24, 25].into_iter().all(|shift| self.is_right_for(dividend, shift))
            })
        })
    }

    /// Whether the quotient is right for the dividend `scaled / 2^shift`, if that is a significand.
    #[inline(always)]
    fn is_right_for(&self, scaled: i64, shift: u32) -> bool {
        let significand = scaled >> shift;
        if significand << shift != scaled || !(1 << 23..1 << 24).contains(&significand) {
            return true;
        }
        // The significand with the exponent of the mass: the quotient is within 0.5..2.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "24 bits")]
        let dividend =
            f32::from_bits(self.mass.to_bits() & 0xFF80_0000 | significand as u32 & 0x007F_FFFF);
        self.quotient(dividend).to_bits() == (dividend / self.mass).to_bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Noise;

    /// Significands of masses, each with that of a dividend whose product is rounded otherwise than
    /// the quotient: below the mass, with either sign of `r`, for odd and for even masses; and the
    /// only one above its mass.
    const DANGEROUS: [(u32, u32); 5] = [
        (10_343_207, 10_092_219),
        (10_368_243, 10_085_071),
        (16_672_534, 16_595_687),
        (16_715_310, 16_327_709),
        (16_696_351, 16_714_727),
    ];

    fn with_exponent_of_one(significand: u32) -> f32 {
        f32::from_bits(127 << 23 | significand & 0x007F_FFFF)
    }

    /// Significands of masses: all ones and around it, the smallest, multiples of small powers of
    /// two, and many others.
    fn significands() -> Vec<u32> {
        let mut noise = Noise(8);
        let ends = (0..40).chain((1 << 23) - 40..1 << 23);
        #[expect(clippy::cast_possible_truncation, reason = "23 bits")]
        let others = (0..400).map(|_| noise.bits() as u32 % (1 << 23));
        ends.chain(others).collect()
    }

    fn quotient_is_right(divisor: &Divisor, dividend: f32) -> bool {
        divisor.quotient(dividend).to_bits() == (dividend / divisor.mass).to_bits()
    }

    #[test]
    fn dangerous_masses_are_found() {
        for (mass, dividend) in DANGEROUS {
            let divisor = Divisor::new(with_exponent_of_one(mass));
            assert!(!quotient_is_right(&divisor, with_exponent_of_one(dividend)), "mass {mass}");
            assert!(divisor.smallest.is_infinite(), "mass {mass}");
        }
    }

    /// Of every 78 masses one is dangerous: all are tried.
    #[test]
    #[cfg_attr(miri, ignore = "eight million masses")]
    fn few_masses_are_dangerous() {
        let of = |significand| Divisor::new(with_exponent_of_one(significand));
        let dangerous = (0..1 << 23).filter(|mass| of(*mass).smallest.is_infinite()).count();
        assert_eq!(dangerous, 107_509);
    }

    /// Every dividend of two binades, for some masses, against the division.
    #[test]
    #[cfg_attr(miri, ignore = "a thousand million quotients")]
    fn every_dividend_is_divided_right() {
        let dangerous = DANGEROUS.map(|(mass, _)| mass);
        for significand in significands().into_iter().step_by(30).chain(dangerous) {
            let divisor = Divisor::new(with_exponent_of_one(significand));
            let wrong = (126 << 23..128 << 23_u32)
                .filter(|bits| !quotient_is_right(&divisor, f32::from_bits(*bits)))
                .count();
            assert_eq!(
                divisor.is_exact(),
                wrong == 0,
                "significand {significand:#x}: {wrong} wrong"
            );
        }
    }

    /// At the ends of the range, and right above the smallest dividend.
    #[test]
    fn scaling_changes_no_rounding() {
        let mut noise = Noise(10);
        for exponent in [-40, -39, -1, 0, 1, 39] {
            for significand in significands() {
                let divisor =
                    Divisor::new(f32::from_bits(127 << 23 | significand) * 2.0_f32.powi(exponent));
                if divisor.smallest.is_infinite() {
                    continue;
                }
                for _ in 0..50 {
                    #[expect(clippy::cast_possible_truncation, reason = "a factor of 1..2")]
                    let factor = (1.0 + noise.uniform()) as f32;
                    for dividend in
                        [divisor.smallest * factor, divisor.mass / factor, divisor.smallest]
                    {
                        assert!(
                            quotient_is_right(&divisor, dividend),
                            "{dividend:e} / {:e}",
                            divisor.mass
                        );
                    }
                }
            }
        }
    }

    /// A quotient halfway between two subnormal numbers has no low part that would tell.
    #[test]
    fn quotients_that_are_too_small_are_divided() {
        let mut wrong = 0;
        for mass in (1..50_u16).map(f32::from) {
            let divisor = Divisor::new(mass);
            for tiny in (1..1000).map(f32::from_bits) {
                if !quotient_is_right(&divisor, tiny) {
                    assert!(tiny < divisor.smallest, "{tiny:e} / {mass}");
                    wrong += 1;
                }
            }
        }
        assert!(wrong > 100, "there are some: {wrong}");
    }

    #[test]
    fn masses_out_of_range_are_left_to_the_division() {
        for mass in
            [2.0_f32.powi(-40).next_down(), 2.0_f32.powi(40).next_up(), f32::from_bits(1), f32::MAX]
        {
            let divisor = Divisor::new(mass);
            assert!(divisor.smallest.is_infinite(), "{mass:e}");
            assert_eq!(divisor.quotient(0.0).to_bits(), 0, "{mass:e}: zeros are multiplied");
        }
        assert!(Divisor::plain(1.0).smallest.is_infinite(), "few entries are divided");
        assert!(Divisor::new(1.0).smallest < 1e-17, "as a rule the product is right");
    }
}
