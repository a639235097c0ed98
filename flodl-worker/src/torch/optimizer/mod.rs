//! Optimizers whose state can be read and restored, by the names of the parameters.

mod adamw;
mod clip;
mod sgd;
#[cfg(test)]
mod tests;

pub use adamw::AdamW;
pub(super) use clip::clip;
pub use sgd::Sgd;

use std::collections::BTreeMap;
use tch::{Device, TchError, Tensor};
use thiserror::Error;

/// The name under which a parameter's steps are kept in a [`State`].
const STEP: &str = "step";

/// An optimizer's state: a tensor on the CPU by "parameter.slot" (`conv1.weight.momentum_buffer`), and the steps taken by
/// "parameter.step" (one `i64`). A parameter that never had a gradient has neither.
pub type State = BTreeMap<String, Tensor>;

/// A rule that moves one parameter at a time: what an optimizer is, but for its state.
pub trait Rule: Send {
    /// Says what is wrong with the rule's settings.
    ///
    /// # Errors
    /// A sentence for whoever wrote them.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Names of the tensors that [`update`](Rule::update) keeps for a parameter, in their order, each of the parameter's shape.
    fn slots(&self) -> &'static [&'static str];

    /// Moves the parameter one step along its gradient, which may be shared and must stay as it is. Called without gradient
    /// tracking. At a parameter's first step `memory` holds no tensors; afterwards it must hold those of `slots`.
    ///
    /// # Errors
    /// What libtorch says.
    fn update(&self, parameter: &mut Tensor, gradient: &Tensor, memory: &mut Memory, lr: f64) -> Result<(), TchError>;
}

/// What a rule remembers of one parameter.
#[derive(Debug, Default)]
pub struct Memory {
    /// Steps that the parameter took, the present one included.
    pub steps: i64,
    /// The tensors, in the order of [`Rule::slots`].
    pub tensors: Vec<Tensor>,
}

/// Why a state cannot be restored.
#[derive(Debug, Error)]
pub enum StateError {
    /// Part of what a parameter needs is not there.
    #[error("the optimizer state lacks \"{name}\": restore it with the optimizer and the model that it was read from")]
    Missing {
        /// The tensor.
        name: String,
    },
    /// Something of another model or optimizer.
    #[error(
        "the optimizer state holds \"{name}\", which is of no parameter here: restore it with the optimizer and the model that \
         it was read from"
    )]
    Unknown {
        /// The tensor.
        name: String,
    },
    /// Another shape.
    #[error("\"{name}\" of the optimizer state has the shape {found:?}, expected {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// The shape it should have.
        expected: Vec<i64>,
        /// The one it has.
        found: Vec<i64>,
    },
    /// libtorch fails.
    #[error(transparent)]
    Torch(#[from] TchError),
}

/// A rule, the parameters that it moves, and its state.
pub struct Optimizer {
    rule: Box<dyn Rule>,
    names: Vec<String>,
    parameters: Vec<Tensor>,
    memories: Vec<Memory>,
}

impl Optimizer {
    /// Moves these parameters by `rule`.
    pub(super) fn new(rule: impl Rule + 'static, named: impl IntoIterator<Item = (String, Tensor)>) -> Optimizer {
        let (names, parameters): (Vec<_>, Vec<_>) = named.into_iter().unzip();
        let memories = names.iter().map(|_| Memory::default()).collect();
        Optimizer { rule: Box::new(rule), names, parameters, memories }
    }

    /// What it moves.
    pub(super) fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    /// One step, by gradients in the order of [`parameters`](Optimizer::parameters). A parameter that the loss does not depend
    /// on has an undefined gradient and stays as it is.
    pub(super) fn step(&mut self, gradients: &[Tensor], lr: f64) -> Result<(), TchError> {
        let _no_grad = tch::no_grad_guard();
        for ((parameter, memory), gradient) in self.parameters.iter_mut().zip(&mut self.memories).zip(gradients) {
            if gradient.defined() {
                memory.steps += 1;
                self.rule.update(parameter, gradient, memory, lr)?;
            }
        }
        Ok(())
    }

    /// A copy of the state.
    ///
    /// # Errors
    /// What libtorch says.
    pub fn state(&self) -> Result<State, TchError> {
        let mut state = State::new();
        for (name, memory) in self.names.iter().zip(&self.memories).filter(|(_, memory)| memory.steps > 0) {
            state.insert(format!("{name}.{STEP}"), Tensor::from(memory.steps));
            for (slot, tensor) in self.rule.slots().iter().zip(&memory.tensors) {
                state.insert(format!("{name}.{slot}"), copy(&tensor.f_to_device(Device::Cpu)?)?);
            }
        }
        Ok(state)
    }

    /// Goes on from a state that was read before.
    ///
    /// # Errors
    /// See [`StateError`]; the state stays as it was then.
    pub fn restore(&mut self, state: &State) -> Result<(), StateError> {
        for name in state.keys() {
            match self.owner(name) {
                None => return Err(StateError::Unknown { name: name.clone() }),
                Some(parameter) => {
                    let name = format!("{parameter}.{STEP}");
                    if !state.contains_key(&name) {
                        return Err(StateError::Missing { name });
                    }
                }
            }
        }
        let named = self.names.iter().zip(&self.parameters);
        let memories = named.map(|(name, parameter)| self.memory_of(name, parameter, state));
        self.memories = memories.collect::<Result<_, _>>()?;
        Ok(())
    }

    /// The parameter that a tensor of a state belongs to.
    fn owner(&self, name: &str) -> Option<&str> {
        let owns = |parameter: &&String| {
            let slot = name.strip_prefix(parameter.as_str()).and_then(|rest| rest.strip_prefix('.'));
            slot.is_some_and(|slot| slot == STEP || self.rule.slots().contains(&slot))
        };
        self.names.iter().find(owns).map(String::as_str)
    }

    fn memory_of(&self, name: &str, parameter: &Tensor, state: &State) -> Result<Memory, StateError> {
        let Some(steps) = state.get(&format!("{name}.{STEP}")) else { return Ok(Memory::default()) };
        let mut memory = Memory { steps: i64::try_from(steps)?, tensors: Vec::new() };
        for slot in self.rule.slots() {
            let name = format!("{name}.{slot}");
            let Some(tensor) = state.get(&name) else { return Err(StateError::Missing { name }) };
            let (expected, found) = (parameter.size(), tensor.size());
            if expected != found {
                return Err(StateError::Shape { name, expected, found });
            }
            let tensor = tensor.f_to_device(parameter.device())?.f_to_kind(parameter.kind())?;
            memory.tensors.push(copy(&tensor)?);
        }
        Ok(memory)
    }

    /// Forgets the state of every parameter whose state is not finite.
    pub(super) fn reset_non_finite(&mut self) -> Result<(), TchError> {
        for memory in &mut self.memories {
            for at in 0..memory.tensors.len() {
                if !bool::try_from(memory.tensors[at].f_isfinite()?.f_all()?)? {
                    *memory = Memory::default();
                    break;
                }
            }
        }
        Ok(())
    }
}

/// A tensor of its own memory with the same values.
fn copy(tensor: &Tensor) -> Result<Tensor, TchError> {
    let mut copy = tensor.f_detach()?.f_empty_like()?;
    copy.f_copy_(&tensor.f_detach()?)?;
    Ok(copy)
}

fn not_negative(name: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(format!("{name} is {value}: give a finite number that is not negative"))
    }
}
