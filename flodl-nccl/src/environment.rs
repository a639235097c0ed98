//! What this machine says about where NCCL may be: the one place of the crate that reads the environment and folders.

#![expect(clippy::disallowed_methods, reason = "the environment is read here and handed on as an argument")]

use std::path::{Path, PathBuf};

use crate::search::SearchPath;

/// The facts that a [`SearchPath`] is made of, read from the process's environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    flodl_nccl: Option<String>,
    ld_library_path: Option<String>,
    site_packages: Vec<String>,
}

impl Environment {
    /// Reads `FLODL_NCCL`, `LD_LIBRARY_PATH` and the folders of the Pythons at hand: that of `VIRTUAL_ENV`, that of
    /// `CONDA_PREFIX`, those of the `python3`s on the `PATH`, and the person's own packages. No Python is started.
    #[must_use]
    pub fn read() -> Self {
        let named = |name| std::env::var_os(name).map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&path)
            .filter(|folder| folder.is_absolute() && folder.join("python3").exists())
            .filter_map(|folder| folder.parent().map(Path::to_path_buf));
        let own = named("HOME").map(|home| home.join(".local"));
        let prefixes = named("VIRTUAL_ENV").into_iter().chain(named("CONDA_PREFIX")).chain(on_path).chain(own);
        let mut site_packages: Vec<String> = Vec::new();
        for folder in prefixes.flat_map(|prefix| packages_below(&prefix)) {
            if !site_packages.contains(&folder) {
                site_packages.push(folder);
            }
        }
        Self {
            flodl_nccl: std::env::var("FLODL_NCCL").ok(),
            ld_library_path: std::env::var("LD_LIBRARY_PATH").ok(),
            site_packages,
        }
    }

    /// Calls `with` with the search path that follows from the facts.
    pub fn search<T>(&self, with: impl FnOnce(&SearchPath<'_>) -> T) -> T {
        let site_packages: Vec<&str> = self.site_packages.iter().map(String::as_str).collect();
        with(&SearchPath {
            flodl_nccl: self.flodl_nccl.as_deref(),
            ld_library_path: self.ld_library_path.as_deref(),
            site_packages: &site_packages,
        })
    }
}

/// The package folders of the Pythons below a prefix (`lib/python3.12/site-packages`), in order of name.
fn packages_below(prefix: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(prefix.join("lib")) else { return Vec::new() };
    let mut pythons: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")))
        .collect();
    pythons.sort();
    pythons
        .iter()
        .flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)))
        .filter(|folder| folder.is_dir())
        .filter_map(|folder| folder.to_str().map(str::to_owned))
        .collect()
}
