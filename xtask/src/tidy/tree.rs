//! The files the checks look at, read once.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::process::Command;

/// Larger files are data, and no rule here speaks of data.
const TEXT_MAX: u64 = 1024 * 1024;

/// The repository's files as the checks see them: paths with `/`, and the text of those that are text.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// Path to text; files that are no text have none.
    files: BTreeMap<String, Option<String>>,
    /// The names at the top level.
    top: BTreeSet<String>,
}

impl Tree {
    /// Reads the tree at `root`: the files git knows or would add, or without git all but build outputs.
    ///
    /// The top level is judged by what git tracks, since an untracked file there is nobody's business yet.
    ///
    /// # Errors
    ///
    /// Those of reading files and folders.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let (paths, top) = match (git_files(root, &["--cached"]), git_files(root, &["--others", "--exclude-standard"]))
        {
            (Some(tracked), Some(others)) => {
                let top = top_level(&tracked);
                (tracked.into_iter().chain(others).collect(), top)
            }
            _ => {
                let mut paths = Vec::new();
                walk(root, "", &mut paths)?;
                let top = top_level(&paths);
                (paths, top)
            }
        };
        let mut tree = Self { files: BTreeMap::new(), top };
        for path in paths {
            let file = root.join(&path);
            // A file that is deleted but still in git's index is gone; a link to elsewhere is not read.
            let Ok(metadata) = file.symlink_metadata() else { continue };
            let is_text = metadata.is_file() && metadata.len() <= TEXT_MAX;
            let text = if is_text { String::from_utf8(std::fs::read(&file)?).ok() } else { None };
            tree.files.insert(path, text);
        }
        Ok(tree)
    }

    /// A tree in memory.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let files: BTreeMap<_, _> =
            files.iter().map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned()))).collect();
        let paths: Vec<String> = files.keys().cloned().collect();
        Self { files, top: top_level(&paths) }
    }

    /// All paths.
    #[cfg(test)]
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Whether there is a file or a folder of this path; the root has the empty one.
    pub(super) fn holds(&self, path: &str) -> bool {
        let folder = if path.is_empty() { String::new() } else { format!("{path}/") };
        self.files.keys().any(|file| file == path || file.starts_with(&folder))
    }

    /// The text of one file, where it is there and is text.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Path and text of the files whose names end so.
    pub(super) fn with_extension<'a>(&'a self, extensions: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files
            .iter()
            .filter(|(path, _)| {
                Path::new(path).extension().and_then(|end| end.to_str()).is_some_and(|end| extensions.contains(&end))
            })
            .filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// The names at the top level.
    pub(super) fn top(&self) -> impl Iterator<Item = &str> {
        self.top.iter().map(String::as_str)
    }
}

fn top_level(paths: &[String]) -> BTreeSet<String> {
    paths.iter().filter_map(|path| path.split('/').next().map(str::to_owned)).collect()
}

/// What `git ls-files` lists; `None` where this is no git checkout or git cannot be asked.
fn git_files(root: &Path, which: &[&str]) -> Option<Vec<String>> {
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).args(which).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

/// Lists files below `folder`, without git's own, build outputs and run directories.
fn walk(root: &Path, folder: &str, paths: &mut Vec<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_output = name == "target" || name == ".git" || (folder.is_empty() && name.starts_with("flodl-run"));
        if is_output {
            continue;
        }
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if entry.file_type()?.is_dir() {
            walk(root, &path, paths)?;
        } else {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_git_is_walked_without_its_outputs() {
        let root = std::env::temp_dir().join(format!("xtask-tree-{}", std::process::id()));
        for (path, bytes) in [
            ("a/src/lib.rs", b"//! A.\n".as_slice()),
            ("a/data.bin", &[0xff, 0xfe]),
            ("target/x.rs", b""),
            ("flodl-run-1/journal", b""),
        ] {
            let file = root.join(path);
            std::fs::create_dir_all(file.parent().expect("a file has a folder")).expect("writable");
            std::fs::write(file, bytes).expect("writable");
        }
        let tree = Tree::read(&root);
        std::fs::remove_dir_all(&root).expect("removable");
        let tree = tree.expect("readable");
        assert_eq!(tree.paths().collect::<Vec<_>>(), ["a/data.bin", "a/src/lib.rs"]);
        assert_eq!(tree.text("a/src/lib.rs"), Some("//! A.\n"));
        assert_eq!(tree.text("a/data.bin"), None);
        assert_eq!(tree.top().collect::<Vec<_>>(), ["a"]);
    }
}
