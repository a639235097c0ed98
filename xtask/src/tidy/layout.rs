//! Where files are, how long they are and how they begin.

use std::collections::BTreeMap;

use super::tree::Tree;
use super::{CRATES, Violation};

/// Lines a source file may have without a reason.
const LINES_MAX: usize = 600;

/// The files that are longer, each as `PATH LINES REASON`.
const LARGE_FILES: &str = "xtask/large-files.txt";

/// What may be at the top level beside the crates.
const TOP_LEVEL: [&str; 15] = [
    ".cargo",
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "clippy.toml",
    "deny.toml",
    "docs",
    "rustfmt.toml",
    "xtask",
];

/// Checks that nothing strange lies at the top level.
pub(super) fn check_top_level(tree: &Tree) -> Vec<Violation> {
    tree.top()
        .filter(|name| !TOP_LEVEL.contains(name) && !CRATES.contains(name))
        .map(|name| Violation::new(name, 1, "does not belong at the top level", "move it into a crate or into docs/"))
        .collect()
}

/// Checks that every source file says at its head what it is.
pub(super) fn check_headers(tree: &Tree) -> Vec<Violation> {
    tree.with_extension(&["rs"])
        .filter(|(_, text)| {
            !text.lines().find(|line| !line.trim().is_empty()).is_some_and(|line| line.starts_with("//!"))
        })
        .map(|(path, _)| Violation::new(path, 1, "no header", "begin the file with `//!` and what it is for"))
        .collect()
}

/// Checks that files stay short: longer ones are listed with a reason, and listed ones only shrink.
pub(super) fn check_sizes(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut listed = BTreeMap::new();
    for (index, line) in tree.text(LARGE_FILES).unwrap_or_default().lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        match entry(line) {
            Some((path, lines)) => {
                listed.insert(path, (lines, index + 1));
            }
            None => {
                found.push(Violation::new(LARGE_FILES, index + 1, "cannot read the entry", "write PATH LINES REASON"))
            }
        }
    }
    for (path, text) in tree.with_extension(&["rs"]) {
        let lines = text.lines().count();
        match listed.remove(path) {
            None if lines > LINES_MAX => {
                let advice = format!("split it, or list it in {LARGE_FILES} with a reason");
                found.push(Violation::new(path, LINES_MAX + 1, format!("{lines} lines, at most {LINES_MAX}"), advice));
            }
            Some((limit, _)) if lines > limit => {
                found.push(Violation::new(path, limit + 1, format!("{lines} lines, grown from {limit}"), "split it"));
            }
            Some((_, at)) if lines <= LINES_MAX => {
                found.push(Violation::new(LARGE_FILES, at, format!("{path} is short now"), "remove the entry"));
            }
            Some((limit, at)) if lines < limit => {
                let what = format!("{path} has shrunk to {lines} lines");
                found.push(Violation::new(LARGE_FILES, at, what, format!("lower {limit} to {lines}")));
            }
            _ => {}
        }
    }
    for (path, (_, at)) in listed {
        found.push(Violation::new(LARGE_FILES, at, format!("{path} is not there"), "remove the entry"));
    }
    found
}

/// Reads `PATH LINES REASON`.
fn entry(line: &str) -> Option<(&str, usize)> {
    let mut words = line.split_whitespace();
    let (path, lines) = (words.next()?, words.next()?.parse().ok()?);
    words.next().map(|_| (path, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(found: Vec<Violation>) -> Vec<String> {
        found.into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn only_known_names_are_at_the_top() {
        let tree =
            Tree::of(&[("README.md", ""), ("docs/a.md", ""), ("flodl-wire/x", ""), ("notes.txt", ""), ("tmp/x", "")]);
        let names: Vec<String> = check_top_level(&tree).into_iter().map(|violation| violation.file).collect();
        assert_eq!(names, ["notes.txt", "tmp"]);
    }

    #[test]
    fn every_source_file_has_a_header() {
        let tree = Tree::of(&[
            ("a/good.rs", "//! Good.\n"),
            ("a/late.rs", "\n//! Good.\n"),
            ("a/none.rs", "use std::fmt;\n//! Late.\n"),
            ("a/item.rs", "/// An item's.\nfn a() {}\n"),
            ("a/empty.rs", ""),
            ("a/page.html", "<p>"),
        ]);
        let files: Vec<String> = check_headers(&tree).into_iter().map(|violation| violation.file).collect();
        assert_eq!(files, ["a/empty.rs", "a/item.rs", "a/none.rs"]);
    }

    #[test]
    fn sizes_are_a_ratchet() {
        let of = |lines: usize| "//! x\n".repeat(lines);
        let cases = [
            (600, "", vec![]),
            (601, "", vec!["601 lines, at most 600"]),
            (700, "# why\na.rs 700 a table\n", vec![]),
            (701, "a.rs 700 a table\n", vec!["701 lines, grown from 700"]),
            (650, "a.rs 700 a table\n", vec!["a.rs has shrunk to 650 lines"]),
            (600, "a.rs 700 a table\n", vec!["a.rs is short now"]),
            (700, "a.rs 700\n", vec!["cannot read the entry", "700 lines, at most 600"]),
            (10, "b.rs 700 a table\n", vec!["b.rs is not there"]),
        ];
        for (lines, list, expected) in cases {
            let tree = Tree::of(&[("a.rs", &of(lines)), (LARGE_FILES, list)]);
            assert_eq!(whats(check_sizes(&tree)), expected, "{lines} lines, list: {list}");
        }
    }
}
