//! Scenarios as text: what happens to a coordinator, `----`, and what it does about it.
//!
//! Each file of `tests/script/` is a story of blocks, set apart by empty lines. A block's lines up to `----` happen one after
//! the other, those behind it are everything that the coordinator wants done meanwhile (its signs of life left out). Lines
//! with `#` in front are for readers. `docs/FAILURES.md` says which story shows what; `stage` has the words that may happen,
//! `words` how outputs read.
//!
//! With `FLODL_WRITE_SCRIPTS=1` the second parts are written anew: read the difference before you keep it.

mod actor;
#[path = "../common/mod.rs"]
mod common;
mod library;
mod stage;
mod words;

use stage::Stage;
use std::fs;
use std::path::{Path, PathBuf};

const RULE: &str = "----";

/// A block: its lines as they are, and what is behind its rule.
struct Block {
    happens: Vec<String>,
    expected: Vec<String>,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    for block in text.split("\n\n").map(str::trim).filter(|block| !block.is_empty()) {
        let mut lines = block.lines().map(str::to_owned);
        let happens = lines.by_ref().take_while(|line| line != RULE).collect();
        blocks.push(Block { happens, expected: lines.collect() });
    }
    blocks
}

/// The file as it would read where all is as it should be.
fn play(text: &str) -> Result<String, String> {
    let mut stage = Stage::default();
    let mut told = Vec::new();
    for block in blocks(text) {
        for line in block.happens.iter().filter(|line| !line.starts_with('#')) {
            stage.happens(line).map_err(|error| format!("`{line}`: {error}"))?;
        }
        let mut lines = block.happens;
        let does = stage.does();
        if lines.iter().any(|line| !line.starts_with('#')) {
            lines.push(RULE.to_owned());
            lines.extend(does);
        } else if !block.expected.is_empty() {
            return Err("a block in which nothing happens expects something".to_owned());
        }
        told.push(lines.join("\n"));
    }
    Ok(told.join("\n\n") + "\n")
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/script");
    let entries = fs::read_dir(folder).expect("the folder is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("can be read").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|kind| kind == "txt"));
    paths.sort();
    paths
}

fn first_difference(expected: &str, got: &str) -> String {
    let (mut expected, mut got) = (expected.lines(), got.lines());
    let mut number = 0;
    loop {
        number += 1;
        match (expected.next(), got.next()) {
            (Some(a), Some(b)) if a == b => {}
            (None, None) => return "it ends otherwise".to_owned(),
            (a, b) => {
                let show = |line: Option<&str>| line.map_or("nothing".to_owned(), |line| format!("`{line}`"));
                return format!("line {number} expects {} and comes {}", show(a), show(b));
            }
        }
    }
}

#[test]
fn every_scenario_goes_as_it_is_told() {
    let write = std::env::var_os("FLODL_WRITE_SCRIPTS").is_some();
    let (mut wrong, mut played) = (Vec::new(), 0);
    for path in scripts() {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let text = fs::read_to_string(&path).expect("can be read");
        match play(&text) {
            Ok(told) if told == text => {}
            Ok(told) if write => fs::write(&path, told).expect("can be written"),
            Ok(told) => wrong.push(format!("{name}: {}", first_difference(&text, &told))),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
        played += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(played > 20, "only {played} scenarios are there");
}
