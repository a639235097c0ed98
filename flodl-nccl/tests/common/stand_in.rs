//! Building and loading the stand-in, and asking it to do wrong.

#[path = "compile.rs"]
mod compile;

use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use flodl_nccl::{Candidate, Cuda, Library, Source, UniqueId};

use super::Bench;

/// A variant of the stand-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// 2.28.9.
    Whole,
    /// 2.12.12: no non-blocking communicators.
    Old,
    /// 2.28.9 without a function that it must have.
    Broken,
    /// 2.30.7.
    New,
}

/// The stand-in with its devices.
pub fn bench() -> Bench {
    static BENCH: LazyLock<Bench> = LazyLock::new(|| bench_of(Variant::Whole));
    BENCH.clone()
}

/// A variant with its devices.
pub fn bench_of(variant: Variant) -> Bench {
    let path = build(variant);
    let library = Library::open(&candidate(&path)).expect("the stand-in is a whole NCCL");
    let devices = Cuda::open(&text(&path)).and_then(|cuda| cuda.devices()).expect("and a driver");
    Bench { library, devices, is_stand_in: true }
}

/// Where the whole one is, for processes that load it themselves.
pub fn path() -> String {
    text(&build(Variant::Whole))
}

/// Where a variant is found.
pub fn candidate_of(variant: Variant) -> Candidate {
    candidate(&build(variant))
}

fn candidate(path: &Path) -> Candidate {
    Candidate { path: text(path), source: Source::Named }
}

fn text(path: &Path) -> String {
    path.to_str().expect("the target folder has a plain name").to_owned()
}

/// Compiles a variant, once in a process.
fn build(variant: Variant) -> PathBuf {
    static BUILT: Mutex<Vec<(Variant, PathBuf)>> = Mutex::new(Vec::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, path)) = built.iter().find(|(of, _)| *of == variant) {
        return path.clone();
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_in");
    let name = format!("{variant:?}").to_lowercase();
    let cfg = (variant != Variant::Whole).then_some(name.as_str());
    let path = compile::compile(Path::new(env!("CARGO_TARGET_TMPDIR")), &sources, cfg);
    built.push((variant, path.clone()));
    path
}

/// What a rank is asked to do wrong; collectives of a rank count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The collective never ends, and this rank contributes nothing.
    HangAt(usize),
    /// The call of the collective answers with this code.
    FailAt(usize, i32),
    /// After the collective the communicator has this error.
    LateError(usize, i32),
    /// Each collective begins this many milliseconds late.
    Slow(i32),
    /// The abort never returns.
    AbortHangs,
    /// The initialisation never ends.
    InitHangs,
    /// The call of the collective takes this many milliseconds.
    BlockAt(usize, i32),
    /// The call that begins to form takes this many milliseconds.
    InitBlocks(i32),
    /// The call that revokes takes this many milliseconds.
    RevokeBlocks(i32),
    /// The next call for an id on this thread takes this many milliseconds, whatever rank and communicator are named.
    IdBlocks(i32),
}

/// Asks for a fault of a rank of the communicator that will be formed with this id.
pub fn ask(id: UniqueId, rank: usize, fault: Fault) {
    type Ask = unsafe extern "C" fn(*const u8, usize, i32, usize, i32) -> i32;
    let path = std::ffi::CString::new(text(&build(Variant::Whole))).expect("a plain name");
    // SAFETY: the library is loaded already and never closed.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: the handle is open, and the name ends in a zero byte.
    let address = unsafe { libc::dlsym(handle, c"stand_in_fault".as_ptr()) };
    assert!(!address.is_null(), "the stand-in has its control");
    // SAFETY: the stand-in declares it as a function of this type.
    let function = unsafe { std::mem::transmute::<*mut libc::c_void, Ask>(address) };
    let (number, at, value) = match fault {
        Fault::HangAt(at) => (1, at, 0),
        Fault::FailAt(at, code) => (2, at, code),
        Fault::LateError(at, code) => (3, at, code),
        Fault::Slow(millis) => (4, 0, millis),
        Fault::AbortHangs => (5, 0, 0),
        Fault::InitHangs => (6, 0, 0),
        Fault::BlockAt(at, millis) => (7, at, millis),
        Fault::InitBlocks(millis) => (8, 0, millis),
        Fault::RevokeBlocks(millis) => (9, 0, millis),
        Fault::IdBlocks(millis) => (10, 0, millis),
    };
    // SAFETY: the id is as long as the function reads.
    let answer = unsafe { function(id.as_bytes().as_ptr(), rank, number, at, value) };
    assert_eq!(answer, 0, "the stand-in knows {fault:?}");
}
