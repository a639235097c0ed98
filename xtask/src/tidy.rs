//! `cargo xtask tidy`: the rules of the repository that no compiler knows, as checks.
//!
//! Each check is a pure function from a [`Tree`] to [`Violation`]s, so that it is tested on sample trees in memory; the
//! last test of this file runs all of them on the repository itself, which makes `cargo test -p xtask` the same gate.

mod arrows;
mod bans;
mod crates;
mod layout;
mod links;
mod proof;
mod tree;
mod words;

use std::fmt;

use crate::cargo;
use crate::failure::Failure;
use tree::Tree;

/// The workspace's crates for use by others; `xtask` is the ninth and is not published.
const CRATES: [&str; 8] = [
    "flodl-wire",
    "flodl-elche",
    "flodl-coord",
    "flodl-worker",
    "flodl-relay",
    "flodl-cpureduce",
    "flodl-nccl",
    "flodl-monitor",
];

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    /// Path from the root of the repository.
    file: String,
    /// Line, counted from 1.
    line: usize,
    /// What is wrong.
    what: String,
    /// What to do about it.
    advice: String,
}

impl Violation {
    fn new(file: &str, line: usize, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, what: what.into(), advice: advice.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.what, self.advice)
    }
}

/// All checks.
const CHECKS: [fn(&Tree) -> Vec<Violation>; 14] = [
    arrows::check,
    bans::check_clippy,
    bans::check_lock,
    crates::check_metadata,
    crates::check_readme,
    crates::check_first_page,
    crates::check_shown_trainer,
    layout::check_headers,
    layout::check_sizes,
    layout::check_top_level,
    links::check,
    proof::check,
    words::check_tests,
    words::check_words,
];

/// Everything wrong with the tree, in order of file and line.
fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found: Vec<Violation> = CHECKS.iter().flat_map(|check| check(tree)).collect();
    found.sort();
    found
}

/// Runs the command.
///
/// # Errors
///
/// A usage error; a tree that cannot be read; exit status 1 with one line per violation.
pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    if let Some(arg) = args.first() {
        return Err(Failure::usage(format!("unexpected argument `{arg}`: tidy takes none")));
    }
    let root = cargo::root();
    let tree = Tree::read(&root)
        .map_err(|error| Failure::failed(format!("cannot read the tree at {}: {error}", root.display())))?;
    let found = violations(&tree);
    for violation in &found {
        println!("{violation}");
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!("{} rules of the repository are broken, see the lines above", found.len())))
}

/// The line of a byte offset, counted from 1.
fn line_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_is_one_line_that_says_what_to_do() {
        let violation = Violation::new("a/b.rs", 3, "too long", "split it");
        assert_eq!(violation.to_string(), "a/b.rs:3: too long: split it");
    }

    #[test]
    fn offsets_become_lines() {
        for (offset, line) in [(0, 1), (1, 1), (2, 2), (3, 3), (99, 3)] {
            assert_eq!(line_at("a\n\nb", offset), line, "offset {offset}");
        }
    }

    #[test]
    fn the_repository_is_tidy() {
        let tree = Tree::read(&cargo::root()).expect("the repository can be read");
        assert!(!tree.paths().any(|path| path.starts_with("target/")), "build outputs are no part of the tree");
        assert!(tree.paths().count() > 20, "the tree is the whole repository");
        let found: Vec<String> = violations(&tree).iter().map(Violation::to_string).collect();
        assert!(found.is_empty(), "\n{}\n", found.join("\n"));
    }
}
