//! Versions of libtorch: what a folder states, and whether it fits.

use std::fmt;
use std::path::Path;

use super::world::World;

/// A version, without what follows the numbers (`+cpu`, `a0`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

/// The release that the bindings (tch 0.24) are written for.
pub(super) const WANTED: Version = Version { major: 2, minor: 11, patch: 0 };

impl Version {
    /// Reads `2.11.0`, `2.11.0+cpu` or `2.11.0a0+git1234`, with white space around it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().splitn(3, '.');
        let major = parts.next()?.parse().ok()?;
        let minor = parts.next()?.parse().ok()?;
        let last = parts.next()?;
        let digits = last.find(|c: char| !c.is_ascii_digit()).unwrap_or(last.len());
        Some(Self { major, minor, patch: last[..digits].parse().ok()? })
    }

    /// Whether the bindings can be built with it: patch releases keep the interface.
    pub(super) fn fits(self) -> bool {
        (self.major, self.minor) == (WANTED.major, WANTED.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The headers that define the version: since 2.11 the first, which the second includes; before that the second.
const HEADERS: [&str; 2] = ["include/torch/headeronly/version.h", "include/torch/csrc/api/include/torch/version.h"];

/// The version of the libtorch in a folder: as its file `build-version` states it, else its headers, else the Python
/// package it is part of.
pub(super) fn of_folder(world: &impl World, folder: &Path) -> Option<Version> {
    let stated = world.text(&folder.join("build-version")).and_then(|text| Version::parse(&text));
    let defined = || HEADERS.iter().find_map(|header| in_header(&world.text(&folder.join(header))?));
    let packaged = || in_package(&world.text(&folder.join("version.py"))?);
    stated.or_else(defined).or_else(packaged)
}

/// `#define TORCH_VERSION "2.11.0"`, which may be broken over lines.
fn in_header(text: &str) -> Option<Version> {
    text.split("#define TORCH_VERSION").skip(1).find_map(|rest| {
        let value = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '\\').strip_prefix('"')?;
        Version::parse(value.split('"').next()?)
    })
}

/// `__version__ = '2.11.0+cu130'` of torch/version.py.
fn in_package(text: &str) -> Option<Version> {
    let value = text.lines().find_map(|line| line.strip_prefix("__version__"))?;
    Version::parse(value.split(['\'', '"']).nth(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::world::fake::Fake;

    #[test]
    fn versions_are_read_without_their_tails() {
        for (text, expected) in [
            ("2.11.0", Some("2.11.0")),
            ("2.11.0+cpu\n", Some("2.11.0")),
            (" 2.12.3a0+gitdeadbeef", Some("2.12.3")),
            ("2.11", None),
            ("2.11.x", None),
            ("", None),
            ("99999999999.1.1", None),
        ] {
            assert_eq!(Version::parse(text).map(|version| version.to_string()).as_deref(), expected, "text: {text}");
        }
    }

    #[test]
    fn patch_releases_fit() {
        for (text, fits) in [("2.11.0", true), ("2.11.7", true), ("2.1.0", false), ("2.12.0", false), ("3.11.0", false)]
        {
            assert_eq!(Version::parse(text).map(Version::fits), Some(fits), "version: {text}");
        }
    }

    #[test]
    fn a_folder_states_its_version_in_one_of_four_files() {
        let broken = "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION \\\n  \"2.11.1\"\n";
        for (path, text, expected) in [
            ("/t/build-version", "2.11.0+cu130\n", Some("2.11.0")),
            ("/t/include/torch/headeronly/version.h", broken, Some("2.11.1")),
            ("/t/include/torch/csrc/api/include/torch/version.h", "#define TORCH_VERSION \"2.4.1\"\n", Some("2.4.1")),
            ("/t/include/torch/csrc/api/include/torch/version.h", "#include <torch/headeronly/version.h>\n", None),
            ("/t/version.py", "from typing import Optional\n__version__ = '2.11.0+cpu'\ncuda = None\n", Some("2.11.0")),
            ("/t/other", "2.11.0", None),
        ] {
            let found = of_folder(&Fake::default().file(path, text), Path::new("/t"));
            assert_eq!(found.map(|version| version.to_string()).as_deref(), expected, "{path}: {text}");
        }
    }
}
