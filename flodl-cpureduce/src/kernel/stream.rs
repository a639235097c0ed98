//! Copies that go around the cache.

#[cfg(target_arch = "x86_64")]
use super::dispatch::{Level, level};

/// Bytes of a cache line, which is written as a whole.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// `out = src`, around the cache: for data that is in the cache and goes to memory that is not, such as a result that goes
/// into a large segment. An ordinary copy reads that memory before it overwrites it, which makes it half as fast there;
/// data that is not in the cache gains nothing, and data that is needed again soon loses.
///
/// # Panics
/// Where the lengths differ.
pub fn copy_around_cache(src: &[u8], out: &mut [u8]) {
    assert_eq!(src.len(), out.len(), "{}", super::LENGTHS);
    #[cfg(target_arch = "x86_64")]
    if level() >= Level::Avx2 {
        #[expect(unsafe_code, reason = "a function for instructions that not every machine has is unsafe to call")]
        // SAFETY: `level` says so only where the CPU has AVX2.
        return unsafe { avx2(src, out) };
    }
    out.copy_from_slice(src);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(src: &[u8], out: &mut [u8]) {
    use core::arch::x86_64::{_mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};

    let head = out.as_ptr().align_offset(LINE).min(out.len());
    let ((src_head, src), (out_head, out)) = (src.split_at(head), out.split_at_mut(head));
    out_head.copy_from_slice(src_head);
    let (src_lines, src_rest) = src.as_chunks::<LINE>();
    let (out_lines, out_rest) = out.as_chunks_mut::<LINE>();
    for (src, out) in src_lines.iter().zip(out_lines) {
        let (from, to) = (src.as_ptr(), out.as_mut_ptr());
        #[expect(unsafe_code, reason = "no safe function stores around the cache")]
        // SAFETY: both point to 64 bytes, of which the first and the last 32 are read and written; `to` is a multiple of
        // 64, as the head ends at one where there is any line, and lines are 64 bytes long. Loads need no alignment.
        unsafe {
            let (low, high) = (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(LINE / 2).cast()));
            _mm256_stream_si256(to.cast(), low);
            _mm256_stream_si256(to.add(LINE / 2).cast(), high);
        }
    }
    out_rest.copy_from_slice(src_rest);
    // Such stores are not ordered with those after them: whoever is told that the copy is complete must find it so.
    _mm_sfence();
}
