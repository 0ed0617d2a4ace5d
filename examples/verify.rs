//! Verify a draft of three tokens row by row, with uniforms as a server would draw them.
//!
//! `cargo run --example verify`

use std::io::{self, Write};

use draftverify::speculative_decode_step;

const WORDS: [&str; 4] = ["the", "cat", "sat", "down"];

/// What the draft model proposed, its law, and the target model's law for the same prefix.
const CHAIN: [(i64, [f32; 4], [f32; 4]); 3] = [
    (0, [0.7, 0.1, 0.1, 0.1], [0.6, 0.2, 0.1, 0.1]),
    (1, [0.1, 0.6, 0.2, 0.1], [0.1, 0.8, 0.05, 0.05]),
    (3, [0.1, 0.1, 0.2, 0.6], [0.05, 0.05, 0.75, 0.15]),
];
/// One uniform for each drafted token: the crate makes no random numbers.
const UNIFORMS: [f64; 3] = [0.25, 0.875, 0.5];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = io::stdout().lock();
    let mut residual = [0.0_f32; 4];
    for ((token, draft, target), uniform) in CHAIN.into_iter().zip(UNIFORMS) {
        let step = speculative_decode_step(&draft, &target, token, &mut residual)?;
        let word = usize::try_from(token).ok().and_then(|token| WORDS.get(token)).unwrap_or(&"?");
        let kept = uniform < step.accept_prob;
        writeln!(
            out,
            "{word:>5}  accept_prob {:.4}  uniform {uniform:.3}  {}  mass {:.4}",
            step.accept_prob,
            if kept { "kept    " } else { "rejected" },
            step.mass
        )?;
        if !kept {
            write!(out, "       the replacement is drawn from the residual:")?;
            for (word, probability) in WORDS.iter().zip(residual) {
                write!(out, " {word} {probability:.3}")?;
            }
            writeln!(out)?;
            break;
        }
    }
    Ok(())
}
