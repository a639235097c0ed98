//! Words and constructs that may not stand in the sources.

use super::Violation;
use super::tree::Tree;

/// Words that speak of another time than the reader's. They are put together here so that this file may name them.
const WORDS: [&str; 7] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("for ", "now"),
    concat!("leg", "acy"),
    concat!("previous", "ly"),
    concat!("place", "holder"),
    concat!("ported ", "from"),
];

/// Checks for words that promise or remember instead of saying what is.
pub(super) fn check_words(tree: &Tree) -> Vec<Violation> {
    let advice = "say what is true of the code as it stands, and leave history to git";
    let mut found = Vec::new();
    for (path, text) in tree.with_extension(&["rs", "md", "toml", "sh"]) {
        for (index, line) in text.lines().enumerate() {
            // In settings only the comments are prose: a lint's name is no promise.
            let line = if path.ends_with(".toml") { line.split_once('#').map_or("", |(_, prose)| prose) } else { line };
            for word in WORDS.iter().filter(|word| holds_word(line, word)) {
                found.push(Violation::new(path, index + 1, format!("`{word}`"), advice));
            }
        }
    }
    found
}

/// Whether the line holds the word between characters that are no letters, in any case.
fn holds_word(line: &str, word: &str) -> bool {
    let (line, word) = (line.to_ascii_lowercase(), word.to_ascii_lowercase());
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    line.match_indices(&word)
        .any(|(at, _)| !is_letter(line[..at].chars().next_back()) && !is_letter(line[at + word.len()..].chars().next()))
}

/// Checks that no test is switched off and that no unit test waits for time to pass.
pub(super) fn check_tests(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.with_extension(&["rs"]) {
        let mut in_tests = is_test_module(path);
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let line = line.trim_start();
            if switches_off(line) {
                let advice = "repair the test or remove it; where a device is missing, write `skipped: WHY` and return";
                found.push(Violation::new(path, index + 1, "a test that never runs", advice));
            }
            // `#[cfg(test)] mod tests;` brings in another file and leaves the rest of this one as it is.
            let names_a_file =
                lines.get(index + 1).is_some_and(|next| next.contains("mod ") && next.trim_end().ends_with(';'));
            if line.starts_with("#[cfg(test)]") && !names_a_file {
                in_tests = path.contains("/src/");
            }
            if in_tests && SLEEPS.iter().any(|sleep| line.contains(sleep)) {
                let advice = "pass the time as an argument, or make it a test of real processes under tests/";
                found.push(Violation::new(path, index + 1, "a unit test that sleeps", advice));
            }
        }
    }
    found
}

const SLEEPS: [&str; 2] = [concat!("thread::", "sleep("), concat!("Timer::", "after(")];

/// Whether a file under `src/` holds tests alone.
fn is_test_module(path: &str) -> bool {
    path.split_once("/src/").is_some_and(|(_, rest)| rest.split('/').any(|part| part == "tests" || part == "tests.rs"))
}

/// Whether the line, without its indentation, keeps a test or a documented example from running.
fn switches_off(line: &str) -> bool {
    let fence = line.strip_prefix("//!").or_else(|| line.strip_prefix("///")).map(str::trim_start);
    line.starts_with("#[ignore")
        || (line.starts_with("#[cfg_attr(") && line.contains(", ignore"))
        || fence
            .and_then(|text| text.strip_prefix("```"))
            .is_some_and(|info| info.split(',').any(|word| word == "ignore"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_whole_and_in_any_case() {
        let (promise, memory) = (WORDS[0], WORDS[4]);
        let cases = [
            (format!("// {promise}: later"), 1),
            (format!("let x = 1; // {}", promise.to_lowercase()), 1),
            (format!("It was {} slower, {memory}.", memory.to_uppercase()), 1),
            (format!("mas{}", promise.to_lowercase()), 0),
            (format!("{}s", promise.to_lowercase()), 0),
            ("a plain sentence".to_owned(), 0),
        ];
        let toml = format!("{promise} = \"warn\"\nx = 1 # {promise}");
        assert_eq!(
            check_words(&Tree::of(&[("Cargo.toml", &toml)])).iter().map(|found| found.line).collect::<Vec<_>>(),
            [2]
        );
        for (text, count) in cases {
            let found = check_words(&Tree::of(&[("a/src/lib.rs", &text), ("a/page.html", &text)]));
            assert_eq!(found.len(), count, "{text}");
        }
    }

    #[test]
    fn tests_that_never_run_are_found() {
        let cases = [
            ("    #[ignore]\n", 1),
            ("#[ignore = \"slow\"]", 1),
            ("#[cfg_attr(miri, ignore)]", 1),
            ("//! ```ignore", 1),
            ("/// ```rust,ignore", 1),
            ("/// ```rust,no_run", 0),
            ("// it does not `#[ignore]` anything", 0),
        ];
        for (text, count) in cases {
            assert_eq!(check_tests(&Tree::of(&[("a/tests/a.rs", text)])).len(), count, "{text}");
        }
    }

    #[test]
    fn sleeping_is_for_tests_of_real_processes() {
        let sleep = format!("std::{}ms);", SLEEPS[0]);
        let after = format!("#[cfg(test)]\nmod tests {{\n{sleep}\n}}");
        let apart = format!("#[cfg(test)]\nmod tests;\n{sleep}");
        let cases = [
            ("a/src/x.rs", after.as_str(), vec![3]),
            ("a/src/x.rs", apart.as_str(), vec![]),
            ("a/src/x.rs", sleep.as_str(), vec![]),
            ("a/src/x/tests.rs", sleep.as_str(), vec![1]),
            ("a/src/tests/x.rs", sleep.as_str(), vec![1]),
            ("a/tests/x.rs", after.as_str(), vec![]),
        ];
        for (path, text, expected) in cases {
            let lines: Vec<usize> = check_tests(&Tree::of(&[(path, text)])).iter().map(|found| found.line).collect();
            assert_eq!(lines, expected, "{path}\n{text}");
        }
    }
}
