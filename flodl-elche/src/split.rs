//! Dividing a whole number of batches so that the parts always sum to the whole.

/// Weights are scaled to whole numbers of this size before they divide anything: integer arithmetic sums exactly and
/// gives the same parts on every machine. A weight of less than 2^-32 of the largest counts as that.
const SCALE: f64 = 4_294_967_296.0;

/// Divides `total` in proportion to `weights` by largest remainder; the parts sum to `total` exactly.
///
/// Ties go to the earlier entry. A weight that is not a finite positive number gets nothing, unless no weight is: then
/// the parts are equal (up to one). No weights give no parts.
pub fn largest_remainder(total: u64, weights: &[f64]) -> Vec<u64> {
    let mut split = Split::default();
    split.divide(total, weights.iter().copied());
    split.parts
}

/// The same with buffers that are used again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Split {
    parts: Vec<u64>,
    scaled: Vec<u64>,
    remainders: Vec<(u128, usize)>,
}

impl Split {
    /// See [`largest_remainder`].
    pub(crate) fn divide(&mut self, total: u64, weights: impl Iterator<Item = f64> + Clone) -> &[u64] {
        self.parts.clear();
        self.remainders.clear();
        self.scale(weights);
        let sum: u128 = self.scaled.iter().map(|&w| u128::from(w)).sum();
        if sum == 0 {
            return &self.parts;
        }
        // Below 2^64 * 2^32: the products fit.
        for (i, &w) in self.scaled.iter().enumerate() {
            let product = u128::from(total) * u128::from(w);
            // `w <= sum`, so the quotient is at most `total`.
            self.parts.push((product / sum) as u64);
            self.remainders.push((product % sum, i));
        }
        let given: u64 = self.parts.iter().sum();
        self.remainders.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        for &(_, i) in self.remainders.iter().take((total - given) as usize) {
            self.parts[i] += 1;
        }
        &self.parts
    }

    fn scale(&mut self, weights: impl Iterator<Item = f64> + Clone) {
        let usable = |w: f64| w.is_finite() && w > 0.0;
        let largest = weights.clone().filter(|&w| usable(w)).fold(0.0, f64::max);
        let scaled = |w: f64| match usable(w) {
            _ if largest == 0.0 => 1,
            true => (w / largest * SCALE).round().max(1.0) as u64,
            false => 0,
        };
        self.scaled.clear();
        self.scaled.extend(weights.map(scaled));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_follow_weights() {
        for (total, weights, expected) in [
            (10, vec![1.0, 1.0], vec![5, 5]),
            (10, vec![4.0, 1.6, 1.0], vec![6, 2, 2]),
            (1, vec![1.0, 1.0, 1.0], vec![1, 0, 0]),
            (3, vec![0.0, 1.0, f64::NAN], vec![0, 3, 0]),
            (3, vec![0.0, f64::INFINITY], vec![2, 1]),
            (0, vec![1.0, 2.0], vec![0, 0]),
            (5, vec![], vec![]),
        ] {
            assert_eq!(largest_remainder(total, &weights), expected, "{total} by {weights:?}");
        }
    }

    proptest! {
        #[test]
        fn parts_sum_and_stay_within_one(total in any::<u64>(), weights in prop::collection::vec(1e-6f64..1e6, 1..50)) {
            let parts = largest_remainder(total, &weights);
            prop_assert_eq!(parts.iter().map(|&p| u128::from(p)).sum::<u128>(), u128::from(total));
            let sum: f64 = weights.iter().sum();
            for (&part, &weight) in parts.iter().zip(&weights) {
                let exact = total as f64 * weight / sum;
                let rounding = 1.0 + total as f64 * 1e-8;
                prop_assert!((part as f64 - exact).abs() <= rounding, "{} for {}", part, exact);
            }
        }

        #[test]
        fn odd_weights_never_lose_anything(total in 0u64..1000, weights in prop::collection::vec(any::<f64>(), 1..20)) {
            prop_assert_eq!(largest_remainder(total, &weights).iter().sum::<u64>(), total);
        }
    }
}
