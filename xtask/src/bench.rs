//! `cargo xtask bench`: runs the workspace's benchmarks and collects what they measured.
//!
//! Most are criterion's, in the `benches/` of their crates; [`worker`], [`lockstep`], [`reduce`] and [`siege`] compare whole programs.

mod lockstep;
mod programs;
mod reduce;
mod siege;
mod worker;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::build::Build;
use crate::cargo;
use crate::failure::Failure;

const USAGE: &str = "usage: cargo xtask bench [NAME] [--json FILE] [--peers] [--list]";

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// Only the benchmark program of this name.
    name: Option<String>,
    /// Where the numbers go.
    json: Option<PathBuf>,
    /// Run the programs that `reduce` is compared with too.
    peers: bool,
    /// Print the names only.
    list: bool,
}

/// One benchmark program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Bench {
    /// The package of a criterion benchmark; of a comparison of programs the package that is compared.
    package: String,
    name: String,
}

/// A benchmark of whole programs.
struct Comparison {
    /// Whose speed it is about.
    package: &'static str,
    name: &'static str,
    /// Runs it, with the programs of others or without.
    run: fn(bool) -> Result<Value, Failure>,
}

static COMPARISONS: [Comparison; 4] = [
    Comparison { package: "flodl-worker", name: lockstep::NAME, run: |_| lockstep::run() },
    Comparison { package: "flodl-coord", name: reduce::NAME, run: reduce::run },
    Comparison { package: "flodl-coord", name: siege::NAME, run: |_| siege::run() },
    Comparison { package: "flodl-worker", name: worker::NAME, run: |_| worker::run() },
];

/// Runs the command.
///
/// # Errors
///
/// A usage error (unknown names list the known ones); a benchmark that fails; a file that cannot be written.
pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    let options = Options::read(args)?;
    let metadata = cargo::metadata()?;
    let chosen = choose(benches(&metadata), options.name.as_deref())?;
    if options.list {
        for bench in &chosen {
            println!("{:<24} {}", bench.name, bench.package);
        }
        return Ok(());
    }
    let started = SystemTime::now();
    let mut figures = serde_json::Map::new();
    for bench in &chosen {
        println!("==> {} of {}", bench.name, bench.package);
        let comparison = COMPARISONS.iter().find(|comparison| comparison.name == bench.name);
        match comparison {
            Some(comparison) => {
                figures.insert(bench.name.clone(), (comparison.run)(options.peers)?);
            }
            None => run_criterion(bench)?,
        }
    }
    let Some(file) = options.json else { return Ok(()) };
    let folder = Path::new(metadata["target_directory"].as_str().unwrap_or("target")).join("criterion");
    let measured = measurements(&folder, started);
    let count = measured.len() + figures.len();
    // One comparison alone is the whole file, so that its figures are at the top.
    let found = match figures.remove(options.name.as_deref().unwrap_or_default()) {
        Some(alone) => alone,
        None => {
            figures.insert("benchmarks".to_owned(), measured.into());
            figures.into()
        }
    };
    std::fs::write(&file, format!("{found:#}\n"))
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", file.display())))?;
    println!("{count} measurements in {}", file.display());
    Ok(())
}

fn run_criterion(Bench { package, name }: &Bench) -> Result<(), Failure> {
    let build = Build::without_libtorch();
    let features = build.every_feature(package)?;
    let features = features.iter().map(String::as_str);
    let args: Vec<&str> = ["bench", "--package", package, "--bench", name].into_iter().chain(features).collect();
    if build.status(&args)?.success() {
        Ok(())
    } else {
        Err(Failure::failed(format!("benchmark `{name}` failed, see above")))
    }
}

impl Options {
    fn read(args: &[String]) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            if arg == "--list" {
                options.list = true;
            } else if arg == "--peers" {
                options.peers = true;
            } else if arg == "--json" {
                let file = rest.next().ok_or_else(|| Failure::usage(format!("`--json` needs a file\n{USAGE}")))?;
                options.json = Some(PathBuf::from(file));
            } else if arg.starts_with('-') || options.name.is_some() {
                return Err(Failure::usage(format!("unexpected argument `{arg}`\n{USAGE}")));
            } else {
                options.name = Some(arg.clone());
            }
        }
        Ok(options)
    }
}

/// The benchmark programs of the workspace, sorted.
fn benches(metadata: &Value) -> Vec<Bench> {
    let bench =
        |comparison: &Comparison| Bench { package: comparison.package.to_owned(), name: comparison.name.to_owned() };
    let mut found: Vec<Bench> = COMPARISONS.iter().map(bench).collect();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            let is_bench = target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "bench"));
            if let (true, Some(package), Some(name)) = (is_bench, package["name"].as_str(), target["name"].as_str()) {
                found.push(Bench { package: package.to_owned(), name: name.to_owned() });
            }
        }
    }
    found.sort();
    found
}

fn choose(all: Vec<Bench>, name: Option<&str>) -> Result<Vec<Bench>, Failure> {
    let Some(name) = name else { return Ok(all) };
    let known: Vec<&str> = all.iter().map(|bench| bench.name.as_str()).collect();
    if !known.contains(&name) {
        return Err(Failure::usage(format!("unknown benchmark `{name}`: the benchmarks are {}", known.join(", "))));
    }
    Ok(all.into_iter().filter(|bench| bench.name == name).collect())
}

/// The estimates criterion has written under `folder` since `started`, in nanoseconds, in order of their names.
fn measurements(folder: &Path, started: SystemTime) -> Vec<Value> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        folders.extend(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()));
        if folder.file_name().is_some_and(|name| name == "new") {
            found.extend(measurement(&folder, started));
        }
    }
    found.sort_by_key(|value| value["id"].as_str().unwrap_or_default().to_owned());
    found
}

fn measurement(folder: &Path, started: SystemTime) -> Option<Value> {
    let file = folder.join("estimates.json");
    if file.metadata().ok()?.modified().ok()? < started {
        return None;
    }
    let estimates: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    let about: Value = serde_json::from_slice(&std::fs::read(folder.join("benchmark.json")).ok()?).ok()?;
    Some(json!({
        "id": about["full_id"],
        "throughput": about["throughput"],
        "mean_ns": estimates["mean"]["point_estimate"],
        "median_ns": estimates["median"]["point_estimate"],
        "std_dev_ns": estimates["std_dev"]["point_estimate"],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_are_read_and_strangers_refused() {
        let json = Some(PathBuf::from("out.json"));
        let expected = Options { name: Some("fold".to_owned()), json, peers: true, list: false };
        assert_eq!(Options::read(&words("fold --json out.json --peers")), Ok(expected));
        for typed in ["--json", "--fast", "fold frames"] {
            assert!(matches!(Options::read(&words(typed)), Err(Failure::Usage(_))), "typed: {typed}");
        }
    }

    #[test]
    fn benches_are_found_and_an_unknown_one_names_the_known() {
        let metadata = json!({ "packages": [
            { "name": "flodl-wire", "targets": [{ "name": "frames", "kind": ["bench"] }, { "name": "x", "kind": ["lib"] }] },
            { "name": "flodl-cpureduce", "targets": [{ "name": "fold", "kind": ["bench"] }] },
        ] });
        let all = benches(&metadata);
        assert_eq!(
            all.iter().map(|bench| bench.name.as_str()).collect::<Vec<_>>(),
            ["reduce", "siege", "fold", "frames", "lockstep", "worker"]
        );
        assert_eq!(choose(all.clone(), Some("frames")).map(|chosen| chosen.len()), Ok(1));
        let Err(Failure::Usage(message)) = choose(all, Some("none")) else { panic!("unknown names are refused") };
        assert!(message.contains("fold, frames, lockstep, worker"), "{message}");
    }

    #[test]
    fn only_fresh_estimates_are_collected() {
        let folder = std::env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        let new = folder.join("fold/64/new");
        std::fs::create_dir_all(&new).expect("the temporary folder is writable");
        let estimates =
            r#"{"mean":{"point_estimate":2.0},"median":{"point_estimate":1.5},"std_dev":{"point_estimate":0.5}}"#;
        std::fs::write(new.join("estimates.json"), estimates).expect("writable");
        std::fs::write(new.join("benchmark.json"), r#"{"full_id":"fold/64","throughput":null}"#).expect("writable");
        let fresh = measurements(&folder, SystemTime::UNIX_EPOCH);
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        let stale = measurements(&folder, later);
        std::fs::remove_dir_all(&folder).expect("removable");
        assert_eq!(fresh.len(), 1);
        assert_eq!(fresh[0]["id"], "fold/64");
        assert_eq!(fresh[0]["median_ns"], 1.5);
        assert!(stale.is_empty());
    }
}
