//! Chains whose rows are logits.

use crate::accept::in_vocabulary;
use crate::chain::{Drafted, Method, Positions, Verdict};
use crate::draw::Sums;
use crate::error::{Argument, Error, Place};
use crate::exp::Power;
use crate::filter::Filters;
use crate::float_env;
use crate::glance::Glance;
use crate::glances::{Glances, Seen};
use crate::lanes::Path;
use crate::law::{Draft, Law, Residual};
use crate::maxima::Maxima;
use crate::memory::collect;
use crate::residual::Workers;
use crate::row::{Row, Source};
use crate::rows::Rows;
use crate::scalar::Scalar;
use crate::step::each_row;

/// The highest temperature. Beyond, differences of logits would overflow that count.
const HOTTEST: f64 = 1e300;

/// The drafted tokens of one request, with the logits of both models at their positions.
///
/// A law is softmax(logits / temperature). A logit of -inf is a probability of 0; NaN and +inf are
/// errors, and so is a row of -inf alone.
#[derive(Clone, Copy, Debug)]
pub struct LogitsChain<'a, T> {
    /// The rows that the tokens were drawn from, one for each; `None` where each token was the only
    /// one that could come, as with greedy and n-gram drafts.
    pub draft_logits: Option<Rows<'a, T>>,
    /// The target's rows for the same prefixes and one more, for the bonus token.
    pub target_logits: Rows<'a, T>,
    /// The drafted tokens.
    pub draft_token_ids: &'a [i64],
    /// A number in `0.0..1.0` for each drafted token and one for the final draw, independent of
    /// each other and of all that the tokens were drawn with. None is used if the method is
    /// [`Method::Greedy`] or the temperature 0.
    pub uniforms: &'a [f64],
    /// The bonus token, where it is drawn elsewhere: then the target has no row for it.
    pub bonus_token_id: Option<i64>,
    /// What the target's logits are divided by, up to 1e300. 0 verifies the request by [`Method::Greedy`].
    pub temperature: f64,
    /// What the draft's logits are divided by. 0 says that each token was the most probable one, of
    /// several the lowest id.
    pub draft_temperature: f64,
    /// What the target's laws are restricted to.
    pub filters: Filters,
    /// Whether the draft's laws were restricted in the same way.
    pub filter_draft: bool,
}

/// Verify chains of drafted tokens, chains in parallel: how many tokens of each are kept, and the
/// one that follows. What is emitted then follows the target.
///
/// A token is kept if `uniform * draft / target` is below 1, computed by way of logarithms so that
/// no finite logit is too small. Rows are read as far as they are needed, and checked as far as they
/// are read. The result is that of `f64`, found in `f32` where that surely tells the same; a probability is off by at most 1e-10 of its value, and the same
/// bits on every processor.
///
/// # Errors
/// [`Error::Length`] for a chain whose parts do not fit, [`Error::Parameter`] for a temperature or a
/// filter out of range, [`Error::TokenRange`], [`Error::Uniform`], before any row is read. Then, of
/// the first chain that has one, [`Error::TokenImpossible`] and [`Error::Value`].
///
/// # Examples
/// ```
/// use draftverify::{Filters, LogitsChain, Method, Rows, verify_chain_logits};
///
/// let draft = [0.8_f32.ln(), 0.2_f32.ln()];
/// let target = [0.4_f32.ln(), 0.6_f32.ln(), 0.0, 0.0];
/// let chain = LogitsChain {
///     draft_logits: Some(Rows::new(&draft, 2)?),
///     target_logits: Rows::new(&target, 2)?,
///     draft_token_ids: &[0],
///     uniforms: &[0.7, 0.1],
///     bonus_token_id: None,
///     temperature: 1.0,
///     draft_temperature: 1.0,
///     filters: Filters::OFF,
///     filter_draft: false,
/// };
/// let verdicts = verify_chain_logits(&[chain], Method::Standard)?;
/// assert_eq!((verdicts[0].num_accepted, verdicts[0].final_token_id), (0, 1));
/// # Ok::<(), draftverify::Error>(())
/// ```
pub fn verify_chain_logits<T: Scalar>(
    chains: &[LogitsChain<'_, T>],
    method: Method,
) -> Result<Vec<Verdict>, Error> {
    float_env::in_default(|| {
        let mut numbered = chains.iter().enumerate();
        numbered.try_for_each(|(request, chain)| chain.check(method, request))
    })?;
    let vocabulary = chains.first().map_or(1, |chain| chain.target_logits.vocabulary());
    each_row(chains.len(), vocabulary, |request, workers| {
        chains[request].verify(method, request, Path::best(), workers)
    })
}

impl<'a, T: Scalar> LogitsChain<'a, T> {
    fn drafted(&self) -> Drafted<'a> {
        let Self { draft_token_ids: token_ids, uniforms, bonus_token_id, .. } = *self;
        Drafted { token_ids, uniforms, bonus_token_id }
    }

    /// At temperature 0 the most probable token is the only one.
    fn method(&self, method: Method) -> Method {
        if self.temperature == 0.0 { Method::Greedy } else { method }
    }

    fn check(&self, method: Method, request: usize) -> Result<(), Error> {
        let temperatures =
            [("temperature", self.temperature), ("draft_temperature", self.draft_temperature)];
        for (argument, value) in temperatures {
            if !(0.0..=HOTTEST).contains(&value) {
                let expected = "a number above 0 and up to 1e300, or 0 for the most probable token";
                return Err(Error::Parameter { argument, expected, value, request });
            }
        }
        self.filters.check(request)?;
        let names = ["draft_logits", "target_logits"];
        let (draft, target) = (self.draft_logits, self.target_logits);
        self.drafted().check(self.method(method), names, draft, target, request)
    }

    /// Verify a chain that was checked.
    pub(crate) fn verify(
        &self,
        method: Method,
        request: usize,
        path: Path,
        workers: Workers,
    ) -> Result<Verdict, Error> {
        let pairs = collect(self.draft_token_ids.iter().map(|_| None))?;
        let mut positions =
            Logits { chain: self, request, path, workers, glances: None, pairs, residual: None };
        float_env::in_default(|| self.drafted().verify(self.method(method), &mut positions))
    }
}

/// The laws at the position of a drafted token.
#[derive(Clone, Copy)]
struct Pair<'a, T> {
    draft: Draft<'a, T>,
    target: Law<'a, T>,
    /// draft / target of the drafted token; none where its target is 0.
    ratio: Option<Power>,
}

/// The residual of a position, for a scale, and its sums.
struct Summed<'a, T> {
    position: usize,
    scale: f64,
    residual: Residual<'a, T>,
    sums: Sums,
}

/// One chain, at work. What is found of a position is kept.
struct Logits<'a, T> {
    chain: &'a LogitsChain<'a, T>,
    request: usize,
    path: Path,
    workers: Workers,
    /// The position that was looked at last.
    glances: Option<(usize, Glances<'a, T>)>,
    pairs: Vec<Option<Pair<'a, T>>>,
    residual: Option<Summed<'a, T>>,
}

impl<'a, T: Scalar> Logits<'a, T> {
    fn place(&self, position: usize) -> Place {
        Place::Position { request: self.request, position }
    }

    fn target(&self, position: usize) -> Result<(Law<'a, T>, Sums), Error> {
        let LogitsChain { target_logits, temperature, filters, .. } = *self.chain;
        let (argument, row) = (Argument::TargetLogits, target_logits.row(position));
        Law::of(self.path, self.workers, argument, row, temperature, filters)
            .map_err(|error| error.at(self.place(position)))
    }

    /// What a drafted token was drawn from, and the logarithm of its weight there to base 2.
    fn draft(&self, row: Row<'a, T>, token: usize) -> Result<(Draft<'a, T>, f64), Error> {
        let LogitsChain { draft_temperature, filters, filter_draft, .. } = *self.chain;
        let argument = Argument::DraftLogits;
        let (place, vocabulary) = (Place::Only, Source::len(&row));
        let impossible = Error::TokenImpossible {
            argument,
            place,
            token: token.cast_signed() as i64,
            vocabulary,
        };
        if draft_temperature == 0.0 {
            let most_probable = Maxima::of(self.path, argument, row)?.id()?;
            return if token == most_probable {
                Ok((Draft::OneHot(token), 0.0))
            } else {
                Err(impossible)
            };
        }
        let filters = if filter_draft { filters } else { Filters::OFF };
        let law = Law::of(self.path, self.workers, argument, row, draft_temperature, filters)?.0;
        let exponent = law.exponent(token).ok_or(impossible)?;
        Ok((Draft::Law(law), exponent))
    }

    fn pair(&mut self, position: usize) -> Result<Pair<'a, T>, Error> {
        if let Some(pair) = self.pairs[position] {
            return Ok(pair);
        }
        let vocabulary = self.chain.target_logits.vocabulary();
        let token = in_vocabulary(self.chain.draft_token_ids[position], vocabulary)?;
        let (draft, above) = match self.chain.draft_logits {
            Some(rows) => self
                .draft(rows.row(position), token)
                .map_err(|error| error.at(self.place(position)))?,
            None => (Draft::OneHot(token), 0.0),
        };
        let target = self.target(position)?.0;
        let draft_total = if let Draft::Law(law) = draft { law.total } else { 1.0 };
        let ratio = target
            .exponent(token)
            .map(|below| Power::new(target.total / draft_total, above - below));
        let pair = Pair { draft, target, ratio };
        self.pairs[position] = Some(pair);
        Ok(pair)
    }

    fn residual(&mut self, position: usize, scale: f64) -> Result<&Summed<'a, T>, Error> {
        let known = self.residual.take();
        let known = known.filter(|known| (known.position, known.scale) == (position, scale));
        let summed = if let Some(known) = known {
            known
        } else {
            let Pair { draft, target, .. } = self.pair(position)?;
            let residual = Residual::new(target, draft, scale);
            let sums = Sums::of(self.path, self.workers, residual)?;
            Summed { position, scale, residual, sums }
        };
        Ok(self.residual.insert(summed))
    }
}

impl<'a, T: Scalar> Logits<'a, T> {
    /// The rows of a position at a glance, where that is any good.
    fn glances(&self, position: usize) -> Result<Option<Glances<'a, T>>, Error> {
        let LogitsChain { target_logits, draft_logits, filters, .. } = *self.chain;
        let vocabulary = target_logits.vocabulary();
        let token = in_vocabulary(self.chain.draft_token_ids[position], vocabulary)?;
        if !filters.are_off() || self.chain.draft_temperature == 0.0 {
            return Ok(None);
        }
        let see = |rows: Rows<'a, T>, temperature| {
            Seen::of(self.path, self.workers, rows.row(position), temperature)
        };
        let mut draft = None;
        if let Some(rows) = draft_logits {
            draft = see(rows, self.chain.draft_temperature)?;
            if draft.is_none() {
                return Ok(None);
            }
        }
        let target = see(target_logits, self.chain.temperature)?;
        Ok(target.map(|target| Glances { token, draft, target }))
    }
}

impl<T: Scalar> Positions for Logits<'_, T> {
    fn accepts(&mut self, position: usize, uniform: f64) -> Result<bool, Error> {
        let glances = self.glances(position)?;
        self.glances = glances.map(|glances| (position, glances));
        if let Some(kept) = glances.and_then(|glances| glances.keep(uniform)) {
            return Ok(kept);
        }
        let ratio = self.pair(position)?.ratio;
        Ok(ratio.is_some_and(|ratio| ratio.times_is_below_one(uniform)))
    }

    fn ratio(&mut self, position: usize) -> Result<f64, Error> {
        let ratio = self.pair(position)?.ratio;
        Ok(ratio.map_or(0.0, |ratio| 1.0 / ratio.value()))
    }

    fn residual_mass(&mut self, position: usize, scale: f64) -> Result<f64, Error> {
        Ok(self.residual(position, scale)?.sums.mass)
    }

    fn draw_residual(
        &mut self,
        position: usize,
        scale: Option<f64>,
        uniform: f64,
    ) -> Result<usize, Error> {
        if let Some((_, glances)) = self.glances.filter(|(at, _)| *at == position)
            && scale.is_none()
            && let Some(id) = glances.replace(self.path, self.workers, uniform)?
        {
            return Ok(id);
        }
        let path = self.path;
        let Summed { residual, sums, .. } = self.residual(position, scale.unwrap_or(1.0))?;
        let drawn = sums.draw(path, *residual, uniform);
        drawn.map_or_else(|| self.draw_target(position, uniform), Ok)
    }

    fn draw_target(&mut self, position: usize, uniform: f64) -> Result<usize, Error> {
        let LogitsChain { target_logits, temperature, filters, .. } = *self.chain;
        if filters.are_off() {
            let row = target_logits.row(position);
            let seen = Glance::of(self.path, self.workers, row, temperature)?;
            let drawn = seen.and_then(|(glance, sums)| glance.draw(self.path, &sums, uniform));
            if let Some(id) = drawn {
                return Ok(id);
            }
        }
        let (law, sums) = self.target(position)?;
        let place = self.place(position);
        let nothing = Error::NoToken { argument: Argument::TargetLogits, place };
        sums.draw(self.path, law.weights, uniform).ok_or(nothing)
    }

    fn most_probable(&mut self, position: usize) -> Result<usize, Error> {
        let row = self.chain.target_logits.row(position);
        let maxima = Maxima::of(self.path, Argument::TargetLogits, row);
        maxima.and_then(|maxima| maxima.id()).map_err(|error| error.at(self.place(position)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept is of one position and one scale.
    #[test]
    fn what_is_kept_is_not_taken_for_another() {
        let (draft, target) = ([0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 3.0, 0.0, 0.0]);
        let rows = |entries| Rows::new(entries, 2).expect("whole rows");
        let chain = LogitsChain {
            draft_logits: Some(rows(&draft)),
            target_logits: rows(&target),
            draft_token_ids: &[0, 0],
            uniforms: &[0.5; 3],
            bonus_token_id: None,
            temperature: 1.0,
            draft_temperature: 1.0,
            filters: Filters::OFF,
            filter_draft: false,
        };
        let fresh = || Logits {
            chain: &chain,
            request: 0,
            path: Path::Portable,
            workers: Workers::Caller,
            glances: None,
            pairs: vec![None; 2],
            residual: None,
        };
        let mut used = fresh();
        let mut masses = vec![];
        for (position, scale) in [(0, 0.9), (0, 1.0), (1, 1.0), (1, 1.0), (0, 1.0)] {
            let mass = used.residual_mass(position, scale).expect("logits").to_bits();
            let expected = fresh().residual_mass(position, scale).expect("logits").to_bits();
            assert_eq!(mass, expected, "position {position}, scale {scale}");
            masses.push(mass);
        }
        masses.dedup();
        assert_eq!(masses.len(), 4, "they differ");
        let mut drawn = vec![];
        for (position, scale, uniform) in [(0, None, 0.5), (1, None, 0.5), (1, Some(0.2), 0.01)] {
            let expected = fresh().draw_residual(position, scale, uniform).expect("logits");
            for looked_at in [0, 1] {
                used.accepts(looked_at, 0.5).expect("logits");
                let found = used.draw_residual(position, scale, uniform).expect("logits");
                assert_eq!(found, expected, "{position}, scale {scale:?}, seen {looked_at}");
            }
            drawn.push(expected);
        }
        assert_eq!(drawn, [0, 1, 0], "they differ");
    }
}
