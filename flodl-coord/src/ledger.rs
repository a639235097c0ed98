//! Which samples are whose: the open epoch's pool, and what all epochs together have committed.

use crate::Breach;
use crate::gate::PoolLevel;
use crate::id;
use flodl_elche::{Pool, Settled, Slot};
use flodl_wire::message::report::FoldedPart;
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
    /// Samples that will be trained again although a part of their work is in the consensus.
    pub(crate) repeats: u64,
}

impl Ledger {
    pub(crate) fn new(epoch_len: u64, epochs: u64, batch_size: u32) -> Ledger {
        let pool = Pool::new(epoch_len, batch_size);
        Ledger { epoch: Epoch(0), pool, batch_size, epoch_len, epochs, global_step: 0, quarantine_told: 0 }
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

    /// A rank's window is over: `used` is trained, the rest of its leases goes back.
    pub(crate) fn report(&mut self, rank: Rank, used: &[Range]) -> Result<(), Breach> {
        let spans = id::spans(used);
        let got = flodl_wire::id::samples(used);
        self.pool.trained(id::slot(rank), &spans).map_err(|_| Breach::NotLeased { got })?;
        self.pool.give_back_unused(id::slot(rank));
        Ok(())
    }

    /// A rank's snapshot is taken: what it trained is in the round now. Returns the samples.
    pub(crate) fn enter_round(&mut self, rank: Rank, round: Round, ranges: &[Range]) -> Result<u64, Breach> {
        let reported = self.pool.trained_of(id::slot(rank));
        let snapshot = flodl_wire::id::samples(ranges);
        if reported != snapshot {
            return Err(Breach::Snapshot { snapshot, reported });
        }
        self.pool.enter_round(id::slot(rank), round.0);
        Ok(snapshot)
    }

    /// A rank died in an open round: what it trained is settled with the round.
    pub(crate) fn enter_round_at_death(&mut self, rank: Rank, round: Round) {
        self.pool.enter_round(id::slot(rank), round.0);
    }

    /// The round is over: what was folded whole is committed, the rest goes back.
    pub(crate) fn settle(&mut self, rank: Rank, round: Round, part: FoldedPart) -> Settlement {
        let outcome = match part {
            FoldedPart::Whole => Settled::Commit,
            FoldedPart::None => Settled::GiveBack,
            FoldedPart::Chunks(_) => Settled::Repeat,
        };
        let spans = self.pool.settle(round.0, id::slot(rank), outcome);
        let samples = spans.iter().map(flodl_elche::Span::len).sum();
        match part {
            FoldedPart::Whole => Settlement { committed: samples, repeats: 0 },
            FoldedPart::None => Settlement::default(),
            FoldedPart::Chunks(_) => Settlement { committed: 0, repeats: samples },
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

    /// Committed positions of the open epoch.
    pub(crate) fn coverage(&self) -> Vec<Range> {
        id::ranges(&self.pool.coverage())
    }

    /// Samples a batch.
    pub(crate) fn batch_size(&self) -> u32 {
        self.batch_size
    }
}
