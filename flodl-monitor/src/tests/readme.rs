//! The README's lines are what is written.

use crate::samples::one_of_each;

#[test]
fn the_readme_shows_a_line_of_each_kind() {
    let readme = include_str!("../../README.md");
    let block = readme.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let written: Vec<String> = one_of_each().iter().map(|record| serde_json::to_string(record).unwrap()).collect();
    assert_eq!(block.lines().collect::<Vec<_>>(), written, "the README should show:\n{}\n", written.join("\n"));
}
