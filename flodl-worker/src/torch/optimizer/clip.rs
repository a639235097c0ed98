//! Gradient clipping.

use tch::{TchError, Tensor};

/// Keeps the quotient finite where all gradients are zero.
const NORM_MIN: f64 = 1e-6;

/// Scales all gradients by `min(1, max_norm / (n + 1e-6))`, n being the Euclidean norm of all of them together, as
/// `torch.nn.utils.clip_grad_norm_` does. Nothing is read back from the device, and the given tensors stay as they are:
/// gradients may share memory.
pub(in crate::torch) fn clip(gradients: &mut [Tensor], max_norm: f64) -> Result<(), TchError> {
    let norms: Vec<Tensor> =
        gradients.iter().filter(|gradient| gradient.defined()).map(Tensor::f_norm).collect::<Result<_, _>>()?;
    if norms.is_empty() {
        return Ok(());
    }
    let norm = Tensor::f_stack(&norms, 0)?.f_norm()?;
    let factor = norm.f_add_scalar(NORM_MIN)?.f_reciprocal()?.f_mul_scalar(max_norm)?.f_clamp_max(1.0)?;
    for gradient in gradients.iter_mut().filter(|gradient| gradient.defined()) {
        *gradient = gradient.f_mul(&factor)?;
    }
    Ok(())
}
