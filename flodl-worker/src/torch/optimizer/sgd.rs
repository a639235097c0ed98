//! Stochastic gradient descent with momentum.

use super::{Memory, Rule};
use tch::{TchError, Tensor};

/// Stochastic gradient descent: with the gradient g, the momentum m and the weight decay w,
///
/// ```text
/// g <- g + w p
/// v <- m v + g                  (v = g at the first step)
/// p <- p - lr (g + m v)         with Nesterov's momentum
/// p <- p - lr v                 without
/// ```
///
/// as `torch.optim.SGD` does without dampening (<https://docs.pytorch.org/docs/2.11/generated/torch.optim.SGD.html>). Its state
/// is called `momentum_buffer` there and here.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Sgd {
    /// m, not negative; 0 keeps no state.
    pub momentum: f64,
    /// Looks ahead along the momentum (Sutskever et al. 2013).
    pub nesterov: bool,
    /// w, not negative.
    pub weight_decay: f64,
}

impl Rule for Sgd {
    fn check(&self) -> Result<(), String> {
        super::not_negative("Sgd::momentum", self.momentum)?;
        super::not_negative("Sgd::weight_decay", self.weight_decay)?;
        if self.nesterov && self.momentum == 0.0 {
            return Err("Sgd::nesterov needs a momentum: give Sgd::momentum a value above 0".to_owned());
        }
        Ok(())
    }

    fn slots(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum_buffer"] }
    }

    fn update(&self, p: &mut Tensor, g: &Tensor, memory: &mut Memory, lr: f64) -> Result<(), TchError> {
        let mut g = g.shallow_clone();
        if self.weight_decay != 0.0 {
            g = p.f_mul_scalar(self.weight_decay)?.f_add_(&g)?;
        }
        if self.momentum != 0.0 {
            match memory.tensors.first_mut() {
                None => memory.tensors.push(super::copy(&g)?),
                Some(v) => v.f_mul_scalar_(self.momentum)?.f_add_(&g).map(drop)?,
            }
            let v = &memory.tensors[0];
            g = if self.nesterov { v.f_mul_scalar(self.momentum)?.f_add_(&g)? } else { v.shallow_clone() };
        }
        p.f_sub_(&g.f_mul_scalar(lr)?).map(drop)
    }
}
