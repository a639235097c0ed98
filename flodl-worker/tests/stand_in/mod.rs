//! flodl-nccl's stand-in for NCCL and the CUDA driver, for workers.

#![allow(clippy::disallowed_methods, reason = "a test asks the environment for the compiler")]

#[path = "../../../flodl-nccl/tests/common/compile.rs"]
mod compile;

use flodl_nccl::{Candidate, Cuda, Library, Source};
use flodl_worker::nccl::{NcclError, Place};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Where it is.
fn path() -> &'static Path {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../flodl-nccl/tests/stand_in");
        compile::compile(Path::new(env!("CARGO_TARGET_TMPDIR")), &sources, None)
    });
    &PATH
}

/// It, and its device of this number.
pub(crate) fn place(device: u32) -> Result<Place, NcclError> {
    let path = path().to_str().expect("the target folder has a plain name").to_owned();
    let devices = Cuda::open(&path)?.devices()?;
    let library = Library::open(&Candidate { path, source: Source::Named }).expect("it is a whole NCCL");
    Ok(Place { library, device: devices[device as usize].clone() })
}
