//! The model's file: the safetensors format, written part by part so that every byte is ours to sync.
//!
//! ```text
//! header length u64 | header, JSON, filled with spaces | tensors back to back        (little-endian)
//! ```
//!
//! Format: <https://github.com/huggingface/safetensors>. Tensors of 8-byte elements come first and the data begins at a multiple
//! of 64, so that every tensor is aligned in a mapped file.

use flodl_wire::message::join::{Section, TensorSpec};
use serde_json::{Map, Value, json};
use thiserror::Error;

/// The data begins at a multiple of this.
const ALIGN: usize = 64;

/// The header's own entry, so no tensor may be called so.
const METADATA: &str = "__metadata__";

/// Why tensors make no file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TensorError {
    /// A tensor of another length than its shape says.
    #[error("tensor \"{name}\" of shape {shape:?} has {found} bytes")]
    Length {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<u64>,
        /// Its bytes.
        found: usize,
    },
    /// A name that the format cannot hold.
    #[error("two tensors are called \"{name}\", or the name is the format's own")]
    Name {
        /// The name.
        name: String,
    },
    /// A flattened model of another length than its manifest says.
    #[error("the flattened model has {found} bytes, its manifest makes {expected}")]
    Flat {
        /// Bytes by the manifest.
        expected: u128,
        /// Bytes there are.
        found: usize,
    },
}

/// A tensor to save: little-endian f32 for parameters and buffers (whatever the model's own element type), i64 for integers.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Tensor<'a> {
    /// What it is.
    pub spec: &'a TensorSpec,
    /// Its elements, row-major.
    pub bytes: &'a [u8],
}

fn element_bytes(section: Section) -> usize {
    match section {
        Section::Parameters | Section::Buffers => 4,
        Section::Integers => 8,
    }
}

/// The bytes of a tensor, by its manifest.
fn expected_bytes(spec: &TensorSpec) -> u128 {
    let elements = spec.elements().map_or(u128::MAX, u128::from);
    elements.saturating_mul(element_bytes(spec.section) as u128)
}

/// Cuts a flattened model, a consensus for example (sections in order, within a section tensors in manifest order), into its tensors.
///
/// # Errors
/// A model of another length than the manifest says.
pub fn tensors_of<'a>(manifest: &'a [TensorSpec], flat: &'a [u8]) -> Result<Vec<Tensor<'a>>, TensorError> {
    let expected = manifest.iter().fold(0u128, |sum, spec| sum.saturating_add(expected_bytes(spec)));
    if expected != flat.len() as u128 {
        return Err(TensorError::Flat { expected, found: flat.len() });
    }
    let mut sorted: Vec<&TensorSpec> = manifest.iter().collect();
    sorted.sort_by_key(|spec| spec.section);
    let mut rest = flat;
    Ok(sorted
        .into_iter()
        .map(|spec| {
            let (bytes, after) = rest.split_at(usize::try_from(expected_bytes(spec)).unwrap_or(rest.len()));
            rest = after;
            Tensor { spec, bytes }
        })
        .collect())
}

/// The header (with its length) and the order that the tensors follow it in.
pub(super) fn layout<'a>(tensors: &[Tensor<'a>], metadata: Value) -> Result<(Vec<u8>, Vec<Tensor<'a>>), TensorError> {
    let mut order = tensors.to_vec();
    order.sort_by_key(|tensor| std::cmp::Reverse(element_bytes(tensor.spec.section)));
    let mut entries = Map::new();
    entries.insert(METADATA.to_owned(), metadata);
    let mut start = 0;
    for tensor in &order {
        let spec = tensor.spec;
        if expected_bytes(spec) != tensor.bytes.len() as u128 {
            let (name, shape) = (spec.name.clone(), spec.shape.clone());
            return Err(TensorError::Length { name, shape, found: tensor.bytes.len() });
        }
        let dtype = if spec.section == Section::Integers { "I64" } else { "F32" };
        let end = start + tensor.bytes.len();
        let entry = json!({ "dtype": dtype, "shape": spec.shape, "data_offsets": [start, end] });
        if entries.insert(spec.name.clone(), entry).is_some() {
            return Err(TensorError::Name { name: spec.name.clone() });
        }
        start = end;
    }
    let text = Value::Object(entries).to_string();
    let padded = (text.len() + 8).next_multiple_of(ALIGN) - 8;
    let mut header = Vec::with_capacity(padded + 8);
    header.extend((padded as u64).to_le_bytes());
    header.extend(text.as_bytes());
    header.resize(padded + 8, b' ');
    Ok((header, order))
}
