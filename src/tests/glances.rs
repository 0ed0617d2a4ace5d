//! What a glance tells is what `f64` tells.

use std::ops::Range;

use super::{Noise, Sample, for_each_type, paths};
use crate::draw::{Entries, Sums, Weights};
use crate::error::Argument;
use crate::exp::Power;
use crate::filter::Filters;
use crate::glances::{EXCESS_OFF_BY, Glances, RoughExcess, Seen};
use crate::lanes::{Instructions, Kernel, Path};
use crate::law::{Draft, Law, Residual};
use crate::residual::Workers;
use crate::row::Row;
use crate::scalar::Scalar;

for_each_type!(verdicts_are_those_of_f64, draws_are_those_of_f64, draws_are_within_the_bound);

fn below(noise: &mut Noise, end: usize) -> usize {
    usize::try_from(noise.bits() % end as u64).expect("below a usize")
}

/// The weights of a sub-block as they are drawn from.
struct EntriesOf<W>(W, Range<usize>);

impl<W: Entries> Kernel for EntriesOf<W> {
    type Output = Vec<f64>;

    #[inline(always)]
    fn run<I: Instructions>(self) -> Vec<f64> {
        let mut slots = vec![0.0; self.1.len()];
        self.0.entries::<I>(self.1, &mut slots);
        slots
    }
}

/// The rows of a position, at a glance and as they are.
struct Position<'a, T> {
    glances: Glances<'a, T>,
    draft: Draft<'a, T>,
    target: Law<'a, T>,
}

fn position<'a, T: Scalar>(
    path: Path,
    draft: Option<&'a [T]>,
    target: &'a [T],
    temperatures: [f64; 2],
    token: usize,
) -> Position<'a, T> {
    let law = |row, temperature| {
        let argument = Argument::TargetLogits;
        let law = Law::of(path, Workers::Caller, argument, row, temperature, Filters::OFF);
        law.expect("a law").0
    };
    let see = |row, temperature| {
        let seen = Seen::of(path, Workers::Caller, row, temperature).expect("memory");
        seen.expect("an ordinary row")
    };
    let draft = draft.map(Row::of);
    let target = Row::of(target);
    let glances = Glances {
        token,
        draft: draft.map(|row| see(row, temperatures[0])),
        target: see(target, temperatures[1]),
    };
    let draft = draft.map_or(Draft::OneHot(token), |row| Draft::Law(law(row, temperatures[0])));
    Position { glances, draft, target: law(target, temperatures[1]) }
}

/// Rows with a few tokens that stand out, as models have them, or of about equal ones.
fn rows<T: Sample>(noise: &mut Noise, len: usize) -> [Vec<T>; 2] {
    let (spread, apart) = (12.0 * noise.uniform(), 2.0 * noise.uniform());
    let target: Vec<f64> = (0..len).map(|_| spread * noise.uniform().powi(3) - 4.0).collect();
    let draft = target.iter().map(|logit| T::of(logit + apart * (noise.uniform() - 0.5))).collect();
    [draft, target.iter().map(|logit| T::of(*logit)).collect()]
}

fn verdicts_are_those_of_f64<T: Sample>() {
    let mut noise = Noise(11);
    let (mut kept, mut untold, mut rounds) = (0, 0, 0);
    for round in 0..1500_usize {
        let [draft, target] = rows::<T>(&mut noise, 300);
        let token = round % 300;
        let temperatures = [0.2 + 2.0 * noise.uniform(), 0.2 + 2.0 * noise.uniform()];
        for path in paths() {
            let draft = Some(draft.as_slice()).filter(|_| round % 5 > 0);
            let Position { glances, draft, target } =
                position(path, draft, &target, temperatures, token);
            let (total, above) = match draft {
                Draft::Law(law) => (law.total, law.exponent(token).expect("a weight")),
                Draft::OneHot(_) => (1.0, 0.0),
            };
            let below = target.exponent(token).expect("a weight");
            let ratio = Power::new(target.total / total, above - below);
            let nearly = 1.0 / ratio.value();
            let near = |noise: &mut Noise| nearly * (1.0 + (noise.uniform() - 0.5) * 3e-6);
            for uniform in [0.0, noise.uniform(), near(&mut noise), near(&mut noise), nearly] {
                let uniform = uniform.min(1.0_f64.next_down());
                let exact = ratio.times_is_below_one(uniform);
                let told = glances.keep(uniform);
                assert_eq!(told.unwrap_or(exact), exact, "{uniform} of {nearly}");
                kept += i32::from(exact);
                untold += i32::from(told.is_none());
                rounds += 1;
            }
        }
    }
    assert!(kept > rounds / 4 && kept < rounds * 3 / 4, "both are seen: {kept} of {rounds}");
    assert!(untold > rounds / 20 && untold < rounds / 2, "what is near is not told: {untold}");
}

/// Logits so low that their exponents are taken for one: also then a glance tells nothing else.
#[test]
fn exponents_that_f64_takes_for_one_are_not_told_apart() {
    for (above, below) in [(-8e307, -1.2e308), (-1.2e308, -8e307), (-2e300, -1e301)] {
        let (draft, target) = ([0.0, above, 0.0], [0.0, below, 0.0]);
        for path in paths() {
            let glances = position(path, Some(&draft), &target, [1.0; 2], 1).glances;
            assert_eq!(glances.keep(0.3), None, "{above:e} and {below:e}");
        }
    }
    for (above, below, kept) in [(-1e299, -2e299, false), (-2e299, -1e299, true)] {
        let (draft, target) = ([0.0, above, 0.0], [0.0, below, 0.0]);
        for path in paths() {
            let glances = position(path, Some(&draft), &target, [1.0; 2], 1).glances;
            assert_eq!(glances.keep(0.3), Some(kept), "{above:e} and {below:e}");
        }
    }
}

/// Weights, their sums, and the sum of those up to and including each.
fn running<W: Entries>(path: Path, weights: W) -> (Sums, Vec<f64>) {
    let sums = Sums::of(path, Workers::Caller, weights).expect("memory");
    let mut running = vec![];
    let mut sum = 0.0;
    for start in (0..weights.len()).step_by(256) {
        let range = start..weights.len().min(start + 256);
        for weight in path.run(EntriesOf(weights, range)) {
            sum += weight;
            running.push(sum);
        }
    }
    (sums, running)
}

/// Uniform numbers that select an id, the last ones and the first ones that do, and some near them.
fn uniforms(noise: &mut Noise, running: &[f64], mass: f64) -> Vec<f64> {
    let mut uniforms = vec![0.0, 1.0_f64.next_down()];
    for _ in 0..12 {
        uniforms.push(noise.uniform());
        let (edge, near) = (running[below(noise, running.len())] / mass, noise.uniform() - 0.5);
        uniforms.extend([edge, edge + near * 1e-5, edge + near * 1e-6]);
    }
    uniforms.retain(|uniform| (0.0..1.0).contains(uniform));
    uniforms
}

fn draws_are_those_of_f64<T: Sample>() {
    let mut noise = Noise(12);
    let (mut told, mut rounds) = (0, 0);
    for round in 0..400_usize {
        let len = [1, 2, 40, 256, 300, 1000, 5000][round % 7];
        let [draft, target] = rows::<T>(&mut noise, len);
        let token = below(&mut noise, len);
        let temperatures = [0.4 + noise.uniform(), 0.4 + noise.uniform()];
        for path in paths() {
            let draft = Some(draft.as_slice()).filter(|_| round % 3 > 0);
            let Position { glances, draft, target } =
                position(path, draft, &target, temperatures, token);
            let mut compare = |exact: Option<usize>, found: Option<usize>, uniform: f64| {
                assert!(found.is_none() || found == exact, "{found:?} for {exact:?}, {uniform}");
                told += i32::from(found.is_some());
                rounds += 1;
            };
            let residual = Residual::new(target, draft, 1.0);
            let (sums, edges) = running(path, residual);
            for uniform in uniforms(&mut noise, &edges, sums.mass) {
                let found = glances.replace(path, Workers::Caller, uniform).expect("memory");
                compare(sums.draw(path, residual, uniform), found, uniform);
            }
            let (sums, edges) = running(path, target.weights);
            let weights = glances.target.weights;
            let seen = Sums::of(path, Workers::Caller, weights).expect("memory");
            for uniform in uniforms(&mut noise, &edges, sums.mass) {
                let found = weights.draw(path, &seen, uniform);
                compare(sums.draw(path, target.weights, uniform), found, uniform);
            }
        }
    }
    assert!(told > rounds / 3 && told < rounds * 9 / 10, "{told} of {rounds} are told");
}

/// What the bound of a draw is about: (1 - uniform) * a - uniform * b for what is up to an id and
/// what is behind it, all in units of the mass that the weights would have.
fn draws_are_within_the_bound<T: Sample>() {
    let mut noise = Noise(13);
    let mut worst = 0.0_f64;
    for round in 0..200_usize {
        let len = [40, 256, 300, 1000, 5000][round % 5];
        let [draft, target] = rows::<T>(&mut noise, len);
        for path in paths() {
            let draft = Some(draft.as_slice()).filter(|_| round % 3 > 0);
            let Position { glances, draft, target } =
                position(path, draft, &target, [1.0, 0.7], below(&mut noise, len));
            let (exact, edges) = running(path, Residual::new(target, draft, 1.0));
            let (rough, rough_edges) = running(path, RoughExcess(glances));
            let uniform = noise.uniform();
            let bound = EXCESS_OFF_BY * uniform.max(1.0 - uniform);
            for (edge, rough_edge) in edges.iter().zip(&rough_edges) {
                let off = (rough_edge - uniform * rough.mass) - (edge - uniform * exact.mass);
                assert!(off.abs() <= bound, "round {round}, {path:?}: {off:e}, not {bound:e}");
                worst = worst.max(off.abs() / bound);
            }
        }
    }
    assert!(worst > 0.02, "the bound is no larger than need be: {worst}");
}

/// All differences are within the bound whichever way they err.
#[test]
fn no_weights_within_the_bound_select_another_id() {
    #[derive(Clone, Copy)]
    struct Given<'a>(&'a [f64]);

    impl Weights for Given<'_> {
        const SHARED: usize = usize::MAX;

        fn len(&self) -> usize {
            self.0.len()
        }

        #[inline(always)]
        fn sum<I: Instructions>(&self, range: Range<usize>) -> (f64, bool) {
            (self.0[range].iter().sum(), false)
        }
    }

    impl Entries for Given<'_> {
        #[inline(always)]
        fn entries<I: Instructions>(&self, range: Range<usize>, slots: &mut [f64]) {
            slots.copy_from_slice(&self.0[range]);
        }
    }

    let draw = |weights: &[f64], uniform: f64, off_by: Option<f64>| {
        let given = Given(weights);
        let sums = Sums::of(Path::Portable, Workers::Caller, given).expect("memory");
        match off_by {
            Some(off_by) => sums.draw_surely(Path::Portable, given, uniform, off_by),
            None => sums.draw(Path::Portable, given, uniform),
        }
    };
    let mut noise = Noise(14);
    let (mut told, mut rounds) = (0, 0);
    for _ in 0..2000 {
        let len = 1 + below(&mut noise, 600);
        let weights: Vec<f64> = (0..len).map(|_| noise.uniform().powi(20)).collect();
        let (uniform, off_by) = (noise.uniform(), 0.05);
        let Some(id) = draw(&weights, uniform, Some(off_by)) else { continue };
        told += 1;
        assert_eq!(draw(&weights, uniform, None), Some(id), "what is drawn anyway");
        // The whole error on one side of the id, which does most, or on the id itself.
        for place in [0, id.saturating_sub(1), id, (id + 1).min(len - 1), len - 1] {
            for off in [off_by, -off_by] {
                let mut others = weights.clone();
                others[place] += off;
                if others[place] < 0.0 {
                    continue;
                }
                rounds += 1;
                assert_eq!(draw(&others, uniform, None), Some(id), "{off} at {place} of {len}");
            }
        }
    }
    assert!(told > 500 && rounds > 2000, "{told} told, {rounds} tried");
    // At the edges: the sums after two ids and the margin around them.
    for (uniform, expected) in [(0.4, Some(0)), (0.44, None), (0.56, None), (0.6, Some(1))] {
        assert_eq!(draw(&[0.5, 0.5], uniform, Some(0.15)), expected, "{uniform}");
    }
    for (uniform, expected) in [(0.06, None), (0.15, Some(0)), (0.85, Some(0)), (0.93, None)] {
        assert_eq!(draw(&[1.0], uniform, Some(0.1)), expected, "{uniform}");
    }
    assert_eq!(draw(&[0.0], 0.5, Some(0.0)), None, "no weight at all");
}
