//! What code may not call and what the lock file may not hold.

use toml::{Table, Value};

use super::tree::Tree;
use super::{CRATES, Violation};

/// What a state machine without input and output may not reach for: each would make a run depend on more than its
/// arguments.
const BANNED: [(&str, &[&str]); 2] = [
    (
        "disallowed-methods",
        &["std::time::Instant::now", "std::time::SystemTime::now", "std::thread::sleep", "std::thread::spawn"],
    ),
    ("disallowed-types", &["std::collections::HashMap", "std::collections::HashSet"]),
];

/// Checks that each crate's clippy.toml has the bans, with reasons, and repeats the root's settings.
///
/// Clippy reads the nearest file only, so a setting that is not repeated is lost.
pub(super) fn check_clippy(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let root = tree.text("clippy.toml").and_then(|text| text.parse::<Table>().ok()).unwrap_or_default();
    for name in CRATES {
        let file = format!("{name}/clippy.toml");
        if tree.text(&format!("{name}/Cargo.toml")).is_none() {
            continue;
        }
        let mut report = |what: String, advice: &str| found.push(Violation::new(&file, 1, what, advice));
        let Some(text) = tree.text(&file) else {
            report("no clippy.toml".to_owned(), "ban clocks, sleeps, threads and hash maps, as flodl-nccl's does");
            continue;
        };
        let table = match text.parse::<Table>() {
            Ok(table) => table,
            Err(error) => {
                report(format!("no TOML: {}", error.message()), "repair it");
                continue;
            }
        };
        for (key, value) in &root {
            if table.get(key) != Some(value) {
                report(format!("`{key}` is not the root's"), "repeat the root's setting, clippy does not merge files");
            }
        }
        for (key, paths) in BANNED {
            let entries = table.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            for path in paths {
                let entry = entries.iter().find(|entry| entry.get("path").and_then(Value::as_str) == Some(path));
                let reason = entry.and_then(|entry| entry.get("reason")).and_then(Value::as_str).unwrap_or_default();
                if reason.is_empty() {
                    report(format!("`{path}` is not in {key} with a reason"), "add { path = .., reason = .. }");
                }
            }
        }
    }
    found
}

/// Checks the lock file against the bans of deny.toml, since nothing else needed to build the project reads them.
pub(super) fn check_lock(tree: &Tree) -> Vec<Violation> {
    let (Some(deny), Some(lock)) = (tree.text("deny.toml"), tree.text("Cargo.lock")) else { return Vec::new() };
    let (Ok(deny_table), Ok(lock_table)) = (deny.parse::<Table>(), lock.parse::<Table>()) else {
        return vec![Violation::new("deny.toml", 1, "deny.toml or Cargo.lock is no TOML", "repair it")];
    };
    let mut found = Vec::new();
    let bans = deny_table.get("bans").and_then(|bans| bans.get("deny")).and_then(Value::as_array);
    for ban in bans.into_iter().flatten() {
        let Some(spec) = ban.get("crate").and_then(Value::as_str) else { continue };
        let Some((name, limit)) = ban_of(spec) else {
            let line = line_of(deny, spec);
            found.push(Violation::new("deny.toml", line, format!("cannot read `{spec}`"), "write NAME or NAME:<X.Y.Z"));
            continue;
        };
        let packages = lock_table.get("package").and_then(Value::as_array);
        for package in packages.into_iter().flatten() {
            let version = package.get("version").and_then(Value::as_str).unwrap_or_default();
            let is_named = package.get("name").and_then(Value::as_str) == Some(name);
            if is_named && limit.is_none_or(|limit| version_of(version).is_none_or(|version| version < limit)) {
                let reason = ban.get("reason").and_then(Value::as_str).unwrap_or("banned");
                let line = line_of(lock, &format!("name = \"{name}\""));
                found.push(Violation::new(
                    "Cargo.lock",
                    line,
                    format!("{name} {version}: {reason}"),
                    "update or replace it",
                ));
            }
        }
    }
    found
}

/// Three numbers of a version.
type Version = [u64; 3];

/// Reads `name` (every version is banned) or `name:<X.Y.Z`.
fn ban_of(spec: &str) -> Option<(&str, Option<Version>)> {
    match spec.split_once(':') {
        None => Some((spec, None)),
        Some((name, requirement)) => Some((name, Some(version_of(requirement.strip_prefix('<')?)?))),
    }
}

fn version_of(text: &str) -> Option<Version> {
    let plain = text.split(['-', '+']).next()?;
    let mut numbers = plain.split('.').map(|part| part.trim().parse::<u64>().ok());
    let version = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(version)
}

fn line_of(text: &str, needle: &str) -> usize {
    1 + text.lines().position(|line| line.contains(needle)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "too-many-lines-threshold = 70\n";
    const GOOD: &str = r#"
too-many-lines-threshold = 70
disallowed-methods = [
    { path = "std::time::Instant::now", reason = "r" },
    { path = "std::time::SystemTime::now", reason = "r" },
    { path = "std::thread::sleep", reason = "r" },
    { path = "std::thread::spawn", reason = "r" },
]
disallowed-types = [
    { path = "std::collections::HashMap", reason = "r" },
    { path = "std::collections::HashSet", reason = "r" },
]
"#;

    fn clippy(text: Option<&str>) -> Vec<String> {
        let mut files = vec![("clippy.toml", ROOT), ("flodl-wire/Cargo.toml", "")];
        files.extend(text.map(|text| ("flodl-wire/clippy.toml", text)));
        check_clippy(&Tree::of(&files)).into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn a_core_needs_every_ban_with_a_reason_and_the_roots_settings() {
        assert_eq!(clippy(Some(GOOD)), Vec::<String>::new());
        assert_eq!(clippy(None), ["no clippy.toml"]);
        assert_eq!(clippy(Some("")).len(), 7);
        assert_eq!(clippy(Some(&GOOD.replace("= 70", "= 700"))), ["`too-many-lines-threshold` is not the root's"]);
        let without_reason = GOOD.replacen("reason = \"r\"", "reason = \"\"", 1);
        assert_eq!(
            clippy(Some(&without_reason)),
            ["`std::time::Instant::now` is not in disallowed-methods with a reason"]
        );
        assert_eq!(clippy(Some("= ")).len(), 1);
    }

    #[test]
    fn banned_versions_in_the_lock_file_are_found() {
        let deny = "[bans]\ndeny = [{ crate = \"bytes:<1.11.1\", reason = \"unsound\" }, { crate = \"paste\" }]";
        let cases = [
            ("bytes", "1.11.0", vec!["bytes 1.11.0: unsound"]),
            ("bytes", "1.11.1", vec![]),
            ("bytes", "1.12.0+spec-1", vec![]),
            ("bytes", "0.99.99", vec!["bytes 0.99.99: unsound"]),
            ("bytes", "new", vec!["bytes new: unsound"]),
            ("paste", "99.0.0", vec!["paste 99.0.0: banned"]),
            ("other", "1.0.0", vec![]),
        ];
        for (name, version, expected) in cases {
            let lock = format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n");
            let found = check_lock(&Tree::of(&[("deny.toml", deny), ("Cargo.lock", &lock)]));
            let found: Vec<String> = found.into_iter().map(|violation| violation.what).collect();
            assert_eq!(found, expected, "{name} {version}");
        }
    }

    #[test]
    fn a_ban_that_cannot_be_read_is_reported_rather_than_passed_over() {
        let deny = "[bans]\ndeny = [{ crate = \"bytes:^1\" }]";
        let found = check_lock(&Tree::of(&[("deny.toml", deny), ("Cargo.lock", "")]));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].file.as_str(), found[0].line), ("deny.toml", 2));
    }
}
