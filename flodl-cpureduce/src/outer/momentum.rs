//! Outer optimizers that remember in which direction the rounds have gone.

use super::{Outer, OuterStateError};
use crate::{ChunkSpec, Digest, Layout, Section, kernel};
use core::fmt;
use core::marker::PhantomData;
use thiserror::Error;

/// How far an outer optimizer follows a round, and for how long it remembers it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Momentum {
    learning_rate: f32,
    momentum: f32,
}

/// Why numbers are no [`Momentum`].
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum MomentumError {
    /// Not above 0, or not finite.
    #[error("{value} is no outer learning rate: use a number above 0, such as 0.7 or 1")]
    LearningRate {
        /// The number.
        value: f32,
    },
    /// Negative, or 1 or more: the past would never be forgotten.
    #[error("{value} is no outer momentum: use a number from 0 to below 1, such as 0.5 or 0.9")]
    Momentum {
        /// The number.
        value: f32,
    },
}

impl Momentum {
    /// An outer learning rate above 0 and a momentum from 0 to below 1.
    ///
    /// # Errors
    /// [`MomentumError`].
    pub fn new(learning_rate: f32, momentum: f32) -> Result<Self, MomentumError> {
        if !(learning_rate > 0.0 && learning_rate.is_finite()) {
            Err(MomentumError::LearningRate { value: learning_rate })
        } else if !(0.0..1.0).contains(&momentum) {
            Err(MomentumError::Momentum { value: momentum })
        } else {
            Ok(Self { learning_rate, momentum })
        }
    }

    /// Above 0.
    #[must_use]
    pub const fn learning_rate(self) -> f32 {
        self.learning_rate
    }

    /// From 0 to below 1.
    #[must_use]
    pub const fn momentum(self) -> f32 {
        self.momentum
    }
}

impl fmt::Display for Momentum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.learning_rate, self.momentum)
    }
}

/// SlowMo: `u = momentum * u + (previous - average)`, and the consensus is `previous - learning_rate * u`.
///
/// Source: J. Wang, V. Tantia, N. Ballas, M. Rabbat, "SlowMo: Improving communication-efficient distributed SGD with slow
/// momentum", ICLR 2020, arXiv:1910.00643, algorithm 1, where `u` is divided by the inner learning rate and multiplied with
/// it again; here it is in units of the parameters, so it does not follow when that rate changes. A learning rate of 1 and
/// a momentum of 0 are [`Average`](super::Average) up to rounding.
pub type SlowMomentum = Remembering<SlowMo>;

/// Nesterov's momentum, the outer optimizer of DiLoCo: with `g = previous - average` it is `u = momentum * u + g`, and the
/// consensus is `previous - learning_rate * (g + momentum * u)`.
///
/// Sources: A. Douillard et al., "DiLoCo: Distributed low-communication training of language models", arXiv:2311.08105,
/// algorithm 1 (its best: learning rate 0.7, momentum 0.9); the form of the step is that of `torch.optim.SGD` with
/// `nesterov=True`, after I. Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML
/// 2013. Made for inner optimizers like AdamW: on top of inner momentum it can cost accuracy.
pub type Nesterov = Remembering<NesterovStep>;

/// What is made of a round's average and the momentum of the rounds before it.
pub trait Step: fmt::Debug + Send {
    /// What a state begins with: whose it is, and the number of its format.
    const TAG: [u8; 8];

    /// Makes the consensus out of the average, and the next velocities.
    fn step(previous: &[u8], average: &mut [u8], velocity: &[f32], next: &mut [f32], momentum: Momentum);
}

/// The step of [`SlowMomentum`].
#[derive(Debug, Clone, Copy)]
pub struct SlowMo;

impl Step for SlowMo {
    const TAG: [u8; 8] = *b"flo-slo1";

    fn step(previous: &[u8], average: &mut [u8], velocity: &[f32], next: &mut [f32], momentum: Momentum) {
        kernel::slow_momentum(previous, average, velocity, next, momentum);
    }
}

/// The step of [`Nesterov`].
#[derive(Debug, Clone, Copy)]
pub struct NesterovStep;

impl Step for NesterovStep {
    const TAG: [u8; 8] = *b"flo-nes1";

    fn step(previous: &[u8], average: &mut [u8], velocity: &[f32], next: &mut [f32], momentum: Momentum) {
        kernel::nesterov(previous, average, velocity, next, momentum);
    }
}

/// An outer optimizer that remembers in which direction the rounds have gone.
#[derive(Debug, Clone)]
pub struct Remembering<S> {
    momentum: Momentum,
    velocities: Velocities,
    step: PhantomData<S>,
}

impl<S: Step> Remembering<S> {
    /// One without a past.
    #[must_use]
    pub const fn new(momentum: Momentum) -> Self {
        Self { momentum, velocities: Velocities::NONE, step: PhantomData }
    }
}

impl<S: Step> Outer for Remembering<S> {
    fn step(&mut self, chunk: &ChunkSpec, previous: &[u8], average: &mut [u8]) {
        let (velocity, next) = self.velocities.open(chunk);
        S::step(previous, average, velocity, next, self.momentum);
    }

    fn keep(&mut self, chunk: &ChunkSpec) {
        self.velocities.keep(chunk);
    }

    fn commit(&mut self) {
        self.velocities.commit();
    }

    fn abandon(&mut self) {
        self.velocities.abandon();
    }

    fn state(&self, layout: &Layout) -> Vec<u8> {
        self.velocities.state(S::TAG, layout)
    }

    fn restore(&mut self, layout: &Layout, state: &[u8]) -> Result<(), OuterStateError> {
        self.velocities = Velocities::restored(S::TAG, layout, state)?;
        Ok(())
    }
}

/// The momentum `u` of every parameter. A state is the tag, `u` as little-endian `f32` in the order of the parameters, and
/// the little-endian xxh3 of both.
#[derive(Debug, Clone)]
struct Velocities {
    /// By chunk, as far as any has made a step.
    chunks: Vec<Velocity>,
}

/// That of a chunk.
#[derive(Debug, Clone, Default)]
struct Velocity {
    /// After the last committed round.
    kept: Vec<f32>,
    /// After the open round.
    next: Vec<f32>,
    /// Whether `next` is of the open round.
    stepped: bool,
}

impl Velocities {
    const NONE: Velocities = Velocities { chunks: Vec::new() };

    /// The chunk's momentum before the step and room for that after it.
    fn open(&mut self, chunk: &ChunkSpec) -> (&[f32], &mut [f32]) {
        let (place, elements) = (chunk.index as usize, chunk.elements as usize);
        if self.chunks.len() <= place {
            self.chunks.resize_with(place + 1, Velocity::default);
        }
        let velocity = &mut self.chunks[place];
        velocity.kept.resize(elements, 0.0);
        velocity.next.resize(elements, 0.0);
        velocity.stepped = true;
        (&velocity.kept, &mut velocity.next)
    }

    fn keep(&mut self, chunk: &ChunkSpec) {
        if let Some(velocity) = self.chunks.get_mut(chunk.index as usize) {
            velocity.stepped = false;
        }
    }

    fn commit(&mut self) {
        for velocity in self.chunks.iter_mut().filter(|velocity| velocity.stepped) {
            core::mem::swap(&mut velocity.kept, &mut velocity.next);
        }
        self.abandon();
    }

    fn abandon(&mut self) {
        self.chunks.iter_mut().for_each(|velocity| velocity.stepped = false);
    }

    fn state(&self, tag: [u8; 8], layout: &Layout) -> Vec<u8> {
        let values = layout.section_bytes(Section::Parameters) as usize;
        let mut state = Vec::with_capacity(tag.len() + values + 8);
        state.extend_from_slice(&tag);
        for spec in layout.iter().filter(|spec| spec.section == Section::Parameters) {
            let end = state.len() + spec.bytes as usize;
            if let Some(velocity) = self.chunks.get(spec.index as usize) {
                state.extend(velocity.kept.iter().flat_map(|value| value.to_le_bytes()));
            }
            // A chunk that has made no step yet has none.
            state.resize(end, 0);
        }
        state.extend_from_slice(&Digest::of(&state).to_le_bytes());
        state
    }

    fn restored(tag: [u8; 8], layout: &Layout, state: &[u8]) -> Result<Self, OuterStateError> {
        if state.first_chunk() != Some(&tag) {
            return Err(OuterStateError::Kind);
        }
        let values = layout.section_bytes(Section::Parameters);
        let expected = values + 16;
        let length = OuterStateError::Length { expected, got: state.len() };
        let (rest, digest) = state.split_last_chunk().ok_or(length)?;
        if state.len() as u64 != expected {
            return Err(length);
        }
        if Digest::of(rest) != u64::from_le_bytes(*digest) {
            return Err(OuterStateError::Digest);
        }
        let mut data = &rest[tag.len()..];
        if !kernel::all_finite(data) {
            return Err(OuterStateError::NonFinite);
        }
        let mut chunks = Vec::new();
        for spec in layout.iter().filter(|spec| spec.section == Section::Parameters) {
            let (chunk, more) = data.split_at(spec.bytes as usize);
            let mut kept = vec![0.0; spec.elements as usize];
            kernel::read_f32(chunk, &mut kept);
            chunks.push(Velocity { kept, ..Velocity::default() });
            data = more;
        }
        Ok(Self { chunks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_usable_numbers_make_a_momentum() {
        for (rate, momentum) in [(1.0, 0.0), (0.7, 0.9), (1e-3, 0.999), (2.0, 0.5)] {
            assert!(Momentum::new(rate, momentum).is_ok());
        }
        for rate in [0.0, -1.0, f32::INFINITY] {
            assert_eq!(Momentum::new(rate, 0.5), Err(MomentumError::LearningRate { value: rate }));
        }
        for momentum in [1.0, -0.1, f32::INFINITY] {
            assert_eq!(Momentum::new(1.0, momentum), Err(MomentumError::Momentum { value: momentum }));
        }
        assert!(Momentum::new(f32::NAN, 0.5).is_err() && Momentum::new(1.0, f32::NAN).is_err());
    }
}
