//! Every kernel against its naive twin.

use super::{LENGTHS, Noise, Sample, bits, for_each_type, naive_residual, paths};
use crate::lanes::{Excess, ExcessPass, Path};
use crate::naive;
use crate::residual::{Workers, residual_of};
use crate::row::{Row, RowMut};

for_each_type!(
    tiny_masses_are_divided,
    no_zero_is_negative,
    mass_is_the_naive_sum,
    residual_is_the_naive_one,
    suspects_are_seen_anywhere,
    a_shared_row_is_the_same
);

fn mass_is_the_naive_sum<T: Sample>() {
    let mut noise = Noise(1);
    for len in LENGTHS {
        let (draft, target) = (noise.row::<T>(len), noise.row::<T>(len));
        let mass = naive::mass(&draft, &target);
        for path in paths() {
            let pass = ExcessPass { draft: &draft[..], target: &target[..], kept: None };
            let found = path.run(pass);
            assert_eq!(found, Excess { mass, suspect: false }, "{path:?}, {len} entries");
        }
    }
}

fn residual_is_the_naive_one<T: Sample>() {
    let mut noise = Noise(2);
    for len in LENGTHS {
        let (draft, target) = (noise.row::<T>(len), noise.row::<T>(len));
        let expected = bits(&naive_residual(&draft, &target));
        for path in paths() {
            let mut out = vec![T::NAN; len];
            let (draft, target) = (Row::of(&draft), Row::of(&target));
            let mass = residual_of(path, Workers::Caller, draft, target, &mut RowMut::of(&mut out));
            assert!(mass.is_ok(), "{path:?}, {len} entries: {mass:?}");
            assert_eq!(bits(&out), expected, "{path:?}, {len} entries");
        }
    }
}

/// A single bad entry, at any place of a row, on either side.
fn suspects_are_seen_anywhere<T: Sample>() {
    let mut noise = Noise(3);
    for len in [1, 16, 17, 256, 300] {
        for bad in [-0.25, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 2.5, -0.0] {
            for index in 0..len {
                for in_draft in [false, true] {
                    let (mut draft, mut target) = (noise.row::<T>(len), noise.row::<T>(len));
                    *(if in_draft { &mut draft[index] } else { &mut target[index] }) = T::of(bad);
                    for path in paths() {
                        let pass =
                            ExcessPass { draft: &draft[..], target: &target[..], kept: None };
                        assert!(path.run(pass).suspect, "{path:?}: {bad} at {index} of {len}");
                    }
                }
            }
        }
    }
}

/// Rows that are cut into chunks for several threads: whole chunks, a rest, one entry more.
fn a_shared_row_is_the_same<T: Sample>() {
    let mut noise = Noise(4);
    for len in [1 << 18, (1 << 18) + 1, 300_000] {
        let (draft, mut target) = (noise.row::<T>(len), noise.row::<T>(len));
        let run = |target: &[T], workers| {
            let mut out = vec![T::NAN; len];
            let (draft, target) = (Row::of(&draft), Row::of(target));
            let mass = residual_of(Path::best(), workers, draft, target, &mut RowMut::of(&mut out));
            (mass, out)
        };
        let (shared, alone) = (run(&target, Workers::Several), run(&target, Workers::Caller));
        assert_eq!(shared.0, Ok(naive::mass(&draft, &target)), "{len} entries");
        assert_eq!(shared.0, alone.0, "{len} entries");
        assert_eq!(bits(&shared.1), bits(&alone.1), "{len} entries");
        target[len - 1] = T::NAN;
        assert!(run(&target, Workers::Several).0.is_err(), "{len} entries: the last is NaN");
    }
}

/// Zeros of either sign, in a whole group of lanes and in a rest, kept and recomputed.
fn no_zero_is_negative<T: Sample>() {
    let (zero, minus) = (T::of(0.0), T::of(-0.0));
    let (draft, target) =
        ([zero, minus, zero, minus, T::of(1.0)], [minus, minus, zero, zero, minus]);
    let (draft, target) = (draft.repeat(5), target.repeat(5));
    for path in paths() {
        let mut out = vec![T::NAN; draft.len()];
        let (draft, target) = (Row::of(&draft), Row::of(&target));
        let mass = residual_of(path, Workers::Caller, draft, target, &mut RowMut::of(&mut out));
        assert_eq!(mass.map(f64::to_bits), Ok(0), "{path:?}");
        assert_eq!(bits(&out), bits(&vec![zero; out.len()]), "{path:?}");
    }
}

/// Masses from the smallest subnormal to large ones, in long rows that are mostly zeros.
fn tiny_masses_are_divided<T: Sample>() {
    for len in [1000, 1024, 5000] {
        for exponent in (-1074..=120).step_by(3) {
            let mass = T::of(2.0_f64.powi(exponent));
            if !mass.to_f64().is_finite() {
                continue;
            }
            let (draft, mut target) = (vec![T::of(0.0); len], vec![T::of(0.0); len]);
            target[100] = mass;
            target[len - 1] = T::of(mass.to_f64() * 0.75);
            let expected = bits(&naive_residual(&draft, &target));
            for path in paths() {
                let mut out = vec![T::NAN; len];
                let (draft, target) = (Row::of(&draft), Row::of(&target));
                let found =
                    residual_of(path, Workers::Caller, draft, target, &mut RowMut::of(&mut out));
                assert!(found.is_ok(), "{path:?}: 2^{exponent}");
                assert_eq!(bits(&out), expected, "{path:?}: 2^{exponent}, {len} entries");
            }
        }
    }
}
