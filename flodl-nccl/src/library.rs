//! The library that was found and loaded.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use thiserror::Error;

use crate::code::{ErrorCode, Progress};
use crate::environment::Environment;
use crate::error::CallError;
use crate::features::{Capability, Features};
use crate::search::{Candidate, SearchPath, Source};
use crate::sys::Handle;
use crate::sys::nccl::{ID_BYTES, Nccl, RawComm, RawUniqueId};
use crate::unique_id::UniqueId;
use crate::version::{Version, VersionError};

/// Why a place that was tried holds no NCCL to use.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unfit {
    /// There is no such file.
    #[error("there is no such file")]
    NotThere,
    /// The dynamic loader cannot open it.
    #[error("{0}")]
    NotOpened(String),
    /// A function is missing that its version must have.
    #[error("it has no function {symbol}: check that it is a whole NCCL")]
    NoFunction {
        /// The function.
        symbol: &'static str,
    },
    /// It does not say its version.
    #[error("ncclGetVersion: {0}")]
    NoVersion(ErrorCode),
    /// What it says is no version.
    #[error(transparent)]
    Version(#[from] VersionError),
}

/// A place that was tried in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The place.
    pub candidate: Candidate,
    /// Why not.
    pub why: Unfit,
}

/// Why no NCCL was loaded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "no NCCL to use was found: install the Python package nvidia-nccl-cu12 or nvidia-nccl-cu13, or set FLODL_NCCL to \
     the path of libnccl.so.2{}", tried(.attempts)
)]
pub struct LoadError {
    /// Every place that was tried.
    pub attempts: Vec<Attempt>,
}

/// What there is to say of the places: each that holds something, and the others in one line.
fn tried(attempts: &[Attempt]) -> String {
    let (absent, unfit): (Vec<&Attempt>, Vec<&Attempt>) =
        attempts.iter().partition(|attempt| attempt.why == Unfit::NotThere);
    let mut text: String =
        unfit.iter().map(|attempt| format!("\n  {}: {}", attempt.candidate.path, attempt.why)).collect();
    if !absent.is_empty() {
        let paths: Vec<&str> = absent.iter().map(|attempt| attempt.candidate.path.as_str()).collect();
        text.push_str(&format!("\n  not there: {}", paths.join(", ")));
    }
    text
}

/// A loaded NCCL. Cloning shares it; it is never unloaded.
#[derive(Clone)]
pub struct Library(Arc<Loaded>);

struct Loaded {
    api: Nccl,
    version: Version,
    candidate: Candidate,
}

impl Library {
    /// Loads the first library of the search path that is an NCCL.
    ///
    /// # Errors
    ///
    /// [`LoadError`] with every place and why it would not do.
    pub fn load(search: &SearchPath<'_>) -> Result<Self, LoadError> {
        let mut attempts = Vec::new();
        for candidate in search.candidates() {
            match Self::open(&candidate) {
                Ok(library) => return Ok(library),
                Err(why) => attempts.push(Attempt { candidate, why }),
            }
        }
        Err(LoadError { attempts })
    }

    /// Loads the library that this machine's environment leads to.
    ///
    /// # Errors
    ///
    /// Those of [`load`](Self::load).
    pub fn find() -> Result<Self, LoadError> {
        Environment::read().search(Self::load)
    }

    /// Loads the library of one place.
    ///
    /// # Errors
    ///
    /// [`Unfit`] where it cannot be opened or is no whole NCCL of its version.
    pub fn open(candidate: &Candidate) -> Result<Self, Unfit> {
        // A name without a folder is looked for by the dynamic loader.
        if candidate.path.contains('/') && !Path::new(&candidate.path).exists() {
            return Err(Unfit::NotThere);
        }
        let handle = Handle::open(&candidate.path).map_err(Unfit::NotOpened)?;
        let api = Nccl::resolve(&handle);
        let version = version_of(&api)?;
        match api.lacks(version) {
            Some(symbol) => Err(Unfit::NoFunction { symbol }),
            None => Ok(Self(Arc::new(Loaded { api, version, candidate: candidate.clone() }))),
        }
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// What it can do.
    #[must_use]
    pub fn features(&self) -> Features {
        Features::of(self.0.version)
    }

    /// Where it was found: the path, or the bare name that the dynamic loader knew.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0.candidate.path
    }

    /// Who said that it would be there.
    #[must_use]
    pub fn source(&self) -> Source {
        self.0.candidate.source
    }

    /// Makes a new id. The process that asks waits for the ranks which bring it, until it ends.
    ///
    /// # Errors
    ///
    /// [`CallError::Failed`] where the library cannot listen on a network interface, for example.
    pub fn unique_id(&self) -> Result<UniqueId, CallError> {
        const CALL: &str = "ncclGetUniqueId";
        let function = self.function(self.api().get_unique_id, CALL)?;
        let mut id = RawUniqueId([0; ID_BYTES]);
        // SAFETY: the function writes an id of this size to the address that it is given.
        let code = unsafe { function(&raw mut id) };
        match self.done(CALL, code)? {
            Progress::Ready => Ok(UniqueId::from_bytes(id.0)),
            Progress::InProgress => Err(CallError::InProgress),
        }
    }

    /// The library's own words for a code.
    #[must_use]
    pub fn error_string(&self, code: ErrorCode) -> String {
        let Some(function) = self.api().get_error_string else { return code.to_string() };
        // SAFETY: the function takes any integer and returns a string that lives as long as the library.
        let text = unsafe { function(code.code()) };
        if text.is_null() {
            return code.to_string();
        }
        // SAFETY: not null, hence a string that ends in a zero byte.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// Whether the other is the same loaded library.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn api(&self) -> &Nccl {
        &self.0.api
    }

    /// A function that must be there, since loading has checked it; an error value all the same.
    pub(crate) fn function<F>(&self, function: Option<F>, call: &'static str) -> Result<F, CallError> {
        function.ok_or(CallError::NoFunction { call })
    }

    /// A function that only some versions have.
    pub(crate) fn gated<F>(&self, function: Option<F>, gate: Capability, call: &'static str) -> Result<F, CallError> {
        self.features().require(gate)?;
        self.function(function, call)
    }

    /// Reads a result, with what the library says of a failure.
    pub(crate) fn done(&self, call: &'static str, code: c_int) -> Result<Progress, CallError> {
        Progress::of(code).map_err(|code| CallError::Failed { call, code, detail: self.last_error() })
    }

    /// What the library says of the last failure of the process.
    fn last_error(&self) -> String {
        let Some(function) = self.api().get_last_error else { return String::new() };
        // SAFETY: the communicator is documented as unused and may be null.
        let text = unsafe { function(ptr::null_mut::<std::ffi::c_void>() as RawComm) };
        if text.is_null() {
            return String::new();
        }
        let mut copy = Vec::new();
        while copy.len() < LAST_ERROR_MAX {
            // SAFETY: not null, hence a string that ends in a zero byte, and nothing behind that is read. The buffer lives as
            // long as the library. Another thread's failure may overwrite it meanwhile, so it is read byte by byte and only the
            // copy is looked at.
            let byte = unsafe { text.add(copy.len()).cast::<u8>().read_volatile() };
            if byte == 0 {
                break;
            }
            copy.push(byte);
        }
        String::from_utf8_lossy(&copy).trim().to_owned()
    }
}

/// What is read of the library's last error.
const LAST_ERROR_MAX: usize = 1024;

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} at {}", self.0.version, self.0.candidate.path)
    }
}

fn version_of(api: &Nccl) -> Result<Version, Unfit> {
    let function = api.get_version.ok_or(Unfit::NoFunction { symbol: "ncclGetVersion" })?;
    let mut code: c_int = 0;
    // SAFETY: the function writes one integer to the address that it is given.
    let answer = unsafe { function(&raw mut code) };
    match Progress::of(answer) {
        Ok(Progress::Ready) => Ok(Version::from_code(code)?),
        Ok(Progress::InProgress) => Err(Unfit::NoVersion(ErrorCode::Unknown(answer))),
        Err(error) => Err(Unfit::NoVersion(error)),
    }
}
