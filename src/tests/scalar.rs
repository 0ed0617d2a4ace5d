//! Storage types: widening, rounding, and the bits that make an entry suspect.

use half::{bf16, f16};

use crate::scalar::Scalar;

/// All 65,536 values against the `half` crate; NaN and infinities are not promised.
#[test]
fn widening_is_exact() {
    for bits in 0..=u16::MAX {
        let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
        if half.is_finite() {
            assert_eq!(half.widen().to_bits(), half.to_f32().to_bits(), "float16 {bits:#06x}");
        }
        if brain.is_finite() {
            assert_eq!(brain.widen().to_bits(), brain.to_f32().to_bits(), "bfloat16 {bits:#06x}");
        }
    }
}

/// Every value that can be stored up to 1, every midpoint between two of them, and the float32
/// on either side of each, against the `half` crate.
#[test]
fn narrowing_rounds_to_nearest_even() {
    fn check(wide: f32) {
        assert_eq!(f16::narrow(wide).bits(), f16::from_f32(wide).to_bits(), "float16({wide:e})");
        assert_eq!(bf16::narrow(wide).bits(), bf16::from_f32(wide).to_bits(), "bfloat16({wide:e})");
    }
    let storable = (0..=f16::ONE.to_bits()).map(|b| f16::from_bits(b).to_f32());
    let brains = (0..=bf16::ONE.to_bits()).map(|b| bf16::from_bits(b).to_f32());
    for values in [storable.collect::<Vec<_>>(), brains.collect()] {
        for pair in values.windows(2) {
            let midpoint = f32::midpoint(pair[0], pair[1]);
            for wide in [pair[0], midpoint.next_down().max(0.0), midpoint, midpoint.next_up()] {
                check(wide);
            }
        }
        check(1.0);
        check(1.0_f32.next_down());
    }
}

#[test]
fn suspect_bits_are_clear_in_probabilities_and_set_in_what_is_not_one() {
    fn check<T: Scalar>(values: &[(T, bool)]) {
        for (value, expected) in values {
            let suspect = value.bits() & T::SUSPECT != T::Bits::default();
            assert_eq!(suspect, *expected, "{} {value:?}", T::NAME);
        }
    }
    check(&[(0.0_f32, false), (1.0, false), (1.999_999_9, false), (f32::from_bits(1), false)]);
    check(&[(-0.0_f32, true), (2.0, true), (f32::NAN, true), (f32::INFINITY, true)]);
    check(&[(0.0_f64, false), (1.0, false), (-1.0, true), (f64::NAN, true), (2.0, true)]);
    check(&[(f16::ZERO, false), (f16::ONE, false), (f16::NEG_ONE, true), (f16::NAN, true)]);
    check(&[(f16::INFINITY, true), (f16::from_f32(2.0), true), (f16::NEG_ZERO, true)]);
    check(&[(bf16::ZERO, false), (bf16::ONE, false), (bf16::NEG_ONE, true), (bf16::NAN, true)]);
    check(&[(bf16::INFINITY, true), (bf16::from_f32(2.0), true), (bf16::NEG_ZERO, true)]);
}
