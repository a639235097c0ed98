//! Which crate may depend on which: the arrows of docs/ARCHITECTURE.md.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::tree::Tree;
use super::{CRATES, Violation, line_at};

/// The arrows that leave one crate.
struct Arrows {
    from: &'static str,
    /// Dependencies it may have in every build.
    always: &'static [&'static str],
    /// Dependencies it may have as optional ones, each with the features that may turn it on.
    under: &'static [(&'static str, &'static [&'static str])],
    /// Dependencies its tests and examples may have beside those.
    dev: &'static [&'static str],
}

/// Leaves depend on no crate of flodl; composites on leaves; and only the programs of flodl-coord on composites.
const ARROWS: [Arrows; 9] = [
    Arrows { from: "flodl-wire", always: &[], under: &[], dev: &[] },
    Arrows { from: "flodl-elche", always: &[], under: &[], dev: &[] },
    Arrows { from: "flodl-cpureduce", always: &[], under: &[], dev: &[] },
    Arrows { from: "flodl-nccl", always: &[], under: &[], dev: &[] },
    Arrows {
        from: "flodl-coord",
        always: &["flodl-wire", "flodl-elche", "flodl-nccl"],
        under: &[
            ("flodl-relay", &["cli", "sim"]),
            ("flodl-monitor", &["cli"]),
            ("flodl-worker", &["cli", "sim"]),
            ("flodl-cpureduce", &["sim"]),
        ],
        dev: &["flodl-worker"],
    },
    Arrows { from: "flodl-relay", always: &["flodl-wire", "flodl-cpureduce"], under: &[], dev: &[] },
    Arrows {
        from: "flodl-worker",
        always: &["flodl-wire", "flodl-elche"],
        under: &[("flodl-cpureduce", &["cpu"]), ("flodl-nccl", &["nccl"])],
        dev: &[],
    },
    Arrows { from: "flodl-monitor", always: &["flodl-wire"], under: &[], dev: &[] },
    Arrows { from: "xtask", always: &[], under: &[], dev: &[] },
];

/// Libraries that one crate wraps, so that the others do not come to depend on them.
const OWNERS: [(&str, &str); 3] = [("bincode", "flodl-wire"), ("tch", "flodl-worker"), ("cudarc", "flodl-nccl")];

const ADVICE: &str = "remove it, or move the code to where docs/ARCHITECTURE.md has it";

/// Checks every crate's manifest.
pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for arrows in &ARROWS {
        let file = format!("{}/Cargo.toml", arrows.from);
        let Some(text) = tree.text(&file) else { continue };
        match DeTable::parse(text) {
            Ok(manifest) => check_manifest(arrows, &file, text, manifest.get_ref(), &mut found),
            Err(error) => {
                found.push(Violation::new(&file, 1, format!("no manifest: {}", error.message()), "repair it"))
            }
        }
    }
    found
}

fn check_manifest(arrows: &Arrows, file: &str, text: &str, manifest: &DeTable<'_>, found: &mut Vec<Violation>) {
    let mut dependencies = Vec::new();
    collect(manifest, &mut dependencies);
    if let Some(targets) = child(manifest, "target") {
        for (_, target) in targets {
            dependencies_of(target, &mut dependencies);
        }
    }
    for dependency in &dependencies {
        let line = line_at(text, dependency.offset);
        if let Some((name, owner)) = OWNERS.iter().find(|(name, _)| *name == dependency.name)
            && *owner != arrows.from
        {
            found.push(Violation::new(file, line, format!("only {owner} depends on {name}"), "go through that crate"));
        }
        if CRATES.contains(&dependency.name.as_str())
            && let Err((what, advice)) = arrows.allow(dependency)
        {
            found.push(Violation::new(file, line, what, advice));
        }
    }
    for (feature, offset, turned_on) in features(manifest) {
        for item in turned_on {
            if let Err(what) = arrows.allow_in_feature(&feature, &item) {
                found.push(Violation::new(file, line_at(text, offset), what, ADVICE));
            }
        }
    }
}

impl Arrows {
    fn allow(&self, dependency: &Dependency) -> Result<(), (String, String)> {
        let Dependency { name, is_dev, optional, with_features, .. } = dependency;
        if self.from == "flodl-coord" && name == "flodl-nccl" && !with_features.is_empty() {
            return Err((
                "flodl-nccl is linked for its decisions alone, which load nothing".to_owned(),
                "take it without features".into(),
            ));
        }
        if self.always.contains(&name.as_str()) || (*is_dev && self.dev.contains(&name.as_str())) {
            return Ok(());
        }
        let no_arrow = format!("{} may not depend on {name}", self.from);
        let Some((_, under)) = self.under.iter().find(|(to, _)| to == name) else {
            return Err((no_arrow, ADVICE.to_owned()));
        };
        if *is_dev {
            return Err((format!("{no_arrow} for its tests"), ADVICE.to_owned()));
        }
        if !optional {
            return Err((
                format!("{name} is there in every build"),
                format!("make it optional and name `dep:{name}` in the feature {}", under.join(" or ")),
            ));
        }
        if self.from == "flodl-coord" && name == "flodl-worker" && !with_features.is_empty() {
            return Err((
                "flodl-worker is linked for its file format alone".to_owned(),
                "take it without features".into(),
            ));
        }
        Ok(())
    }

    /// Whether a feature may turn on what it names.
    fn allow_in_feature(&self, feature: &str, item: &str) -> Result<(), String> {
        let name = item.strip_prefix("dep:").unwrap_or(item);
        let (name, of_dependency) = name.split_once('/').map_or((name, None), |(name, rest)| (name, Some(rest)));
        // `name?/feature` turns nothing on by itself.
        if name.ends_with('?') {
            return Ok(());
        }
        let Some((_, under)) = self.under.iter().find(|(to, _)| *to == name) else { return Ok(()) };
        if !under.contains(&feature) {
            return Err(format!("feature `{feature}` may not turn on {name}, only {} may", under.join(" or ")));
        }
        match of_dependency {
            Some(of) if self.from == "flodl-coord" && name == "flodl-worker" && feature == "cli" => {
                Err(format!("feature `cli` takes flodl-worker without features, not with `{of}`"))
            }
            _ => Ok(()),
        }
    }
}

/// One entry of a dependency table.
#[derive(Debug)]
struct Dependency {
    name: String,
    offset: usize,
    is_dev: bool,
    optional: bool,
    with_features: Vec<String>,
}

fn dependencies_of(target: &Spanned<DeValue<'_>>, into: &mut Vec<Dependency>) {
    if let Some(table) = target.get_ref().as_table() {
        collect(table, into);
    }
}

fn collect(table: &DeTable<'_>, into: &mut Vec<Dependency>) {
    for (section, is_dev) in [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)] {
        let Some(entries) = child(table, section) else { continue };
        for (key, value) in entries {
            let value = value.get_ref();
            let renamed = value.get("package").and_then(|package| package.get_ref().as_str());
            into.push(Dependency {
                name: renamed.unwrap_or(key.get_ref()).to_owned(),
                offset: key.span().start,
                is_dev,
                optional: value.get("optional").and_then(|optional| optional.get_ref().as_bool()).unwrap_or(false),
                with_features: value.get("features").map_or_else(Vec::new, strings),
            });
        }
    }
}

/// The features of a manifest: name, place and what each turns on.
fn features(manifest: &DeTable<'_>) -> Vec<(String, usize, Vec<String>)> {
    let Some(table) = child(manifest, "features") else { return Vec::new() };
    table.iter().map(|(key, value)| (key.get_ref().to_string(), key.span().start, strings(value))).collect()
}

fn child<'a, 'i>(table: &'a DeTable<'i>, name: &str) -> Option<&'a DeTable<'i>> {
    table.iter().find(|(key, _)| key.get_ref() == name).and_then(|(_, value)| value.get_ref().as_table())
}

fn strings(value: &Spanned<DeValue<'_>>) -> Vec<String> {
    let items = value.get_ref().as_array();
    items.into_iter().flatten().filter_map(|item| item.get_ref().as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with one crate's manifest, as `line: what`.
    fn wrong(name: &str, manifest: &str) -> Vec<String> {
        let found = check(&Tree::of(&[(&format!("{name}/Cargo.toml"), manifest)]));
        found.iter().map(|violation| format!("{}: {}", violation.line, violation.what)).collect()
    }

    #[test]
    fn allowed_arrows_are_silent() {
        let cases = [
            ("flodl-wire", "[dependencies]\nbytes.workspace = true\nbincode.workspace = true"),
            ("flodl-relay", "[dependencies]\nflodl-wire.workspace = true\nflodl-cpureduce = { workspace = true }"),
            (
                "flodl-coord",
                "[dependencies]\nflodl-wire.workspace = true\n\
                 flodl-relay = { workspace = true, optional = true }\n\
                 flodl-worker = { workspace = true, optional = true }\n\
                 [features]\ncli = [\"dep:flodl-relay\", \"dep:flodl-worker\"]\nsim = [\"dep:flodl-relay\", \"flodl-worker/cpu\"]\n\
                 fast = [\"flodl-relay?/fast\"]\n[dev-dependencies]\nflodl-worker.workspace = true",
            ),
            (
                "flodl-worker",
                "[dependencies]\nflodl-cpureduce = { workspace = true, optional = true }\n\
                 [features]\ndefault = [\"cpu\"]\ncpu = [\"dep:flodl-cpureduce\"]",
            ),
        ];
        for (name, manifest) in cases {
            assert_eq!(wrong(name, manifest), Vec::<String>::new(), "{name}\n{manifest}");
        }
    }

    #[test]
    fn forbidden_arrows_are_named_with_their_line() {
        let cases = [
            (
                "flodl-elche",
                "[dependencies]\nflodl-wire.workspace = true",
                "2: flodl-elche may not depend on flodl-wire",
            ),
            ("xtask", "\n[dev-dependencies]\nflodl-wire = \"1\"", "3: xtask may not depend on flodl-wire"),
            (
                "flodl-monitor",
                "[dependencies]\nw = { package = \"flodl-coord\" }",
                "2: flodl-monitor may not depend on flodl-coord",
            ),
            (
                "flodl-relay",
                "[target.'cfg(unix)'.dependencies]\nflodl-elche = \"1\"",
                "2: flodl-relay may not depend on flodl-elche",
            ),
            ("flodl-coord", "[dependencies]\nflodl-relay.workspace = true", "2: flodl-relay is there in every build"),
            (
                "flodl-coord",
                "[dev-dependencies]\nflodl-monitor.workspace = true",
                "2: flodl-coord may not depend on flodl-monitor for its tests",
            ),
            (
                "flodl-coord",
                "[features]\ndefault = [\"dep:flodl-relay\"]",
                "2: feature `default` may not turn on flodl-relay, only cli or sim may",
            ),
            (
                "flodl-coord",
                "[features]\ncli = [\"flodl-worker/cpu\"]",
                "2: feature `cli` takes flodl-worker without features, not with `cpu`",
            ),
            (
                "flodl-coord",
                "[dependencies]\nflodl-worker = { workspace = true, optional = true, features = [\"cpu\"] }",
                "2: flodl-worker is linked for its file format alone",
            ),
            ("flodl-coord", "[dependencies]\nbincode.workspace = true", "2: only flodl-wire depends on bincode"),
        ];
        for (name, manifest, expected) in cases {
            assert_eq!(wrong(name, manifest), [expected], "{name}\n{manifest}");
        }
    }

    #[test]
    fn a_broken_manifest_is_reported() {
        assert_eq!(wrong("flodl-wire", "[dependencies").len(), 1);
    }
}
