//! Where a loader looks for NCCL's library, in which order.
//!
//! The order is: what the person named, the dynamic loader's path, the folders of Python wheels, the loader's own rules.
//! A person's word stands alone: where it does not load, that is an error to report and not a reason to take another
//! library than the one that was asked for.

/// Names the library has, the one every package ships first; the plain one is for those who build it.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The folder below a Python `site-packages` in which the wheels `nvidia-nccl-cu12` and `nvidia-nccl-cu13` keep it.
const WHEEL_FOLDER: &str = "nvidia/nccl/lib";

/// What the search depends on, all of it from outside: this crate reads no environment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SearchPath<'a> {
    /// The value of `FLODL_NCCL`: the library itself, or the folder it is in where it ends in `/`.
    pub flodl_nccl: Option<&'a str>,
    /// The value of `LD_LIBRARY_PATH`: folders separated by `:`.
    pub ld_library_path: Option<&'a str>,
    /// `site-packages` folders of the Pythons to look into, the nearest first.
    pub site_packages: &'a [&'a str],
}

/// Who says that the library may be at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// `FLODL_NCCL`.
    Named,
    /// A folder of `LD_LIBRARY_PATH`.
    LibraryPath,
    /// The wheel of a Python.
    Wheel,
    /// A bare name, left to the dynamic loader.
    System,
}

/// A place to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Path, or bare name for [`Source::System`], as the dynamic loader takes it.
    pub path: String,
    /// Why it is tried.
    pub source: Source,
}

impl SearchPath<'_> {
    /// The places to try, in order and each once; never empty.
    #[must_use]
    pub fn candidates(&self) -> Vec<Candidate> {
        if let Some(named) = self.flodl_nccl.filter(|named| !named.is_empty()) {
            return match named.strip_suffix('/') {
                Some(folder) => in_folder(folder, Source::Named).collect(),
                None => vec![Candidate { path: named.to_owned(), source: Source::Named }],
            };
        }
        let mut found: Vec<Candidate> = Vec::new();
        // An empty entry means the working folder to the dynamic loader. A library from wherever a person stands is not
        // what anyone asks for, so it is left out.
        let folders = self.ld_library_path.unwrap_or_default().split(':').filter(|folder| !folder.is_empty());
        for folder in folders {
            found.extend(in_folder(folder, Source::LibraryPath));
        }
        for site in self.site_packages.iter().filter(|site| !site.is_empty()) {
            found.extend(in_folder(&format!("{}/{WHEEL_FOLDER}", site.trim_end_matches('/')), Source::Wheel));
        }
        found.extend(NAMES.map(|name| Candidate { path: name.to_owned(), source: Source::System }));
        let mut once: Vec<Candidate> = Vec::with_capacity(found.len());
        for candidate in found {
            if once.iter().all(|seen| seen.path != candidate.path) {
                once.push(candidate);
            }
        }
        once
    }
}

fn in_folder(folder: &str, source: Source) -> impl Iterator<Item = Candidate> {
    let folder = folder.trim_end_matches('/').to_owned();
    NAMES.into_iter().map(move |name| Candidate { path: format!("{folder}/{name}"), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(search: SearchPath<'_>) -> Vec<String> {
        search.candidates().into_iter().map(|candidate| candidate.path).collect()
    }

    #[test]
    fn the_places_come_in_order() {
        let search = SearchPath {
            flodl_nccl: None,
            ld_library_path: Some("/opt/a:/opt/b/"),
            site_packages: &["/venv/site-packages", "/usr/site-packages/"],
        };
        assert_eq!(
            paths(search),
            [
                "/opt/a/libnccl.so.2",
                "/opt/a/libnccl.so",
                "/opt/b/libnccl.so.2",
                "/opt/b/libnccl.so",
                "/venv/site-packages/nvidia/nccl/lib/libnccl.so.2",
                "/venv/site-packages/nvidia/nccl/lib/libnccl.so",
                "/usr/site-packages/nvidia/nccl/lib/libnccl.so.2",
                "/usr/site-packages/nvidia/nccl/lib/libnccl.so",
                "libnccl.so.2",
                "libnccl.so",
            ]
        );
        let sources: Vec<Source> = search.candidates().into_iter().map(|candidate| candidate.source).collect();
        assert!(sources.is_sorted(), "{sources:?}");
    }

    #[test]
    fn a_named_library_is_the_only_one() {
        let others = SearchPath { ld_library_path: Some("/opt/a"), ..SearchPath::default() };
        let named = |name| SearchPath { flodl_nccl: Some(name), ..others };
        assert_eq!(paths(named("/x/libnccl.so.2.30.7")), ["/x/libnccl.so.2.30.7"]);
        assert_eq!(paths(named("/x/lib/")), ["/x/lib/libnccl.so.2", "/x/lib/libnccl.so"]);
        assert_eq!(paths(named("")), paths(others));
    }

    #[test]
    fn empty_and_repeated_folders_are_left_out() {
        let search = SearchPath { ld_library_path: Some(":/a::/a/:"), site_packages: &[""], ..SearchPath::default() };
        assert_eq!(paths(search), ["/a/libnccl.so.2", "/a/libnccl.so", "libnccl.so.2", "libnccl.so"]);
        assert_eq!(paths(SearchPath::default()), ["libnccl.so.2", "libnccl.so"]);
    }
}
