//! The weights of a glance and their sums: the bounds are what they are said to be.

use std::mem::MaybeUninit;

use super::{Noise, Sample, for_each_type, paths};
use crate::glance::{
    ADDING_OFF_BY, Glance, SUM_OFF_BY, Scale, UNIT, WEIGHT_OFF_BY, sum_of, weight,
};
use crate::lanes::{Instructions, Kernel, written};
use crate::residual::Workers;
use crate::row::Row;
use crate::scalar::Scalar;

for_each_type!(
    every_weight_is_within_the_bound,
    what_is_beyond_stays_there,
    sums_are_within_the_bound,
);

/// The weights of some logits.
struct WeightsOf<'a, T>(&'a [T], Scale);

impl<T: Scalar> Kernel for WeightsOf<'_, T> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<I: Instructions>(self) -> Vec<f32> {
        let mut slots = vec![MaybeUninit::uninit(); self.0.len()];
        I::glances(self.0, self.1, &mut slots);
        // SAFETY: all slots have been written: they are as many as the logits.
        unsafe { written(&mut slots).to_vec() }
    }
}

/// By every path of this processor, and by the loops of one that has fused operations.
fn weights<T: Scalar>(logits: &[T], scale: Scale) -> Vec<Vec<f32>> {
    let fused = logits.iter().map(|logit| weight::<T, true>(*logit, scale)).collect();
    paths().into_iter().map(|path| path.run(WeightsOf(logits, scale))).chain([fused]).collect()
}

fn every_weight_is_within_the_bound<T: Sample>() {
    for exact in [1.0, 0.3, std::f64::consts::LOG2_E, 1e-6, 12_345.678] {
        let scale = Scale::new(exact).expect("a scale");
        let exponents = (0..=100_000).map(|step| -125.9 + 251.8 * f64::from(step) / 1e5);
        let logits: Vec<T> = exponents.map(|exponent| T::of(exponent / exact)).collect();
        for (way, weights) in weights(&logits, scale).into_iter().enumerate() {
            let mut worst = 0.0_f64;
            for (logit, weight) in logits.iter().zip(weights) {
                let exponent = logit.logit() * exact;
                if exponent.abs() <= 126.0 {
                    let off = (f64::from(weight) / exponent.exp2() - 1.0).abs();
                    assert!(off <= WEIGHT_OFF_BY, "2^{exponent} is off by {off:e}, way {way}");
                    worst = worst.max(off);
                }
            }
            assert!(worst > WEIGHT_OFF_BY / 8.0, "no larger than need be: {worst:e}, way {way}");
        }
    }
}

fn what_is_beyond_stays_there<T: Sample>() {
    let scale = Scale::new(1.5).expect("a scale");
    let entries = |values: &[f64]| -> Vec<T> {
        // Enough for registers, and some more.
        values.iter().cycle().take(19).map(|value| T::of(*value)).collect()
    };
    let low = entries(&[-90.0, -1e4, f64::NEG_INFINITY, -60_000.0]);
    for weight in weights(&low, scale).into_iter().flatten() {
        assert_eq!(weight.to_bits(), 0, "{weight:e}");
    }
    let high = entries(&[90.0, 1e4, f64::INFINITY, f64::NAN, -f64::NAN, 60_000.0]);
    for weight in weights(&high, scale).into_iter().flatten() {
        assert!(weight > 2.0_f32.powi(126), "{weight:e}");
    }
}

/// A NaN can carry bits that, moved like an integer, would make a number of it.
#[test]
fn no_nan_is_taken_for_a_number() {
    for payload in 0..=1023_u32 {
        for sign in [0, 1 << 31] {
            let bad = [
                f32::from_bits(sign | 0x7FC0_0000 | payload),
                f32::from_bits(sign | 0x7F80_0000 | payload.max(1)),
            ];
            for entry in bad {
                let mut row = [0.0_f32; 40];
                for place in [3, 35] {
                    row[place] = entry;
                    for path in paths() {
                        let found = Glance::of(path, Workers::Caller, Row::of(&row), 1.0);
                        assert!(found.expect("memory").is_none(), "{path:?}: {payload:x}");
                    }
                    row[place] = 0.0;
                }
            }
        }
    }
}

/// Numbers of any size, and such that every addition rounds by almost all it can.
#[test]
fn adding_is_within_the_bound() {
    let worst: Vec<f32> =
        (0..256).map(|index| if index < 16 { 1.0 } else { f32::of(1.01 * UNIT) }).collect();
    let exact: f64 = worst.iter().map(|number| f64::from(*number)).sum();
    let off = (sum_of(&worst) / exact - 1.0).abs();
    assert!((ADDING_OFF_BY * 0.9..=ADDING_OFF_BY).contains(&off), "{off:e}");
    let mut noise = Noise(4);
    for len in (1..=256).chain([256; 200]) {
        let numbers: Vec<f32> = (0..len).map(|_| f32::of(noise.uniform() + 1e-3)).collect();
        let exact: f64 = numbers.iter().map(|number| f64::from(*number)).sum();
        assert!((sum_of(&numbers) / exact - 1.0).abs() <= ADDING_OFF_BY, "{len}");
    }
}

fn sums_are_within_the_bound<T: Sample>() {
    let mut noise = Noise(5);
    for round in 0..300_usize {
        let (spread, shift) = (10.0_f64.powf(2.0 * noise.uniform()), 40.0 * noise.uniform());
        let len = 1 + round * 10;
        let entry = |noise: &mut Noise| T::of((noise.uniform() - 0.5) * spread + shift - 20.0);
        let logits: Vec<T> = (0..len).map(|_| entry(&mut noise)).collect();
        let scale = 4.0 * noise.uniform() + 1e-3;
        let exact: f64 = logits.iter().map(|logit| (logit.logit() * scale).exp2()).sum();
        for path in paths() {
            let temperature = std::f64::consts::LOG2_E / scale;
            let found = Glance::of(path, Workers::Caller, Row::of(&logits), temperature);
            let found = found.expect("memory").map(|(_, sums)| sums.mass);
            let in_range = (2.0_f64.powi(-60)..=2.0_f64.powi(100)).contains(&exact);
            let case = format!("round {round}: {found:?} for {exact:e}");
            match found {
                Some(sum) => assert!((sum / exact - 1.0).abs() <= SUM_OFF_BY, "{case}"),
                None => assert!(!in_range || exact > 2.0_f64.powi(99), "{case}"),
            }
            assert!(found.is_none() || in_range, "{case}");
        }
    }
}

#[test]
fn what_is_no_law_is_not_taken() {
    let taken = |row: &[f64], temperature: f64| {
        let looks = paths()
            .into_iter()
            .map(|path| Glance::of(path, Workers::Caller, Row::of(row), temperature));
        let found: Vec<bool> = looks.map(|found| found.expect("memory").is_some()).collect();
        assert!(found.iter().all(|one| *one == found[0]), "on every path");
        found[0]
    };
    for bad in [f64::NAN, f64::INFINITY, 1e308, 150.0] {
        assert!(!taken(&[0.0, bad, 0.0], 1.0), "{bad}");
    }
    for row in [[f64::NEG_INFINITY; 3], [-1e308; 3], [-62.0; 3]] {
        assert!(!taken(&row, 1.0), "{row:?}");
    }
    for temperature in [1e-300, 1e-30, 1e30, 1e300] {
        assert!(!taken(&[0.0; 3], temperature), "{temperature}");
    }
    assert!(taken(&[0.0, f64::NEG_INFINITY, 1.0], 1.0), "a token that is ruled out is no harm");
}
