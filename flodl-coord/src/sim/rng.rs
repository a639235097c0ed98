//! The one source of chance: a seeded generator whose numbers are the same on every machine.

/// xoshiro256++ (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2021), seeded by splitmix64.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of a seed.
    pub(crate) fn new(seed: u64) -> Rng {
        let mut at = seed;
        let mut next = || {
            at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = at;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        };
        Rng { state: [next(), next(), next(), next()] }
    }

    /// A generator of its own for a part of the simulation, so that more chance in one part changes nothing in another.
    pub(crate) fn fork(&mut self) -> Rng {
        Rng::new(self.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `n`; 0 where `n` is 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(n);
        (wide >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// A number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number in [low, high), each factor as likely as another.
    pub(crate) fn log_within(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }

    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A factor around 1 whose logarithm is normal with deviation `sigma` (Box and Muller), its mean being 1.
    pub(crate) fn around_one(&mut self, sigma: f64) -> f64 {
        if sigma == 0.0 {
            return 1.0;
        }
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let normal = radius * (2.0 * core::f64::consts::PI * self.unit()).cos();
        (sigma * normal - sigma * sigma / 2.0).exp()
    }

    /// One of the items.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers_and_others_do_not() {
        let draw = |seed| {
            core::iter::repeat_with({
                let mut rng = Rng::new(seed);
                move || rng.next()
            })
            .take(8)
            .collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        // The first output of splitmix64(0), which seeds the first word of the state.
        assert_eq!(Rng::new(0).state[0], 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn numbers_stay_in_their_bounds() {
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            assert!(rng.below(3) < 3);
            assert!((5..=6).contains(&rng.within(5, 6)));
            assert!((0.0..1.0).contains(&rng.unit()));
            assert!((2.0..50.0).contains(&rng.log_within(2.0, 50.0)));
        }
        let mean: f64 = (0..20_000).map(|_| rng.around_one(0.1)).sum::<f64>() / 20_000.0;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
    }
}
