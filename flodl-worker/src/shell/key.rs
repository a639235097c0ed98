//! The keys of a rank, which come through an inherited descriptor.

use flodl_wire::secret::RankKeys;
use rustix::io::fcntl_getfd;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use thiserror::Error;
use zeroize::Zeroizing;

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
    // One byte more than there should be, and never moved: whichever way this ends, nothing of them stays behind.
    let mut bytes = Zeroizing::new([0; KEYS_LEN + 1]);
    let found = fill(&mut take(fd)?, &mut bytes[..]).map_err(|kind| KeyError::Read { fd, kind })?;
    let keys = bytes[..found].try_into().map_err(|_| KeyError::Length { fd, found })?;
    Ok(RankKeys::from_bytes(keys))
}

/// Reads until the end or until `bytes` are full. How many came.
fn fill(file: &mut File, bytes: &mut [u8]) -> Result<usize, ErrorKind> {
    let mut found = 0;
    while found < bytes.len() {
        match file.read(&mut bytes[found..]) {
            Ok(0) => break,
            Ok(more) => found += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.kind()),
        }
    }
    Ok(found)
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
    fn keys_that_come_in_pieces_are_read_whole() {
        let (near, mut far) = std::io::pipe().unwrap();
        let bytes: [u8; KEYS_LEN] = core::array::from_fn(|i| i as u8);
        let writer = std::thread::spawn(move || bytes.chunks(7).for_each(|piece| far.write_all(piece).unwrap()));
        let keys = read_keys(near.into_raw_fd()).unwrap();
        assert_eq!(*keys.to_bytes(), bytes);
        writer.join().unwrap();
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
