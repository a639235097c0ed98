//! What the summary of a training run must say for the run to count as good.

use serde_json::Value;

/// What is expected of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    /// Samples the run must commit, each exactly once.
    pub(crate) samples: u64,
    /// Least accuracy on the test split, 0 to 1.
    pub(crate) accuracy: f64,
}

/// Every way in which the summary falls short, as sentences; none where the run is good.
///
/// A key that is missing or null is a shortfall: silence is not success.
pub(crate) fn shortfalls(summary: &Value, expected: Expected) -> Vec<String> {
    let exact = [
        ("exit", Value::from(0)),
        ("digests_equal", Value::from(true)),
        ("samples_expected", Value::from(expected.samples)),
        ("samples_committed", Value::from(expected.samples)),
    ];
    let mut found: Vec<String> = exact
        .iter()
        .filter(|(key, value)| summary[*key] != *value)
        .map(|(key, value)| format!("`{key}` is {}, expected {value}", summary[*key]))
        .collect();
    let is_accurate = summary["accuracy"].as_f64().is_some_and(|accuracy| accuracy >= expected.accuracy);
    if !is_accurate {
        found.push(format!("`accuracy` is {}, expected at least {}", summary["accuracy"], expected.accuracy));
    }
    found
}

/// The numbers a person looks for, in one line.
pub(crate) fn line(summary: &Value) -> String {
    let keys = ["accuracy", "rounds", "samples_committed", "throughput", "ceiling_fraction", "wall_s"];
    keys.map(|key| format!("{key} {}", summary[key])).join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EXPECTED: Expected = Expected { samples: 24_000, accuracy: 0.85 };

    fn good() -> Value {
        json!({ "exit": 0, "digests_equal": true, "samples_expected": 24_000, "samples_committed": 24_000,
                "accuracy": 0.871 })
    }

    #[test]
    fn a_good_run_has_no_shortfall() {
        assert_eq!(shortfalls(&good(), EXPECTED), Vec::<String>::new());
    }

    #[test]
    fn each_shortfall_is_named() {
        let cases = [
            ("exit", json!(3)),
            ("digests_equal", json!(false)),
            ("digests_equal", Value::Null),
            ("samples_committed", json!(23_936)),
            ("samples_expected", json!(16_000)),
            ("accuracy", json!(0.849)),
            ("accuracy", Value::Null),
        ];
        for (key, value) in cases {
            let mut summary = good();
            summary[key] = value.clone();
            let found = shortfalls(&summary, EXPECTED);
            assert_eq!(found.len(), 1, "{key} = {value}: {found:?}");
            assert!(found[0].starts_with(&format!("`{key}` is {value}")), "{found:?}");
        }
        assert_eq!(shortfalls(&json!({}), EXPECTED).len(), 5);
    }
}
