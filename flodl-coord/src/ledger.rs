//! Which samples are whose: the pools of the open epochs, and what all epochs together have committed.
//!
//! On the wire positions run on over the end of an epoch: position `epoch_len + i` of an epoch is position `i` of the next
//! one. Here is where they become positions of their own epochs and back.
//!
//! Where ranks train on while they average, a rank's report does not say all that its next snapshot will hold, and its window
//! ends with the snapshot: only that moves samples, and sends back what the window left of its lease.

use crate::Breach;
use crate::gate::PoolLevel;
use crate::id;
use flodl_elche::{EpochLease, Passes, Pool, PoolError, Settled, Slot, Span, Stream};
use flodl_wire::commit::CommitState;
use flodl_wire::message::commit::EpochRecord;
use flodl_wire::message::report::{FoldedPart, WindowReport};
use flodl_wire::{Epoch, Range, Rank, Round};
use std::collections::BTreeMap;

/// The samples' side of a run.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// The oldest epoch that is not closed.
    pub(crate) epoch: Epoch,
    stream: Stream,
    batch_size: u32,
    passes: Passes,
    /// Batches committed by all.
    pub(crate) global_step: u64,
    /// Samples of each open epoch whose setting aside is reported.
    quarantine_told: BTreeMap<Epoch, u64>,
    /// Where windows overlap: what each rank was leased, for the window that it is in and for the next one.
    leased: Option<BTreeMap<Rank, [Vec<EpochLease>; 2]>>,
}

/// Which window a lease is for, and the epoch that its positions count from.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// The one that the rank is in.
    This(Epoch),
    /// The one that begins at its next snapshot.
    Next(Epoch),
}

/// What a rank's snapshot holds, as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// The epoch that the ranges count from.
    pub(crate) epoch: Epoch,
    pub(crate) ranges: Vec<Range>,
}

/// What became of one rank's part of a round.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settlement {
    /// Samples committed.
    pub(crate) committed: u64,
    /// Those of them that are of a later epoch than the oldest that was open.
    pub(crate) later: u64,
    /// Samples that will be trained again, because their work is not (or not wholly) in the consensus.
    pub(crate) given_back: u64,
    /// Those of them of which a part is in the consensus all the same.
    pub(crate) repeats: u64,
}

/// How a rank's part of a round ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// How much of it is in the consensus.
    pub(crate) part: FoldedPart,
    /// Optimizer steps in it, where the rank lived to tell.
    pub(crate) steps: Option<u64>,
    /// Samples leased to it of which nobody heard whether they are in it; they have gone back.
    pub(crate) unheard: u64,
    /// Whether what is missing is missing by the rank's own doing.
    pub(crate) blamed: bool,
}

impl Ledger {
    /// `overlaps`: ranks train on while they average, also into the next epoch.
    pub(crate) fn new((passes, epochs): (Passes, u64), batch_size: u32, overlaps: bool) -> Ledger {
        let stream = Stream::cut(passes, batch_size, 0..epochs);
        Ledger {
            epoch: Epoch(0),
            stream: if overlaps { stream } else { stream.one_by_one() },
            batch_size,
            passes,
            global_step: 0,
            quarantine_told: BTreeMap::new(),
            leased: overlaps.then(BTreeMap::new),
        }
    }

    /// The samples' side of a run that goes on from the record of a commit.
    pub(crate) fn restore(
        (passes, epochs): (Passes, u64),
        (batch_size, overlaps): (u32, bool),
        commit: Option<&CommitState>,
    ) -> Result<Ledger, PoolError> {
        let mut ledger = Ledger::new((passes, epochs), batch_size, overlaps);
        let Some(commit) = commit else { return Ok(ledger) };
        let head = commit.head();
        // Where every epoch is over the last one is open, and complete.
        let is_over = head.epoch.0 >= epochs;
        let oldest = if is_over { epochs.saturating_sub(1) } else { head.epoch.0 };
        let stream = Stream::cut(passes, batch_size, oldest..epochs);
        ledger.stream = if overlaps { stream } else { stream.one_by_one() };
        let whole = EpochRecord {
            epoch: Epoch(oldest),
            committed: vec![Range { start: 0, end: passes.epoch_len(oldest) }],
            aside: Vec::new(),
        };
        for record in commit.epochs().chain(is_over.then_some(&whole)) {
            let mut pool =
                Pool::from_coverage(passes.epoch_len(record.epoch.0), batch_size, &id::spans(&record.committed))?;
            pool.set_aside(&id::spans(&record.aside))?;
            ledger.quarantine_told.insert(record.epoch, pool.quarantined());
            ledger.stream.put(record.epoch.0, pool);
        }
        (ledger.epoch, ledger.global_step) = (Epoch(oldest), head.global_step);
        Ok(ledger)
    }

    /// A rank has these positions of the oldest epoch from before a restart. False where somebody else has some of them.
    pub(crate) fn adopt(&mut self, rank: Rank, leases: &[Range]) -> bool {
        let pool = self.stream.pool(self.epoch.0);
        pool.is_some_and(|pool| pool.adopt(id::slot(rank), &id::spans(leases)).is_ok())
    }

    /// The oldest epoch that is not over, and what is committed and set aside of those that have begun.
    pub(crate) fn recorded(&self) -> (Epoch, Vec<EpochRecord>) {
        let (oldest, open) = self.unfinished();
        let record = |(epoch, pool): (Epoch, &Pool)| EpochRecord {
            epoch,
            committed: id::ranges(&pool.coverage()),
            aside: id::ranges(&pool.quarantine()),
        };
        (oldest, open.into_iter().map(record).collect())
    }

    /// Whether ranks train on while they average.
    pub(crate) fn overlaps(&self) -> bool {
        self.leased.is_some()
    }

    pub(crate) fn level(&self) -> PoolLevel {
        PoolLevel { available: self.stream.available(), outstanding: self.stream.outstanding() }
    }

    /// Positions in the longest epoch. Over the wire they count on so far from one epoch to the next, also where one is
    /// shorter.
    pub(crate) fn epoch_len(&self) -> u64 {
        self.passes.longest()
    }

    /// Divides the oldest epoch among the members in proportion to their speeds, where nothing of it is leased yet.
    pub(crate) fn reserve(&mut self, weights: &[(Slot, f64)]) {
        let oldest = self.stream.oldest();
        if let Some(pool) = self.stream.pool(oldest).filter(|pool| pool.available() == pool.epoch_len()) {
            pool.reserve(weights);
        }
    }

    /// Up to `samples` positions for a rank. `weights` divide an epoch that is opened by this.
    pub(crate) fn lease(&mut self, rank: Rank, samples: u64, (window, weights): (For, &[(Slot, f64)])) -> Vec<Range> {
        let leases = self.stream.lease(id::slot(rank), samples, weights);
        let (For::This(base) | For::Next(base)) = window;
        let ranges = leases.iter().flat_map(|lease| self.counted(base, lease)).collect();
        if let Some(leased) = &mut self.leased {
            let [this, next] = leased.entry(rank).or_default();
            match window {
                For::This(_) => this.extend(leases),
                For::Next(_) => next.extend(leases),
            }
        }
        ranges
    }

    /// Samples leased to a rank that comes out of a round, of which nobody heard whether they are in it. `told`: it has said
    /// what its snapshot holds.
    pub(crate) fn unheard(&self, rank: Rank, told: bool) -> u64 {
        match &self.leased {
            // What it was leased since then is in no round.
            Some(_) if told => 0,
            Some(leased) => {
                leased.get(&rank).map_or(0, |[this, _]| this.iter().flat_map(|l| &l.spans).map(Span::len).sum())
            }
            None => self.stream.open().map(|(_, pool)| pool.out_of(id::slot(rank))).sum(),
        }
    }

    fn counted(&self, base: Epoch, lease: &EpochLease) -> Vec<Range> {
        let on = lease.epoch.saturating_sub(base.0) * self.epoch_len();
        let moved = |range: Range| Range { start: range.start + on, end: range.end + on };
        id::ranges(&lease.spans).into_iter().map(moved).collect()
    }

    /// Positions counted from `base` as positions of their epochs. A hostile list gives epochs that are not open.
    fn by_epoch(&self, base: Epoch, ranges: &[Range]) -> Vec<EpochLease> {
        let (mut leases, epoch_len): (Vec<EpochLease>, u64) = (Vec::new(), self.epoch_len());
        for span in id::spans(ranges) {
            let mut start = span.start;
            while start < span.end {
                let past = start / epoch_len;
                let end = span.end.min((past + 1).saturating_mul(epoch_len));
                let (epoch, on) = (base.0.saturating_add(past), past * epoch_len);
                let part = Span::new(start - on, end - on);
                match leases.last_mut() {
                    Some(last) if last.epoch == epoch => last.spans.push(part),
                    _ => leases.push(EpochLease { epoch, spans: vec![part] }),
                }
                start = end;
                // Nobody holds anything this far on.
                if past > 2 {
                    break;
                }
            }
        }
        leases
    }

    /// A rank's window is over: what it used is trained, the rest of its leases goes back. Where it trains on, its next
    /// snapshot says so.
    ///
    /// Who trained a batch trained at least a sample, and who trained samples trained a batch: otherwise the gate could
    /// take a rank that holds trained samples for one that has not moved.
    pub(crate) fn report(&mut self, rank: Rank, report: &WindowReport) -> Result<(), Breach> {
        let samples = flodl_wire::id::samples(&report.used);
        let batches = u64::from(report.batches);
        let possible = samples.div_ceil(u64::from(self.batch_size))..=samples;
        if report.samples != samples || !possible.contains(&batches) {
            return Err(Breach::Figures { batches, told: report.samples, samples });
        }
        if self.leased.is_some() {
            return Ok(());
        }
        self.take_as_trained(rank, &self.by_epoch(report.epoch, &report.used), samples)?;
        if let Some(pool) = self.stream.pool(report.epoch.0) {
            pool.give_back_unused(id::slot(rank));
        }
        Ok(())
    }

    fn take_as_trained(&mut self, rank: Rank, leases: &[EpochLease], samples: u64) -> Result<(), Breach> {
        for EpochLease { epoch, spans } in leases {
            let trained = self.stream.pool(*epoch).map(|pool| pool.trained(id::slot(rank), spans));
            if !matches!(trained, Some(Ok(()))) {
                return Err(Breach::NotLeased { got: samples });
            }
        }
        Ok(())
    }

    /// A rank's snapshot is taken: what it trained is in the round now, whatever the snapshot says it is. It must be what
    /// the rank has reported; where windows overlap it says what was trained, and the rest of that window's lease goes back.
    pub(crate) fn enter_round(&mut self, rank: Rank, round: Round, told: &Told) -> Result<(), Breach> {
        let slot = id::slot(rank);
        if self.leased.is_some() {
            let samples = flodl_wire::id::samples(&told.ranges);
            let taken = self.take_as_trained(rank, &self.by_epoch(told.epoch, &told.ranges), samples);
            self.stream.enter_round(slot, round.0);
            self.end_lease(rank);
            return taken;
        }
        let entered = self.stream.enter_round(slot, round.0);
        let reported: Vec<Range> = entered.iter().flat_map(|lease| self.counted(self.epoch, lease)).collect();
        if told.ranges.is_empty() && reported.is_empty() {
            return Ok(());
        }
        if told.epoch == self.epoch && joined(&told.ranges) == reported {
            return Ok(());
        }
        let (snapshot, reported) = (flodl_wire::id::samples(&told.ranges), flodl_wire::id::samples(&reported));
        Err(Breach::Snapshot { snapshot, reported })
    }

    /// The window that a rank is in is over for its samples: what is still out of its lease goes back.
    fn end_lease(&mut self, rank: Rank) {
        let Some([this, next]) = self.leased.as_mut().and_then(|leased| leased.get_mut(&rank)) else { return };
        for EpochLease { epoch, spans } in std::mem::replace(this, std::mem::take(next)) {
            if let Some(pool) = self.stream.pool(epoch) {
                pool.give_back_within(id::slot(rank), &spans);
            }
        }
    }

    /// A rank died in an open round: what it trained is settled with the round.
    pub(crate) fn enter_round_at_death(&mut self, rank: Rank, round: Round) {
        self.stream.enter_round(id::slot(rank), round.0);
    }

    /// The round is run again under another number: what the rank has in it stays trained, and is in the next one.
    pub(crate) fn leave_round(&mut self, rank: Rank, round: Round) {
        self.stream.settle(round.0, id::slot(rank), Settled::Keep);
    }

    /// The round is over: what was folded whole is committed, the rest goes back.
    pub(crate) fn settle(&mut self, rank: Rank, round: Round, verdict: Verdict) -> Settlement {
        let outcome = match verdict.part {
            FoldedPart::Whole => Settled::Commit,
            FoldedPart::None if verdict.blamed => Settled::Poisoned,
            FoldedPart::None => Settled::GiveBack,
            FoldedPart::Chunks(_) => Settled::Repeat,
        };
        let by_epoch = self.stream.settle(round.0, id::slot(rank), outcome);
        let samples: u64 = by_epoch.iter().map(|(_, samples)| samples).sum();
        match verdict.part {
            FoldedPart::Whole => {
                // Who died before it told its steps trained whole batches but for the last; nobody makes a step on nothing.
                let steps = verdict.steps.unwrap_or(samples.div_ceil(u64::from(self.batch_size)));
                self.global_step = self.global_step.saturating_add(steps.min(samples));
                let later =
                    by_epoch.iter().filter(|(epoch, _)| *epoch > self.epoch.0).map(|(_, samples)| samples).sum();
                Settlement { committed: samples, later, given_back: verdict.unheard, repeats: verdict.unheard }
            }
            FoldedPart::None => Settlement { given_back: samples, ..Settlement::default() },
            FoldedPart::Chunks(_) => {
                let again = samples + verdict.unheard;
                Settlement { given_back: again, repeats: again, ..Settlement::default() }
            }
        }
    }

    /// A rank is dead: what it holds goes back, unless it is in a round. `blamed`: it brought itself down, maybe over
    /// these samples.
    pub(crate) fn release(&mut self, rank: Rank, blamed: bool) {
        if let Some(leased) = &mut self.leased {
            leased.remove(&rank);
        }
        if blamed {
            self.stream.release_poisoned(id::slot(rank));
        } else {
            self.stream.release(id::slot(rank));
        }
    }

    /// Whether every sample of the oldest epoch is committed or set aside.
    pub(crate) fn epoch_is_complete(&self) -> bool {
        self.stream.open().next().is_none_or(|(_, pool)| pool.is_complete())
    }

    /// Whether every sample of every epoch is committed or set aside.
    pub(crate) fn is_complete(&self) -> bool {
        self.stream.is_complete()
    }

    /// Closes the oldest epoch, where it is complete.
    pub(crate) fn close_epoch(&mut self) -> Option<Epoch> {
        let closed = Epoch(self.stream.close()?);
        self.quarantine_told.remove(&closed);
        self.epoch = Epoch(self.stream.oldest());
        Some(closed)
    }

    /// Samples of the open epochs that were set aside since this was asked last, with everything set aside in theirs.
    pub(crate) fn newly_quarantined(&mut self) -> Vec<(Epoch, u64, Vec<Range>)> {
        let mut news = Vec::new();
        for (epoch, pool) in self.stream.open() {
            let (epoch, all) = (Epoch(epoch), pool.quarantined());
            let told = self.quarantine_told.insert(epoch, all).unwrap_or(0);
            if all > told {
                news.push((epoch, all - told, id::ranges(&pool.quarantine())));
            }
        }
        news
    }

    /// The oldest epoch that is not complete, and what is committed of each that has begun.
    pub(crate) fn open_epochs(&self) -> (Epoch, Vec<(Epoch, Vec<Range>)>) {
        let (oldest, open) = self.unfinished();
        (oldest, open.into_iter().map(|(epoch, pool)| (epoch, id::ranges(&pool.coverage()))).collect())
    }

    /// The oldest epoch that is not complete, and those open from there on.
    fn unfinished(&self) -> (Epoch, Vec<(Epoch, &Pool)>) {
        let open = self.stream.open().skip_while(|(_, pool)| pool.is_complete());
        let open: Vec<(Epoch, &Pool)> = open.map(|(epoch, pool)| (Epoch(epoch), pool)).collect();
        let after = self.stream.open().last().map_or(self.epoch.0, |(epoch, _)| epoch + 1);
        (open.first().map_or(Epoch(after), |(epoch, _)| *epoch), open)
    }

    /// Samples a batch.
    pub(crate) fn batch_size(&self) -> u32 {
        self.batch_size
    }
}

/// The same positions in ascending ranges that do not touch.
fn joined(ranges: &[Range]) -> Vec<Range> {
    let mut sorted: Vec<Range> = ranges.iter().copied().filter(|range| !range.is_empty()).collect();
    sorted.sort_unstable();
    let mut joined: Vec<Range> = Vec::new();
    for range in sorted {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Verdict = Verdict { part: FoldedPart::Whole, steps: Some(1), unheard: 0, blamed: false };

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    fn told(epoch: u64, ranges: &[Range]) -> Told {
        Told { epoch: Epoch(epoch), ranges: ranges.to_vec() }
    }

    #[test]
    fn a_complete_epoch_is_no_longer_open() {
        let mut ledger = Ledger::new((Passes::new(100, 1), 1), 10, false);
        for (samples, open) in [(60, (Epoch(0), vec![(Epoch(0), vec![range(0, 60)])])), (40, (Epoch(1), vec![]))] {
            let leases = ledger.lease(Rank(0), samples, (For::This(Epoch(0)), &[]));
            let report = WindowReport {
                batches: samples.div_ceil(10) as u32,
                samples,
                used: leases.clone(),
                ..WindowReport::default()
            };
            ledger.report(Rank(0), &report).expect("what was leased");
            ledger.enter_round(Rank(0), Round(1), &told(0, &leases)).expect("what was trained");
            assert_eq!(ledger.settle(Rank(0), Round(1), WHOLE).committed, samples);
            assert_eq!(ledger.open_epochs(), open);
        }
    }

    #[test]
    fn where_windows_overlap_a_snapshot_says_what_was_trained_and_the_rest_of_that_window_goes_back() {
        let (one, other) = (Rank(0), Rank(1));
        let mut ledger = Ledger::new((Passes::new(100, 1), 2), 10, true);
        assert_eq!(ledger.lease(one, 60, (For::This(Epoch(0)), &[])), [range(0, 60)]);
        // Its next window runs on into the next epoch.
        assert_eq!(ledger.lease(one, 60, (For::Next(Epoch(0)), &[])), [range(60, 100), range(100, 120)]);
        assert_eq!(ledger.level().available, 80);
        ledger.enter_round(one, Round(1), &told(0, &[range(0, 50)])).expect("it holds them");
        assert_eq!(ledger.level().available, 90, "what the window left is free, what the next one has is not");
        assert_eq!(ledger.lease(other, 10, (For::This(Epoch(0)), &[])), [range(50, 60)]);
        assert_eq!(ledger.settle(one, Round(1), WHOLE).committed, 50);
        // The next snapshot holds positions of both epochs; nothing of the first one is left out of it.
        ledger.enter_round(one, Round(2), &told(0, &[range(60, 120)])).expect("it holds them");
        ledger.enter_round(other, Round(2), &told(0, &[range(50, 60)])).expect("it holds them");
        assert_eq!((ledger.settle(one, Round(2), WHOLE).committed, ledger.close_epoch()), (60, None));
        assert_eq!((ledger.settle(other, Round(2), WHOLE).committed, ledger.close_epoch()), (10, Some(Epoch(0))));
        assert_eq!((ledger.epoch, ledger.open_epochs().1), (Epoch(1), vec![(Epoch(1), vec![range(0, 20)])]));
    }

    #[test]
    fn what_may_be_in_a_contribution_whose_snapshot_was_never_heard_of_is_trained_again_and_counted() {
        for (part, repeats) in [(FoldedPart::Whole, 60), (FoldedPart::Chunks(2), 60), (FoldedPart::None, 0)] {
            let mut ledger = Ledger::new((Passes::new(100, 1), 1), 10, true);
            ledger.lease(Rank(0), 60, (For::This(Epoch(0)), &[]));
            ledger.lease(Rank(0), 30, (For::Next(Epoch(0)), &[]));
            let unheard = ledger.unheard(Rank(0), false);
            assert_eq!((unheard, ledger.unheard(Rank(0), true)), (60, 0), "what begins later is in no round");
            ledger.enter_round_at_death(Rank(0), Round(1));
            ledger.release(Rank(0), false);
            assert_eq!(ledger.level().available, 100);
            let settled = ledger.settle(Rank(0), Round(1), Verdict { part, steps: None, unheard, blamed: false });
            assert_eq!((settled.committed, settled.repeats), (0, repeats));
        }
    }

    #[test]
    fn positions_that_nobody_holds_are_a_breach_wherever_they_are() {
        for ranges in [vec![range(0, 70)], vec![range(100, 110)], vec![range(5000, u64::MAX)]] {
            let mut ledger = Ledger::new((Passes::new(100, 1), 2), 10, true);
            ledger.lease(Rank(0), 60, (For::This(Epoch(0)), &[]));
            let breach = ledger.enter_round(Rank(0), Round(1), &told(0, &ranges));
            assert!(matches!(breach, Err(Breach::NotLeased { .. })), "{ranges:?}: {breach:?}");
        }
    }
}
