//! `cargo xtask setup`: finds a libtorch that the torch adapter can be built with, or fetches one.
//!
//! Looked for in this order, and the first that fits is used as it is: the folder that `LIBTORCH` names, the `torch` of
//! the person's Python, the folder an earlier setup left in the cache. Where there is none, the wheels that the person's
//! own pip is offered are fetched and the parts a build needs are kept. Read first: [`find`] (the decision), then
//! [`fetch`] (what happens when nothing is found).
//!
//! A libtorch for CUDA is only ever found, not fetched: whoever trains on a GPU has one or names one.

mod fetch;
mod find;
mod pip;
mod place;
mod python;
mod version;
mod wheel;
mod world;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use find::Found;
use place::Cache;
use version::Version;
use world::{Machine, World};

const HELP: &str = "\
usage: cargo xtask setup [--print]

Finds libtorch 2.11, with which the feature `torch` is built, or fetches it; where it is there, this takes a moment.

  --print   print the folder alone, for scripts: LIBTORCH=$(cargo xtask setup --print)

Looked for in this order: the folder LIBTORCH names (a libtorch for CUDA is used as it is); the `torch` of python3; the
cache, ${FLODL_CACHE:-${XDG_CACHE_HOME:-~/.cache}/flodl}. Where there is none, the wheel of torch is fetched into the
cache with the settings of your pip, so that a mirror or proxy named there is used. The cached libtorch has no CUDA.
";

/// Runs the command.
///
/// # Errors
///
/// A usage error; the reasons of [`libtorch`].
pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let machine = Machine::default();
            let found = locate(&machine)?;
            let folder = found.folder();
            println!("{found}");
            for (name, value) in variables(&machine, folder) {
                println!("  {name}={}", value.to_string_lossy());
            }
            Ok(())
        }
        ["--print"] => {
            println!("{}", libtorch()?.display());
            Ok(())
        }
        ["--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        [other, ..] => Err(Failure::usage(format!("unexpected argument `{other}`\n\n{HELP}"))),
    }
}

/// The folder of libtorch, with `include/` and `lib/` in it; fetched first where there is none, which is told on the
/// standard error.
///
/// # Errors
///
/// [`Failure::Failed`] with a sentence that says what to do: `LIBTORCH` names something else, there is no Python, no
/// pip, no network, no space, no wheel for this platform, or a wheel that is not what it should be.
pub(crate) fn libtorch() -> Result<PathBuf, Failure> {
    locate(&Machine::default()).map(|found| found.folder().to_path_buf())
}

/// The variables with which cargo builds and starts what is linked with the libtorch of this folder.
///
/// `LIBTORCH` is for the build. `LD_LIBRARY_PATH` is for programs without the folder in their rpath, such as doctests.
pub(crate) fn environment(folder: &Path) -> Vec<(String, OsString)> {
    variables(&Machine::default(), folder)
}

fn locate(machine: &Machine) -> Result<Found, Failure> {
    let cache = Cache::of(machine);
    if let Some(found) = find::find(machine, cache.as_ref())? {
        return Ok(found);
    }
    let Some(cache) = cache else {
        return Err(Failure::failed(
            "there is no libtorch and nowhere to put one: set HOME or FLODL_CACHE to a folder, or LIBTORCH to a libtorch 2.11",
        ));
    };
    fetch::fetch(machine, &cache)
}

/// See [`environment`].
fn variables(world: &impl World, folder: &Path) -> Vec<(String, OsString)> {
    let mut variables = vec![("LIBTORCH".to_owned(), folder.as_os_str().to_owned())];
    // The build script of torch-sys compares this file, and only this file, with the one release it was written for.
    let stated = world.text(&folder.join("build-version"));
    if stated.is_some_and(|text| Version::parse(&text) != Some(version::WANTED)) {
        variables.push(("LIBTORCH_BYPASS_VERSION_CHECK".to_owned(), "1".into()));
    }
    let own = folder.join("lib");
    let inherited = world.var("LD_LIBRARY_PATH").unwrap_or_default();
    let others = std::env::split_paths(&inherited).filter(|path| !path.as_os_str().is_empty() && *path != own);
    let paths: Vec<PathBuf> = std::iter::once(own.clone()).chain(others).collect();
    // A folder whose name holds the separator cannot be in the list; programs find it by their rpath.
    if let Ok(joined) = std::env::join_paths(paths) {
        variables.push(("LD_LIBRARY_PATH".to_owned(), joined));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::fake::Fake;

    fn shown(world: &Fake) -> Vec<String> {
        variables(world, Path::new("/t"))
            .into_iter()
            .map(|(name, value)| format!("{name}={}", value.to_string_lossy()))
            .collect()
    }

    #[test]
    fn the_variables_name_the_folder_and_keep_the_inherited_paths() {
        let world = Fake::default().var("LD_LIBRARY_PATH", "/a:/t/lib::/b");
        assert_eq!(shown(&world), ["LIBTORCH=/t", "LD_LIBRARY_PATH=/t/lib:/a:/b"]);
        assert_eq!(shown(&Fake::default()), ["LIBTORCH=/t", "LD_LIBRARY_PATH=/t/lib"]);
    }

    #[test]
    fn the_build_is_told_of_another_patch_release_only() {
        let bypass = "LIBTORCH_BYPASS_VERSION_CHECK=1".to_owned();
        for (stated, expected) in [("2.11.0+cpu\n", false), ("2.11.0", false), ("2.11.1+cu130", true), ("odd", true)] {
            let world = Fake::default().file("/t/build-version", stated);
            assert_eq!(shown(&world).contains(&bypass), expected, "build-version: {stated}");
        }
    }
}
