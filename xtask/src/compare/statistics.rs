//! A mean of few differences, and how sure one can be of it.

/// The mean of paired differences with its 95 % interval (Student's t).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    pub(super) mean: f64,
    /// From the mean to either end of the interval; infinite where one difference is all there is.
    pub(super) half: f64,
}

/// The 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom.
const QUANTILES: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

impl Estimate {
    /// Of these differences.
    pub(super) fn of(differences: &[f64]) -> Estimate {
        let (n, mean) = (differences.len(), mean(differences));
        let Some(freedom) = n.checked_sub(2) else { return Estimate { mean, half: f64::INFINITY } };
        // With more freedom the quantile is smaller: the last one errs on the safe side.
        let quantile = QUANTILES[freedom.min(QUANTILES.len() - 1)];
        let variance = differences.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        Estimate { mean, half: quantile * (variance / n as f64).sqrt() }
    }

    /// The lower end.
    pub(super) fn least(&self) -> f64 {
        self.mean - self.half
    }

    /// The upper end.
    pub(super) fn most(&self) -> f64 {
        self.mean + self.half
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_student() {
        // Standard deviation 1, standard error 1/sqrt(3), t(2) = 4.303.
        let three = Estimate::of(&[1.0, 2.0, 3.0]);
        assert_eq!(three.mean, 2.0);
        assert!((three.half - 4.303 / 3f64.sqrt()).abs() < 1e-12, "{three:?}");
        let equal = Estimate::of(&[0.25; 10]);
        assert_eq!((equal.least(), equal.most()), (0.25, 0.25));
        assert!(Estimate::of(&[1.0]).half.is_infinite() && Estimate::of(&[]).half.is_infinite());
    }
}
