//! What is declared of two C libraries: NCCL and the CUDA driver.
//!
//! Results are plain integers here. As Rust enums they would make a code that a newer library has and this crate does not
//! know undefined behaviour; as integers it is a value that the layer above calls an error.
//!
//! Every function is resolved at run time and may be missing, so that a machine with neither library runs everything
//! that needs neither.

pub(crate) mod cuda;
pub(crate) mod nccl;
mod open;

pub(crate) use open::Handle;
pub use open::end_process;

/// Declares a table of C functions, each with its symbol and the version since when a library must have it.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident {
        $($field:ident = $symbol:literal, since $since:expr, fn($($arg:ty),* $(,)?) -> $ret:ty;)*
    }) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub(crate) $field: Option<unsafe extern "C" fn($($arg),*) -> $ret>,)*
        }

        impl $table {
            /// Looks every symbol up.
            pub(crate) fn resolve(handle: &$crate::sys::Handle) -> Self {
                Self {
                    $($field: handle.symbol($symbol).map(|address| {
                        // SAFETY: the library's header declares the symbol as a function of this type, and a library
                        // that was opened is never closed.
                        unsafe {
                            std::mem::transmute::<
                                std::ptr::NonNull<std::ffi::c_void>,
                                unsafe extern "C" fn($($arg),*) -> $ret,
                            >(address)
                        }
                    }),)*
                }
            }

            /// The first symbol that a library of this version must have and this one lacks.
            pub(crate) fn lacks(&self, version: $crate::version::Version) -> Option<&'static str> {
                [$(($symbol, $since, self.$field.is_some())),*]
                    .into_iter()
                    .find(|(_, since, is_there)| version >= *since && !is_there)
                    .map(|(symbol, _, _)| symbol.to_str().unwrap_or_default())
            }
        }
    };
}

pub(crate) use functions;
