//! Which vector instructions a loop runs with, chosen when it is called. Beside it only `stream` has `unsafe`.
//!
//! Each loop is written once, as plain Rust, and compiled once for each [`Level`] by [`vectorised`]. The compiler may
//! use wider registers there but neither fuses a product with a sum nor reorders sums of floats, so every level gives the
//! same bits (a number that is not one may differ in its payload, which nobody looks at). On other architectures the
//! baseline is all there is; on AArch64 that is NEON.

/// Sets of vector instructions, each with everything before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// What the build's target has.
    Baseline,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The best level of this machine. The standard library asks the CPU once and remembers.
#[inline]
pub(super) fn level() -> Level {
    #[cfg(test)]
    if let Some(level) = FORCED.get() {
        return level;
    }
    best()
}

#[inline]
fn best() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            return Level::Avx512;
        }
        if is_x86_feature_detected!("avx2") {
            return Level::Avx2;
        }
    }
    Level::Baseline
}

#[cfg(test)]
std::thread_local! {
    /// The level that a test wants.
    static FORCED: core::cell::Cell<Option<Level>> = const { core::cell::Cell::new(None) };
}

/// Runs a check at every level of this machine.
#[cfg(test)]
pub(super) fn at_every_level(check: impl Fn(Level)) {
    let all = [
        Level::Baseline,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512,
    ];
    for level in all.into_iter().filter(|&level| level <= best()) {
        FORCED.set(Some(level));
        check(level);
        FORCED.set(None);
    }
}

/// Defines functions that run a loop, an `#[inline(always)]` function, at the level of the machine.
macro_rules! vectorised {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $body:path;)*) => {$(
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "a function for instructions that not every machine has is unsafe to call")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                match $crate::kernel::dispatch::level() {
                    // SAFETY: `level` says so only where the CPU has AVX-512 F, BW, DQ and VL.
                    $crate::kernel::dispatch::Level::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: `level` says so only where the CPU has AVX2.
                    $crate::kernel::dispatch::Level::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::kernel::dispatch::Level::Baseline => {}
                }
            }
            $body($($arg),*)
        }
    )*};
}

pub(super) use vectorised;
