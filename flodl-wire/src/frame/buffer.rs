//! Payload buffers that come back: a frame's bytes return to the decoder that filled them once nobody looks at them any more.
//!
//! First touch of fresh pages costs more than decrypting into them, so large payloads are never allocated per frame. Small ones are
//! decrypted in one place and copied out, which costs one allocation of just their size.

use crate::limits::{CHUNK_HEADER, POOL_BUFFERS, POOLED_FROM};
use bytes::Bytes;
use core::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// A chunk's elements start at a multiple of it.
const ALIGN: usize = 64;

/// Buffers of one decoder.
#[derive(Default)]
pub(super) struct Pool {
    large: Home,
    /// The one for small payloads, where it is not in use.
    small: Vec<u8>,
}

/// Where large buffers wait.
#[derive(Clone, Default)]
struct Home(Arc<Mutex<Vec<Vec<u8>>>>);

/// Room for one payload and tag.
pub(super) struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
    /// Where a large one goes back to.
    home: Option<Home>,
}

impl Pool {
    /// Room for `len` bytes whose contents do not matter.
    pub(super) fn take(&mut self, len: usize) -> Buffer {
        if len < POOLED_FROM {
            let mut memory = core::mem::take(&mut self.small);
            if memory.len() < len {
                memory.resize(len, 0);
            }
            return Buffer { memory, start: 0, len, home: None };
        }
        let mut memory = self.large.waiting(|waiting| waiting.pop()).unwrap_or_default();
        let room = len.saturating_add(ALIGN);
        if memory.len() < room {
            memory.resize(room, 0);
        }
        let elements = (memory.as_ptr() as usize).wrapping_add(CHUNK_HEADER);
        Buffer { memory, start: elements.wrapping_neg() % ALIGN, len, home: Some(self.large.clone()) }
    }

    /// The first `len` bytes of `buffer`, shared. Large memory comes back to the pool with the last clone, small at once.
    pub(super) fn freeze(&mut self, mut buffer: Buffer, len: usize) -> Bytes {
        buffer.len = buffer.len.min(len);
        if buffer.home.is_some() {
            return Bytes::from_owner(buffer);
        }
        let bytes = Bytes::copy_from_slice(buffer.as_ref());
        self.small = core::mem::take(&mut buffer.memory);
        bytes
    }
}

impl Home {
    fn waiting<T>(&self, act: impl FnOnce(&mut Vec<Vec<u8>>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Buffer {
    fn place(&self) -> Range<usize> {
        self.start..self.start.saturating_add(self.len)
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let place = self.place();
        self.memory.get_mut(place).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.memory.get(self.place()).unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            let memory = core::mem::take(&mut self.memory);
            home.waiting(|waiting| {
                if waiting.len() < POOL_BUFFERS {
                    waiting.push(memory);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_with_its_last_clone_and_elements_are_aligned() {
        let mut pool = Pool::default();
        let mut first = pool.take(POOLED_FROM);
        first.bytes_mut().fill(7);
        let bytes = pool.freeze(first, POOLED_FROM - 16);
        assert_eq!(bytes.len(), POOLED_FROM - 16);
        assert_eq!(bytes[CHUNK_HEADER..].as_ptr() as usize % ALIGN, 0);
        let clone = bytes.slice(5..9);
        drop(bytes);
        assert_eq!(pool.large.waiting(|waiting| waiting.len()), 0, "a clone still looks at it");
        assert_eq!(clone[..], [7; 4]);
        drop(clone);
        assert_eq!(pool.large.waiting(|waiting| waiting.len()), 1);
        let again = pool.take(2 * POOLED_FROM);
        assert_eq!(again.as_ref().len(), 2 * POOLED_FROM);
        assert_eq!(pool.large.waiting(|waiting| waiting.len()), 0, "taken and grown");
    }

    #[test]
    fn the_pool_keeps_only_so_many_and_small_ones_not_at_all() {
        let mut pool = Pool::default();
        let held: Vec<Buffer> = (0..POOL_BUFFERS + 3).map(|_| pool.take(POOLED_FROM)).collect();
        drop(held);
        drop(pool.take(16));
        assert_eq!(pool.large.waiting(|waiting| waiting.len()), POOL_BUFFERS);
    }

    #[test]
    fn small_payloads_are_copied_out_of_one_place() {
        let mut pool = Pool::default();
        let mut frozen = Vec::new();
        for n in [16, 3, 200, 1] {
            let mut buffer = pool.take(n + 16);
            buffer.bytes_mut().fill(n as u8);
            frozen.push(pool.freeze(buffer, n));
        }
        assert_eq!(pool.small.len(), 216);
        assert!(frozen.iter().zip([16, 3, 200, 1]).all(|(bytes, n)| bytes[..] == vec![n as u8; n]));
    }
}
