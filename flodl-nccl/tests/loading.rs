//! Loading a real NCCL, where there is one: this needs neither a GPU nor a driver.

#![allow(clippy::disallowed_methods, reason = "a test asks the environment what it may skip")]

use std::io::Write;
use std::time::Duration;

use flodl_nccl::{
    CallError, Candidate, Capability, Comm, Cuda, ErrorCode, Library, Place, SearchPath, Source, Unfit, Version,
};

/// The machine's NCCL; where there is none, says so past the harness, or fails where a GPU is required.
fn real() -> Option<Library> {
    match Library::find() {
        Ok(library) => Some(library),
        Err(error) => {
            let required = std::env::var_os("FLODL_REQUIRE_GPU").is_some_and(|value| value == "1");
            assert!(!required, "FLODL_REQUIRE_GPU=1, but {error}");
            writeln!(std::io::stderr(), "skipped: no NCCL on this machine").expect("stderr can be written");
            None
        }
    }
}

#[test]
fn the_real_library_says_its_version_and_its_words() {
    let Some(library) = real() else { return };
    assert!(library.version() > Version::new(2, 0, 0), "{library:?}");
    assert_ne!(library.error_string(ErrorCode::InvalidUsage), "");
    assert_ne!(library.error_string(ErrorCode::InvalidUsage), library.error_string(ErrorCode::System));
    assert_ne!(library.error_string(ErrorCode::Unknown(99)), "");
    assert_eq!(library.features().has(Capability::Grow), library.version() >= Version::new(2, 29, 2));
}

#[test]
fn the_real_library_makes_ids_that_differ() {
    let Some(library) = real() else { return };
    match (library.unique_id(), library.unique_id()) {
        (Ok(first), Ok(second)) => {
            assert!(first != second, "two ids are the same");
            assert_eq!(format!("{first:?}"), "UniqueId(..)", "an id is a secret");
        }
        // A machine without any network interface but the loopback one.
        (first, _) => assert!(matches!(first, Err(CallError::Failed { .. })), "{first:?}"),
    }
}

#[test]
fn what_is_not_there_is_an_error_that_says_what_to_do() {
    let search = SearchPath { flodl_nccl: Some("/nowhere/libnccl.so.2"), ..SearchPath::default() };
    let error = Library::load(&search).expect_err("nothing is there");
    assert_eq!(error.attempts.len(), 1, "what a person names is the only place");
    let text = error.to_string();
    for expected in ["nvidia-nccl-cu12", "FLODL_NCCL", "not there: /nowhere/libnccl.so.2"] {
        assert!(text.contains(expected), "{expected} is not in: {text}");
    }
}

#[test]
fn a_library_that_is_no_nccl_is_refused_by_the_function_it_lacks() {
    let candidate = Candidate { path: "libc.so.6".to_owned(), source: Source::Named };
    let unfit = Library::open(&candidate).map(|library| library.version());
    assert_eq!(unfit, Err(Unfit::NoFunction { symbol: "ncclGetVersion" }));
}

#[test]
fn the_real_library_without_a_driver_refuses_a_communicator_with_an_error() {
    let Some(library) = real() else { return };
    let Ok(id) = library.unique_id() else { return };
    let expected = match Cuda::load() {
        _ if !library.features().has(Capability::NonBlocking) => "needs NCCL 2.14.3",
        // With a driver this is what tests/comm.rs is about.
        Ok(_) => "",
        Err(_) => "ncclCommInitRankConfig: a call of CUDA failed",
    };
    let comm =
        Comm::init_rank(&library, Place { id, rank: 0, size: 1 }, Duration::from_secs(1)).map(|comm| comm.rank());
    let said = comm.map_or_else(|error| error.to_string(), |_| String::new());
    assert!(said.contains(expected), "{said}");
}
