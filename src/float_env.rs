//! The floating-point environment that the contract needs: round to nearest, subnormals kept, no
//! exception traps.
//!
//! A thread can be switched to flush subnormal numbers to zero (`torch.set_flush_denormal(True)`,
//! or a library built with `-ffast-math` and loaded into the process), and new threads inherit the
//! switch. Results would then depend on who calls. So the arithmetic runs in the default
//! environment, and the caller's is put back afterwards.

/// Run `body` with the default environment of the processor.
pub(crate) fn in_default<R>(body: impl FnOnce() -> R) -> R {
    // Not inlined, so that no arithmetic of the body moves across the switch: the compiler takes
    // the environment for constant and sees no reason to keep the order.
    #[inline(never)]
    fn call<R>(body: impl FnOnce() -> R) -> R {
        body()
    }

    let found = control::read();
    if found & control::MASK == control::DEFAULT {
        return body();
    }
    let _restore = Restore(found);
    control::write(found & !control::MASK | control::DEFAULT);
    call(body)
}

/// Puts the caller's environment back, also when the body panics.
struct Restore(control::Word);

impl Drop for Restore {
    fn drop(&mut self) {
        control::write(self.0);
    }
}

#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    pub(super) type Word = u32;
    /// Flush to zero, denormals are zero, rounding mode, exceptions: the bits of MXCSR that change
    /// results or trap.
    pub(super) const MASK: Word = 0xFFC0;
    /// To nearest, subnormals kept, no exception traps.
    pub(super) const DEFAULT: Word = 0x1F80;

    #[inline(always)]
    pub(super) fn read() -> Word {
        let mut word = 0;
        // SAFETY: stores four bytes at the given address, which is `word`'s.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    pub(super) fn write(word: Word) {
        // SAFETY: loads a word that was read from the same register, with bits changed that only
        // select rounding and the treatment of subnormals. Rust code must not run in another than
        // the default environment; this goes to the default and, at the end, back to what the
        // caller, not Rust code, had chosen.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    pub(super) type Word = u64;
    /// Flush to zero (also for float16), rounding mode, alternate subnormal handling, exceptions:
    /// the bits of FPCR that change results or trap.
    pub(super) const MASK: Word = 0x01C8_9F03;
    pub(super) const DEFAULT: Word = 0;

    #[inline(always)]
    pub(super) fn read() -> Word {
        let word;
        // SAFETY: reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nomem, nostack, preserves_flags)) };
        word
    }

    pub(super) fn write(word: Word) {
        // SAFETY: writes a word that was read from the same register, with bits changed that only
        // select rounding and the treatment of subnormals. See the x86-64 version.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }
}

/// Elsewhere the environment is taken as it is.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    pub(super) type Word = u32;
    pub(super) const MASK: Word = 0;
    pub(super) const DEFAULT: Word = 0;

    pub(super) fn read() -> Word {
        0
    }

    pub(super) fn write(_: Word) {}
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// Flush subnormals to zero; round towards zero.
    #[cfg(target_arch = "x86_64")]
    const SWITCHES: [control::Word; 3] = [0x8000, 0x0040, 0x6000];
    #[cfg(target_arch = "aarch64")]
    const SWITCHES: [control::Word; 2] = [1 << 24, 3 << 22];

    /// Sums that a switch of the environment changes: a subnormal result, a subnormal operand, a
    /// rounding upwards.
    fn probe() -> [u64; 3] {
        let half = black_box(f64::MIN_POSITIVE) * black_box(0.5);
        let twice = black_box(f64::from_bits(1)) + black_box(f64::from_bits(1));
        let tenth = black_box(1.0) / black_box(10.0_f64);
        [half, twice, tenth].map(f64::to_bits)
    }

    /// Each on a thread of its own: a switch must not leak into other tests.
    #[test]
    fn arithmetic_runs_in_the_default_environment() {
        let expected = probe();
        for switch in SWITCHES {
            let test = move || {
                let before = control::read();
                control::write(before | switch);
                let switched = probe();
                let kept = in_default(probe);
                let panicked = std::panic::catch_unwind(|| in_default(|| panic!("on purpose")));
                let after = control::read();
                let switched_again = probe();
                control::write(before);
                assert_ne!(switched, expected, "{switch:#x} changes results");
                assert_eq!(switched_again, switched, "{switch:#x} was put back");
                assert_eq!(kept, expected, "{switch:#x} is off inside");
                assert!(panicked.is_err(), "the panic went on");
                assert_eq!(
                    after & control::MASK,
                    control::DEFAULT | switch,
                    "{switch:#x} was put back"
                );
            };
            std::thread::spawn(test).join().expect("no assertion failed");
        }
    }

    /// A thread that wants to be killed at an invalid operation is not killed here.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn exceptions_do_not_trap() {
        let test = || {
            let before = control::read();
            control::write(before & !0x0080);
            let nan = in_default(|| black_box(f64::INFINITY) - black_box(f64::INFINITY));
            let after = control::read();
            control::write(before);
            assert!(nan.is_nan(), "computed");
            assert_eq!(after & control::MASK, control::DEFAULT & !0x0080, "put back");
        };
        std::thread::spawn(test).join().expect("no assertion failed");
    }
}
