//! Memory of chunks that is used again, so that no round after the first takes any from the system.

use bytes::{Bytes, BytesMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Memory for chunks, between the fold that fills it with sums and the consensus that lets go of old ones, on whatever threads
/// they are. It holds no more than was in use at one time.
///
/// Memory that was freed and is taken again is given back to the system in between, by most allocators, and touching it for
/// the first time again takes longer than all arithmetic on it.
#[derive(Debug, Clone, Default)]
pub struct Rooms(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    free: Vec<BytesMut>,
    /// Taken, and not given back yet.
    out: usize,
}

impl Rooms {
    /// Memory that nobody uses, of any length; none, where there is none.
    #[must_use]
    pub fn take(&self) -> BytesMut {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.out += 1;
        kept.free.pop().unwrap_or_default()
    }

    /// Keeps memory that is not needed any more, unless somebody else still holds it, or more would be kept than was taken.
    pub fn give(&self, memory: Bytes) {
        if let Ok(room) = memory.try_into_mut()
            && room.capacity() > 0
        {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.out > 0 {
                kept.out -= 1;
                kept.free.push(room);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_unless_somebody_holds_it() {
        let rooms = Rooms::default();
        assert_eq!(rooms.take().capacity(), 0);
        let memory = BytesMut::from(&[7; 64][..]);
        let at = memory.as_ptr();
        let (memory, held) = (memory.freeze(), Bytes::from(vec![1; 64]));
        rooms.clone().give(memory);
        rooms.give(held.clone());
        rooms.give(Bytes::new());
        assert_eq!(rooms.take().as_ptr(), at);
        assert_eq!(rooms.take().capacity(), 0, "what is held is nobody else's");
        assert_eq!(held.len(), 64);
    }

    #[test]
    fn what_nobody_took_is_not_kept() {
        let rooms = Rooms::default();
        (0..100).for_each(|_| rooms.give(vec![1; 64].into()));
        assert_eq!(rooms.take().capacity(), 0, "a fold that takes nothing is given nothing");
        (0..100).for_each(|_| rooms.give(vec![1; 64].into()));
        assert_eq!([rooms.take().capacity(), rooms.take().capacity()], [64, 0], "as much as was out");
    }
}
