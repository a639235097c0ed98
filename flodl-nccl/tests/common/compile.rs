//! Compiling the stand-in, for whichever crate's tests load it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Compiles what is in the folder `sources` into `folder`, unless it is there and newer; `variant` is a cfg. The result
/// replaces an older one whole, since other processes may be at it.
pub(crate) fn compile(folder: &Path, sources: &Path, variant: Option<&str>) -> PathBuf {
    // One at a time in a process: its number is in the name of what is not whole yet.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let name = variant.map_or("libstand_in".to_owned(), |variant| format!("libstand_in_{variant}"));
    let path = folder.join(format!("{name}.so"));
    if is_newer(&path, sources) {
        return path;
    }
    let fresh = folder.join(format!("{name}.{}", std::process::id()));
    // The compiler beside the cargo that runs the tests.
    let cargo = std::env::var_os("CARGO").map(PathBuf::from);
    let beside = cargo.and_then(|cargo| Some(cargo.parent()?.join("rustc"))).filter(|rustc| rustc.exists());
    let mut rustc = Command::new(beside.unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "stand_in", "-O", "-Cdebuginfo=0"]);
    rustc.args(variant.iter().flat_map(|variant| ["--cfg", variant]));
    let output = rustc.arg("-o").arg(&fresh).arg(sources.join("main.rs")).output().expect("rustc can be started");
    assert!(output.status.success(), "the stand-in does not compile:\n{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&fresh, &path).expect("the target folder is writable");
    path
}

/// Whether a file is there and newer than all of a folder's.
fn is_newer(path: &Path, folder: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
    let Some(made) = modified(path) else { return false };
    let newest = std::fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|file| modified(&file.path()));
    newest.max().is_some_and(|newest| newest < made)
}
