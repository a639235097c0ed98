//! flodl-nccl's stand-in for NCCL and the CUDA driver, for workers.

#![allow(clippy::disallowed_methods, reason = "a test asks the environment for the compiler")]

use flodl_nccl::{Candidate, Cuda, Library, Source};
use flodl_worker::nccl::{NcclError, Place};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Compiles it, unless it is there and newer than its sources.
fn path() -> &'static Path {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../flodl-nccl/tests/stand_in");
        let (path, fresh) = (folder.join("libstand_in.so"), folder.join(format!("stand_in.{}", std::process::id())));
        if is_newer(&path, &sources) {
            return path;
        }
        let beside = std::env::var_os("CARGO").map(PathBuf::from);
        let beside = beside.and_then(|cargo| Some(cargo.parent()?.join("rustc"))).filter(|rustc| rustc.exists());
        let mut rustc = Command::new(beside.unwrap_or_else(|| "rustc".into()));
        rustc.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "stand_in", "-O", "-Cdebuginfo=0"]);
        let output = rustc.arg("-o").arg(&fresh).arg(sources.join("main.rs")).output().expect("rustc can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(&fresh, &path).expect("the target folder is writable");
        path
    });
    &PATH
}

/// Whether a file is there and newer than all of a folder's.
fn is_newer(path: &Path, folder: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
    let Some(made) = modified(path) else { return false };
    let newest = std::fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|file| modified(&file.path()));
    newest.max().is_some_and(|newest| newest < made)
}

/// It, and its device of this number.
pub(crate) fn place(device: u32) -> Result<Place, NcclError> {
    let path = path().to_str().expect("the target folder has a plain name").to_owned();
    let devices = Cuda::open(&path)?.devices()?;
    let library = Library::open(&Candidate { path, source: Source::Named }).expect("it is a whole NCCL");
    Ok(Place { library, device: devices[device as usize].clone() })
}
