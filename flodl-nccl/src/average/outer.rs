//! The outer optimizer as ranks make its step, each for itself and all alike.

/// What is made of an average before it becomes the consensus. `g` is the consensus before less the average.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Outer {
    /// Nothing: the average is the consensus.
    #[default]
    Average,
    /// `u = momentum u + g`, and the consensus is the one before less `rate u` (Wang et al., arXiv:1910.00643).
    SlowMomentum {
        /// Above 0.
        rate: f32,
        /// From 0 to below 1.
        momentum: f32,
    },
    /// `u = momentum u + g`, and the consensus is the one before less `rate (g + momentum u)` (Douillard et al.,
    /// arXiv:2311.08105).
    Nesterov {
        /// Above 0.
        rate: f32,
        /// From 0 to below 1.
        momentum: f32,
    },
}

impl Outer {
    /// Whether it remembers rounds: then every rank keeps the consensus and a momentum as large as the parameters.
    #[must_use]
    pub const fn has_state(self) -> bool {
        !matches!(self, Self::Average)
    }
}
