//! The verification arithmetic of speculative decoding: exact, deterministic, fast.
//!
//! A small draft model proposes tokens, a large target model verifies them. Given both
//! distributions over the vocabulary and the drafted token, the crate answers the probability of
//! keeping the proposal, min(1, target\[t\] / draft\[t\]), and the distribution that replaces it
//! when it is rejected, max(target - draft, 0) normalised. It makes no random numbers, runs no
//! model, and changes no input.
//!
//! ```
//! let draft = [0.7_f64, 0.2, 0.05, 0.05];
//! let target = [0.6_f64, 0.2, 0.1, 0.1];
//! let mut residual = [0.0; 4];
//! let step = draftverify::speculative_decode_step(&draft, &target, 0, &mut residual)?;
//! assert!((step.accept_prob - 6.0 / 7.0).abs() < 1e-15);
//! assert_eq!(residual, [0.0, 0.0, 0.5, 0.5]);
//! # Ok::<(), draftverify::Error>(())
//! ```
//!
//! # Words
//! - **row**: one vector over the vocabulary.
//! - **draft**, **target**: the probabilities of the model that proposes and of the one that is to
//!   be followed. They are finite, not negative, and sum to one.
//! - **residual**: the distribution of the replacement of a rejected token.
//! - **mass**: the sum of max(target - draft, 0), one minus the acceptance rate where both rows sum
//!   to one.
//!
//! Error messages name the arguments as the functions do: `draft_probs`, `target_probs`, and
//! `drafted_token` for one row or `draft_token_ids` for many.
//!
//! # The same bits everywhere
//! Differences and quotients are `f32` for float16, bfloat16 and float32 rows and `f64` for float64
//! rows; sums are `f64` in an order that depends on the length of the row alone. So results do not
//! depend on the number of threads, the instructions of the processor, the place in a batch, the
//! alignment or the strides, nor on whether the calling thread flushes subnormal numbers.
//!
//! # Types
//! Rows are `f32`, `f64`, [`half::f16`] or [`half::bf16`]: see [`Scalar`].

mod accept;
mod argmax;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_powers;
#[doc(hidden)]
pub mod bench;
mod chain;
#[cfg(any(target_arch = "x86_64", test))]
mod divisor;
mod draw;
#[cfg(target_arch = "x86_64")]
mod entries;
mod error;
mod exp;
mod filter;
mod float_env;
mod glance;
mod glances;
mod lanes;
mod law;
mod logits;
mod maxima;
mod memory;
#[cfg(test)]
mod naive;
#[cfg(test)]
mod naive_chain;
#[cfg(test)]
mod naive_logits;
mod pair;
mod parallel;
mod probabilities;
#[cfg(feature = "python")]
mod python;
mod rate;
#[cfg(target_arch = "x86_64")]
mod registers;
mod residual;
mod row;
mod rows;
mod scalar;
mod step;
#[cfg(test)]
mod tests;
mod tree;

pub use chain::{Method, Verdict};
pub use error::{Argument, Error, Place};
pub use filter::Filters;
pub use half;
pub use logits::{LogitsChain, verify_chain_logits};
pub use parallel::{num_threads, set_num_threads};
pub use probabilities::{Chain, verify_chain};
pub use rate::{acceptance_rate, acceptance_rates};
pub use rows::{Rows, RowsMut};
pub use scalar::{Scalar, Wide};
pub use step::{OnBadRow, Step, accept_probs, accept_residual, speculative_decode_step};
