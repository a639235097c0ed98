//! How many tests passed, failed and were skipped, read from what the test programs print.

use std::fmt;

/// Counts of tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed, and programs that ended without a result.
    pub(crate) failed: u64,
    /// Tests that were not run, by the harness or by their own word.
    pub(crate) skipped: u64,
}

impl Tally {
    /// Adds the counts of another run.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Takes `count` tests the harness saw pass as skipped: they said so themselves and returned early.
    pub(crate) fn skip_passed(&mut self, count: u64) {
        let moved = count.min(self.passed);
        self.passed -= moved;
        self.skipped += moved;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Reads a closing line of a test program (`test result: ok. 3 passed; 0 failed; 1 ignored; ...`).
///
/// `None` for every other line.
pub(crate) fn result_line(line: &str) -> Option<Tally> {
    let (_verdict, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count_of =
        |word: &str| counts.split(';').find_map(|part| part.trim().strip_suffix(word)?.trim_end().parse::<u64>().ok());
    Some(Tally { passed: count_of("passed")?, failed: count_of("failed")?, skipped: count_of("ignored")? })
}

/// The reason in a line by which a test says that it skips itself (`skipped: no Python package safetensors`).
///
/// The harness has no way to skip while running, so such a test writes the line to the standard error itself (past the
/// harness, which keeps what `eprintln!` prints) and returns.
pub(crate) fn skip_line(line: &str) -> Option<&str> {
    line.strip_prefix("skipped: ").map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_read_and_others_are_not() {
        let tally = |passed, failed, skipped| Some(Tally { passed, failed, skipped });
        let cases = [
            (
                "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s",
                tally(12, 0, 1),
            ),
            (
                "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1.00s",
                tally(3, 2, 0),
            ),
            ("test result: \u{1b}[32mok\u{1b}[m. 1 passed; 0 failed; 0 ignored; 0 measured", tally(1, 0, 0)),
            ("test result: ok. many passed; 0 failed; 0 ignored", None),
            ("test result: ok", None),
            ("    test result: ok. 1 passed; 0 failed; 0 ignored", None),
            ("test tally::tests::result_lines ... ok", None),
            ("", None),
        ];
        for (line, expected) in cases {
            assert_eq!(result_line(line), expected, "line: {line}");
        }
    }

    #[test]
    fn the_closing_line_has_the_plain_form() {
        let mut sum = Tally::default();
        sum.add(Tally { passed: 10, failed: 0, skipped: 1 });
        sum.add(Tally { passed: 5, failed: 2, skipped: 0 });
        assert_eq!(sum.to_string(), "15 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn a_test_that_says_it_skips_is_not_counted_as_passed() {
        assert_eq!(skip_line("skipped: no GPU here\n"), Some("no GPU here"));
        assert_eq!(skip_line("test a ... ok"), None);
        let mut tally = Tally { passed: 3, failed: 1, skipped: 0 };
        tally.skip_passed(2);
        assert_eq!(tally, Tally { passed: 1, failed: 1, skipped: 2 });
        tally.skip_passed(5);
        assert_eq!(tally, Tally { passed: 0, failed: 1, skipped: 3 });
    }
}
