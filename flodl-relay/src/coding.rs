//! What goes between hosts in fewer bits: the sending side of a relay's link to the root, and names of codecs here and there.
//!
//! Sums and results travel as differences from the last consensus that was applied, where both ends hold it. The relay says
//! what it holds, with a digest, before anything else of a round; the root answers in differences only where it holds the
//! same bytes. What rounding takes away stays at the sender, and counts from the commit of its round on.

use bytes::{Bytes, BytesMut};
use flodl_cpureduce::{ChunkSpec, Codec, Coded, Coder, DecodeError, Layout, Mass, decode_into};
use flodl_wire::message::Data;
use flodl_wire::message::data::{self, Chunk};
use flodl_wire::{Capabilities, Round, Version};

/// A consensus that a host holds, and how its sums are to travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// As what differences from it travel.
    pub codec: Codec,
    /// Its version.
    pub version: Version,
    /// xxh3 over its chunks in order.
    pub digest: u64,
    /// Its chunks.
    pub chunks: Vec<Bytes>,
}

/// What the accepting side chooses so that sums and results travel as that.
#[must_use]
pub const fn capabilities(codec: Codec) -> Capabilities {
    match codec {
        Codec::F32 => Capabilities::NONE,
        Codec::Bf16 => Capabilities::BF16,
        Codec::Int8 => Capabilities::INT8,
    }
}

/// How sums and results travel where that was chosen.
#[must_use]
pub const fn chosen(capabilities: Capabilities) -> Codec {
    if capabilities.has(Capabilities::INT8) {
        Codec::Int8
    } else if capabilities.has(Capabilities::BF16) {
        Codec::Bf16
    } else {
        Codec::F32
    }
}

/// A codec and a base as the wire says them.
pub(crate) fn on_wire(codec: Codec, base: Version) -> data::Codec {
    match codec {
        Codec::F32 => data::Codec::Exact,
        Codec::Bf16 => data::Codec::Bf16 { base },
        Codec::Int8 => data::Codec::Int8 { base },
    }
}

fn from_wire(codec: data::Codec) -> Codec {
    match codec {
        data::Codec::Exact => Codec::F32,
        data::Codec::Bf16 { .. } => Codec::Bf16,
        data::Codec::Int8 { .. } => Codec::Int8,
    }
}

/// A chunk with its values as they are. `room` is memory for them.
pub(crate) fn plain(
    spec: &ChunkSpec,
    chunk: Chunk,
    (mass, base): (Mass, Option<(Version, &Bytes)>),
    room: BytesMut,
) -> Result<Chunk, DecodeError> {
    let Some(relative_to) = chunk.codec.base() else { return Ok(chunk) };
    let coded = Coded { codec: from_wire(chunk.codec), base: Some(relative_to.0), data: chunk.bytes.clone() };
    let base = base.map(|(version, data)| flodl_cpureduce::Base { version: version.0, data });
    let bytes = decode_into(spec, &coded, (mass, base), room)?;
    Ok(Chunk { codec: data::Codec::Exact, bytes, ..chunk })
}

/// A host's sums on their way to the root.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    coder: Option<Coder>,
    /// What differences are from in the open round.
    base: Option<Base>,
    /// The same for the round that is opened next.
    next: Option<Base>,
}

impl Sums {
    /// The host holds that consensus when the next round opens.
    pub(crate) fn hold(&mut self, base: Base) {
        self.next = Some(base);
    }

    /// A round opens: what the root is told first.
    pub(crate) fn begin(&mut self, round: Round, layout: Layout) -> Option<Data> {
        self.close();
        self.base = self.next.take();
        let Base { codec, version, digest, .. } = *self.base.as_ref()?;
        if self.coder.as_ref().map(Coder::codec) != Some(codec) {
            self.coder = Some(Coder::new(codec, layout));
        }
        Some(Data::Holds { round, version, digest })
    }

    /// A sum as it travels.
    pub(crate) fn coded(&mut self, layout: &Layout, sum: Chunk) -> Chunk {
        let (Some(coder), Some(base)) = (&mut self.coder, &self.base) else { return sum };
        let held = base.chunks.get(sum.chunk as usize);
        let (Some(spec), Some(held), Ok(mass)) = (layout.chunk(sum.chunk), held, Mass::new(sum.mass)) else {
            return sum;
        };
        // Without a mass there may be no elements.
        if mass.is_zero() || held.len() != sum.bytes.len() {
            return sum;
        }
        let held = flodl_cpureduce::Base { version: base.version.0, data: held };
        let Coded { codec, base: relative_to, data } = coder.encode(&spec, &sum.bytes, mass, Some(held));
        match relative_to {
            Some(version) => {
                Chunk { codec: on_wire(codec, Version(version)), version: base.version, bytes: data, ..sum }
            }
            None => sum,
        }
    }

    /// The open round is committed, and this host's chunks before that one are in it.
    pub(crate) fn commit(&mut self, chunks: u32) {
        if let Some(coder) = &mut self.coder {
            coder.commit(chunks);
        }
    }

    /// The round is over. What was not committed of it counts for nothing.
    pub(crate) fn close(&mut self) {
        self.base = None;
        if let Some(coder) = &mut self.coder {
            coder.abandon();
        }
    }
}
