//! Where the cache is, and how a whole libtorch in it is told from one that is not.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::version;
use super::world::World;

/// The layout of the cached folder; another number makes every cached folder one to fetch again.
const LAYOUT: u64 = 1;

/// The file that is written last. It says what was put there.
const STAMP: &str = "flodl-stamp.json";

/// The cache: a folder of the person's, beside no project and no build profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `${FLODL_CACHE:-${XDG_CACHE_HOME:-~/.cache}/flodl}`; `None` where there is neither of the three.
    pub(super) fn of(world: &impl World) -> Option<Self> {
        // The specification of the base directories has relative paths ignored.
        let absolute = |name: &str| world.var(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let root = match world.var("FLODL_CACHE") {
            Some(named) => std::path::absolute(named).ok()?,
            None => match absolute("XDG_CACHE_HOME") {
                Some(caches) => caches.join("flodl"),
                None => absolute("HOME")?.join(".cache/flodl"),
            },
        };
        Some(Self { root })
    }

    /// The folder everything is in.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The libtorch.
    pub(super) fn folder(&self) -> PathBuf {
        self.root.join(name())
    }

    /// Held by the setup at work.
    pub(super) fn lock(&self) -> PathBuf {
        self.root.join(format!("{}.lock", name()))
    }

    /// Wheels, whole or in part.
    pub(super) fn downloads(&self) -> PathBuf {
        self.root.join("downloads")
    }

    /// A folder to unpack into, for this process alone.
    pub(super) fn unpacking(&self, process: u32) -> PathBuf {
        self.root.join(format!("{}.unpacking-{process}", name()))
    }

    /// Where this process moves a folder that is not whole.
    pub(super) fn aside(&self, process: u32) -> PathBuf {
        self.root.join(format!("{}.unpacking-{process}-old", name()))
    }

    /// Whether a name in the root is that of a folder an interrupted setup may have left.
    pub(super) fn is_left_over(file_name: &OsString) -> bool {
        file_name.to_str().is_some_and(|text| text.starts_with(&format!("{}.unpacking-", name())))
    }

    /// The stamp's path in a folder.
    pub(super) fn stamp_in(folder: &Path) -> PathBuf {
        folder.join(STAMP)
    }

    /// The text of the stamp for libraries of these names and sizes, taken from these wheels.
    pub(super) fn stamp(wheels: &[String], libraries: &[(String, u64)]) -> String {
        let libraries: serde_json::Map<String, Value> =
            libraries.iter().map(|(name, size)| (name.clone(), json!(size))).collect();
        let stamp = json!({
            "layout": LAYOUT,
            "version": version::WANTED.to_string(),
            "arch": std::env::consts::ARCH,
            "wheels": wheels,
            "libraries": libraries,
        });
        format!("{stamp:#}\n")
    }

    /// Whether the cached folder is whole: stamped for this layout, version and processor, and each library as large as
    /// it was.
    pub(super) fn is_whole(&self, world: &impl World) -> bool {
        let folder = self.folder();
        let Some(stamp) =
            world.text(&Self::stamp_in(&folder)).and_then(|text| serde_json::from_str::<Value>(&text).ok())
        else {
            return false;
        };
        let is_ours = stamp["layout"] == LAYOUT
            && stamp["version"] == version::WANTED.to_string()
            && stamp["arch"] == std::env::consts::ARCH;
        let libraries = stamp["libraries"].as_object();
        is_ours
            && libraries.is_some_and(|libraries| {
                !libraries.is_empty()
                    && libraries.iter().all(|(name, size)| {
                        size.is_u64() && world.size(&folder.join("lib").join(name)) == size.as_u64()
                    })
            })
    }
}

fn name() -> String {
    format!("libtorch-{}", version::WANTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::world::fake::Fake;

    #[test]
    fn the_cache_is_where_the_person_wants_it() {
        let home = Fake::default().var("HOME", "/home/a");
        let cases = [
            (Fake::default(), None),
            (home.clone(), Some("/home/a/.cache/flodl/libtorch-2.11.0")),
            (home.clone().var("XDG_CACHE_HOME", "/x"), Some("/x/flodl/libtorch-2.11.0")),
            (home.clone().var("XDG_CACHE_HOME", "x"), Some("/home/a/.cache/flodl/libtorch-2.11.0")),
            (home.var("XDG_CACHE_HOME", "/x").var("FLODL_CACHE", "/f"), Some("/f/libtorch-2.11.0")),
        ];
        for (world, expected) in cases {
            assert_eq!(Cache::of(&world).map(|cache| cache.folder()), expected.map(PathBuf::from), "{world:?}");
        }
    }

    #[test]
    fn a_stamp_fits_the_libraries_it_was_written_for() {
        let world = Fake::default().var("FLODL_CACHE", "/f");
        let cache = Cache::of(&world).expect("named");
        let stamp = Cache::stamp(&[], &[("liba.so".into(), 3), ("libb.so".into(), 1)]);
        let world =
            world.file("/f/libtorch-2.11.0/lib/liba.so", "abc").file("/f/libtorch-2.11.0/flodl-stamp.json", &stamp);
        assert!(!cache.is_whole(&world), "libb.so is missing");
        let world = world.file("/f/libtorch-2.11.0/lib/libb.so", "b");
        assert!(cache.is_whole(&world));
        for (from, to) in [("\"layout\": 1", "\"layout\": 2"), ("2.11.0", "2.10.0"), (std::env::consts::ARCH, "z80")] {
            assert!(stamp.contains(from), "{stamp}");
            let other = world.clone().file("/f/libtorch-2.11.0/flodl-stamp.json", &stamp.replace(from, to));
            assert!(!cache.is_whole(&other), "{from} became {to}");
        }
    }

    #[test]
    fn left_over_folders_are_told_from_the_rest() {
        let cache = Cache { root: "/f".into() };
        for left in [cache.unpacking(7), cache.aside(7)] {
            assert!(Cache::is_left_over(&left.file_name().expect("a name").to_owned()), "{left:?}");
        }
        for name in ["libtorch-2.11.0", "libtorch-2.11.0.lock", "downloads"] {
            assert!(!Cache::is_left_over(&name.into()), "{name}");
        }
    }
}
