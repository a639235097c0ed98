//! Whether each row of `docs/FAILURES.md` is proven: it names a scenario, or a test that is there. And whether each scenario
//! is named by a row.

use super::Violation;
use super::links::resolved;
use super::tree::Tree;

const PAGE: &str = "docs/FAILURES.md";
const SCENARIOS: &str = "flodl-coord/tests/script/";
const ADVICE: &str = "end the row with a scenario's file, or with the name of a test and the file that it is in";

/// Checks the last cell of each row of the page's tables.
pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let Some(text) = tree.text(PAGE) else { return Vec::new() };
    let rows = text.lines().enumerate().filter(|(_, line)| line.starts_with('|'));
    let unnamed = |path: &&str| path.starts_with(SCENARIOS) && !text.contains(*path);
    let unnamed =
        tree.with_extension(&["txt"]).map(|(path, _)| path).filter(unnamed).map(|path| {
            Violation::new(path, 1, format!("no row of {PAGE} names it"), "name it in the row that it shows")
        });
    let mut found: Vec<Violation> = unnamed.collect();
    for (index, row) in rows.filter(|(_, row)| !is_head(row)) {
        let cell = row.trim_end().trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let proofs = proofs(cell);
        if proofs.is_empty() {
            found.push(Violation::new(PAGE, index + 1, "nothing shows this row", ADVICE));
        }
        for (names, target) in proofs {
            let text = resolved("docs", target).and_then(|path| tree.text(&path));
            let Some(text) = text else {
                found.push(Violation::new(PAGE, index + 1, format!("`{target}` leads nowhere"), ADVICE));
                continue;
            };
            if names.is_empty() && target.ends_with(".rs") {
                found.push(Violation::new(PAGE, index + 1, format!("no test of `{target}` is named"), ADVICE));
            }
            for name in names.iter().filter(|name| !text.contains(&format!("fn {name}("))) {
                found.push(Violation::new(PAGE, index + 1, format!("`{target}` has no test `{name}`"), ADVICE));
            }
        }
    }
    found
}

/// A table's first line and the rule under it.
fn is_head(row: &str) -> bool {
    row.trim_end().ends_with("| shown by |") || row.chars().all(|c| "|-: ".contains(c))
}

/// The files that a cell links to, each with the names in code before it.
fn proofs(cell: &str) -> Vec<(Vec<&str>, &str)> {
    let mut proofs = Vec::new();
    let mut rest = cell;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, after)) = after.split_once(')') else { break };
        let names = before.split('`').skip(1).step_by(2).collect();
        proofs.push((names, target));
        rest = after;
    }
    proofs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_ends_with_what_shows_it() {
        let cases = [
            ("`a_test` in [a.rs](../c/a.rs)", 0),
            ("`a_test` and `b_test` in [a.rs](../c/a.rs)", 0),
            ("[a.txt](../c/a.txt)", 0),
            ("[a.txt](../c/a.txt), `a_test` in [a.rs](../c/a.rs)", 0),
            ("`a_test` in [a.rs](../c/a.rs), `c_test` in [a.rs](../c/a.rs)", 1),
            ("[a.rs](../c/a.rs)", 1),
            ("[b.txt](../c/b.txt)", 1),
            ("everybody knows", 1),
        ];
        let scenario = Tree::of(&[(PAGE, "# Who\n"), ("flodl-coord/tests/script/a.txt", "story")]);
        assert_eq!(check(&scenario).len(), 1, "nobody names it");
        for (cell, count) in cases {
            let page = format!("# Who\n\n| what | then | shown by |\n|---|---|---|\n| a | b | {cell} |\n");
            let tree =
                Tree::of(&[(PAGE, page.as_str()), ("c/a.rs", "fn a_test() {}\nfn b_test() {}"), ("c/a.txt", "story")]);
            assert_eq!(check(&tree).len(), count, "{cell}: {:?}", check(&tree));
        }
    }
}
