//! Whether the links between documents, and the paths they name, lead anywhere.

use super::tree::Tree;
use super::{CRATES, Violation};

/// Checks the relative links of every Markdown file, and the paths from the root that it names as code; what is outside
/// the repository is not asked for.
pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.with_extension(&["md"]) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut in_code = false;
        for (index, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            }
            if in_code || line.starts_with("    ") {
                continue;
            }
            for target in targets(line) {
                if !leads_somewhere(tree, folder, target) {
                    let what = format!("the link to `{target}` leads nowhere");
                    found.push(Violation::new(path, index + 1, what, "correct the path"));
                }
            }
            for named in named_paths(line).filter(|named| !tree.holds(named.trim_end_matches('/'))) {
                let what = format!("there is no `{named}`");
                found.push(Violation::new(path, index + 1, what, "correct the path"));
            }
        }
    }
    found
}

/// The targets of a line's links, `[text](target)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// What of a line's code is a path into a crate or into the documents.
fn named_paths(line: &str) -> impl Iterator<Item = &str> {
    let begins = |code: &&str| {
        let (first, _) = code.split_once('/').unwrap_or_default();
        CRATES.contains(&first) || first == "docs" || first == "xtask"
    };
    let is_plain = |code: &&str| code.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    line.split('`').skip(1).step_by(2).filter(begins).filter(is_plain)
}

fn leads_somewhere(tree: &Tree, folder: &str, target: &str) -> bool {
    let target = target.split('#').next().unwrap_or_default();
    if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    resolved(folder, target).is_some_and(|path| tree.holds(&path))
}

/// The path from the root of what a link in `folder` leads to; `None` where that lies outside.
pub(super) fn resolved(folder: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_and_folders_of_the_tree() {
        let cases = [
            ("[a](ARCHITECTURE.md) and [b](decisions/)", 0),
            ("[a](../README.md#build), [b](#here), [c](https://example.org/x)", 0),
            ("[a](gone.md) and [b](../gone/)", 2),
            ("[a](../../README.md)", 1),
            ("    [a](gone.md)", 0),
            ("```\n[a](gone.md)\n```\n[b](gone.md)", 1),
            ("no link (gone.md)", 0),
            ("`docs/page.md`, `docs/`, `flodl run` and `target/x`", 0),
            ("`docs/gone.md` and `flodl-wire/src/gone/`, not `flodl-*/clippy.toml`", 2),
        ];
        for (text, count) in cases {
            let tree = Tree::of(&[
                ("README.md", ""),
                ("docs/ARCHITECTURE.md", ""),
                ("docs/decisions/0001.md", ""),
                ("docs/page.md", text),
            ]);
            assert_eq!(check(&tree).len(), count, "{text}");
        }
    }
}
