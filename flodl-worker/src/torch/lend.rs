//! The tensors of a `VarStore`, lent to the training loop under names in a fixed order.

use crate::trainee::{TensorMut, TensorReader, TensorRef, TensorWriter};
use crate::{Dtype, Section, TensorSpec};
use tch::nn::VarStore;
use tch::{Device, Kind, TchError, Tensor};

/// A kind that ranks cannot average.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stranger {
    pub(super) name: String,
    pub(super) kind: Kind,
}

/// A named tensor of the model.
struct Entry {
    spec: TensorSpec,
    tensor: Tensor,
    /// What was last written to a tensor of 16 bits, which holds it rounded.
    written: Option<Tensor>,
}

impl Entry {
    /// The tensor as the loop takes it: row-major on the CPU, as `f32` or `i64`. It shares the model's memory where that is how
    /// the model holds it, and is a copy where not.
    ///
    /// Where a tensor of 16 bits still holds what was written to it, that is what is read: ranks compare what they hold with
    /// what they were given, bit by bit, and the next average starts from what no rank has rounded.
    fn staged(&self) -> Result<Tensor, TchError> {
        let kind = if self.spec.section == Section::Integers { Kind::Int64 } else { Kind::Float };
        let staged = self.tensor.f_detach()?.f_to_device(Device::Cpu)?.f_to_kind(kind)?.f_contiguous()?;
        let Some(written) = &self.written else { return Ok(staged) };
        let rounded = written.f_to_kind(self.tensor.kind())?.f_to_kind(Kind::Float)?;
        written.f_where_self(&rounded.f_eq_tensor(&staged)?, &staged)
    }
}

/// Every tensor of the model, sorted by name.
pub(super) struct Tensors(Vec<Entry>);

impl Tensors {
    /// What requires a gradient is a parameter, other floats are buffers, `i64` are integers.
    pub(super) fn of(store: &VarStore) -> Result<Tensors, Stranger> {
        let mut entries = Vec::new();
        for (name, tensor) in store.variables() {
            let Some(dtype) = dtype(tensor.kind()) else { return Err(Stranger { name, kind: tensor.kind() }) };
            let section = match dtype {
                Dtype::I64 => Section::Integers,
                _ if tensor.requires_grad() => Section::Parameters,
                _ => Section::Buffers,
            };
            let shape = tensor.size().into_iter().map(i64::unsigned_abs).collect();
            entries.push(Entry { spec: TensorSpec { name, dtype, shape, section }, tensor, written: None });
        }
        entries.sort_by(|one, other| one.spec.name.cmp(&other.spec.name));
        Ok(Tensors(entries))
    }

    pub(super) fn manifest(&self) -> Vec<TensorSpec> {
        self.0.iter().map(|entry| entry.spec.clone()).collect()
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = (String, Tensor)> {
        let parameters = self.0.iter().filter(|entry| entry.spec.section == Section::Parameters);
        parameters.map(|entry| (entry.spec.name.clone(), entry.tensor.shallow_clone()))
    }

    /// Copies of what a forward pass may change: all but the parameters.
    pub(super) fn kept(&self) -> Result<Vec<Tensor>, TchError> {
        let copy = |tensor: &Tensor| {
            let mut copy = tensor.f_zeros_like()?;
            copy.f_copy_(tensor)?;
            Ok(copy)
        };
        let kept = self.0.iter().filter(|entry| entry.spec.section != Section::Parameters);
        kept.map(|entry| copy(&entry.tensor)).collect()
    }

    /// Makes them what [`kept`](Self::kept) found.
    pub(super) fn restore(&mut self, kept: &[Tensor]) -> Result<(), TchError> {
        let _no_grad = tch::no_grad_guard();
        let changed = self.0.iter_mut().filter(|entry| entry.spec.section != Section::Parameters);
        changed.zip(kept).try_for_each(|(entry, kept)| entry.tensor.f_copy_(kept))
    }

    pub(super) fn read(&self, reader: &mut dyn TensorReader) -> Result<(), TchError> {
        for entry in &self.0 {
            match lent(&mut entry.staged()?) {
                TensorMut::F32(values) => reader.read(TensorRef::F32(values)),
                TensorMut::I64(values) => reader.read(TensorRef::I64(values)),
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self, writer: &mut dyn TensorWriter) -> Result<(), TchError> {
        let _no_grad = tch::no_grad_guard();
        for entry in &mut self.0 {
            let mut staged = entry.staged()?;
            writer.write(lent(&mut staged));
            if staged.data_ptr() != entry.tensor.data_ptr() {
                entry.tensor.f_copy_(&staged)?;
            }
            if matches!(entry.spec.dtype, Dtype::Bf16 | Dtype::F16) {
                entry.written = Some(staged);
            }
        }
        Ok(())
    }
}

fn dtype(kind: Kind) -> Option<Dtype> {
    match kind {
        Kind::Float => Some(Dtype::F32),
        Kind::Double => Some(Dtype::F64),
        Kind::BFloat16 => Some(Dtype::Bf16),
        Kind::Half => Some(Dtype::F16),
        Kind::Int64 => Some(Dtype::I64),
        _ => None,
    }
}

/// The memory of what [`Entry::staged`] made.
fn lent(staged: &mut Tensor) -> TensorMut<'_> {
    let (at, len) = (staged.data_ptr(), staged.numel());
    let integers = staged.kind() == Kind::Int64;
    if at.is_null() || len == 0 {
        return if integers { TensorMut::I64(&mut []) } else { TensorMut::F32(&mut []) };
    }
    // SAFETY: `staged` is contiguous on the CPU with `len` initialised elements of that kind at `at`, which libtorch aligns; it
    // lives as long as the slice. The model's thread is the only one to touch its tensors and computes nothing meanwhile.
    unsafe {
        if integers {
            TensorMut::I64(std::slice::from_raw_parts_mut(at.cast(), len))
        } else {
            TensorMut::F32(std::slice::from_raw_parts_mut(at.cast(), len))
        }
    }
}
