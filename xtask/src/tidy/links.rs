//! Whether the links between documents lead anywhere.

use super::Violation;
use super::tree::Tree;

/// Checks the relative links of every Markdown file; what is outside the repository is not asked for.
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
        }
    }
    found
}

/// The targets of a line's links, `[text](target)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

fn leads_somewhere(tree: &Tree, folder: &str, target: &str) -> bool {
    let target = target.split('#').next().unwrap_or_default();
    if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => return false,
            ".." => {}
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    tree.holds(&path)
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
