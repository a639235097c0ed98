//! What the search for a libtorch may look at, so that its decisions are tested without a machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::python::Python;

/// The surroundings of a search.
pub(super) trait World {
    /// An environment variable; `None` where it is not set or empty.
    fn var(&self, name: &str) -> Option<OsString>;
    /// The text of a file.
    fn text(&self, path: &Path) -> Option<String>;
    /// The size of a file in bytes, through symbolic links.
    fn size(&self, path: &Path) -> Option<u64>;
    /// The folder of the package `torch` of the person's Python.
    fn python_torch(&self) -> Option<PathBuf>;
    /// What the dynamic linker says of a library, as `ldd` prints it; `None` where it cannot be asked.
    fn linker_report(&self, library: &Path) -> Option<String>;
}

/// The machine this runs on.
#[derive(Debug, Default)]
pub(super) struct Machine {
    /// Its Python.
    pub(super) python: Python,
}

impl World for Machine {
    fn var(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name).filter(|value| !value.is_empty())
    }

    fn text(&self, path: &Path) -> Option<String> {
        std::fs::read_to_string(path).ok()
    }

    fn size(&self, path: &Path) -> Option<u64> {
        std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len())
    }

    fn python_torch(&self) -> Option<PathBuf> {
        self.python.torch()
    }

    fn linker_report(&self, library: &Path) -> Option<String> {
        // What the caller's own search path adds would hide what a program started without it lacks.
        let output = Command::new("ldd").arg(library).env_remove("LD_LIBRARY_PATH").output().ok()?;
        Some(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
    }
}

/// What a library needs that the dynamic linker does not find, each as the name of a library or of a version.
pub(super) fn unresolved(report: &str) -> Vec<String> {
    let mut missing: Vec<String> = report
        .lines()
        .filter_map(|line| {
            if let Some((name, _)) = line.split_once("=> not found") {
                return Some(name.trim().to_owned());
            }
            // LIBRARY: FILE: version `GLIBC_2.34' not found (required by LIBRARY)
            let (_, version) = line.split_once("version `")?;
            version.split_once("' not found").map(|(version, _)| version.to_owned())
        })
        .collect();
    missing.sort();
    missing.dedup();
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_linker_misses_is_named_once() {
        let report = "\tlinux-vdso.so.1 (0x1)\n\tlibcudart.so.13 => not found\n\tlibm.so.6 => /lib/libm.so.6 (0x2)\n\
                      \tlibcudart.so.13 => not found\n./a.so: /lib/libc.so.6: version `GLIBC_2.34' not found (required by ./a.so)\n";
        assert_eq!(unresolved(report), ["GLIBC_2.34", "libcudart.so.13"]);
        assert_eq!(unresolved("\tlibm.so.6 => /lib/libm.so.6 (0x2)\n"), Vec::<String>::new());
    }
}

#[cfg(test)]
pub(super) mod fake {
    //! A machine made of a few names.

    use std::collections::BTreeMap;

    use super::{OsString, Path, PathBuf, World};

    /// See the methods of the same names of [`World`].
    #[derive(Debug, Default, Clone)]
    pub(in crate::setup) struct Fake {
        vars: BTreeMap<String, OsString>,
        files: BTreeMap<PathBuf, String>,
        torch: Option<PathBuf>,
        linker: BTreeMap<PathBuf, String>,
    }

    impl Fake {
        pub(in crate::setup) fn var(mut self, name: &str, value: &str) -> Self {
            self.vars.insert(name.to_owned(), value.into());
            self
        }

        pub(in crate::setup) fn file(mut self, path: &str, text: &str) -> Self {
            self.files.insert(path.into(), text.to_owned());
            self
        }

        /// A whole libtorch of that version.
        pub(in crate::setup) fn libtorch(self, folder: &str, version: &str) -> Self {
            self.file(&format!("{folder}/build-version"), version)
                .file(&format!("{folder}/include/torch/csrc/api/include/torch/torch.h"), "")
                .file(&format!("{folder}/lib/libtorch_cpu.so"), "x")
                .file(&format!("{folder}/lib/libc10.so"), "x")
        }

        pub(in crate::setup) fn python(mut self, folder: &str) -> Self {
            self.torch = Some(folder.into());
            self
        }

        pub(in crate::setup) fn linker(mut self, library: &str, report: &str) -> Self {
            self.linker.insert(library.into(), report.to_owned());
            self
        }
    }

    impl World for Fake {
        fn var(&self, name: &str) -> Option<OsString> {
            self.vars.get(name).cloned()
        }

        fn text(&self, path: &Path) -> Option<String> {
            self.files.get(path).cloned()
        }

        fn size(&self, path: &Path) -> Option<u64> {
            self.files.get(path).and_then(|text| u64::try_from(text.len()).ok())
        }

        fn python_torch(&self) -> Option<PathBuf> {
            self.torch.clone()
        }

        fn linker_report(&self, library: &Path) -> Option<String> {
            self.linker.get(library).cloned()
        }
    }
}
