//! What a scheduler keeps over a restart, in a form that any serde format can write.
//!
//! Members may be others afterwards, so everything is either of the whole run (anchor, reduce times, the judges' memory)
//! or of one slot. A slot that is not there any more is forgotten; a new one begins without an estimate.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::arbiter::{Arbiter, Limits};
use crate::growth::Growth;
use crate::span::Slot;
use crate::speed::Speed;
use crate::watcher::LrWatcher;

/// A scheduler's memory, from [`Cadence::state`](crate::Cadence::state) to [`Elche::restore`](crate::Elche::restore).
///
/// All numbers in it are finite as long as a guard of one's own keeps finite ones, so formats without NaN will do. What
/// comes from a file is checked where it is restored.
///
/// ```
/// use flodl_elche::{Cadence, Elche, NoGuard, Settings, State};
///
/// let elche = Elche::new(Settings::default(), Box::new(NoGuard))?;
/// let text = serde_json::to_string(&elche.state()).unwrap();
/// let state: State = serde_json::from_str(&text).unwrap();
/// assert_eq!(Elche::restore(Settings::default(), Box::new(NoGuard), &state)?.state(), elche.state());
/// # Ok::<(), flodl_elche::SettingsError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub(crate) anchor: u32,
    pub(crate) calibrations: u32,
    /// Seconds, oldest first.
    pub(crate) reduce: Vec<f64>,
    pub(crate) lead: u32,
    elected: Option<Slot>,
    members: Vec<MemberState>,
    pub(crate) guard: GuardState,
}

/// One member's measured times in seconds, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct MemberState {
    slot: Slot,
    batches: Vec<f64>,
    fills: Vec<f64>,
}

/// The memory of everything that judges a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GuardState {
    name: String,
    memory: Vec<f64>,
    watcher: LrWatcher,
    limits: Limits,
}

impl State {
    pub(crate) fn of((growth, lead): (&Growth, u32), elected: Option<Slot>, arbiter: &Arbiter) -> Self {
        Self {
            anchor: growth.anchor(),
            calibrations: growth.calibrations(),
            reduce: growth.reduce().to_vec(),
            lead,
            elected,
            members: Vec::new(),
            guard: GuardState {
                name: arbiter.guard.name().to_owned(),
                memory: arbiter.guard.memory(),
                watcher: arbiter.watcher,
                limits: arbiter.limits,
            },
        }
    }

    /// With the measured ones of these members, a later entry of a slot in place of an earlier one.
    pub(crate) fn with_members<'a>(mut self, members: impl Iterator<Item = (&'a Slot, &'a Speed)>) -> Self {
        let measured = members.filter(|(_, speed)| speed.batch().is_some()).map(|(&slot, speed)| {
            let (batches, fills) = speed.kept();
            (slot, MemberState { slot, batches: batches.to_vec(), fills: fills.to_vec() })
        });
        self.members = measured.collect::<BTreeMap<_, _>>().into_values().collect();
        self
    }

    /// The same without the members' speeds: its size does not depend on how many there are.
    #[must_use]
    pub fn without_members(self) -> Self {
        Self { elected: None, members: Vec::new(), ..self }
    }

    /// Batches of the slowest member in a window.
    pub fn anchor(&self) -> u32 {
        self.anchor
    }

    /// Members whose speed is known, ascending.
    pub fn members(&self) -> impl Iterator<Item = Slot> {
        self.members.iter().map(|member| member.slot)
    }
}

impl GuardState {
    /// Hands the judges what they kept. Whether the guard took it; the rest goes on in any case.
    pub(crate) fn restore(&self, arbiter: &mut Arbiter) -> bool {
        if self.watcher.is_sound() {
            arbiter.watcher = self.watcher;
        }
        arbiter.limits = self.limits;
        arbiter.guard.name() == self.name && arbiter.guard.recall(&self.memory)
    }
}

/// What is known from before a restart of members that have not joined since.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Remembered {
    pub(crate) speeds: BTreeMap<Slot, Speed>,
    pub(crate) elected: Option<Slot>,
}

impl Remembered {
    pub(crate) fn of(state: &State) -> Self {
        let speed = |member: &MemberState| (member.slot, Speed::from_kept(&member.batches, &member.fills));
        let speeds = state.members.iter().map(speed).filter(|(_, speed)| speed.batch().is_some()).collect();
        Self { speeds, elected: state.elected }
    }
}
