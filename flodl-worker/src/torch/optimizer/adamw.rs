//! Adam with decoupled weight decay.

use super::{Memory, Rule};
use tch::{TchError, Tensor};

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019): with the gradient g at the t-th step, t from 1,
///
/// ```text
/// p <- p - lr w p
/// m <- b1 m + (1 - b1) g
/// v <- b2 v + (1 - b2) g^2
/// p <- p - lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
/// ```
///
/// as `torch.optim.AdamW` does without amsgrad (<https://docs.pytorch.org/docs/2.11/generated/torch.optim.AdamW.html>). m and v
/// are called `exp_avg` and `exp_avg_sq` there and here.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct AdamW {
    /// b1 and b2, from 0 to below 1.
    pub betas: (f64, f64),
    /// eps, not negative.
    pub eps: f64,
    /// w, not negative.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 }
    }
}

impl Rule for AdamW {
    fn check(&self) -> Result<(), String> {
        super::not_negative("AdamW::eps", self.eps)?;
        super::not_negative("AdamW::weight_decay", self.weight_decay)?;
        let in_range = |beta: f64| (0.0..1.0).contains(&beta);
        if in_range(self.betas.0) && in_range(self.betas.1) {
            Ok(())
        } else {
            Err(format!("AdamW::betas is {:?}: give values from 0 to below 1", self.betas))
        }
    }

    fn slots(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn update(&self, p: &mut Tensor, g: &Tensor, memory: &mut Memory, lr: f64) -> Result<(), TchError> {
        if memory.tensors.is_empty() {
            memory.tensors = vec![p.f_zeros_like()?.f_detach()?, p.f_zeros_like()?.f_detach()?];
        }
        let (b1, b2) = self.betas;
        let t = memory.steps as f64;
        let (of_m, of_v) = (1.0 - b1.powf(t), 1.0 - b2.powf(t));
        if let [m, v] = &mut memory.tensors[..] {
            m.f_lerp_(g, 1.0 - b1).map(drop)?;
            v.f_mul_scalar_(b2)?.f_addcmul_(g, &g.f_mul_scalar(1.0 - b2)?).map(drop)?;
            let mut size = v.f_sqrt()?;
            size.f_div_scalar_(of_v.sqrt())?.f_add_scalar_(self.eps).map(drop)?;
            if self.weight_decay != 0.0 {
                p.f_mul_scalar_(1.0 - lr * self.weight_decay).map(drop)?;
            }
            p.f_sub_(&m.f_div(&size)?.f_mul_scalar_(lr / of_m)?).map(drop)?;
        }
        Ok(())
    }
}
