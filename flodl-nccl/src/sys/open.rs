//! Opening a shared library and looking symbols up in it.

use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;

/// An opened library. It is never closed: NCCL leaves threads behind, and function pointers stay valid for good.
#[derive(Debug)]
pub(crate) struct Handle(NonNull<c_void>);

// SAFETY: the dynamic loader's handle may be used from any thread; it locks for itself.
unsafe impl Send for Handle {}
// SAFETY: as above; looking a symbol up changes nothing that another thread could see half done.
unsafe impl Sync for Handle {}

impl Handle {
    /// Opens a path, or a bare name by the loader's rules.
    ///
    /// # Errors
    ///
    /// The dynamic loader's sentence.
    pub(crate) fn open(path: &str) -> Result<Self, String> {
        let path = CString::new(path).map_err(|_| "the name holds a zero byte".to_owned())?;
        // SAFETY: the path is a string that ends in a zero byte. Running the library's constructors is what a caller asks
        // for; whose library it is, is the search's business.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Self).ok_or_else(last_error)
    }

    /// The address of a symbol.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open, and the name ends in a zero byte.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

/// Ends the process at once with this status. Nothing is written, freed or waited for any more: a library that is stuck may
/// hold up whatever would run at an orderly end.
pub fn end_process(status: u8) -> ! {
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::_exit(i32::from(status)) }
}

/// What the loader says of this thread's last failure.
fn last_error() -> String {
    // SAFETY: the call takes nothing; what it returns is this thread's own until the thread's next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the dynamic loader gives no reason".to_owned();
    }
    // SAFETY: not null, hence a string that ends in a zero byte, and copied at once.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
