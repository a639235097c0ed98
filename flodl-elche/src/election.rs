//! Which member's batches the anchor counts.

use crate::change::{Change, ElectedWhy};
use crate::span::Slot;

/// Members within this factor of the slowest are its cohort.
const COHORT: f64 = 1.15;
/// The elected member stays unless another is slower by more than this factor, so that jitter does not move the window.
const SLOWER: f64 = 1.10;
/// From this calibration on an election can be lost; until then the first measurements are too coarse to argue with.
const SETTLED_FROM: u32 = 5;

/// The elected slowest member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Election {
    current: Option<Slot>,
    /// Somebody came or went over whom it must be held again. Thousands come and go at once, so it waits until its outcome
    /// matters.
    called: bool,
}

impl Election {
    pub(crate) fn current(&self) -> Option<Slot> {
        self.current
    }

    /// Elects who was elected before a restart.
    pub(crate) fn recall(&mut self, slot: Slot) {
        self.current = Some(slot);
    }

    /// Elects the slowest by hints, as long as nothing is measured.
    pub(crate) fn pin(&mut self, times: &[(Slot, f64)]) -> Option<Change> {
        self.called = false;
        let (slowest, _) = slowest(times.iter().copied())?;
        (self.current != Some(slowest)).then(|| self.elect(slowest, times, ElectedWhy::Hint))
    }

    /// Forgets a member that left.
    pub(crate) fn leave(&mut self, slot: Slot) {
        if self.current == Some(slot) {
            self.current = None;
        }
        self.called |= self.current.is_none();
    }

    /// It is to be held again.
    pub(crate) fn call(&mut self) {
        self.called = true;
    }

    /// Whether it is to be held again.
    pub(crate) fn is_called(&self) -> bool {
        self.called
    }

    /// Looks at the batch times of those that have an estimate, ascending by slot.
    pub(crate) fn update(&mut self, times: &[(Slot, f64)], calibrations: u32) -> Option<Change> {
        self.called = false;
        let (slowest, longest) = slowest(times.iter().copied())?;
        let Some(current) = self.current else {
            let why = if calibrations <= 1 { ElectedWhy::First } else { ElectedWhy::Departed };
            return Some(self.elect(slowest, times, why));
        };
        if calibrations < SETTLED_FROM || current == slowest {
            return None;
        }
        let why = match times.iter().find(|&&(slot, _)| slot == current) {
            Some(&(_, time)) if longest > SLOWER * time => ElectedWhy::Slower { factor: longest / time },
            Some(_) => return None,
            None => ElectedWhy::Departed,
        };
        Some(self.elect(slowest, times, why))
    }

    fn elect(&mut self, slot: Slot, times: &[(Slot, f64)], why: ElectedWhy) -> Change {
        let longest = times.iter().map(|&(_, time)| time).fold(0.0, f64::max);
        let cohort = times.iter().filter(|&&(_, time)| time * COHORT >= longest).map(|&(slot, _)| slot).collect();
        Change::Elected { slot, before: self.current.replace(slot), cohort, why }
    }
}

/// The longest batch time; of equals the lowest slot.
pub(crate) fn slowest(times: impl Iterator<Item = (Slot, f64)>) -> Option<(Slot, f64)> {
    times.reduce(|best, next| if next.1 > best.1 { next } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(millis: &[f64]) -> Vec<(Slot, f64)> {
        millis.iter().enumerate().map(|(i, &ms)| (Slot(i as u32), ms)).collect()
    }

    #[test]
    fn the_elected_member_stays_within_ten_percent() {
        let mut election = Election::default();
        let first = election.update(&times(&[10.0, 30.0, 27.0]), 1);
        let cohort = vec![Slot(1), Slot(2)];
        assert_eq!(first, Some(Change::Elected { slot: Slot(1), before: None, cohort, why: ElectedWhy::First }));
        assert_eq!(election.update(&times(&[10.0, 30.0, 60.0]), 4), None, "too early to lose an election");
        assert_eq!(election.update(&times(&[10.0, 30.0, 32.9]), 9), None);
        assert!(election.update(&times(&[10.0, 30.0, 33.1]), 9).is_some());
        assert_eq!(election.current(), Some(Slot(2)));
        election.leave(Slot(2));
        election.update(&times(&[10.0, 30.0]), 9);
        assert_eq!(election.current(), Some(Slot(1)));
    }

    #[test]
    fn hints_pin_until_measured() {
        let mut election = Election::default();
        assert!(election.pin(&times(&[1.0, 4.0])).is_some());
        assert_eq!(election.pin(&times(&[1.0, 4.0])), None);
        assert_eq!(election.update(&times(&[9.0, 4.0]), 3), None);
        assert!(election.update(&times(&[9.0, 4.0]), 5).is_some());
        assert_eq!(election.update(&[], 9), None);
    }
}
