//! Anything goes in: arbitrary bits, hostile values, any length. Failing cases are kept in
//! `proptest-regressions` and tried first in every run.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{Sample, bits, for_each_type, naive_residual, paths};
use crate::accept::ratio;
use crate::error::Argument::{Draft, Target};
use crate::residual::Workers;
use crate::row::{Row, RowMut};
use crate::scalar::Wide;
use crate::step::step_of;
use crate::{Error, Place, naive};

for_each_type!(any_input_is_answered_right_or_refused, identities_hold);

/// Probabilities mostly; now and then any bits at all.
fn entry<T: Sample>() -> impl Strategy<Value = T> {
    prop_oneof![
        40 => (0.0..1.0_f64).prop_map(T::of),
        10 => Just(T::of(0.0)),
        10 => (0.0..1e-5_f64).prop_map(T::of),
        4 => (0_u64..1000).prop_map(T::of_bits),
        1 => any::<u64>().prop_map(T::of_bits),
    ]
}

fn probability<T: Sample>() -> impl Strategy<Value = T> {
    prop_oneof![
        8 => (0.0..1.0_f64).prop_map(T::of),
        2 => Just(T::of(0.0)),
        1 => (0.0..1e-30_f64).prop_map(T::of),
    ]
}

fn two_rows<T: Sample, S: Strategy<Value = T>>(
    entry: impl Fn() -> S,
) -> impl Strategy<Value = (Vec<(T, T)>, i64)> {
    (1_usize..700).prop_flat_map(move |len| {
        let entries = vec((entry(), entry()), len);
        (entries, -1..=i64::try_from(len).expect("short"))
    })
}

fn runner() -> TestRunner {
    TestRunner::new(Config { source_file: Some(file!()), ..Config::default() })
}

/// What the contract says of a step, in the order in which it says it.
fn expected<T: Sample>(draft: &[T], target: &[T], token: i64) -> Result<(u64, u64), Error> {
    let vocabulary = draft.len();
    let index = match usize::try_from(token) {
        Ok(index) if index < vocabulary => index,
        _ => {
            return Err(Error::TokenRange { place: Place::Only, token, vocabulary });
        }
    };
    if draft[index].to_f64() == 0.0 {
        return Err(Error::TokenImpossible {
            argument: Draft,
            place: Place::Only,
            token,
            vocabulary,
        });
    }
    for (argument, row) in [(Draft, draft), (Target, target)] {
        for (index, entry) in row.iter().enumerate() {
            let value = entry.to_f64();
            if !(0.0..f64::INFINITY).contains(&value) {
                return Err(Error::Value { argument, place: Place::Only, index, value });
            }
        }
    }
    let mass = naive::mass(draft, target);
    let limit = T::Wide::MAX;
    if !T::Wide::from_f64(mass).to_f64().is_finite() {
        return Err(Error::MassOverflow { place: Place::Only, mass, limit });
    }
    let accept_prob = (target[index].to_f64() / draft[index].to_f64()).min(1.0);
    Ok((accept_prob.to_bits(), mass.to_bits()))
}

fn any_input_is_answered_right_or_refused<T: Sample>() {
    let test = |(entries, token): (Vec<(T, T)>, i64)| {
        let (draft, target): (Vec<T>, Vec<T>) = entries.into_iter().unzip();
        let expected = expected(&draft, &target, token);
        for path in paths() {
            let mut out = vec![T::NAN; draft.len()];
            let (draft_row, target_row) = (Row::of(&draft), Row::of(&target));
            let found = step_of(
                path,
                Workers::Caller,
                draft_row,
                target_row,
                token,
                &mut RowMut::of(&mut out),
            );
            let found = found.map(|step| (step.accept_prob.to_bits(), step.mass.to_bits()));
            // By their text, since NaN differs from itself.
            prop_assert_eq!(format!("{:?}", &found), format!("{:?}", &expected));
            if found.is_ok() {
                prop_assert_eq!(bits(&out), bits(&naive_residual(&draft, &target)));
            }
        }
        Ok(())
    };
    runner().run(&two_rows(entry::<T>), test).expect("every case");
}

/// draft * accept + mass * residual = target, the residual sums to 1, and is 0 where the target
/// does not exceed the draft: to the rounding of the types.
fn identities_hold<T: Sample>() {
    // The unit roundoff, and half of the smallest subnormal.
    let (relative, absolute) = match T::NAME {
        "float16" => (2.0_f64.powi(-11), 2.0_f64.powi(-25)),
        "bfloat16" => (2.0_f64.powi(-8), 2.0_f64.powi(-134)),
        "float32" => (2.0_f64.powi(-24), 2.0_f64.powi(-150)),
        _ => (2.0_f64.powi(-53), 0.0),
    };
    // The quotient is rounded once more before it is stored, and so are difference and mass.
    let slack = |value: f64| value * (relative + 4.0 * 2.0_f64.powi(-24).min(relative)) + absolute;
    let test = |(entries, _): (Vec<(T, T)>, i64)| {
        let (draft, target): (Vec<T>, Vec<T>) = entries.into_iter().unzip();
        let mut out = vec![T::NAN; draft.len()];
        let mass = {
            let mut out = RowMut::of(&mut out);
            let rows = (Row::of(&draft), Row::of(&target));
            crate::residual::residual_of(
                crate::lanes::Path::best(),
                Workers::Caller,
                rows.0,
                rows.1,
                &mut out,
            )
        };
        let mass = mass.expect("probabilities");
        let (mut sum, mut allowed) = (0.0, 0.0);
        for ((draft, target), residual) in draft.iter().zip(&target).zip(&out) {
            let (draft_value, target_value) = (draft.to_f64(), target.to_f64());
            let residual = residual.to_f64();
            prop_assert!((0.0..=1.0).contains(&residual));
            if target_value <= draft_value {
                prop_assert_eq!(residual.to_bits(), 0);
            }
            let kept = if draft_value == 0.0 { 0.0 } else { draft_value * ratio(*draft, *target) };
            let rebuilt = kept + mass * residual;
            let bound = slack(target_value) + mass * slack(residual);
            prop_assert!((rebuilt - target_value).abs() <= bound, "{rebuilt} for {target_value}");
            sum += residual;
            allowed += slack(residual);
        }
        if mass == 0.0 {
            prop_assert_eq!(sum.to_bits(), 0);
        } else {
            prop_assert!((sum - 1.0).abs() <= allowed + 1e-13, "the residual sums to {sum}");
        }
        Ok(())
    };
    runner().run(&two_rows(probability::<T>), test).expect("every case");
}
