//! Verify a whole chain of drafted tokens: how many survive, and the token that follows.
//!
//! The three rules are written once, in terms of what is asked of a position; `probabilities.rs`
//! answers from rows of probabilities, `logits.rs` from rows of logits.

use crate::accept::in_vocabulary;
use crate::error::{Error, Place, expect};
use crate::memory::room;
use crate::rows::Rows;
use crate::scalar::Scalar;

/// How the drafted tokens of a chain are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Token by token, up to the first rejection: Leviathan, Kalman and Matias, ICML 2023
    /// (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
    Standard,
    /// The chain as a whole: Sun et al., "Block Verification Accelerates Speculative Decoding",
    /// ICLR 2025 (arXiv 2403.10444), algorithm 2. Never keeps fewer tokens on average than
    /// `Standard`, and the law of what is emitted is the same.
    Block,
    /// Keep what the target's most probable token is, the lowest id of several. Uniforms and draft
    /// rows are not used.
    Greedy,
}

/// What is emitted for a chain: so many of the drafted tokens, and one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How many of the drafted tokens are kept.
    pub num_accepted: usize,
    /// The token behind them: the replacement of a rejected one, or the bonus token.
    pub final_token_id: i64,
}

/// What the rules ask of the positions of a chain. Positions count from 0; the target's row behind
/// the last drafted token is at position `length`.
pub(crate) trait Positions {
    /// Whether the drafted token is kept: `uniform * draft < target`, strictly.
    fn accepts(&mut self, position: usize, uniform: f64) -> Result<bool, Error>;

    /// target / draft of the drafted token.
    fn ratio(&mut self, position: usize) -> Result<f64, Error>;

    /// The sum of max(scale * target - draft, 0) in `f64`.
    fn residual_mass(&mut self, position: usize, scale: f64) -> Result<f64, Error>;

    /// Draw the replacement from max(target - draft, 0) or, with a scale, from
    /// max(scale * target - draft, 0) in `f64`; from the target where nothing exceeds the draft.
    fn draw_residual(
        &mut self,
        position: usize,
        scale: Option<f64>,
        uniform: f64,
    ) -> Result<usize, Error>;

    /// Draw from the target.
    fn draw_target(&mut self, position: usize, uniform: f64) -> Result<usize, Error>;

    /// The lowest of the target's most probable ids.
    fn most_probable(&mut self, position: usize) -> Result<usize, Error>;
}

/// What a chain is, beside its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drafted<'a> {
    pub(crate) token_ids: &'a [i64],
    /// One for each drafted token and one for the final draw.
    pub(crate) uniforms: &'a [f64],
    /// Emitted as it is after all were kept; the target has no row for it then.
    pub(crate) bonus_token_id: Option<i64>,
}

impl Drafted<'_> {
    /// Check that the chain of a request has as many rows as its tokens need, and its numbers.
    /// `names` are those of the rows' arguments, the draft's first.
    pub(crate) fn check<T: Scalar>(
        &self,
        method: Method,
        names: [&'static str; 2],
        draft: Option<Rows<'_, T>>,
        target: Rows<'_, T>,
        request: usize,
    ) -> Result<(), Error> {
        let (length, vocabulary) = (self.token_ids.len(), target.vocabulary());
        if let Some(draft) = draft.filter(|_| method != Method::Greedy) {
            expect(names[0], "rows", draft.len(), length)?;
            expect(names[0], "entries a row", draft.vocabulary(), vocabulary)?;
        }
        let more = usize::from(self.bonus_token_id.is_none());
        expect(names[1], "rows", target.len(), length + more)?;
        for (position, token) in self.token_ids.iter().enumerate() {
            let place = Place::Position { request, position };
            in_vocabulary(*token, vocabulary).map_err(|error| error.at(place))?;
        }
        if method == Method::Greedy {
            return Ok(());
        }
        expect("uniforms", "numbers", self.uniforms.len(), length + 1)?;
        let bad = self.uniforms.iter().position(|uniform| !(0.0..1.0).contains(uniform));
        bad.map_or(Ok(()), |position| {
            let place = Place::Position { request, position };
            Err(Error::Uniform { place, value: self.uniforms[position] })
        })
    }

    /// Verify by `method`. Errors name the position they are about.
    pub(crate) fn verify(
        self,
        method: Method,
        positions: &mut impl Positions,
    ) -> Result<Verdict, Error> {
        match method {
            Method::Standard => self.standard(positions),
            Method::Block => self.block(positions),
            Method::Greedy => self.greedy(positions),
        }
    }

    fn standard(self, positions: &mut impl Positions) -> Result<Verdict, Error> {
        let length = self.token_ids.len();
        for position in 0..length {
            if !positions.accepts(position, self.uniforms[position])? {
                let drawn = positions.draw_residual(position, None, self.uniforms[length])?;
                return Ok(verdict(position, drawn));
            }
        }
        self.all_kept(positions)
    }

    /// The uniforms are tried from the last position on, so that the first success is the longest
    /// block: rows in front of it are not read.
    fn block(self, positions: &mut impl Positions) -> Result<Verdict, Error> {
        let length = self.token_ids.len();
        let mut joint = 1.0;
        // Joint ratios, capped at 1 at every position: entry `i` is that of the first `i` tokens.
        let mut scales = room(length + 1)?;
        scales.push(joint);
        for position in 0..length {
            let ratio = positions.ratio(position)?;
            // Once 0 it stays 0, also where a ratio overflows.
            if joint > 0.0 {
                joint = (joint * ratio).min(1.0);
            }
            scales.push(joint);
        }
        for kept in (1..=length).rev() {
            let scale = scales[kept];
            let passes = if kept == length {
                scale
            } else {
                let mass = positions.residual_mass(kept, scale)?;
                let all = mass + (1.0 - scale);
                if all == 0.0 { 1.0 } else { mass / all }
            };
            if self.uniforms[kept - 1] < passes {
                if kept == length {
                    return self.all_kept(positions);
                }
                let drawn = positions.draw_residual(kept, Some(scale), self.uniforms[length])?;
                return Ok(verdict(kept, drawn));
            }
        }
        if length == 0 {
            return self.all_kept(positions);
        }
        Ok(verdict(0, positions.draw_residual(0, Some(1.0), self.uniforms[length])?))
    }

    fn greedy(self, positions: &mut impl Positions) -> Result<Verdict, Error> {
        for (position, token) in self.token_ids.iter().enumerate() {
            let most_probable = positions.most_probable(position)?;
            if i64::try_from(most_probable) != Ok(*token) {
                return Ok(verdict(position, most_probable));
            }
        }
        self.bonus(|length| positions.most_probable(length))
    }

    /// The verdict where all are kept, with the bonus token drawn from the target.
    fn all_kept(self, positions: &mut impl Positions) -> Result<Verdict, Error> {
        self.bonus(|length| positions.draw_target(length, self.uniforms[length]))
    }

    /// The verdict where all are kept, with the bonus token as it was given, else as `id` answers.
    fn bonus(self, id: impl FnOnce(usize) -> Result<usize, Error>) -> Result<Verdict, Error> {
        let length = self.token_ids.len();
        match self.bonus_token_id {
            Some(id) => Ok(Verdict { num_accepted: length, final_token_id: id }),
            None => Ok(verdict(length, id(length)?)),
        }
    }
}

fn verdict(num_accepted: usize, id: usize) -> Verdict {
    Verdict { num_accepted, final_token_id: id.cast_signed() as i64 }
}
