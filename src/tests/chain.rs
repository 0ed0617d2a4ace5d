//! Whole chains against the naive twin: the same tokens, whatever the path, the threads, the layout
//! and the company.

use super::{Noise, Sample, for_each_type, paths};
use crate::chain::{Drafted, Positions as _};
use crate::probabilities::Probabilities;
use crate::residual::Workers;
use crate::{Argument, Chain, Error, Method, Place, Rows, Verdict, naive_chain, verify_chain};

for_each_type!(
    chains_agree_with_the_naive_twin,
    one_hot_drafts_are_rows_of_one_token,
    company_and_layout_do_not_matter,
    nothing_is_read_without_need,
);

const METHODS: [Method; 3] = [Method::Standard, Method::Block, Method::Greedy];
const JUST_BELOW_ONE: f64 = 1.0 - f64::EPSILON / 2.0;

/// A chain with every token drawn from its draft row, all in one buffer for each model.
struct Flat<T> {
    vocabulary: usize,
    draft: Vec<T>,
    target: Vec<T>,
    tokens: Vec<i64>,
    uniforms: Vec<f64>,
}

impl<T: Sample> Flat<T> {
    fn new(noise: &mut Noise, length: usize, vocabulary: usize) -> Self {
        let (mut draft, mut target, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        for position in 0..=length {
            // Rows of real models resemble each other; some entries stay as they are.
            let mut row = noise.row::<T>(vocabulary);
            if row.iter().all(|entry| entry.to_f64() <= 0.0) {
                row[0] = T::of(0.25);
            }
            target.extend_from_slice(&row);
            if position == length {
                break;
            }
            for entry in &mut row {
                if noise.bits() >> 62 > 0 {
                    *entry = T::of(entry.to_f64() * (0.25 + noise.uniform()));
                }
            }
            let weights: Vec<f64> = row.iter().map(|entry| entry.to_f64()).collect();
            let token = naive_chain::draw(&weights, noise.uniform()).unwrap_or(0);
            row[token] = if weights[token] > 0.0 { row[token] } else { T::of(0.5) };
            draft.extend(row);
            tokens.push(token.cast_signed() as i64);
        }
        let uniform = |noise: &mut Noise| match noise.bits() >> 61 {
            0 => 0.0,
            1 => JUST_BELOW_ONE,
            _ => noise.uniform(),
        };
        let uniforms = (0..=length).map(|_| uniform(noise)).collect();
        Self { vocabulary, draft, target, tokens, uniforms }
    }

    fn chain(&self) -> Chain<'_, T> {
        Chain {
            draft_probs: Some(Rows::new(&self.draft, self.vocabulary).expect("whole rows")),
            target_probs: Rows::new(&self.target, self.vocabulary).expect("whole rows"),
            draft_token_ids: &self.tokens,
            uniforms: &self.uniforms,
            bonus_token_id: None,
        }
    }

    fn naive(&self, method: Method) -> Verdict {
        let rows = |flat: &[T]| flat.chunks(self.vocabulary).map(<[T]>::to_vec).collect();
        let chain = naive_chain::Chain {
            draft: rows(&self.draft),
            target: rows(&self.target),
            tokens: self.tokens.iter().map(|t| usize::try_from(*t).expect("an id")).collect(),
            uniforms: self.uniforms.clone(),
        };
        let (num_accepted, id) = match method {
            Method::Standard => chain.standard(),
            Method::Block => chain.block(),
            Method::Greedy => chain.greedy(),
        };
        Verdict { num_accepted, final_token_id: id.cast_signed() as i64 }
    }

    /// The same chain with each draft row made that of its token alone.
    fn one_hot(&self) -> Self {
        let mut draft = vec![T::of(0.0); self.draft.len()];
        for (row, token) in draft.chunks_mut(self.vocabulary).zip(&self.tokens) {
            row[usize::try_from(*token).expect("an id")] = T::of(1.0);
        }
        let (target, tokens) = (self.target.clone(), self.tokens.clone());
        let uniforms = self.uniforms.clone();
        Self { vocabulary: self.vocabulary, draft, target, tokens, uniforms }
    }
}

fn verify<T: Sample>(chain: &Chain<'_, T>, method: Method) -> Verdict {
    let verdicts = verify_chain(&[*chain], method).expect("a good chain");
    assert_eq!(verdicts.len(), 1, "one chain");
    verdicts[0]
}

fn chains_agree_with_the_naive_twin<T: Sample>() {
    let mut noise = Noise(20);
    for vocabulary in [1, 2, 17, 255, 256, 257, 1025, 9000] {
        let mut kept = [0; 3];
        for round in 0..60 {
            let flat = Flat::<T>::new(&mut noise, round % 5, vocabulary);
            let chain = flat.chain();
            for (method, kept) in METHODS.into_iter().zip(&mut kept) {
                let expected = flat.naive(method);
                *kept += expected.num_accepted;
                assert_eq!(verify(&chain, method), expected, "{method:?}, round {round}");
                for path in paths() {
                    let workers = Workers::Several;
                    let mut positions = Probabilities { chain: &chain, request: 0, path, workers };
                    let drafted = Drafted {
                        token_ids: &flat.tokens,
                        uniforms: &flat.uniforms,
                        bonus_token_id: None,
                    };
                    let verdict = drafted.verify(method, &mut positions);
                    assert_eq!(verdict, Ok(expected), "{method:?} by {path:?}, round {round}");
                }
            }
        }
        let all = 2 * 60;
        assert!(vocabulary == 1 || (1..all).contains(&kept[0]), "some of {all} kept: {kept:?}");
    }
}

fn one_hot_drafts_are_rows_of_one_token<T: Sample>() {
    let mut noise = Noise(21);
    for round in 0..200 {
        let flat = Flat::<T>::new(&mut noise, round % 4, [2, 3, 256, 600][round % 4]).one_hot();
        for method in METHODS {
            let without = Chain { draft_probs: None, ..flat.chain() };
            assert_eq!(verify(&without, method), flat.naive(method), "{method:?}, round {round}");
        }
    }
}

/// In any batch, with rows in the middle of larger ones, and with the bonus token from elsewhere.
fn company_and_layout_do_not_matter<T: Sample>() {
    let mut noise = Noise(22);
    let flats: Vec<_> = (0..60).map(|at| Flat::<T>::new(&mut noise, at % 6, 700)).collect();
    let chains: Vec<_> = flats.iter().map(Flat::chain).collect();
    for method in METHODS {
        let together = verify_chain(&chains, method).expect("good chains");
        for (flat, verdict) in flats.iter().zip(&together) {
            assert_eq!(flat.naive(method), *verdict, "{method:?}");
            let padded = |rows: &[T]| -> Vec<T> {
                let fill = [T::NAN; 5];
                rows.chunks(700).flat_map(|row| row.iter().chain(&fill)).copied().collect()
            };
            let (draft, target) = (padded(&flat.draft), padded(&flat.target));
            let length = flat.tokens.len();
            let strided = |rows, count| Rows::strided(rows, count, 700, 705).expect("whole rows");
            let chain = Chain {
                draft_probs: Some(strided(&draft, length)),
                target_probs: strided(&target, length + 1),
                ..flat.chain()
            };
            assert_eq!(verify(&chain, method), *verdict, "{method:?}");
            let target_probs = strided(&target, length);
            let chain = Chain { target_probs, bonus_token_id: Some(9_000_000_000), ..chain };
            let expected = if verdict.num_accepted < length {
                *verdict
            } else {
                Verdict { final_token_id: 9_000_000_000, ..*verdict }
            };
            assert_eq!(verify(&chain, method), expected, "{method:?}");
        }
    }
    assert_eq!(verify_chain::<T>(&[], Method::Standard), Ok(vec![]), "no chain at all");
}

/// NaN wherever a rule has no business.
fn nothing_is_read_without_need<T: Sample>() {
    let row = |a, b, c| [T::of(a), T::of(b), T::of(c)];
    let nan = [T::NAN; 3];
    let (even, mut kept) = (row(0.25, 0.5, 0.25), nan);
    kept[1] = T::of(0.5);
    let target = [kept, even, nan].concat();
    let draft = [kept, row(0.0, 1.0, 0.0), nan].concat();
    let chain = |tokens, uniforms| Chain {
        draft_probs: Some(Rows::new(&draft, 3).expect("whole rows")),
        target_probs: Rows::new(&target, 3).expect("whole rows"),
        draft_token_ids: tokens,
        uniforms,
        bonus_token_id: Some(7),
    };
    // Kept, rejected, and not looked at.
    let verdict = verify(&chain(&[1, 1, 0], &[0.75, 0.5, 0.0, 0.75]), Method::Standard);
    assert_eq!(verdict, Verdict { num_accepted: 1, final_token_id: 2 });
    let read = verify_chain(&[chain(&[1, 1, 0], &[0.75, 0.25, 0.0, 0.75])], Method::Standard);
    let place = Place::Position { request: 0, position: 2 };
    assert!(
        matches!(read, Err(Error::Value { argument: Argument::Draft, place: found, index: 0, value }) if found == place && value.is_nan()),
        "{read:?}"
    );
    // The rows of a block are read from the end: that of the first token never is.
    let (draft, target) = ([kept, even].concat(), [kept, even, nan].concat());
    let chain = Chain {
        draft_probs: Some(Rows::new(&draft, 3).expect("whole rows")),
        target_probs: Rows::new(&target, 3).expect("whole rows").part(0..2),
        draft_token_ids: &[1, 2],
        uniforms: &[0.5, 0.5, 0.5],
        bonus_token_id: Some(7),
    };
    assert_eq!(verify(&chain, Method::Block), Verdict { num_accepted: 2, final_token_id: 7 });
    // Greedy reads the target alone, and that up to the first difference.
    let target = [even, even, nan].concat();
    let target_probs = Rows::new(&target, 3).expect("whole rows");
    let chain = Chain { draft_probs: None, target_probs, uniforms: &[], ..chain };
    let greedy = Chain { bonus_token_id: None, ..chain };
    assert_eq!(verify(&greedy, Method::Greedy), Verdict { num_accepted: 1, final_token_id: 1 });
}

/// Two numbers whose product rounds to what they are compared with are not below it.
#[test]
fn acceptance_is_strict() {
    let chain = |draft: &[f64], target: &[f64], uniform| {
        let chain = Chain {
            draft_probs: Some(Rows::new(draft, 2).expect("whole rows")),
            target_probs: Rows::new(target, 2).expect("whole rows"),
            draft_token_ids: &[0],
            uniforms: &[uniform, 0.0],
            bonus_token_id: Some(5),
        };
        let [standard, block] = [Method::Standard, Method::Block].map(|m| verify(&chain, m));
        assert_eq!(standard, block, "a chain of one");
        standard.num_accepted
    };
    assert_eq!(chain(&[0.5, 0.5], &[0.25, 0.75], 0.5), 0, "equal");
    assert_eq!(chain(&[0.5, 0.5], &[0.25, 0.75], 0.5_f64.next_down()), 1, "below");
    assert_eq!(chain(&[0.5, 0.5], &[0.0, 1.0], 0.0), 0, "an impossible token");
    assert_eq!(chain(&[0.5, 0.5], &[1e-300, 1.0], 0.0), 1, "a possible one");
    assert_eq!(chain(&[0.5, 0.5], &[0.5, 0.5], JUST_BELOW_ONE), 1, "equal rows");
    assert_eq!(chain(&[5e-324, 0.5], &[1.0, 0.0], JUST_BELOW_ONE), 1, "a ratio that overflows");
}

/// Rows that do not sum to one can reject a token and have nothing in its place.
#[test]
fn an_empty_residual_falls_back_to_the_target() {
    let chain = |target: &'static [f32], uniforms: &'static [f64]| Chain {
        draft_probs: Some(Rows::new(&[0.5_f32, 0.5], 2).expect("whole rows")),
        target_probs: Rows::new(target, 2).expect("whole rows"),
        draft_token_ids: &[0],
        uniforms,
        bonus_token_id: Some(5),
    };
    for method in [Method::Standard, Method::Block] {
        let verdict = verify(&chain(&[0.25, 0.5], &[0.75, 0.25]), method);
        assert_eq!(verdict, Verdict { num_accepted: 0, final_token_id: 0 }, "{method:?}");
        let verdict = verify(&chain(&[0.25, 0.5], &[0.75, 0.75]), method);
        assert_eq!(verdict, Verdict { num_accepted: 0, final_token_id: 1 }, "{method:?}");
        let zeros = verify_chain(&[chain(&[0.0, 0.0], &[0.75, 0.75])], method);
        let place = Place::Position { request: 0, position: 0 };
        assert_eq!(zeros, Err(Error::NoToken { argument: Argument::Target, place }), "{method:?}");
    }
    let zeros = verify_chain(&[chain(&[0.0, 0.0], &[])], Method::Greedy);
    let place = Place::Position { request: 0, position: 0 };
    assert_eq!(zeros, Err(Error::NoToken { argument: Argument::Target, place }));
}

#[test]
fn errors_name_request_and_position() {
    let mut noise = Noise(23);
    let good = Flat::<f32>::new(&mut noise, 2, 40);
    let with = |change: &dyn Fn(&mut Flat<f32>)| {
        let mut bad = Flat::<f32>::new(&mut Noise(24), 2, 40);
        bad.uniforms = vec![0.0, JUST_BELOW_ONE, 0.5];
        change(&mut bad);
        let chains = [good.chain(), bad.chain(), bad.chain()];
        verify_chain(&chains, Method::Standard)
    };
    let place = Place::Position { request: 1, position: 1 };
    assert!(with(&|_| ()).is_ok(), "good so far");
    let token = with(&|bad| bad.tokens[1] = -1);
    assert_eq!(token, Err(Error::TokenRange { place, token: -1, vocabulary: 40 }));
    let token = with(&|bad| bad.tokens[1] = 40);
    assert_eq!(token, Err(Error::TokenRange { place, token: 40, vocabulary: 40 }));
    for value in [1.0, -0.25, f64::INFINITY] {
        let uniform = with(&|bad| bad.uniforms[1] = value);
        assert_eq!(uniform, Err(Error::Uniform { place, value }));
    }
    let uniform = with(&|bad| bad.uniforms[1] = f64::NAN);
    assert!(matches!(uniform, Err(Error::Uniform { place: found, .. }) if found == place));
    let impossible = with(&|bad| {
        bad.draft[40..].fill(0.0);
        let token = usize::try_from(bad.tokens[0]).expect("an id");
        bad.target[token] = 1.0;
    });
    let token = Flat::<f32>::new(&mut Noise(24), 2, 40).tokens[1];
    assert_eq!(
        impossible,
        Err(Error::TokenImpossible { argument: Argument::Draft, place, token, vocabulary: 40 })
    );
    for change in [
        &(|bad: &mut Flat<f32>| bad.uniforms.truncate(2)) as &dyn Fn(&mut Flat<f32>),
        &|bad| bad.uniforms.push(0.5),
        &|bad| bad.tokens.truncate(1),
        &|bad| bad.target.truncate(80),
        &|bad| bad.draft.truncate(40),
    ] {
        assert!(matches!(with(change), Err(Error::Length { .. })), "{:?}", with(change));
    }
}

/// A mass that is not finite, and a bad entry in a row that a token is drawn from.
#[test]
fn rows_that_are_read_are_checked() {
    let place = Place::Position { request: 0, position: 0 };
    let chain = |target: &[f64]| {
        let chain = Chain {
            draft_probs: Some(Rows::new(&[1.0, 0.0, 0.0], 3).expect("whole rows")),
            target_probs: Rows::new(target, 3).expect("whole rows"),
            draft_token_ids: &[0],
            uniforms: &[0.5, 0.5],
            bonus_token_id: Some(1),
        };
        METHODS.map(|method| verify_chain(&[chain], method))
    };
    for value in [f64::NAN, f64::INFINITY, -0.5] {
        for found in chain(&[0.0, 0.5, value]) {
            assert!(
                matches!(found, Err(Error::Value { argument: Argument::Target, place: at, index: 2, .. }) if at == place),
                "{found:?}"
            );
        }
    }
    let [standard, block, greedy] = chain(&[0.0, f64::MAX, f64::MAX]);
    let over = Error::MassOverflow { place, mass: f64::INFINITY, limit: f64::MAX };
    assert_eq!((standard, block), (Err(over.clone()), Err(over)));
    assert_eq!(greedy, Ok(vec![Verdict { num_accepted: 0, final_token_id: 1 }]));
}

#[test]
fn the_lowest_of_the_most_probable_is_found_wherever_it_is() {
    for at in [0, 1, 15, 16, 255, 256, 300, 599] {
        let mut row = vec![0.001_f32; 600];
        row[at] = 0.1;
        row[599] = 0.1;
        let chain = Chain {
            draft_probs: None,
            target_probs: Rows::new(&row, 600).expect("whole rows"),
            draft_token_ids: &[],
            uniforms: &[],
            bonus_token_id: None,
        };
        for path in paths() {
            let (chain, request, workers) = (&chain, 0, Workers::Caller);
            let mut positions = Probabilities { chain, request, path, workers };
            assert_eq!(positions.most_probable(0), Ok(at), "{path:?}");
        }
    }
}
