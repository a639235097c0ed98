//! What each crate must have to be published and to be understood alone: metadata, lints and a README that runs.

use toml::{Table, Value};

use super::tree::Tree;
use super::{CRATES, Violation};

/// Keys of `[package]` a published crate has, in its own words or the workspace's.
const KEYS: [&str; 9] =
    ["description", "readme", "version", "edition", "rust-version", "license", "repository", "keywords", "categories"];

/// Checks the metadata and the lints of every crate.
pub(super) fn check_metadata(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for name in CRATES.into_iter().chain(["xtask"]) {
        let file = format!("{name}/Cargo.toml");
        let Some(text) = tree.text(&file) else {
            found.push(Violation::new(&file, 1, format!("there is no crate {name}"), "see docs/ARCHITECTURE.md"));
            continue;
        };
        // A manifest that cannot be read is reported by the arrows.
        let Ok(manifest) = text.parse::<Table>() else { continue };
        let package = manifest.get("package");
        let has = |key: &str| package.and_then(|package| package.get(key)).is_some();
        if name == "xtask" {
            if package.and_then(|package| package.get("publish")).and_then(Value::as_bool) != Some(false) {
                found.push(Violation::new(&file, 1, "xtask is not for publishing", "set `publish = false`"));
            }
        } else {
            for key in KEYS.into_iter().filter(|key| !has(key)) {
                found.push(Violation::new(&file, 1, format!("`{key}` is missing"), "add it under [package]"));
            }
        }
        let has_lints = manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(Value::as_bool);
        if has_lints != Some(true) {
            found.push(Violation::new(&file, 1, "the lints are not the workspace's", "add [lints] workspace = true"));
        }
    }
    found
}

/// Checks that every published crate has a README with an example, and that the example is tested.
pub(super) fn check_readme(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for name in CRATES {
        let Some(lib) = tree.text(&format!("{name}/src/lib.rs")) else { continue };
        let file = format!("{name}/README.md");
        let Some(readme) = tree.text(&file) else {
            found.push(Violation::new(&file, 1, "no README", "say what the crate is, what it is not, and show it"));
            continue;
        };
        if !readme.lines().any(|line| line.starts_with("```rust")) {
            found.push(Violation::new(&file, 1, "no example", "add a ```rust block that asserts something"));
        } else if !lib.contains("include_str!(\"../README.md\")") {
            let advice = "add #[cfg(doctest)] #[doc = include_str!(\"../README.md\")] to src/lib.rs";
            found.push(Violation::new(&file, 1, "the example is not tested", advice));
        }
    }
    found
}

/// The two commands a person needs first: to see it train, and to see it tested.
const FIRST_COMMANDS: [&str; 2] = ["cargo xtask train", "cargo xtask test"];

/// Checks that the README at the top leads a person from a clone to a trained model.
pub(super) fn check_first_page(tree: &Tree) -> Vec<Violation> {
    let readme = tree.text("README.md").unwrap_or_default();
    FIRST_COMMANDS
        .iter()
        .filter(|command| !readme.contains(*command))
        .map(|command| Violation::new("README.md", 1, format!("`{command}` is not there"), "show it near the top"))
        .collect()
}

/// The trainer that the README at the top shows.
const TRAINER: &str = "flodl-worker/examples/line.rs";

/// Checks that the trainer in the README at the top is the example that is built and run, after that file's header.
pub(super) fn check_shown_trainer(tree: &Tree) -> Vec<Violation> {
    let readme = tree.text("README.md").unwrap_or_default();
    let shown = readme.split_once("```rust\n").and_then(|(_, rest)| rest.split_once("```")).map(|(shown, _)| shown);
    let built = tree.text(TRAINER).and_then(|text| text.split_once("\n\n")).map(|(_, built)| built);
    if shown.is_some() && shown == built {
        return Vec::new();
    }
    vec![Violation::new(
        "README.md",
        1,
        "its trainer is not the example",
        format!("copy {TRAINER} into its ```rust block"),
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shown_trainer_is_the_built_one() {
        let readme = "# flodl\n```rust\nfn main() {}\n```\nmore\n";
        for (example, violations) in
            [("//! A trainer.\n\nfn main() {}\n", 0), ("//! A trainer.\n\nfn main() { }\n", 1), ("fn main() {}\n", 1)]
        {
            let tree = Tree::of(&[("README.md", readme), (TRAINER, example)]);
            assert_eq!(check_shown_trainer(&tree).len(), violations, "{example}");
        }
        assert_eq!(check_shown_trainer(&Tree::of(&[("README.md", "no code")])).len(), 1);
    }

    const GOOD: &str = "[package]\ndescription = \"d\"\nreadme = \"README.md\"\nversion.workspace = true\n\
        edition.workspace = true\nrust-version.workspace = true\nlicense.workspace = true\n\
        repository.workspace = true\nkeywords.workspace = true\ncategories.workspace = true\n\
        [lints]\nworkspace = true\n";

    /// What is wrong with the manifests, those of the crates that are not there left out.
    fn metadata(name: &str, text: &str) -> Vec<String> {
        let found = check_metadata(&Tree::of(&[(&format!("{name}/Cargo.toml"), text)]));
        assert!(found.len() >= CRATES.len(), "the other crates are missing and must be reported");
        found.into_iter().map(|violation| violation.what).filter(|what| !what.starts_with("there is no")).collect()
    }

    #[test]
    fn metadata_is_whole() {
        assert_eq!(metadata("flodl-wire", GOOD), Vec::<String>::new());
        let without = GOOD.replace("license.workspace = true\n", "");
        assert_eq!(metadata("flodl-wire", &without), ["`license` is missing"]);
        let without = GOOD.replace("[lints]\nworkspace = true\n", "");
        assert_eq!(metadata("flodl-wire", &without), ["the lints are not the workspace's"]);
        assert_eq!(metadata("xtask", GOOD), ["xtask is not for publishing"]);
        assert_eq!(metadata("xtask", &GOOD.replace("[lints]", "publish = false\n[lints]")), Vec::<String>::new());
    }

    #[test]
    fn the_first_page_shows_the_two_commands() {
        let cases = [("", 2), ("cargo xtask train", 1), ("cargo xtask train\n    cargo xtask test\n", 0)];
        for (text, count) in cases {
            assert_eq!(check_first_page(&Tree::of(&[("README.md", text)])).len(), count, "{text}");
        }
    }

    #[test]
    fn a_readme_has_an_example_and_the_example_is_tested() {
        let tested = "#[cfg(doctest)]\n#[doc = include_str!(\"../README.md\")]\nstruct Readme;\n";
        let example = "# A\n\n```rust\nassert!(true);\n```\n";
        let cases = [
            (Some(example), tested, vec![]),
            (Some(example), "", vec!["the example is not tested"]),
            (Some("# A\n"), tested, vec!["no example"]),
            (None, tested, vec!["no README"]),
        ];
        for (readme, lib, expected) in cases {
            let mut files = vec![("flodl-wire/src/lib.rs", lib)];
            files.extend(readme.map(|text| ("flodl-wire/README.md", text)));
            let found: Vec<String> = check_readme(&Tree::of(&files)).into_iter().map(|found| found.what).collect();
            assert_eq!(found, expected, "{readme:?}");
        }
    }
}
