//! The flattened model: all tensors of a section back to back, sections in order.

use crate::trainee::{TensorMut, TensorReader, TensorRef, TensorWriter};
use core::ops::Range;
use flodl_cpureduce::{ChunkSpec, Digest, Layout, LayoutError, kernel};
use flodl_wire::message::join::{LayoutSizes, Section, TensorSpec};
use std::collections::BTreeSet;
use thiserror::Error;

/// Why a manifest cannot be averaged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// Two tensors of one name.
    #[error("the model names two tensors \"{name}\": give every tensor its own name")]
    Name {
        /// The name.
        name: String,
    },
    /// A shape whose product is no number of elements.
    #[error("tensor \"{name}\" has the impossible shape {shape:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// No parameters at all.
    #[error("the model has no parameters: its manifest must name at least one tensor in the section Parameters")]
    Empty,
    /// More than can be averaged.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Why what a model lends does not fit its own manifest.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutMismatch {
    /// Another number of tensors.
    #[error("the model lends {got} tensors, its manifest names {expected}")]
    Count {
        /// What the manifest names.
        expected: usize,
        /// What was lent.
        got: usize,
    },
    /// A tensor of another kind or length.
    #[error("the model lends {got} for tensor \"{name}\", its manifest says {expected}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What the manifest says ("6 f32 values").
        expected: String,
        /// What was lent.
        got: String,
    },
}

/// Where a tensor lies among the floats or among the integers.
#[derive(Clone, Debug)]
struct Place {
    name: String,
    integers: bool,
    at: Range<usize>,
}

impl Place {
    fn describe(integers: bool, len: usize) -> String {
        format!("{len} {} values", if integers { "i64" } else { "f32" })
    }

    fn mismatch(&self, integers: bool, len: usize) -> Option<LayoutMismatch> {
        (self.integers != integers || self.at.len() != len).then(|| LayoutMismatch::Tensor {
            name: self.name.clone(),
            expected: Place::describe(self.integers, self.at.len()),
            got: Place::describe(integers, len),
        })
    }
}

/// Where every tensor of a manifest lies in the flattened model.
#[derive(Clone, Debug)]
pub(super) struct Map {
    places: Vec<Place>,
    pub(super) layout: Layout,
    pub(super) sizes: LayoutSizes,
}

impl Map {
    pub(super) fn new(manifest: &[TensorSpec]) -> Result<Map, ManifestError> {
        let mut names = BTreeSet::new();
        for spec in manifest {
            if !names.insert(&spec.name) {
                return Err(ManifestError::Name { name: spec.name.clone() });
            }
        }
        let of = |section| {
            manifest.iter().filter(move |spec| spec.section == section).try_fold(0u64, |sum, spec| {
                let shape = || ManifestError::Shape { name: spec.name.clone(), shape: spec.shape.clone() };
                spec.elements().and_then(|elements| sum.checked_add(elements)).ok_or_else(shape)
            })
        };
        let sizes = LayoutSizes {
            parameters: of(Section::Parameters)?,
            buffers: of(Section::Buffers)?,
            integers: of(Section::Integers)?,
        };
        if sizes.parameters == 0 {
            return Err(ManifestError::Empty);
        }
        let layout = Layout::new(sizes.parameters, sizes.buffers, sizes.integers)?;
        Ok(Map { places: places(manifest, sizes), layout, sizes })
    }

    /// Elements among the floats.
    pub(super) fn floats(&self) -> usize {
        index(self.sizes.parameters + self.sizes.buffers)
    }

    /// Where a chunk lies among the floats or among the integers.
    pub(super) fn elements(&self, chunk: &ChunkSpec) -> Range<usize> {
        let before = match chunk.section {
            flodl_cpureduce::Section::Buffers => self.sizes.parameters,
            _ => 0,
        };
        let start = index(before + chunk.first_element);
        start..start + index(u64::from(chunk.elements))
    }
}

/// A layout is at most 256 GiB, so its numbers fit where such a model fits.
fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn places(manifest: &[TensorSpec], sizes: LayoutSizes) -> Vec<Place> {
    let mut next = [0, sizes.parameters, 0];
    let mut place = |spec: &TensorSpec| {
        let elements = spec.elements().unwrap_or(0);
        let cursor = &mut next[match spec.section {
            Section::Parameters => 0,
            Section::Buffers => 1,
            Section::Integers => 2,
        }];
        let start = *cursor;
        *cursor += elements;
        let integers = spec.section == Section::Integers;
        Place { name: spec.name.clone(), integers, at: index(start)..index(start + elements) }
    };
    manifest.iter().map(&mut place).collect()
}

/// The numbers of a flattened model.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Flat {
    /// Parameters, then buffers.
    pub(super) floats: Vec<f32>,
    pub(super) integers: Vec<i64>,
}

impl Flat {
    pub(super) fn zeros(map: &Map) -> Flat {
        Flat { floats: vec![0.0; map.floats()], integers: vec![0; index(map.sizes.integers)] }
    }
}

/// Which tensor comes next, and the first that did not fit.
struct Cursor<'a> {
    map: &'a Map,
    next: usize,
    problem: Option<LayoutMismatch>,
}

impl<'a> Cursor<'a> {
    fn new(map: &'a Map) -> Cursor<'a> {
        Cursor { map, next: 0, problem: None }
    }

    /// The place of the tensor that is lent now, if it fits.
    fn place(&mut self, integers: bool, len: usize) -> Option<Range<usize>> {
        let place = self.map.places.get(self.next);
        self.next += 1;
        let place = place?;
        match place.mismatch(integers, len) {
            None => Some(place.at.clone()),
            Some(problem) => {
                self.problem.get_or_insert(problem);
                None
            }
        }
    }

    fn finish(self) -> Result<(), LayoutMismatch> {
        match self.problem {
            Some(problem) => Err(problem),
            None if self.next == self.map.places.len() => Ok(()),
            None => Err(LayoutMismatch::Count { expected: self.map.places.len(), got: self.next }),
        }
    }
}

/// Copies lent tensors into a [`Flat`].
pub(super) struct Gather<'a> {
    cursor: Cursor<'a>,
    into: &'a mut Flat,
}

impl<'a> Gather<'a> {
    pub(super) fn new(map: &'a Map, into: &'a mut Flat) -> Gather<'a> {
        Gather { cursor: Cursor::new(map), into }
    }

    pub(super) fn finish(self) -> Result<(), LayoutMismatch> {
        self.cursor.finish()
    }
}

impl TensorReader for Gather<'_> {
    fn read(&mut self, tensor: TensorRef<'_>) {
        match tensor {
            TensorRef::F32(values) => {
                if let Some(at) = self.cursor.place(false, values.len()) {
                    self.into.floats[at].copy_from_slice(values);
                }
            }
            TensorRef::I64(values) => {
                if let Some(at) = self.cursor.place(true, values.len()) {
                    self.into.integers[at].copy_from_slice(values);
                }
            }
        }
    }
}

/// A piece of a chunk: where it begins in it, in elements, and its values.
pub(super) enum Piece<'a> {
    Floats(usize, &'a [f32]),
    Integers(usize, &'a [i64]),
}

/// Shows what of lent tensors lies in a chunk.
pub(super) struct Window<'a, 'f> {
    cursor: Cursor<'a>,
    integers: bool,
    at: Range<usize>,
    show: &'f mut dyn FnMut(Piece<'_>),
}

impl<'a, 'f> Window<'a, 'f> {
    pub(super) fn new(map: &'a Map, spec: &ChunkSpec, show: &'f mut dyn FnMut(Piece<'_>)) -> Window<'a, 'f> {
        let integers = spec.section == flodl_cpureduce::Section::Integers;
        Window { cursor: Cursor::new(map), integers, at: map.elements(spec), show }
    }

    pub(super) fn finish(self) -> Result<(), LayoutMismatch> {
        self.cursor.finish()
    }

    /// What of the tensor that is lent now lies in the chunk: its place there, and the elements of the tensor.
    fn overlap(&mut self, integers: bool, len: usize) -> Option<(usize, Range<usize>)> {
        let place = self.cursor.place(integers, len)?;
        let common = place.start.max(self.at.start)..place.end.min(self.at.end);
        let is_in = integers == self.integers && common.start < common.end;
        is_in.then(|| (common.start - self.at.start, common.start - place.start..common.end - place.start))
    }
}

impl TensorReader for Window<'_, '_> {
    fn read(&mut self, tensor: TensorRef<'_>) {
        match tensor {
            TensorRef::F32(values) => {
                if let Some((at, part)) = self.overlap(false, values.len()) {
                    (self.show)(Piece::Floats(at, &values[part]));
                }
            }
            TensorRef::I64(values) => {
                if let Some((at, part)) = self.overlap(true, values.len()) {
                    (self.show)(Piece::Integers(at, &values[part]));
                }
            }
        }
    }
}

/// Looks over lent tensors: whether they are finite and those that were named, and the norm of the parameters.
pub(super) struct Inspect<'a> {
    cursor: Cursor<'a>,
    finite: bool,
    squared_norm: f64,
}

impl<'a> Inspect<'a> {
    pub(super) fn new(map: &'a Map) -> Inspect<'a> {
        Inspect { cursor: Cursor::new(map), finite: true, squared_norm: 0.0 }
    }

    /// Whether all of it is finite, and the sum of the squares of the parameters.
    pub(super) fn finish(self) -> Result<(bool, f64), LayoutMismatch> {
        self.cursor.finish().map(|()| (self.finite, self.squared_norm))
    }
}

impl TensorReader for Inspect<'_> {
    fn read(&mut self, tensor: TensorRef<'_>) {
        match tensor {
            TensorRef::F32(values) => {
                let Some(at) = self.cursor.place(false, values.len()) else { return };
                // Squares of `f32` do not overflow an `f64`, and what is not finite shows in their sum.
                let squares = kernel::squared_norm_of(values);
                self.finite &= squares.is_finite();
                if at.end <= index(self.cursor.map.sizes.parameters) {
                    self.squared_norm += squares;
                }
            }
            TensorRef::I64(values) => {
                self.cursor.place(true, values.len());
            }
        }
    }
}

/// Elements that are gone over several times: they stay in the first-level cache.
const BLOCK: usize = 4096;

/// The digest of values as the bytes that they are sent as with mass 1, of which only a part is made at a time.
#[derive(Default)]
pub(super) struct ValueDigest {
    digest: Digest,
    room: Vec<u8>,
}

impl ValueDigest {
    pub(super) fn floats(&mut self, values: &[f32]) {
        self.room.resize(4 * BLOCK, 0);
        for values in values.chunks(BLOCK) {
            let room = &mut self.room[..4 * values.len()];
            kernel::scale_copy_check(values, 1.0, room);
            self.digest.update(room);
        }
    }

    pub(super) fn integers(&mut self, values: &[i64]) {
        values.iter().for_each(|value| self.digest.update(&value.to_le_bytes()));
    }

    pub(super) fn finish(&self) -> u64 {
        self.digest.finish()
    }
}

/// Copies a result's bytes into lent tensors that lie in the order of the layout, and takes the digest of what they then hold
/// while it is in the cache.
pub(super) struct ScatterDigest<'a> {
    cursor: Cursor<'a>,
    bytes: &'a [u8],
    digest: ValueDigest,
}

impl<'a> ScatterDigest<'a> {
    /// `None` where the tensors come in another order.
    pub(super) fn new(map: &'a Map, bytes: &'a [u8]) -> Option<ScatterDigest<'a>> {
        let order = |place: &Place| (place.integers, place.at.start, place.at.end);
        let in_order = map.places.iter().map(order).is_sorted();
        in_order.then(|| ScatterDigest { cursor: Cursor::new(map), bytes, digest: ValueDigest::default() })
    }

    pub(super) fn finish(self) -> Result<u64, LayoutMismatch> {
        self.cursor.finish().map(|()| self.digest.finish())
    }
}

impl TensorWriter for ScatterDigest<'_> {
    fn write(&mut self, tensor: TensorMut<'_>) {
        match tensor {
            TensorMut::F32(values) => {
                let Some(at) = self.cursor.place(false, values.len()) else { return };
                let bytes = &self.bytes[4 * at.start..4 * at.end];
                for (values, bytes) in values.chunks_mut(BLOCK).zip(bytes.chunks(4 * BLOCK)) {
                    kernel::read_f32(bytes, values);
                    self.digest.floats(values);
                }
            }
            TensorMut::I64(values) => {
                let Some(at) = self.cursor.place(true, values.len()) else { return };
                let floats = 4 * self.cursor.map.floats();
                kernel::read_i64(&self.bytes[floats + 8 * at.start..floats + 8 * at.end], values);
                self.digest.integers(values);
            }
        }
    }
}

/// Copies a [`Flat`] into lent tensors.
pub(super) struct Spread<'a> {
    cursor: Cursor<'a>,
    from: &'a Flat,
}

impl<'a> Spread<'a> {
    pub(super) fn new(map: &'a Map, from: &'a Flat) -> Spread<'a> {
        Spread { cursor: Cursor::new(map), from }
    }

    pub(super) fn finish(self) -> Result<(), LayoutMismatch> {
        self.cursor.finish()
    }
}

impl TensorWriter for Spread<'_> {
    fn write(&mut self, tensor: TensorMut<'_>) {
        match tensor {
            TensorMut::F32(values) => {
                if let Some(at) = self.cursor.place(false, values.len()) {
                    values.copy_from_slice(&self.from.floats[at]);
                }
            }
            TensorMut::I64(values) => {
                if let Some(at) = self.cursor.place(true, values.len()) {
                    values.copy_from_slice(&self.from.integers[at]);
                }
            }
        }
    }
}

/// Copies a result's bytes into lent tensors.
pub(super) struct Scatter<'a> {
    cursor: Cursor<'a>,
    bytes: &'a [u8],
}

impl<'a> Scatter<'a> {
    pub(super) fn new(map: &'a Map, bytes: &'a [u8]) -> Scatter<'a> {
        Scatter { cursor: Cursor::new(map), bytes }
    }

    pub(super) fn finish(self) -> Result<(), LayoutMismatch> {
        self.cursor.finish()
    }
}

impl TensorWriter for Scatter<'_> {
    fn write(&mut self, tensor: TensorMut<'_>) {
        match tensor {
            TensorMut::F32(values) => {
                if let Some(at) = self.cursor.place(false, values.len()) {
                    kernel::read_f32(&self.bytes[4 * at.start..4 * at.end], values);
                }
            }
            TensorMut::I64(values) => {
                if let Some(at) = self.cursor.place(true, values.len()) {
                    let floats = 4 * self.cursor.map.floats();
                    kernel::read_i64(&self.bytes[floats + 8 * at.start..floats + 8 * at.end], values);
                }
            }
        }
    }
}
