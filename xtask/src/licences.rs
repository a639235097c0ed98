//! Whether everything that is linked may be: each package's licence against the list in deny.toml.

use std::collections::BTreeSet;

use serde_json::Value;
use toml::Table;

use crate::cargo;
use crate::failure::Failure;

/// Checks every package the workspace can link, as cargo has it, against the licences that deny.toml allows.
///
/// # Errors
///
/// [`Failure::Failed`] with a line per package that has another licence or none.
pub(crate) fn check() -> Result<(), Failure> {
    let file = cargo::root().join("deny.toml");
    let text = std::fs::read_to_string(&file)
        .map_err(|error| Failure::failed(format!("cannot read {}: {error}", file.display())))?;
    let allowed = allowed(&text).ok_or_else(|| Failure::failed("deny.toml has no list `allow` under [licenses]"))?;
    let packages = cargo::metadata_of(&["--all-features"])?;
    let found = strangers(&packages, &allowed);
    if found.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "not covered by [licenses] of deny.toml, replace them or extend the list:\n{}",
        found.join("\n")
    )))
}

fn allowed(deny: &str) -> Option<BTreeSet<String>> {
    let table: Table = deny.parse().ok()?;
    let list = table.get("licenses")?.get("allow")?.as_array()?;
    Some(list.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
}

/// The packages whose licence is not allowed, as lines.
fn strangers(metadata: &Value, allowed: &BTreeSet<String>) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter(|package| !package["license"].as_str().is_some_and(|licence| is_allowed(licence, allowed)))
        .map(|package| {
            let licence = package["license"].as_str().unwrap_or("no licence");
            format!(
                "{} {}: {licence}",
                package["name"].as_str().unwrap_or("?"),
                package["version"].as_str().unwrap_or("?")
            )
        })
        .collect()
}

/// Whether the expression can be met with allowed licences alone.
///
/// The expressions of SPDX: names joined by `AND`, which binds tighter, and `OR`, with parentheses; `/` is an old `OR`.
/// An exception (`WITH ..`) only adds rights and is passed over. What cannot be read is not allowed.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words, allowed };
    reader.either() == Some(true) && reader.words.is_empty()
}

/// A reader of one expression, by descent; `None` where it makes no sense.
struct Reader<'a> {
    words: &'a [&'a str],
    allowed: &'a BTreeSet<String>,
}

impl Reader<'_> {
    fn either(&mut self) -> Option<bool> {
        let mut met = self.both()?;
        while self.takes("OR") {
            met |= self.both()?;
        }
        Some(met)
    }

    fn both(&mut self) -> Option<bool> {
        let mut met = self.one()?;
        while self.takes("AND") {
            met &= self.one()?;
        }
        Some(met)
    }

    fn one(&mut self) -> Option<bool> {
        if self.takes("(") {
            let met = self.either()?;
            return self.takes(")").then_some(met);
        }
        let (name, rest) = self.words.split_first()?;
        self.words = rest;
        if self.takes("WITH") {
            self.words = self.words.get(1..)?;
        }
        let is_name = !["OR", "AND", "WITH", ")"].contains(name);
        is_name.then(|| self.allowed.contains(*name))
    }

    fn takes(&mut self, word: &str) -> bool {
        match self.words.split_first() {
            Some((first, rest)) if *first == word => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions_are_met_by_what_is_allowed() {
        let allowed = allowed("[licenses]\nallow = [\"MIT\", \"Apache-2.0\", \"Unicode-3.0\"]").expect("a list");
        let cases = [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0", false),
            ("GPL-3.0 OR MIT AND Apache-2.0", true),
            ("GPL-3.0 AND X OR MIT", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
            ("", false),
            ("MIT OR", false),
            ("(MIT", false),
            ("MIT)", false),
            ("MIT Apache-2.0", false),
            ("OR", false),
        ];
        for (expression, expected) in cases {
            assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
        }
    }

    #[test]
    fn packages_without_an_allowed_licence_are_named() {
        let allowed = BTreeSet::from(["MIT".to_owned()]);
        let metadata = json!({ "packages": [
            { "name": "good", "version": "1.0.0", "license": "MIT" },
            { "name": "none", "version": "2.0.0", "license": null },
            { "name": "other", "version": "3.0.0", "license": "GPL-3.0" },
        ] });
        assert_eq!(strangers(&metadata, &allowed), ["none 2.0.0: no licence", "other 3.0.0: GPL-3.0"]);
    }

    #[test]
    fn a_missing_list_is_no_permission() {
        assert_eq!(allowed("[bans]"), None);
    }
}
