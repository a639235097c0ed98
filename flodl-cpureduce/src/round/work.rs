//! Adding up a chunk: on the thread that folds, or as work that is handed to others.

use crate::kernel;
use crate::{ChunkSpec, Mass, Section};
use bytes::{Bytes, BytesMut};

/// One chunk of every contributor, ready to be added up on any thread. From [`Fold::take_work`](super::Fold::take_work).
#[derive(Debug)]
pub struct Work {
    pub(super) round: u64,
    pub(super) spec: ChunkSpec,
    /// Those with a mass, in ascending order of their contributors.
    pub(super) parts: Vec<Part>,
    /// Memory for the sum.
    pub(super) room: BytesMut,
    /// The parts lie in memory that is wanted back.
    pub(super) lent: bool,
}

/// What one contributor adds.
#[derive(Debug)]
pub(super) struct Part {
    /// The contributor's place in the fold.
    pub(super) place: usize,
    pub(super) mass: Mass,
    pub(super) data: Bytes,
}

/// A chunk that was added up, for [`Fold::put_back`](super::Fold::put_back).
#[derive(Debug)]
pub struct Summed {
    pub(super) round: u64,
    pub(super) spec: ChunkSpec,
    /// What was added. Still there, because a chunk before this one can turn out to have dropped somebody; after
    /// [`Work::run_in_place`] without data.
    pub(super) parts: Vec<Part>,
    /// The sum, empty where nobody contributed, or `None` where it is not finite.
    pub(super) sum: Option<Bytes>,
    /// Memory that was not needed.
    pub(super) room: BytesMut,
}

impl Work {
    /// Which chunk it is.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.spec.index
    }

    /// Adds the contributions in their order. The bits are the same on every thread.
    #[must_use]
    pub fn run(self) -> Summed {
        let Work { round, spec, parts, mut room, lent } = self;
        let sum = match &parts[..] {
            [] => Some(Bytes::new()),
            [one] if lent => {
                room.clear();
                room.extend_from_slice(&one.data);
                let finite = spec.section == Section::Integers || kernel::all_finite(&room);
                finite.then(|| core::mem::take(&mut room).freeze())
            }
            [one] => Some(one.data.clone()),
            [first, second, rest @ ..] => {
                room.resize(spec.bytes as usize, 0);
                let mut finite = if spec.section == Section::Integers {
                    room.copy_from_slice(&first.data);
                    combine(spec.section, &mut room, &second.data)
                } else {
                    kernel::add(&first.data, &second.data, &mut room)
                };
                for part in rest {
                    finite = finite && combine(spec.section, &mut room, &part.data);
                }
                finite.then(|| core::mem::take(&mut room).freeze())
            }
        };
        Summed { round, spec, parts, sum, room }
    }

    /// The same in the first contribution's own memory where nobody else holds it: for a chunk that nothing can change
    /// any more.
    pub(super) fn run_in_place(mut self) -> Summed {
        if self.lent {
            return self.run();
        }
        let mut data = self.parts.iter_mut().map(|part| core::mem::take(&mut part.data));
        let first = data.next().unwrap_or_default();
        let sum = match data.next() {
            None => Some(first),
            Some(second) => {
                let mut sum = writable(first);
                let finite =
                    core::iter::once(second).chain(data).all(|data| combine(self.spec.section, &mut sum, &data));
                finite.then(|| sum.freeze())
            }
        };
        Summed { round: self.round, spec: self.spec, parts: self.parts, sum, room: self.room }
    }
}

/// Adds a contribution to the sum. Returns whether the sum is finite.
fn combine(section: Section, sum: &mut [u8], data: &[u8]) -> bool {
    match section {
        Section::Parameters | Section::Buffers => kernel::add_assign(sum, data),
        Section::Integers => {
            kernel::max_assign(sum, data);
            true
        }
    }
}

impl Summed {
    /// Which chunk it is.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.spec.index
    }
}

/// The bytes as memory that can be changed: the same memory if nobody else holds it, else a copy.
pub(crate) fn writable(data: Bytes) -> BytesMut {
    data.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]))
}
