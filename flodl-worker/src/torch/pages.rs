//! Large pages under the memory that training has shown to need.
//!
//! A step of a network on the CPU walks through tens of megabytes, and a page of 4 KiB makes the processor look up an
//! address every 4 KiB: a tenth of a small network's step. Asking for large pages as memory is allocated
//! (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`) may stop the process for seconds where the system's memory is in small pieces,
//! in whatever step needs one. So they are made once, out of what lies there after the first step, piece by piece, and no
//! longer than it is cheap.

use core::ffi::c_void;
use core::ops::Range;
use core::time::Duration;
use std::time::Instant;

/// Bytes of a large page, and of a usual one.
const LARGE: usize = 2 << 20;
const SMALL: usize = 4 << 10;
/// How many of its usual pages must be there for a large one to be worth its memory: at most an eighth more.
const PRESENT: usize = LARGE / SMALL * 7 / 8;
/// How long all of them may take, and any one, before the rest is left as it is.
const ALL: Duration = Duration::from_secs(1);
const ONE: Duration = Duration::from_millis(100);

/// Moves the process's own memory into large pages, where the system allows it and for as long as it does so readily;
/// how many there are now. Takes a second at most, and leaves every byte as it was.
#[expect(clippy::disallowed_methods, reason = "what the system does readily is known by the time it takes")]
pub(super) fn gather() -> usize {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    if !allowed(&read("/sys/kernel/mm/transparent_hugepage/enabled")) {
        return 0;
    }
    let began = Instant::now();
    let mut gathered = 0;
    for page in read("/proc/self/maps").lines().filter_map(anonymous).flat_map(whole).filter(|page| is_filled(*page)) {
        let asked = Instant::now();
        gathered += usize::from(collapse(page));
        // Looking for a large page in vain takes as long.
        if asked.elapsed() > ONE || began.elapsed() > ALL {
            break;
        }
    }
    gathered
}

/// Whether large pages are not turned off: the setting in force stands in brackets.
fn allowed(setting: &str) -> bool {
    setting.contains('[') && !setting.contains("[never]")
}

/// The addresses of a line of `/proc/self/maps`, if it is memory of the process's own that it can write: no file's, not the
/// stack, not the kernel's.
fn anonymous(line: &str) -> Option<Range<usize>> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let (access, _offset, _device, inode) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let is_own = matches!(words.next(), None | Some("[heap]"));
    let address = |text| usize::from_str_radix(text, 16).ok();
    (is_own && inode == "0" && access.starts_with("rw") && access.ends_with('p'))
        .then_some(address(from)?..address(to)?)
}

/// Where the large pages begin that fit into these addresses.
fn whole(addresses: Range<usize>) -> impl Iterator<Item = usize> {
    let first = addresses.start.checked_next_multiple_of(LARGE).unwrap_or(addresses.end);
    (first..addresses.end).step_by(LARGE).take_while(move |page| addresses.end - page >= LARGE)
}

/// Whether enough of a large page is in memory.
fn is_filled(page: usize) -> bool {
    let mut present = [0_u8; LARGE / SMALL];
    // SAFETY: `mincore` reads no memory at `page`, wherever that points, and writes one byte for each usual page: as many as
    // `present` has, or fewer where pages are larger.
    let answer = unsafe { libc::mincore(page as *mut c_void, LARGE, present.as_mut_ptr().cast()) };
    answer == 0 && present.iter().filter(|byte| **byte & 1 == 1).count() >= PRESENT
}

/// Makes one large page of the usual ones at `page`; whether that was done.
fn collapse(page: usize) -> bool {
    // SAFETY: what is in memory stays what it is, at the same addresses; addresses that are no memory are an error.
    unsafe { libc::madvise(page as *mut c_void, LARGE, libc::MADV_COLLAPSE) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_as_it_was_afterwards() {
        let written: Vec<usize> = (0..(16 << 20) / size_of::<usize>()).collect();
        let pages = gather();
        assert!(written.iter().enumerate().all(|(at, value)| at == *value), "after {pages} large pages");
    }

    #[test]
    fn only_memory_of_the_process_itself_is_taken() {
        for (line, taken) in [
            ("7f10-7f30 rw-p 00000000 00:00 0", Some(0x7f10..0x7f30)),
            ("55d0c000-55d2d000 rw-p 00000000 00:00 0                          [heap]", Some(0x55d0_c000..0x55d2_d000)),
            ("7ffe1000-7ffe2000 rw-p 00000000 00:00 0                          [stack]", None),
            ("7f10-7f30 rw-s 00000000 00:01 0", None),
            ("7f10-7f30 r--p 00000000 00:00 0", None),
            ("7f10-7f30 rw-p 00000000 fe:00 1234                     /usr/lib/libc.so.6", None),
            ("7f10-7f30 rw-s 00000000 00:01 77                       /memfd:ring (deleted)", None),
            ("7f10 rw-p", None),
            ("", None),
        ] {
            assert_eq!(anonymous(line), taken, "{line}");
        }
    }

    #[test]
    fn large_pages_are_aligned_and_lie_inside() {
        assert_eq!(whole(LARGE - SMALL..3 * LARGE + SMALL).collect::<Vec<_>>(), [LARGE, 2 * LARGE]);
        assert_eq!(whole(SMALL..LARGE).count(), 0);
        assert_eq!(whole(0..LARGE).collect::<Vec<_>>(), [0]);
        assert_eq!(whole(usize::MAX - SMALL..usize::MAX).count(), 0);
    }

    #[test]
    fn what_the_system_forbids_is_not_asked_for() {
        assert!(allowed("always [madvise] never\n"));
        assert!(allowed("[always] madvise never\n"));
        assert!(!allowed("always madvise [never]\n"));
        assert!(!allowed(""));
    }

    #[test]
    fn what_is_no_memory_is_not_taken() {
        assert!(!is_filled(0));
        assert!(!collapse(0));
    }
}
