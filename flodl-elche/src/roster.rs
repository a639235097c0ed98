//! Who is there and how fast: measured times, and before they are, what the user or the device's maker says.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::span::Slot;
use crate::speed::{Speed, median_in};
use crate::state::Remembered;
use crate::window::Known;

/// The members and everything known of their speeds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roster {
    pub(crate) members: BTreeMap<Slot, Speed>,
    /// From before a restart, of those that have not joined since.
    pub(crate) remembered: Remembered,
    /// Relative speeds by the user.
    pub(crate) hints: BTreeMap<Slot, f64>,
    /// Relative speeds by the devices' makers, in another unit.
    pub(crate) specs: BTreeMap<Slot, f64>,
    /// Nothing but the user's word counts; who has none counts with the median of those that have.
    pub(crate) fixed: bool,
}

/// Seconds a batch at a relative speed of 1, for each kind of relative speed; none where it cannot be known.
#[derive(Copy, Clone, Debug, PartialEq)]
struct Units {
    hint: Option<f64>,
    spec: Option<f64>,
}

impl Roster {
    /// Whether nobody is measured yet, or nobody is to be.
    pub(crate) fn is_unmeasured(&self) -> bool {
        self.fixed || self.members.values().all(|speed| speed.batch().is_none())
    }

    /// Seconds a batch of `slot`, as measured.
    pub(crate) fn measured(&self, slot: Slot) -> Option<f64> {
        self.members.get(&slot).and_then(Speed::batch)
    }

    /// Whether something says how fast `slot` is before it is measured.
    pub(crate) fn is_expected(&self, slot: Slot) -> bool {
        self.hints.contains_key(&slot) || self.specs.contains_key(&slot)
    }

    /// What is known of `slots`, in `known`: measured times, and what hints and devices say of the others on the same
    /// scale. Where nobody is measured the relative speeds' own scale serves, and callbacks cost nothing, because their
    /// times cannot be compared with it.
    pub(crate) fn know(
        &self,
        slots: impl Iterator<Item = Slot>,
        callbacks: &[(Slot, Duration)],
        known: &mut Vec<Known>,
        values: &mut Vec<f64>,
    ) {
        let unmeasured = self.is_unmeasured();
        let units = self.units(unmeasured, values);
        let callbacks = if unmeasured { &[] } else { callbacks };
        known.clear();
        // Members and slots both ascend: one walk over the members serves all slots.
        let mut members = self.members.iter().peekable();
        known.extend(slots.map(|slot| {
            while members.next_if(|(member, _)| **member < slot).is_some() {}
            let own = match members.peek() {
                Some((member, speed)) if **member == slot => speed.batch(),
                _ => self.measured(slot),
            };
            let own = own.filter(|_| !self.fixed);
            Known { slot, batch: own.or_else(|| self.prior(slot, units)), measured: own.is_some(), callback: 0.0 }
        }));
        if self.fixed {
            values.clear();
            values.extend(known.iter().filter_map(|member| member.batch));
            let unknown = median_in(values).unwrap_or(1.0);
            known.iter_mut().for_each(|member| member.batch = member.batch.or(Some(unknown)));
        }
        for &(slot, cost) in callbacks {
            if let Ok(at) = known.binary_search_by_key(&slot, |member| member.slot) {
                known[at].callback += cost.as_secs_f64();
            }
        }
    }

    fn prior(&self, slot: Slot, units: Units) -> Option<f64> {
        match (self.hints.get(&slot), self.specs.get(&slot)) {
            (Some(hint), _) => Some(units.hint? / hint),
            (None, Some(spec)) => Some(units.spec? / spec),
            (None, None) => None,
        }
    }

    fn units(&self, unmeasured: bool, values: &mut Vec<f64>) -> Units {
        let mut unit = |speeds: &BTreeMap<Slot, f64>, batch: &dyn Fn(Slot) -> Option<f64>| {
            values.clear();
            values.extend(speeds.iter().filter_map(|(&slot, speed)| Some(batch(slot)? * speed)));
            median_in(values)
        };
        let hint = if unmeasured { Some(1.0) } else { unit(&self.hints, &|slot| self.measured(slot)) };
        // The one unit is found from the other where a member has both.
        let by_hint = |slot| self.measured(slot).or_else(|| Some(hint? / self.hints.get(&slot)?));
        let spec = unit(&self.specs, &by_hint);
        let alone = unmeasured && self.hints.is_empty();
        Units { hint, spec: if alone { Some(1.0) } else { spec } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batch times by what is known, in milliseconds (or the relative speeds' own unit).
    fn known(measured: &[(u32, f64)], hints: &[(u32, f64)], specs: &[(u32, f64)]) -> Vec<Option<f64>> {
        let map = |list: &[(u32, f64)]| list.iter().map(|&(slot, x)| (Slot(slot), x)).collect::<BTreeMap<_, _>>();
        let mut roster = Roster { hints: map(hints), specs: map(specs), ..Roster::default() };
        roster.members = (0..3).map(|slot| (Slot(slot), Speed::default())).collect();
        for (slot, seconds) in map(measured) {
            roster.members.insert(slot, Speed::from_kept(&[seconds], &[]));
        }
        let mut known = Vec::new();
        roster.know((0..3).map(Slot), &[], &mut known, &mut Vec::new());
        known.iter().map(|member| member.batch).collect()
    }

    #[test]
    fn what_is_not_measured_is_put_on_the_same_scale() {
        for (measured, hints, specs, expected) in [
            ([].as_slice(), [].as_slice(), [].as_slice(), [None, None, None]),
            (&[(0, 2.0)], &[], &[], [Some(2.0), None, None]),
            (&[], &[(0, 4.0), (1, 1.0)], &[], [Some(0.25), Some(1.0), None]),
            // Hints and one measurement.
            (&[(0, 2.0)], &[(0, 4.0), (1, 1.0)], &[], [Some(2.0), Some(8.0), None]),
            // A measurement of somebody without a hint tells nothing of the hints' unit.
            (&[(2, 2.0)], &[(0, 4.0), (1, 1.0)], &[], [None, None, Some(2.0)]),
            // Devices alone, and with a measurement.
            (&[], &[], &[(0, 100.0), (2, 50.0)], [Some(0.01), None, Some(0.02)]),
            (&[(2, 3.0)], &[], &[(0, 100.0), (2, 50.0)], [Some(1.5), None, Some(3.0)]),
            // The user's word wins; the devices' unit follows from who has both.
            (&[], &[(0, 4.0)], &[(0, 100.0), (2, 50.0)], [Some(0.25), None, Some(0.5)]),
            // Nobody has both: a device's speed means nothing beside a hint.
            (&[], &[(0, 4.0)], &[(2, 50.0)], [Some(0.25), None, None]),
        ] {
            assert_eq!(known(measured, hints, specs), expected, "{measured:?} {hints:?} {specs:?}");
        }
    }
}
