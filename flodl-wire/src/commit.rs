//! Records of commits put together: what is true since the newest, what has changed since an older one, and the parts in
//! which a complete record travels.

use crate::limits::{COMMIT_LIVES, COMMIT_RANGES};
use crate::message::commit::{CommitHead, CommitRecord, EpochRecord, LifeRecord, Moment};
use crate::{Epoch, Range, Rank};
use std::collections::BTreeMap;
use thiserror::Error;

/// Everything that the records so far say together.
///
/// ```
/// use flodl_wire::commit::{CommitState, Keeper};
/// use flodl_wire::message::commit::{CommitHead, EpochRecord, Moment};
/// use flodl_wire::{Epoch, Range, Round};
///
/// let head = |round| CommitHead { moment: Moment { generation: 0, round: Round(round) }, ..CommitHead::default() };
/// let epoch = |end| EpochRecord { epoch: Epoch(0), committed: vec![Range { start: 0, end }], aside: Vec::new() };
/// let older = CommitState::new(head(3), [], [epoch(10)]);
/// let newer = CommitState::new(head(4), [], [epoch(25)]);
/// let change = newer.change_since(&older);
/// assert_eq!(change.epochs[0].committed, [Range { start: 10, end: 25 }]);
///
/// let mut copy = Keeper::default();
/// let parts = older.parts();
/// for (part, record) in (0..).zip(&parts) {
///     copy.take_part(part, parts.len() as u32, record.clone());
/// }
/// copy.take_change(&change)?;
/// assert_eq!(copy.state(), Some(&newer));
/// # Ok::<(), flodl_wire::commit::NotNext>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommitState {
    head: CommitHead,
    lives: BTreeMap<Rank, LifeRecord>,
    epochs: BTreeMap<Epoch, EpochRecord>,
}

/// Changes since a record that is not the newest one here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("these are changes since {since:?}, and what is known here is {known:?}: a complete record is needed")]
pub struct NotNext {
    /// What the changes begin from.
    pub since: Option<Moment>,
    /// The newest record here.
    pub known: Option<Moment>,
}

impl CommitState {
    /// What is true with these lives and epochs. Ranges may come in any order; epochs before the head's are left out.
    #[must_use]
    pub fn new(
        head: CommitHead,
        lives: impl IntoIterator<Item = LifeRecord>,
        epochs: impl IntoIterator<Item = EpochRecord>,
    ) -> CommitState {
        let mut state = CommitState { head, ..CommitState::default() };
        state.set_lives(lives);
        state.add_epochs(epochs);
        state
    }

    /// What is true of the run as a whole.
    #[must_use]
    pub const fn head(&self) -> &CommitHead {
        &self.head
    }

    /// The newest life of each rank, in rank order.
    pub fn lives(&self) -> impl Iterator<Item = &LifeRecord> {
        self.lives.values()
    }

    /// The epochs that are not over and have something committed or set aside.
    pub fn epochs(&self) -> impl Iterator<Item = &EpochRecord> {
        self.epochs.values()
    }

    /// What must be told to somebody who knows `older` for them to know this. Positions that `older` has and this has not
    /// cannot be told: they are committed for good.
    #[must_use]
    pub fn change_since(&self, older: &CommitState) -> CommitRecord {
        let lives = self.lives.values().filter(|life| older.lives.get(&life.rank) != Some(life)).copied().collect();
        let none = EpochRecord::default();
        let epochs = self.epochs.values().map(|epoch| {
            let known = older.epochs.get(&epoch.epoch).unwrap_or(&none);
            EpochRecord {
                epoch: epoch.epoch,
                committed: without(&epoch.committed, &known.committed),
                aside: without(&epoch.aside, &known.aside),
            }
        });
        let epochs = epochs.filter(|epoch| !epoch.committed.is_empty() || !epoch.aside.is_empty()).collect();
        CommitRecord { head: self.head.clone(), since: Some(older.head.moment), lives, epochs }
    }

    /// Learns what has changed.
    ///
    /// # Errors
    ///
    /// Where the record's changes do not begin from this; nothing has changed then.
    pub fn take(&mut self, change: &CommitRecord) -> Result<(), NotNext> {
        let known = self.head.moment;
        if change.since != Some(known) || change.head.moment <= known {
            return Err(NotNext { since: change.since, known: Some(known) });
        }
        self.learn(change);
        Ok(())
    }

    /// Learns what became of lives since the newest record.
    pub fn set_lives(&mut self, lives: impl IntoIterator<Item = LifeRecord>) {
        for life in lives {
            let newer = self.lives.get(&life.rank).is_none_or(|known| known.incarnation <= life.incarnation);
            if newer {
                self.lives.insert(life.rank, life);
            }
        }
    }

    /// All of it, in parts that each fit a message of [`crate::limits::COMMIT_PART`] bytes. At least one.
    #[must_use]
    pub fn parts(&self) -> Vec<CommitRecord> {
        let part = |lives: &[LifeRecord], epochs| CommitRecord {
            head: self.head.clone(),
            since: None,
            lives: lives.to_vec(),
            epochs,
        };
        let lives: Vec<LifeRecord> = self.lives.values().copied().collect();
        let mut parts: Vec<CommitRecord> = lives.chunks(COMMIT_LIVES).map(|lives| part(lives, Vec::new())).collect();
        for epoch in self.epochs.values() {
            let committed = epoch.committed.chunks(COMMIT_RANGES).map(|ranges| (ranges.to_vec(), Vec::new()));
            let aside = epoch.aside.chunks(COMMIT_RANGES).map(|ranges| (Vec::new(), ranges.to_vec()));
            let record = |(committed, aside)| EpochRecord { epoch: epoch.epoch, committed, aside };
            parts.extend(committed.chain(aside).map(|ranges| part(&[], vec![record(ranges)])));
        }
        if parts.is_empty() {
            parts.push(part(&[], Vec::new()));
        }
        parts
    }

    fn learn(&mut self, record: &CommitRecord) {
        self.head = record.head.clone();
        let over = self.head.epoch;
        self.epochs.retain(|&epoch, _| epoch >= over);
        self.set_lives(record.lives.iter().copied());
        self.add_epochs(record.epochs.iter().cloned());
    }

    fn add_epochs(&mut self, epochs: impl IntoIterator<Item = EpochRecord>) {
        for EpochRecord { epoch, committed, aside } in epochs {
            if epoch < self.head.epoch || (committed.is_empty() && aside.is_empty()) {
                continue;
            }
            let known = self.epochs.entry(epoch).or_insert_with(|| EpochRecord { epoch, ..EpochRecord::default() });
            known.committed.extend(committed);
            known.aside.extend(aside);
            join(&mut known.committed);
            join(&mut known.aside);
        }
    }
}

/// Somebody's copy of the newest record, kept up to date with what it is sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Keeper {
    state: Option<CommitState>,
    /// A complete record of which so many parts are here.
    coming: Option<(u32, CommitState)>,
}

impl Keeper {
    /// The newest record, once there is a complete one.
    #[must_use]
    pub const fn state(&self) -> Option<&CommitState> {
        self.state.as_ref()
    }

    /// Which commit that is.
    #[must_use]
    pub fn moment(&self) -> Option<Moment> {
        self.state.as_ref().map(|state| state.head.moment)
    }

    /// A part of a complete record. Parts come in order; the last one makes it the newest here, unless a newer one is.
    pub fn take_part(&mut self, part: u32, parts: u32, record: CommitRecord) {
        let mut coming = match self.coming.take() {
            _ if part == 0 => CommitState { head: record.head.clone(), ..CommitState::default() },
            Some((next, coming)) if next == part && coming.head.moment == record.head.moment => coming,
            Some(_) | None => return,
        };
        coming.learn(&record);
        let next = part.saturating_add(1);
        if next < parts {
            self.coming = Some((next, coming));
        } else if self.moment().is_none_or(|known| known <= coming.head.moment) {
            self.state = Some(coming);
        }
    }

    /// The changes of a round.
    ///
    /// # Errors
    ///
    /// Where they do not begin from the newest record here. That one is out of date then, but stays: it is true of its
    /// moment.
    pub fn take_change(&mut self, change: &CommitRecord) -> Result<(), NotNext> {
        match &mut self.state {
            Some(state) => state.take(change),
            None => Err(NotNext { since: change.since, known: None }),
        }
    }
}

/// Brings ranges into ascending order, and makes those one that touch or overlap.
fn join(ranges: &mut Vec<Range>) {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let touches = next.start <= last.end;
        if touches {
            last.end = last.end.max(next.end);
        }
        touches
    });
}

/// The positions of `ranges` that are not in `known`; both ascending, without overlaps.
fn without(ranges: &[Range], known: &[Range]) -> Vec<Range> {
    let mut rest = Vec::new();
    let mut known = known.iter().peekable();
    for range in ranges {
        let mut start = range.start;
        while let Some(&&Range { start: from, end: to }) = known.peek().filter(|next| next.start < range.end) {
            if from > start {
                rest.push(Range { start, end: from });
            }
            start = start.max(to);
            if to > range.end {
                break;
            }
            known.next();
        }
        if start < range.end {
            rest.push(Range { start, end: range.end });
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    #[test]
    fn what_is_left_of_ranges() {
        for (ranges, known, rest) in [
            (vec![range(0, 10)], vec![], vec![range(0, 10)]),
            (vec![range(0, 10)], vec![range(0, 10)], vec![]),
            (vec![range(5, 30)], vec![range(0, 7), range(10, 12), range(25, 40)], vec![range(7, 10), range(12, 25)]),
            (vec![range(0, 4), range(8, 12)], vec![range(2, 10)], vec![range(0, 2), range(10, 12)]),
            (vec![range(0, 4), range(8, 12)], vec![range(20, 30)], vec![range(0, 4), range(8, 12)]),
        ] {
            assert_eq!(without(&ranges, &known), rest, "{ranges:?} without {known:?}");
        }
    }

    #[test]
    fn parts_that_do_not_belong_together_make_no_record() {
        let head = |round| {
            let moment = Moment { generation: 0, round: crate::Round(round) };
            CommitRecord {
                head: CommitHead { moment, ..CommitHead::default() },
                since: None,
                lives: Vec::new(),
                epochs: Vec::new(),
            }
        };
        for (parts, newest) in [
            (vec![(0, 2, 1), (1, 2, 1)], Some(1)),
            (vec![(1, 2, 1)], None),
            (vec![(0, 3, 1), (2, 3, 1)], None),
            (vec![(0, 2, 1), (1, 2, 2)], None),
            (vec![(0, 2, 1), (0, 1, 2)], Some(2)),
            (vec![(0, 1, 5), (0, 1, 4)], Some(5)),
        ] {
            let mut copy = Keeper::default();
            parts.iter().for_each(|&(part, parts, round)| copy.take_part(part, parts, head(round)));
            assert_eq!(copy.moment().map(|moment| moment.round.0), newest, "{parts:?}");
        }
    }
}
