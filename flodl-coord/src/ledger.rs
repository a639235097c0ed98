//! Which samples are whose: the open epoch's pool, and what all epochs together have committed.

use crate::Breach;
use crate::gate::PoolLevel;
use crate::id;
use flodl_elche::{Pool, PoolError, Settled, Slot};
use flodl_wire::commit::CommitState;
use flodl_wire::message::commit::EpochRecord;
use flodl_wire::message::report::{FoldedPart, WindowReport};
use flodl_wire::{Epoch, Range, Rank, Round};

/// The samples' side of a run.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) epoch: Epoch,
    pool: Pool,
    batch_size: u32,
    epoch_len: u64,
    epochs: u64,
    /// Batches committed by all.
    pub(crate) global_step: u64,
    /// Samples of the open epoch whose setting aside is reported.
    quarantine_told: u64,
}

/// What became of one rank's part of a round.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settlement {
    /// Samples committed.
    pub(crate) committed: u64,
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
    pub(crate) fn new(epoch_len: u64, epochs: u64, batch_size: u32) -> Ledger {
        let pool = Pool::new(epoch_len, batch_size);
        Ledger { epoch: Epoch(0), pool, batch_size, epoch_len, epochs, global_step: 0, quarantine_told: 0 }
    }

    /// The samples' side of a run that goes on from the record of a commit.
    pub(crate) fn restore(
        (epoch_len, epochs, batch_size): (u64, u64, u32),
        commit: Option<&CommitState>,
    ) -> Result<Ledger, PoolError> {
        let Some(commit) = commit else { return Ok(Ledger::new(epoch_len, epochs, batch_size)) };
        let head = commit.head();
        // Where every epoch is over the last one is open, and complete.
        let is_over = head.epoch.0 >= epochs;
        let epoch = if is_over { Epoch(epochs.saturating_sub(1)) } else { head.epoch };
        let record = commit.epochs().find(|record| record.epoch == epoch);
        let whole = [Range { start: 0, end: epoch_len }];
        let (committed, aside) = match record {
            _ if is_over => (&whole[..], &[][..]),
            Some(record) => (&record.committed[..], &record.aside[..]),
            None => (&[][..], &[][..]),
        };
        let mut pool = Pool::from_coverage(epoch_len, batch_size, &id::spans(committed))?;
        pool.set_aside(&id::spans(aside))?;
        let quarantine_told = pool.quarantined();
        let global_step = head.global_step;
        Ok(Ledger { epoch, pool, batch_size, epoch_len, epochs, global_step, quarantine_told })
    }

    /// A rank has these positions from before a restart. False where somebody else has some of them.
    pub(crate) fn adopt(&mut self, rank: Rank, leases: &[Range]) -> bool {
        self.pool.adopt(id::slot(rank), &id::spans(leases)).is_ok()
    }

    /// The oldest epoch that is not over, and what is committed and set aside of those that have begun.
    pub(crate) fn recorded(&self) -> (Epoch, Vec<EpochRecord>) {
        if self.epoch_is_complete() {
            return (Epoch(self.epoch.0 + 1), Vec::new());
        }
        let (committed, aside) = (id::ranges(&self.pool.coverage()), id::ranges(&self.pool.quarantine()));
        (self.epoch, vec![EpochRecord { epoch: self.epoch, committed, aside }])
    }

    pub(crate) fn level(&self) -> PoolLevel {
        PoolLevel { available: self.pool.available(), outstanding: self.pool.outstanding() }
    }

    /// Positions in an epoch.
    pub(crate) fn epoch_len(&self) -> u64 {
        self.epoch_len
    }

    /// Divides what is free of the epoch among the members, in proportion to their speeds.
    pub(crate) fn reserve(&mut self, weights: &[(Slot, f64)]) {
        self.pool.reserve(weights);
    }

    /// Up to `samples` positions for a rank.
    pub(crate) fn lease(&mut self, rank: Rank, samples: u64) -> Vec<Range> {
        id::ranges(&self.pool.lease(id::slot(rank), samples))
    }

    /// Samples that are leased to a rank and not reported on.
    pub(crate) fn leased(&self, rank: Rank) -> u64 {
        self.pool.out_of(id::slot(rank))
    }

    /// A rank's window is over: what it used is trained, the rest of its leases goes back.
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
        let spans = id::spans(&report.used);
        self.pool.trained(id::slot(rank), &spans).map_err(|_| Breach::NotLeased { got: samples })?;
        self.pool.give_back_unused(id::slot(rank));
        Ok(())
    }

    /// A rank's snapshot is taken: what it trained is in the round now, whatever the snapshot says it is. It must be what
    /// the rank has reported.
    pub(crate) fn enter_round(&mut self, rank: Rank, round: Round, ranges: &[Range]) -> Result<(), Breach> {
        let reported = id::ranges(&self.pool.enter_round(id::slot(rank), round.0));
        if joined(ranges) == reported {
            return Ok(());
        }
        let (snapshot, reported) = (flodl_wire::id::samples(ranges), flodl_wire::id::samples(&reported));
        Err(Breach::Snapshot { snapshot, reported })
    }

    /// A rank died in an open round: what it trained is settled with the round.
    pub(crate) fn enter_round_at_death(&mut self, rank: Rank, round: Round) {
        self.pool.enter_round(id::slot(rank), round.0);
    }

    /// The round is over: what was folded whole is committed, the rest goes back.
    pub(crate) fn settle(&mut self, rank: Rank, round: Round, verdict: Verdict) -> Settlement {
        let outcome = match verdict.part {
            FoldedPart::Whole => Settled::Commit,
            FoldedPart::None if verdict.blamed => Settled::Poisoned,
            FoldedPart::None => Settled::GiveBack,
            FoldedPart::Chunks(_) => Settled::Repeat,
        };
        let spans = self.pool.settle(round.0, id::slot(rank), outcome);
        let samples: u64 = spans.iter().map(flodl_elche::Span::len).sum();
        match verdict.part {
            FoldedPart::Whole => {
                // Who died before it told its steps trained whole batches but for the last; nobody makes a step on nothing.
                let steps = verdict.steps.unwrap_or(samples.div_ceil(u64::from(self.batch_size)));
                self.global_step = self.global_step.saturating_add(steps.min(samples));
                Settlement { committed: samples, given_back: verdict.unheard, repeats: verdict.unheard }
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
        if blamed {
            self.pool.release_poisoned(id::slot(rank));
        } else {
            self.pool.release(id::slot(rank));
        }
    }

    /// Whether every sample of the epoch is committed or set aside.
    pub(crate) fn epoch_is_complete(&self) -> bool {
        self.pool.is_complete()
    }

    /// Whether the open epoch is the last one.
    pub(crate) fn is_last_epoch(&self) -> bool {
        self.epoch.0 + 1 >= self.epochs
    }

    /// Opens the next epoch.
    pub(crate) fn next_epoch(&mut self) {
        self.quarantine_told = 0;
        self.epoch = Epoch(self.epoch.0 + 1);
        self.pool = Pool::new(self.epoch_len, self.batch_size);
    }

    /// Samples of the open epoch that were set aside since this was asked last, with everything set aside in it.
    pub(crate) fn newly_quarantined(&mut self) -> Option<(u64, Vec<Range>)> {
        let all = self.pool.quarantined();
        let new = all - self.quarantine_told;
        self.quarantine_told = all;
        (new > 0).then(|| (new, id::ranges(&self.pool.quarantine())))
    }

    /// The oldest epoch that is not complete, and what is committed of each that has begun.
    pub(crate) fn open_epochs(&self) -> (Epoch, Vec<(Epoch, Vec<Range>)>) {
        if self.epoch_is_complete() {
            return (Epoch(self.epoch.0 + 1), Vec::new());
        }
        (self.epoch, vec![(self.epoch, id::ranges(&self.pool.coverage()))])
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

    #[test]
    fn a_complete_epoch_is_no_longer_open() {
        let mut ledger = Ledger::new(100, 1, 10);
        let whole = Verdict { part: FoldedPart::Whole, steps: None, unheard: 0, blamed: false };
        for (samples, open) in
            [(60, (Epoch(0), vec![(Epoch(0), vec![Range { start: 0, end: 60 }])])), (40, (Epoch(1), vec![]))]
        {
            let leases = ledger.lease(Rank(0), samples);
            let report = WindowReport {
                batches: samples.div_ceil(10) as u32,
                samples,
                used: leases.clone(),
                ..WindowReport::default()
            };
            ledger.report(Rank(0), &report).expect("what was leased");
            ledger.enter_round(Rank(0), Round(1), &leases).expect("what was trained");
            assert_eq!(ledger.settle(Rank(0), Round(1), whole).committed, samples);
            assert_eq!(ledger.open_epochs(), open);
        }
    }
}
