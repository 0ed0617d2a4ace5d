//! Powers of two with exponents that are not integers, the exponential function of this crate.
//!
//! Made of additions, multiplications and operations on bits alone, so that every processor gives
//! the same bits; the libraries' functions differ between platforms. No branches: loops over it
//! vectorise.
//!
//! With `k` the integer next to `t` and `r = t - k`, 2^t is 2^k times a polynomial of degree 7 in
//! `r`. Its coefficients minimise the largest relative error on -1/2..=1/2 among those with
//! constant term 1 (Remez' exchange in 50 digits), so that powers of integers are exact. That error
//! is 4.67e-11, the rounding of coefficients and operations adds less than 1e-15.

/// The polynomial's coefficients, from the constant term on.
const COEFFICIENTS: [f64; 8] = [
    1.0,
    0.693_147_180_704_532_1,
    0.240_226_510_665_606_16,
    0.055_504_103_659_907_72,
    0.009_618_038_132_110_119,
    0.001_333_393_505_654_288_2,
    0.000_154_667_563_059_500_54,
    1.519_615_627_139_357_1e-5,
];

/// Adding it to a number below 2^51 rounds that to an integer, which with the bias of the exponent
/// is then in the lowest bits.
const ROUND: f64 = 6_755_399_441_055_744.0 + 1023.0;

/// Exponents beyond are taken for these: the first gives 0, the other 2^1023.
const LOWEST: f64 = -1023.0;
const HIGHEST: f64 = 1023.0;

/// 2^t to within 5e-11 of its value, for -1022 <= t <= 1023; exactly 0 below -1022.5 and for -inf,
/// the last power of two from 1023 on; NaN for NaN.
#[inline(always)]
pub(crate) fn exp2(t: f64) -> f64 {
    let [c0, c1, c2, c3, c4, c5, c6, c7] = COEFFICIENTS;
    // In this order of operands a NaN stays.
    let t = if LOWEST > t { LOWEST } else { t };
    let t = if HIGHEST < t { HIGHEST } else { t };
    let shifted = t + ROUND;
    let r = t - (shifted - ROUND);
    // Pairs and squares leave less to wait for than one term after the other.
    let (square, low, high) = (r * r, (c0 + c1 * r, c2 + c3 * r), (c4 + c5 * r, c6 + c7 * r));
    let polynomial = (low.0 + low.1 * square) + (high.0 + high.1 * square) * (square * square);
    // The lowest 11 bits are the exponent of a float64; of -1023 they are 0, and so is the float.
    polynomial * f64::from_bits(shifted.to_bits() << 52)
}

/// A positive number of whatever size: `mantissa * 2^exponent`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Power {
    /// From 0.7 to 3.
    mantissa: f64,
    /// An integer.
    exponent: f64,
}

impl Power {
    /// `factor * 2^exponent`, for a positive and finite factor and a finite exponent.
    pub(crate) fn new(factor: f64, exponent: f64) -> Self {
        let (mantissa, own) = split(factor);
        let integer = exponent.round_ties_even();
        Self { mantissa: mantissa * exp2(exponent - integer), exponent: own + integer }
    }

    /// Whether `uniform` times this number is less than 1.
    pub(crate) fn times_is_below_one(self, uniform: f64) -> bool {
        if uniform == 0.0 {
            return true;
        }
        let (mantissa, exponent) = split(uniform);
        // The mantissas' product is between 0.7 and 6, so that larger exponents change nothing.
        let exponent = (self.exponent + exponent).clamp(-8.0, 8.0);
        mantissa * self.mantissa * exp2(exponent) < 1.0
    }

    /// The number, as 0 or infinite where it is out of range.
    pub(crate) fn value(self) -> f64 {
        // Two steps, neither out of range.
        let half = (self.exponent / 2.0).round_ties_even().clamp(-1000.0, 1000.0);
        let rest = (self.exponent - half).clamp(-1000.0, 1000.0);
        self.mantissa * exp2(half) * exp2(rest)
    }
}

/// A positive finite number as mantissa in `1.0..2.0` and exponent.
fn split(number: f64) -> (f64, f64) {
    const MANTISSA: u64 = (1 << 52) - 1;
    let (number, shift) =
        if number < f64::MIN_POSITIVE { (number * exp2(64.0), 64) } else { (number, 0) };
    let bits = number.to_bits();
    let exponent = (bits >> 52).cast_signed() as i32 - 1023 - shift;
    (f64::from_bits(bits & MANTISSA | 1.0_f64.to_bits()), f64::from(exponent))
}
