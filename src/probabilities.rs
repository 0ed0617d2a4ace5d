//! Chains whose rows are probabilities.

use crate::accept::entries;
use crate::argmax::argmax;
use crate::chain::{Drafted, Method, Positions, Verdict};
use crate::draw::{Entries, Sums, Weights};
use crate::error::{Argument, Error, Place};
use crate::float_env;
use crate::lanes::Path;
use crate::pair::{Draft, Excess, Pair, Scaled};
use crate::residual::{Workers, look};
use crate::row::{Row, Source};
use crate::rows::Rows;
use crate::scalar::Scalar;
use crate::step::each_row;

/// The drafted tokens of one request, with the probabilities of both models at their positions.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a, T> {
    /// The rows that the tokens were drawn from, one for each; `None` where each token was the only
    /// one that could come, as with greedy and n-gram drafts.
    pub draft_probs: Option<Rows<'a, T>>,
    /// The target's rows for the same prefixes and one more, for the bonus token.
    pub target_probs: Rows<'a, T>,
    /// The drafted tokens.
    pub draft_token_ids: &'a [i64],
    /// A number in `0.0..1.0` for each drafted token and one for the final draw, independent of
    /// each other and of all that the tokens were drawn with. [`Method::Greedy`] uses none.
    pub uniforms: &'a [f64],
    /// The bonus token, where it is drawn elsewhere: then the target has no row for it.
    pub bonus_token_id: Option<i64>,
}

/// Verify chains of drafted tokens, chains in parallel: how many tokens of each are kept, and the
/// one that follows. What is emitted then follows the target.
///
/// Rows are read as far as they are needed, and checked as far as they are read: two entries of a
/// row whose token is kept, and all of the row that the final token is drawn from;
/// [`Method::Block`] reads the rows from the last position down to that of the final token. The
/// chains are over one vocabulary, but what a chain gives does not depend on the others.
///
/// # Errors
/// [`Error::Length`] for a chain whose parts do not fit, [`Error::TokenRange`], [`Error::Uniform`],
/// before any row is read. Then, of the first chain that has one, [`Error::TokenImpossible`],
/// [`Error::Value`], [`Error::MassOverflow`], and [`Error::NoToken`] where an id has to be drawn
/// from zeros.
///
/// # Examples
/// ```
/// use draftverify::{Chain, Method, Rows, verify_chain};
///
/// let draft = [0.8_f32, 0.2];
/// let target = [0.4_f32, 0.6, 0.5, 0.5];
/// let chain = Chain {
///     draft_probs: Some(Rows::new(&draft, 2)?),
///     target_probs: Rows::new(&target, 2)?,
///     draft_token_ids: &[0],
///     uniforms: &[0.7, 0.1],
///     bonus_token_id: None,
/// };
/// let verdicts = verify_chain(&[chain], Method::Standard)?;
/// assert_eq!((verdicts[0].num_accepted, verdicts[0].final_token_id), (0, 1));
/// # Ok::<(), draftverify::Error>(())
/// ```
pub fn verify_chain<T: Scalar>(
    chains: &[Chain<'_, T>],
    method: Method,
) -> Result<Vec<Verdict>, Error> {
    float_env::in_default(|| {
        for (request, chain) in chains.iter().enumerate() {
            let names = ["draft_probs", "target_probs"];
            let (draft, target) = (chain.draft_probs, chain.target_probs);
            chain.drafted().check(method, names, draft, target, request)?;
        }
        Ok(())
    })?;
    let vocabulary = chains.first().map_or(1, |chain| chain.target_probs.vocabulary());
    each_row(chains.len(), vocabulary, |request, workers| {
        let chain = &chains[request];
        let path = Path::best();
        let mut positions = Probabilities { chain, request, path, workers };
        float_env::in_default(|| chain.drafted().verify(method, &mut positions))
    })
}

impl<'a, T> Chain<'a, T> {
    fn drafted(&self) -> Drafted<'a> {
        let Self { draft_token_ids: token_ids, uniforms, bonus_token_id, .. } = *self;
        Drafted { token_ids, uniforms, bonus_token_id }
    }
}

/// One chain, at work.
#[derive(Clone, Copy)]
pub(crate) struct Probabilities<'a, T> {
    pub(crate) chain: &'a Chain<'a, T>,
    pub(crate) request: usize,
    pub(crate) path: Path,
    pub(crate) workers: Workers,
}

impl<'a, T: Scalar> Probabilities<'a, T> {
    fn place(&self, position: usize) -> Place {
        Place::Position { request: self.request, position }
    }

    fn target(&self, position: usize) -> Row<'a, T> {
        self.chain.target_probs.row(position)
    }

    /// The rows at the position of a drafted token.
    fn pair(&self, position: usize) -> Pair<'a, T> {
        let target = self.target(position);
        let token = self.chain.draft_token_ids[position];
        let one_hot = Draft::OneHot { len: target.len(), token: Some(token) };
        let draft = self.chain.draft_probs.map_or(one_hot, |rows| Draft::Row(rows.row(position)));
        Pair { draft, target }
    }

    /// The entries of draft and target at the drafted token, widened and checked.
    fn entries(&self, position: usize) -> Result<(f64, f64), Error> {
        let token = self.chain.draft_token_ids[position];
        let Pair { draft, target } = self.pair(position);
        let found = entries(draft, target, token);
        let (draft, target) = found.map_err(|error| error.at(self.place(position)))?;
        Ok((draft.to_f64(), target.to_f64()))
    }

    /// The sums of a row's weights, if all that was read are probabilities.
    fn sums<W: Weights>(
        &self,
        position: usize,
        pair: Pair<'_, T>,
        weights: W,
    ) -> Result<Sums, Error> {
        let sums = Sums::of(self.path, self.workers, weights)?;
        let checked = || {
            if sums.suspect {
                if let Draft::Row(row) = pair.draft {
                    look(Argument::Draft, row)?;
                }
                look(Argument::Target, pair.target)?;
            }
            if sums.mass.is_finite() {
                Ok(())
            } else {
                Err(Error::MassOverflow { place: Place::Only, mass: sums.mass, limit: f64::MAX })
            }
        };
        checked().map_err(|error| error.at(self.place(position)))?;
        Ok(sums)
    }

    fn drawn<W: Entries>(
        &self,
        position: usize,
        pair: Pair<'_, T>,
        weights: W,
        uniform: f64,
    ) -> Result<Option<usize>, Error> {
        Ok(self.sums(position, pair, weights)?.draw(self.path, weights, uniform))
    }
}

impl<T: Scalar> Positions for Probabilities<'_, T> {
    fn accepts(&mut self, position: usize, uniform: f64) -> Result<bool, Error> {
        let (draft, target) = self.entries(position)?;
        Ok(uniform * draft < target)
    }

    fn ratio(&mut self, position: usize) -> Result<f64, Error> {
        let (draft, target) = self.entries(position)?;
        Ok(target / draft)
    }

    fn residual_mass(&mut self, position: usize, scale: f64) -> Result<f64, Error> {
        let pair = self.pair(position);
        Ok(self.sums(position, pair, Scaled { pair, scale })?.mass)
    }

    fn draw_residual(
        &mut self,
        position: usize,
        scale: Option<f64>,
        uniform: f64,
    ) -> Result<usize, Error> {
        let pair = self.pair(position);
        let drawn = match scale {
            None => self.drawn(position, pair, Excess(pair), uniform)?,
            Some(scale) => self.drawn(position, pair, Scaled { pair, scale }, uniform)?,
        };
        drawn.map_or_else(|| self.draw_target(position, uniform), Ok)
    }

    fn draw_target(&mut self, position: usize, uniform: f64) -> Result<usize, Error> {
        let target = self.target(position);
        let pair = Pair { draft: Draft::OneHot { len: target.len(), token: None }, target };
        let (argument, place) = (Argument::Target, self.place(position));
        let drawn = self.drawn(position, pair, Excess(pair), uniform)?;
        drawn.ok_or(Error::NoToken { argument, place })
    }

    fn most_probable(&mut self, position: usize) -> Result<usize, Error> {
        let target = self.target(position);
        let (id, suspect) = argmax(self.path, target);
        let (argument, place) = (Argument::Target, self.place(position));
        if suspect {
            look(argument, target).map_err(|error| error.at(place))?;
        }
        if target.entry(id).to_f64() > 0.0 {
            Ok(id)
        } else {
            Err(Error::NoToken { argument, place })
        }
    }
}
