//! Which libtorch to use, of those that are there.

use std::fmt;
use std::path::{Path, PathBuf};

use super::place::Cache;
use super::version::{self, Version};
use super::world::{World, unresolved};
use crate::failure::Failure;

/// A libtorch that fits, and why it is the one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// The folder `LIBTORCH` names.
    Named(PathBuf, Version),
    /// The package of the person's Python.
    Python(PathBuf, Version),
    /// The folder of the cache.
    Cached(PathBuf),
}

impl Found {
    /// The folder with `include/` and `lib/`.
    pub(super) fn folder(&self) -> &Path {
        match self {
            Self::Named(folder, _) | Self::Python(folder, _) | Self::Cached(folder) => folder,
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(folder, version) => write!(f, "libtorch {version} of LIBTORCH: {}", folder.display()),
            Self::Python(folder, version) => write!(f, "libtorch {version} of Python: {}", folder.display()),
            Self::Cached(folder) => write!(f, "libtorch {} of the cache: {}", version::WANTED, folder.display()),
        }
    }
}

/// Why a folder is no libtorch to build with.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Unfit {
    /// A file is missing.
    Missing(&'static str),
    /// Nothing states a version.
    NoVersion,
    /// Another version.
    Version(Version),
    /// Libraries that it needs are missing.
    Unresolved(Vec<String>),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(file) => write!(f, "is no libtorch to build with ({file} is missing)"),
            Self::NoVersion => write!(f, "does not say which version of libtorch it is"),
            Self::Version(version) => write!(f, "is libtorch {version}, and flodl is built with {}", version::WANTED),
            Self::Unresolved(names) => write!(f, "cannot be loaded ({} not found)", names.join(", ")),
        }
    }
}

/// The libtorch to use; `None` where one has to be fetched.
///
/// What a person names must fit. What merely lies around is passed over: a Python's torch of another version, with a
/// note where that would surprise.
///
/// # Errors
///
/// [`Failure::Failed`] where `LIBTORCH` or `LIBTORCH_USE_PYTORCH` ask for something that does not fit.
pub(super) fn find(world: &impl World, cache: Option<&Cache>) -> Result<Option<Found>, Failure> {
    // The bindings' own build reads this one first, and not LIBTORCH, so the two must not disagree here.
    if world.var("LIBTORCH_USE_PYTORCH").is_some() {
        return of_python(world).map(Some).map_err(|why| {
            Failure::failed(format!(
                "LIBTORCH_USE_PYTORCH is set, but {why}: install torch=={} there, or unset LIBTORCH_USE_PYTORCH",
                version::WANTED
            ))
        });
    }
    if let Some(named) = world.var("LIBTORCH").map(PathBuf::from) {
        return match fit(world, &named) {
            Ok(version) => Ok(Some(Found::Named(named, version))),
            Err(why) => Err(Failure::failed(format!(
                "LIBTORCH names {}, which {why}: set it to a libtorch {}, or unset it and run `cargo xtask setup`",
                named.display(),
                version::WANTED,
            ))),
        };
    }
    if let Ok(found) = of_python(world) {
        return Ok(Some(found));
    }
    Ok(cache.filter(|cache| cache.is_whole(world)).map(|cache| Found::Cached(cache.folder())))
}

fn of_python(world: &impl World) -> Result<Found, String> {
    let folder = world.python_torch().ok_or("python3 has no package `torch`")?;
    let version = fit(world, &folder).map_err(|why| format!("{} {why}", folder.display()))?;
    let library = folder.join("lib/libtorch_cpu.so");
    let missing = world.linker_report(&library).map(|report| unresolved(&report)).unwrap_or_default();
    if missing.is_empty() {
        Ok(Found::Python(folder, version))
    } else {
        Err(format!("{} {}", folder.display(), Unfit::Unresolved(missing)))
    }
}

/// The main library, by platform.
const LIBRARIES: [&str; 4] =
    ["lib/libtorch_cpu.so", "lib/libtorch_cpu.dylib", "lib/libtorch_cpu.a", "lib/torch_cpu.lib"];

/// The header that the bindings include.
const HEADER: &str = "include/torch/csrc/api/include/torch/torch.h";

fn fit(world: &impl World, folder: &Path) -> Result<Version, Unfit> {
    // Folders laid out otherwise are described to the bindings' build by these two.
    let part = |name| world.var(name).map_or_else(|| folder.to_path_buf(), PathBuf::from);
    let libraries = part("LIBTORCH_LIB");
    if LIBRARIES.iter().all(|name| world.size(&libraries.join(name)).is_none()) {
        return Err(Unfit::Missing(LIBRARIES[0]));
    }
    let headers = part("LIBTORCH_INCLUDE");
    if world.size(&headers.join(HEADER)).is_none() {
        return Err(Unfit::Missing(HEADER));
    }
    let version =
        version::of_folder(world, folder).or_else(|| version::of_folder(world, &headers)).ok_or(Unfit::NoVersion)?;
    if version.fits() { Ok(version) } else { Err(Unfit::Version(version)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::world::fake::Fake;

    /// The choice on a machine with a cache at /c, as a sentence.
    fn choice(world: &Fake) -> String {
        let world = world.clone().var("FLODL_CACHE", "/c");
        match find(&world, Cache::of(&world).as_ref()) {
            Ok(Some(found)) => found.to_string(),
            Ok(None) => "fetch".to_owned(),
            Err(failure) => failure.message().unwrap_or_default().to_owned(),
        }
    }

    fn cached() -> Fake {
        let stamp = Cache::stamp(&[], &[("libc10.so".into(), 1)]);
        Fake::default().libtorch("/c/libtorch-2.11.0", "2.11.0").file("/c/libtorch-2.11.0/flodl-stamp.json", &stamp)
    }

    #[test]
    fn the_named_comes_before_pythons_before_the_cached() {
        let all = cached().libtorch("/py/torch", "2.11.0+cu130").python("/py/torch").libtorch("/n", "2.11.1");
        assert_eq!(choice(&all.clone().var("LIBTORCH", "/n")), "libtorch 2.11.1 of LIBTORCH: /n");
        assert_eq!(choice(&all), "libtorch 2.11.0 of Python: /py/torch");
        assert_eq!(choice(&cached()), "libtorch 2.11.0 of the cache: /c/libtorch-2.11.0");
        assert_eq!(choice(&Fake::default()), "fetch");
    }

    #[test]
    fn what_is_named_must_fit() {
        let cases = [
            (Fake::default(), "lib/libtorch_cpu.so is missing"),
            (Fake::default().libtorch("/n", "2.9.1"), "is libtorch 2.9.1, and flodl is built with 2.11.0"),
            (Fake::default().libtorch("/n", "unknown"), "does not say which version"),
            (Fake::default().file("/n/lib/libtorch_cpu.so", "x"), "torch.h is missing"),
            (cached(), "unset it and run `cargo xtask setup`"),
        ];
        for (world, expected) in cases {
            let said = choice(&world.var("LIBTORCH", "/n"));
            assert!(
                said.contains(expected) && said.contains("LIBTORCH names /n"),
                "said: {said}\nexpected: {expected}"
            );
        }
    }

    #[test]
    fn a_python_torch_that_does_not_fit_is_passed_over_unless_asked_for() {
        let broken = "libcudart.so.13 => not found\n";
        let cases = [
            (cached().libtorch("/py/torch", "2.9.0"), "is libtorch 2.9.0"),
            (
                cached().libtorch("/py/torch", "2.11.0").linker("/py/torch/lib/libtorch_cpu.so", broken),
                "libcudart.so.13",
            ),
            (cached(), "lib/libtorch_cpu.so is missing"),
        ];
        for (world, expected) in cases {
            let world = world.python("/py/torch");
            assert_eq!(choice(&world), "libtorch 2.11.0 of the cache: /c/libtorch-2.11.0", "{expected}");
            let said = choice(&world.var("LIBTORCH_USE_PYTORCH", "1").var("LIBTORCH", "/n"));
            assert!(said.contains(expected) && said.contains("unset LIBTORCH_USE_PYTORCH"), "said: {said}");
        }
        assert!(choice(&cached().var("LIBTORCH_USE_PYTORCH", "1")).contains("python3 has no package `torch`"));
    }

    #[test]
    fn a_cached_folder_that_is_not_whole_is_fetched_again() {
        let cases = [
            cached().file("/c/libtorch-2.11.0/lib/libc10.so", "longer"),
            cached().file("/c/libtorch-2.11.0/flodl-stamp.json", "{}"),
            Fake::default().libtorch("/c/libtorch-2.11.0", "2.11.0"),
        ];
        for world in cases {
            assert_eq!(choice(&world), "fetch");
        }
    }

    #[test]
    fn folders_laid_out_otherwise_are_found() {
        let world = Fake::default()
            .file("/inc/include/torch/csrc/api/include/torch/torch.h", "")
            .file("/inc/include/torch/headeronly/version.h", "#define TORCH_VERSION \"2.11.0\"")
            .file("/lib/lib/libtorch_cpu.so", "x");
        let named = world.var("LIBTORCH", "/n").var("LIBTORCH_INCLUDE", "/inc").var("LIBTORCH_LIB", "/lib");
        assert_eq!(choice(&named), "libtorch 2.11.0 of LIBTORCH: /n");
    }
}
