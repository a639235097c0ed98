//! One sealed piece of memory that processes share.

use super::ShmError;
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of a page, which also keeps what one side writes often away from everything else.
pub(super) const PAGE: usize = 4096;

/// Its size stays what it is.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// What may be done with the memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// Memory of a memfd, mapped as a whole for as long as this lives.
#[derive(Debug)]
pub(super) struct Segment {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: it is memory and nothing of a thread. Words in it are atomic, and slices of it are made by the unsafe functions below,
// whose callers say why nobody else of this process holds a conflicting one.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// A memfd without size yet, that neither side can execute.
pub(super) fn reserve(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(memfd_create(name, flags)?)
}

fn system(len: usize, error: impl Into<io::Error>) -> ShmError {
    ShmError::System { bytes: len as u64, error: error.into() }
}

impl Segment {
    /// Gives a reserved memfd its size and all of its pages, maps it, and seals it. With `only_writer` nobody can map it for
    /// writing after this.
    pub(super) fn lay_out(file: &OwnedFd, len: usize, only_writer: bool) -> Result<Segment, ShmError> {
        let allocate = || -> rustix::io::Result<()> {
            ftruncate(file, len as u64)?;
            // Memory that is not there is an error here, and would be the end of the process where it is first touched.
            fallocate(file, FallocateFlags::empty(), 0, len as u64)?;
            fcntl_add_seals(file, FIXED)
        };
        allocate().map_err(|error| system(len, error))?;
        let segment = Segment::map(file, len, Access::Write)?;
        let seals = SealFlags::SEAL | if only_writer { SealFlags::FUTURE_WRITE } else { SealFlags::empty() };
        fcntl_add_seals(file, seals).map_err(|error| system(len, error))?;
        Ok(segment)
    }

    /// Maps what another process has laid out, where it has that size and cannot lose it.
    pub(super) fn adopt(file: &OwnedFd, len: usize, access: Access) -> Result<Segment, ShmError> {
        let seals = fcntl_get_seals(file).map_err(|_| ShmError::Seals)?;
        if !seals.contains(FIXED) {
            return Err(ShmError::Seals);
        }
        let got = u64::try_from(fstat(file).map_err(|error| system(len, error))?.st_size).unwrap_or(0);
        if got != len as u64 {
            return Err(ShmError::Size { expected: len as u64, got });
        }
        Segment::map(file, len, access)
    }

    fn map(file: &OwnedFd, len: usize, access: Access) -> Result<Segment, ShmError> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        // Every page at once, so that no round stops at one.
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the system chooses a place where nothing else is mapped, and nothing is unmapped for it.
        let at = unsafe { mmap(null_mut(), len, protection, flags, file.as_fd(), 0) };
        let at = at.map_err(|error| system(len, error))?;
        let at = NonNull::new(at.cast()).ok_or_else(|| system(len, io::ErrorKind::AddrNotAvailable))?;
        Ok(Segment { at, len })
    }

    /// The 32-bit word at that offset.
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len, "a word lies within its segment");
        // SAFETY: within the mapping, which begins at a page and lives as long as the reference; every access to it is atomic.
        // Nobody stores through a mapping that can only be read.
        unsafe { AtomicU32::from_ptr(self.at.add(offset).cast().as_ptr()) }
    }

    /// The 64-bit word at that offset.
    pub(super) fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "a word lies within its segment");
        // SAFETY: as for `word`.
        unsafe { AtomicU64::from_ptr(self.at.add(offset).cast().as_ptr()) }
    }

    /// Writes the mark by which the segment is known.
    pub(super) fn mark(&self, mark: u64) {
        self.long(0).store(mark, Ordering::Release);
    }

    /// Whether it is the segment that it should be.
    pub(super) fn check_mark(&self, expected: u64) -> Result<(), ShmError> {
        let got = self.long(0).load(Ordering::Acquire);
        if got == expected { Ok(()) } else { Err(ShmError::Mark { expected, got }) }
    }

    /// Bytes of the segment, to be read.
    ///
    /// # Safety
    /// The protocol has given them to this side: nobody of this process writes them meanwhile. What another process does to
    /// them against the protocol changes the values that are read, all of which are valid.
    pub(super) unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        self.check(offset, len);
        // SAFETY: within the mapping, which lives as long as the slice; the caller answers for the rest.
        unsafe { core::slice::from_raw_parts(self.at.add(offset).as_ptr(), len) }
    }

    /// Bytes of the segment, to be written.
    ///
    /// # Safety
    /// As for `bytes`, nobody of this process reads them meanwhile either, and the segment is mapped for writing.
    #[expect(clippy::mut_from_ref, reason = "several parts of one segment are written by different holders")]
    pub(super) unsafe fn bytes_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        self.check(offset, len);
        // SAFETY: within the mapping, which lives as long as the slice; the caller answers for the rest.
        unsafe { core::slice::from_raw_parts_mut(self.at.add(offset).as_ptr(), len) }
    }

    fn check(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "bytes lie within their segment");
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` at this place in this length; no reference outlives this.
        let unmapped = unsafe { munmap(self.at.as_ptr().cast::<c_void>(), self.len) };
        debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
    }
}
