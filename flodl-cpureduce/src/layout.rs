//! How a model's tensors lie in chunks: three typed sections, cut into pieces of [`CHUNK_BYTES`].

use thiserror::Error;

/// Size of a full chunk in bytes: 65,536 `f32` or 32,768 `i64`.
pub const CHUNK_BYTES: u32 = 256 * 1024;

/// The most chunks a layout may have. With full chunks this is a model of 256 GiB.
pub const CHUNKS_MAX: u64 = 1 << 20;

/// The largest layout, in bytes over all sections.
pub const LAYOUT_BYTES_MAX: u64 = CHUNKS_MAX * CHUNK_BYTES as u64;

/// The kind of values in a part of the model. Sections lie one after another in the order of these variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// Trained values, `f32`: averaged with the mass of each contribution.
    Parameters,
    /// Running statistics, `f32`: averaged with mass 1 for every contributor that moved.
    Buffers,
    /// Counters, `i64`: the largest value wins, they are never divided.
    Integers,
}

impl Section {
    /// All sections in layout order.
    pub const ALL: [Section; 3] = [Section::Parameters, Section::Buffers, Section::Integers];

    /// Bytes of one element: 4 for `f32`, 8 for `i64`.
    #[must_use]
    pub const fn element_bytes(self) -> u32 {
        match self {
            Section::Parameters | Section::Buffers => 4,
            Section::Integers => 8,
        }
    }
}

/// Why a layout cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The sections together are larger than [`LAYOUT_BYTES_MAX`].
    #[error("the model has {bytes} bytes but at most {LAYOUT_BYTES_MAX} can be averaged: check its tensor shapes")]
    TooLarge {
        /// Bytes of all sections.
        bytes: u128,
    },
    /// The sections need more than [`CHUNKS_MAX`] chunks of the size that was asked for.
    #[error("the model needs {chunks} chunks but at most {CHUNKS_MAX} are allowed: use larger chunks")]
    TooManyChunks {
        /// Chunks of all sections.
        chunks: u64,
    },
    /// A chunk size that cannot hold whole elements of every section.
    #[error("a chunk of {bytes} bytes is not possible: use a multiple of 8 from 8 to {CHUNK_BYTES}")]
    ChunkBytes {
        /// The size that was asked for.
        bytes: u32,
    },
}

/// Where one chunk lies in its section and in the whole model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSpec {
    /// Place of the chunk in the round, from 0.
    pub index: u32,
    /// The section it belongs to. A chunk never spans two sections.
    pub section: Section,
    /// First element of the chunk, counted in its section.
    pub first_element: u64,
    /// Number of elements, at least 1.
    pub elements: u32,
    /// Length of the chunk's data in bytes.
    pub bytes: u32,
    /// Offset of the chunk in the bytes of all sections in order.
    pub byte_offset: u64,
}

/// The sizes of a model's sections, and from them every chunk of a round.
///
/// All tiers of a run use the same layout. Each section begins a new chunk, the last chunk of a section is short,
/// and an empty section has none.
///
/// ```
/// use flodl_cpureduce::{Layout, Section};
///
/// let layout = Layout::new(70_000, 10, 1)?;
/// let sizes: Vec<(Section, u32)> = layout.iter().map(|chunk| (chunk.section, chunk.elements)).collect();
/// assert_eq!(
///     sizes,
///     [(Section::Parameters, 65_536), (Section::Parameters, 4_464), (Section::Buffers, 10), (Section::Integers, 1)]
/// );
/// assert_eq!(layout.total_bytes(), 4 * 70_010 + 8);
/// # Ok::<(), flodl_cpureduce::LayoutError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    parameters: u64,
    buffers: u64,
    integers: u64,
    chunk_bytes: u32,
}

impl Layout {
    /// A layout of so many elements in each section, cut into chunks of [`CHUNK_BYTES`].
    ///
    /// # Errors
    /// [`LayoutError::TooLarge`] above [`LAYOUT_BYTES_MAX`].
    pub fn new(parameters: u64, buffers: u64, integers: u64) -> Result<Self, LayoutError> {
        Self { parameters, buffers, integers, chunk_bytes: CHUNK_BYTES }.checked()
    }

    /// The same elements in chunks of another size: a few bytes make a round of many chunks out of a small model,
    /// which is what tests and measurements want. Every tier of a run must use the same size.
    ///
    /// # Errors
    /// [`LayoutError::ChunkBytes`] unless `chunk_bytes` is a multiple of 8 from 8 to [`CHUNK_BYTES`];
    /// [`LayoutError::TooManyChunks`] above [`CHUNKS_MAX`].
    pub fn with_chunk_bytes(self, chunk_bytes: u32) -> Result<Self, LayoutError> {
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(8) || chunk_bytes > CHUNK_BYTES {
            return Err(LayoutError::ChunkBytes { bytes: chunk_bytes });
        }
        Self { chunk_bytes, ..self }.checked()
    }

    fn checked(self) -> Result<Self, LayoutError> {
        let bytes: u128 =
            Section::ALL.iter().map(|&s| u128::from(self.elements(s)) * u128::from(s.element_bytes())).sum();
        if bytes > u128::from(LAYOUT_BYTES_MAX) {
            return Err(LayoutError::TooLarge { bytes });
        }
        // Below the byte limit no count of chunks can overflow. The last chunk of each section may be short, so a
        // layout at the byte limit may have one chunk more for each section after the first.
        let chunks = Section::ALL.iter().map(|&s| self.chunks_of(s)).sum();
        if chunks > CHUNKS_MAX + 2 {
            return Err(LayoutError::TooManyChunks { chunks });
        }
        Ok(self)
    }

    /// Number of elements in a section.
    #[must_use]
    pub const fn elements(&self, section: Section) -> u64 {
        match section {
            Section::Parameters => self.parameters,
            Section::Buffers => self.buffers,
            Section::Integers => self.integers,
        }
    }

    /// Bytes of a section.
    #[must_use]
    pub fn section_bytes(&self, section: Section) -> u64 {
        self.elements(section) * u64::from(section.element_bytes())
    }

    /// Bytes of all sections.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        Section::ALL.iter().map(|&section| self.section_bytes(section)).sum()
    }

    /// Number of chunks in a round.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        let chunks = Section::ALL.iter().map(|&section| self.chunks_of(section)).sum::<u64>();
        u32::try_from(chunks).unwrap_or(u32::MAX)
    }

    /// The chunk of that index, or `None` from [`Layout::chunks`] on.
    #[must_use]
    pub fn chunk(&self, index: u32) -> Option<ChunkSpec> {
        let mut before = 0;
        let mut section_offset = 0;
        for section in Section::ALL {
            let chunks = self.chunks_of(section);
            let place = u64::from(index) - before;
            if place < chunks {
                let full = u64::from(self.chunk_elements(section));
                let first_element = place * full;
                let elements = u32::try_from(full.min(self.elements(section) - first_element)).ok()?;
                let size = section.element_bytes();
                return Some(ChunkSpec {
                    index,
                    section,
                    first_element,
                    elements,
                    bytes: elements * size,
                    byte_offset: section_offset + first_element * u64::from(size),
                });
            }
            before += chunks;
            section_offset += self.section_bytes(section);
        }
        None
    }

    /// All chunks in the order of a round.
    pub fn iter(&self) -> impl Iterator<Item = ChunkSpec> + use<> {
        let layout = *self;
        (0..layout.chunks()).filter_map(move |index| layout.chunk(index))
    }

    /// Elements of a full chunk of a section.
    #[must_use]
    pub const fn chunk_elements(&self, section: Section) -> u32 {
        self.chunk_bytes / section.element_bytes()
    }

    fn chunks_of(&self, section: Section) -> u64 {
        self.elements(section).div_ceil(u64::from(self.chunk_elements(section)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_tile_the_model_without_gap_or_overlap() {
        for (p, b, i, chunk) in [
            (0, 0, 0, 8),
            (1, 0, 0, 8),
            (0, 0, 3, 16),
            (7, 5, 3, 16),
            (8, 4, 2, 16),
            (200_000, 70_000, 40_000, CHUNK_BYTES),
        ] {
            let layout = Layout::new(p, b, i).unwrap().with_chunk_bytes(chunk).unwrap();
            let mut offset = 0;
            let mut elements = [0; 3];
            for (place, spec) in layout.iter().enumerate() {
                assert_eq!(spec.index as usize, place);
                assert_eq!(spec.byte_offset, offset);
                assert_eq!(spec.first_element, elements[spec.section as usize]);
                assert_eq!(spec.bytes, spec.elements * spec.section.element_bytes());
                assert!(spec.elements > 0 && spec.bytes <= chunk);
                offset += u64::from(spec.bytes);
                elements[spec.section as usize] += u64::from(spec.elements);
            }
            assert_eq!(offset, layout.total_bytes());
            assert_eq!(elements, [p, b, i]);
            assert_eq!(layout.chunk(layout.chunks()), None);
            assert_eq!(layout.chunk(u32::MAX), None);
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        let max = LAYOUT_BYTES_MAX / 4;
        assert_eq!(Layout::new(max, 0, 0).unwrap().chunks(), 1 << 20);
        assert_eq!(Layout::new(max + 1, 0, 0), Err(LayoutError::TooLarge { bytes: u128::from(LAYOUT_BYTES_MAX) + 4 }));
        assert!(matches!(Layout::new(u64::MAX, u64::MAX, u64::MAX), Err(LayoutError::TooLarge { .. })));
        assert!(Layout::new(max - 2, 1, 0).is_ok(), "a short last chunk in each section does not count against it");

        let layout = Layout::new(1 << 22, 0, 0).unwrap();
        assert_eq!(layout.with_chunk_bytes(8), Err(LayoutError::TooManyChunks { chunks: 1 << 21 }));
        for bytes in [0, 4, 12, CHUNK_BYTES + 8] {
            assert_eq!(layout.with_chunk_bytes(bytes), Err(LayoutError::ChunkBytes { bytes }));
        }
    }
}
