//! How the C library of a rank keeps its memory.
//!
//! A training step frees what it allocated and allocates the same again. By default glibc hands large blocks back to the
//! system in between, which then clears every page anew: on a CPU a tenth of a small network's step. A rank is told to keep
//! what it has; programs without glibc ignore it.
//!
//! Memory in large pages from the start (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`) is faster still, but where memory is in
//! small pieces the system stops a process for seconds to make them. That is left to the user.

/// The settings: no block by `mmap` of its own, nothing back to the system.
const KEEP: [(&str, &str); 2] = [("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", "1099511627776")];

/// What says that somebody has chosen an allocator or its settings already.
const CHOSEN: [&str; 7] = [
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_PERTURB_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
];

/// The variables for a rank's process, beside those it inherits; none where one of them says that somebody has chosen.
pub(super) fn settings(is_set: impl Fn(&str) -> bool) -> &'static [(&'static str, &'static str)] {
    if CHOSEN.iter().any(|name| is_set(name)) { &[] } else { &KEEP }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_of_the_users_is_left_alone() {
        assert_eq!(settings(|_| false), KEEP);
        assert_eq!(settings(|name| name == "HOME"), KEEP);
        for (name, _) in KEEP {
            assert!(settings(|set| set == name).is_empty(), "{name}");
        }
        assert!(settings(|set| set == "LD_PRELOAD").is_empty());
    }
}
