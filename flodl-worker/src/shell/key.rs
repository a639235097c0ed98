//! The keys of a rank, which come through an inherited descriptor.

use flodl_wire::secret::RankKeys;
use rustix::io::fcntl_getfd;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use thiserror::Error;

/// Bytes of a rank's keys.
const KEYS_LEN: usize = 64;

/// Why there are no keys.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The number names no descriptor of this process.
    #[error("FLODL_KEY_FD names descriptor {fd}, which is not open: a trainer can run once, and only under flodl")]
    NotOpen {
        /// The number.
        fd: i32,
    },
    /// It cannot be read.
    #[error("the keys cannot be read from descriptor {fd}: {kind}")]
    Read {
        /// The number.
        fd: i32,
        /// How it failed.
        kind: ErrorKind,
    },
    /// It holds something else.
    #[error("descriptor {fd} holds {found} bytes where a rank's keys have {KEYS_LEN}")]
    Length {
        /// The number.
        fd: i32,
        /// Bytes found, counted up to one more than there should be.
        found: usize,
    },
}

/// Reads the keys to the end and closes the descriptor, so that neither this process nor a child of it can read them again.
///
/// # Errors
/// See [`KeyError`].
pub(super) fn read_keys(fd: i32) -> Result<RankKeys, KeyError> {
    let mut bytes = Vec::with_capacity(KEYS_LEN + 1);
    let read = take(fd)?.take(KEYS_LEN as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| KeyError::Read { fd, kind: error.kind() })?;
    let keys: Result<[u8; KEYS_LEN], _> = bytes.as_slice().try_into();
    let keys = keys.map_err(|_| KeyError::Length { fd, found: bytes.len() });
    bytes.fill(0);
    keys.map(|mut keys| {
        let parsed = RankKeys::from_bytes(&keys);
        keys.fill(0);
        parsed
    })
}

/// The descriptor as a file of ours. Those of the standard streams are never taken.
pub(super) fn take(fd: i32) -> Result<File, KeyError> {
    if fd <= 2 {
        return Err(KeyError::NotOpen { fd });
    }
    // SAFETY: `fd` is not -1, and the borrow only asks the kernel whether the number is a descriptor.
    let open = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok();
    if !open {
        return Err(KeyError::NotOpen { fd });
    }
    // SAFETY: it is open, and it is ours: the relay made it for this purpose and named it in our environment, and nothing
    // else in this process knows of it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};
    use std::os::fd::IntoRawFd;

    fn descriptor(bytes: &[u8]) -> i32 {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file.into_raw_fd()
    }

    #[test]
    fn keys_are_read() {
        let bytes: [u8; KEYS_LEN] = core::array::from_fn(|i| i as u8);
        let keys = read_keys(descriptor(&bytes)).unwrap();
        assert_eq!(*keys.to_bytes(), bytes);
    }

    #[test]
    fn anything_else_is_refused() {
        for len in [0, 63, 65, 1000] {
            let fd = descriptor(&vec![7; len]);
            assert_eq!(read_keys(fd).map(|_| ()), Err(KeyError::Length { fd, found: len.min(65) }));
        }
        for fd in [-7, -1, 0, 2, i32::MAX] {
            assert_eq!(read_keys(fd).map(|_| ()), Err(KeyError::NotOpen { fd }));
        }
    }
}
