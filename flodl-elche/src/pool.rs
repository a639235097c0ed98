//! The samples of one open epoch: who holds which positions, and what has become of them.
//!
//! At any moment every position is in exactly one of these states:
//!
//! ```text
//!   free (given back | reserved for a slot | for nobody) -> out -> trained -> in a round -> committed
//!     ^                                                      |       |           |
//!     '--------------------- given back --------------------'-------'-----------'     (or quarantined)
//! ```
//!
//! A lease is *out*, *trained* when its holder reports it, *in a round* when the holder's snapshot holds that training,
//! and *committed* when the round commits. A holder's death gives back what is out or trained; what is in a round
//! waits for the round's outcome, because it may have been averaged already.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::poison::Suspects;
use crate::span::{Slot, Span};
use crate::spanset::{SpanSet, append};
use crate::split::largest_remainder;

/// Why the pool refused an operation; nothing has changed then.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
pub enum PoolError {
    /// A holder spoke of positions it does not hold.
    #[error("{slot} reports positions {span} which are not out at it: drop the report, its holder is out of step")]
    NotOut {
        /// The holder.
        slot: Slot,
        /// The first range that is not out there.
        span: Span,
    },
    /// The same position twice in one list.
    #[error("positions {span} are listed twice: drop the report, its sender is out of step")]
    Twice {
        /// The range that overlaps an earlier one.
        span: Span,
    },
    /// Positions that a holder is said to have, and that somebody else has, or that are done.
    #[error("positions {span} of {slot} are not free: somebody else holds them or they are done")]
    NotFree {
        /// The holder.
        slot: Slot,
        /// The first range that is not free.
        span: Span,
    },
    /// A range that ends before it starts or behind the epoch's end.
    #[error(
        "positions {span} are no range of an epoch of {epoch_len} samples: check which epoch and data set they are of"
    )]
    Outside {
        /// The range.
        span: Span,
        /// Samples in the epoch.
        epoch_len: u64,
    },
}

/// What became of a slot's ranges in a round.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Settled {
    /// The contribution was folded whole: the ranges are committed.
    Commit,
    /// Nothing of it was folded: the ranges go back.
    GiveBack,
    /// A part of it was folded: the ranges go back, and training them again is counted in [`Pool::repeats`].
    Repeat,
    /// The contribution was not finite: the ranges go back, with a mark against them (see [`Pool::release_poisoned`]).
    Poisoned,
    /// The round is run again under another number: the ranges stay trained, and are in no round.
    Keep,
}

/// What a slot holds, and what is set aside for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Holding {
    reserved: SpanSet,
    /// What [`Free::largest`] has it by: never less than what is reserved; 0 where it is not in there.
    listed: u64,
    out: SpanSet,
    trained: SpanSet,
}

/// Positions that can be leased.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Free {
    returned: SpanSet,
    unreserved: SpanSet,
    /// What is reserved for slots, in all.
    reserved: u64,
    /// The slots that have something reserved, by how much they had when somebody last asked; of equals the lowest is last.
    /// A reservation shrinks with every lease of its holder, and hardly ever does anybody take of another's.
    largest: BTreeSet<(u64, Reverse<Slot>)>,
}

impl Free {
    /// A slot's reservation has changed otherwise than by a lease.
    fn list(&mut self, slot: Slot, holding: &mut Holding) {
        self.unlist(slot, holding);
        holding.listed = holding.reserved.total();
        if holding.listed > 0 {
            self.largest.insert((holding.listed, Reverse(slot)));
        }
    }

    /// A slot's reservation goes.
    fn unlist(&mut self, slot: Slot, holding: &mut Holding) {
        if holding.listed > 0 {
            self.largest.remove(&(holding.listed, Reverse(slot)));
            holding.listed = 0;
        }
    }

    /// Whoever has the most reserved.
    fn richest<'a>(&mut self, holdings: &'a mut BTreeMap<Slot, Holding>) -> Option<&'a mut Holding> {
        let slot = loop {
            let &(listed, Reverse(slot)) = self.largest.last()?;
            let holding = holdings.get_mut(&slot)?;
            if holding.reserved.total() == listed {
                break slot;
            }
            self.list(slot, holding);
        };
        holdings.get_mut(&slot)
    }
}

/// Positions that will not be leased again, and the count of trainings done twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Done {
    committed: SpanSet,
    quarantined: SpanSet,
    repeats: u64,
}

/// One open epoch's positions `[0, epoch_len)`.
///
/// ```
/// use flodl_elche::{Pool, Settled, Slot, Span};
///
/// let (a, b) = (Slot(0), Slot(1));
/// let mut pool = Pool::new(100, 10);
/// pool.reserve(&[(a, 3.0), (b, 1.0)]);
/// assert_eq!(pool.lease(a, 40), [Span::new(0, 40)]);
/// pool.trained(a, &[Span::new(0, 30)])?;
/// assert_eq!(pool.give_back_unused(a), [Span::new(30, 40)]);
/// pool.enter_round(a, 1);
/// pool.settle(1, a, Settled::Commit);
/// assert_eq!((pool.committed(), pool.available()), (30, 70));
/// # Ok::<(), flodl_elche::PoolError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    len: u64,
    batch_size: u64,
    free: Free,
    holdings: BTreeMap<Slot, Holding>,
    in_round: BTreeMap<(u64, Slot), SpanSet>,
    done: Done,
    suspects: Suspects,
}

impl Pool {
    /// An epoch of `epoch_len` samples, nothing of it leased. Reservations are cut at multiples of `batch_size` (0 counts
    /// as 1).
    pub fn new(epoch_len: u64, batch_size: u32) -> Self {
        Self {
            len: epoch_len,
            batch_size: u64::from(batch_size.max(1)),
            free: Free { unreserved: SpanSet::full(epoch_len), ..Free::default() },
            holdings: BTreeMap::new(),
            in_round: BTreeMap::new(),
            done: Done::default(),
            suspects: Suspects::default(),
        }
    }

    /// An epoch of which `coverage` is committed already, in any order, whatever world and batch size did that.
    ///
    /// # Errors
    ///
    /// Where a range is none of this epoch or overlaps another.
    pub fn from_coverage(epoch_len: u64, batch_size: u32, coverage: &[Span]) -> Result<Self, PoolError> {
        let mut pool = Self::new(epoch_len, batch_size);
        let committed = disjoint(coverage)?;
        for &span in coverage {
            if span.end < span.start || span.end > epoch_len {
                return Err(PoolError::Outside { span, epoch_len });
            }
            pool.free.unreserved.remove(span);
        }
        pool.done.committed = committed;
        Ok(pool)
    }

    /// After a restart, before anything is reserved: `slot` holds these positions as a lease from before it.
    ///
    /// # Errors
    ///
    /// Where a position is not free, or is listed twice; nothing has changed then.
    pub fn adopt(&mut self, slot: Slot, spans: &[Span]) -> Result<(), PoolError> {
        let epoch_len = self.len;
        if let Some(&span) = spans.iter().find(|span| span.end < span.start || span.end > epoch_len) {
            return Err(PoolError::Outside { span, epoch_len });
        }
        disjoint(spans)?;
        let is_free = |span: Span| self.free.unreserved.contains(span);
        if let Some(&span) = spans.iter().find(|&&span| !span.is_empty() && !is_free(span)) {
            return Err(PoolError::NotFree { slot, span });
        }
        for &span in spans.iter().filter(|span| !span.is_empty()) {
            self.free.unreserved.remove(span);
            self.holdings.entry(slot).or_default().out.insert(span);
        }
        Ok(())
    }

    /// After a restart, before anything is leased: these positions were set aside before it.
    ///
    /// # Errors
    ///
    /// Where a range is none of this epoch, or is committed, or is listed twice; nothing has changed then.
    pub fn set_aside(&mut self, spans: &[Span]) -> Result<(), PoolError> {
        // Nobody is called so: what is adopted is taken over at once.
        let nobody = Slot(u32::MAX);
        self.adopt(nobody, spans)?;
        if let Some(mut holding) = self.holdings.remove(&nobody) {
            self.done.quarantined.insert_all(&holding.out.drain());
        }
        Ok(())
    }

    /// Sets free positions aside for slots, in slot order and in proportion to their weights (relative speeds, larger is
    /// faster), so that each slot reads a stretch of its own.
    ///
    /// Earlier reservations are replaced; what was given back stays for whoever asks next. A weight that is not a
    /// finite positive number counts as the mean of the others. Cuts fall on multiples of the batch size; the last
    /// slot that gets something takes the rest.
    pub fn reserve(&mut self, weights: &[(Slot, f64)]) {
        let mut free = std::mem::take(&mut self.free.unreserved);
        for (&slot, holding) in &mut self.holdings {
            self.free.unlist(slot, holding);
            free.insert_all(&holding.reserved.drain());
        }
        let mut weights = weights.to_vec();
        weights.sort_by_key(|&(slot, _)| slot);
        weights.dedup_by_key(|&mut (slot, _)| slot);
        let known: Vec<f64> = weights.iter().map(|&(_, w)| w).filter(|w| w.is_finite() && *w > 0.0).collect();
        let mean = if known.is_empty() { 1.0 } else { known.iter().sum::<f64>() / known.len() as f64 };
        let filled: Vec<f64> = weights.iter().map(|&(_, w)| if w.is_finite() && w > 0.0 { w } else { mean }).collect();
        let batches = free.total().div_ceil(self.batch_size);
        self.free.reserved = 0;
        for (&(slot, _), share) in weights.iter().zip(largest_remainder(batches, &filled)) {
            let holding = self.holdings.entry(slot).or_default();
            let mut spans = Vec::new();
            self.free.reserved += free.take_front(share.saturating_mul(self.batch_size), &mut spans);
            holding.reserved.insert_all(&spans);
            self.free.list(slot, holding);
        }
        self.free.unreserved = free;
    }

    /// Leases up to `samples` positions to `slot`: fewer where fewer are free, none where none is.
    ///
    /// They come from what was given back, then from the front of the slot's own reservation, then from what is
    /// reserved for nobody, then from the tail of the largest reservation left; so a lease may be several ranges, in
    /// the order in which they are to be trained. A range under suspicion is leased alone and is smaller than asked for
    /// (see [`release_poisoned`](Self::release_poisoned)).
    pub fn lease(&mut self, slot: Slot, samples: u64) -> Vec<Span> {
        if samples == 0 {
            return Vec::new();
        }
        let mut lease = Vec::new();
        if let Some(half) = self.suspects.next_half(&self.free.returned, self.batch_size) {
            self.free.returned.remove(half);
            lease.push(half);
        } else {
            self.collect(slot, samples, &mut lease);
        }
        if !lease.is_empty() {
            self.holdings.entry(slot).or_default().out.insert_all(&lease);
        }
        lease
    }

    fn collect(&mut self, slot: Slot, samples: u64, lease: &mut Vec<Span>) {
        let Self { free, holdings, .. } = self;
        let mut left = samples - free.returned.take_front(samples, lease);
        if let Some(own) = holdings.get_mut(&slot) {
            let taken = own.reserved.take_front(left, lease);
            free.reserved -= taken;
            left -= taken;
        }
        left -= free.unreserved.take_front(left, lease);
        while left > 0
            && let Some(other) = free.richest(holdings)
        {
            let spans = other.reserved.take_back(left);
            let taken = spans.iter().map(Span::len).sum::<u64>();
            free.reserved -= taken;
            left -= taken;
            append(lease, spans);
        }
    }

    /// `slot` reports that it has trained `spans` of its lease.
    ///
    /// # Errors
    ///
    /// Where a position is not out at the slot, or is listed twice; nothing has changed then.
    pub fn trained(&mut self, slot: Slot, spans: &[Span]) -> Result<(), PoolError> {
        if let Some(holding) = self.checked_out(slot, spans)? {
            for &span in spans {
                holding.out.remove(span);
                holding.trained.insert(span);
            }
        }
        Ok(())
    }

    /// `slot` gives `unused` positions of its lease back.
    ///
    /// # Errors
    ///
    /// Where a position is not out at the slot, or is listed twice; nothing has changed then.
    pub fn give_back(&mut self, slot: Slot, unused: &[Span]) -> Result<(), PoolError> {
        if let Some(holding) = self.checked_out(slot, unused)? {
            for &span in unused {
                holding.out.remove(span);
            }
            self.free.returned.insert_all(unused);
        }
        Ok(())
    }

    /// Everything still out at `slot` goes back; returns it.
    pub fn give_back_unused(&mut self, slot: Slot) -> Vec<Span> {
        let unused = self.holdings.get_mut(&slot).map(|holding| holding.out.drain()).unwrap_or_default();
        self.free.returned.insert_all(&unused);
        unused
    }

    /// What of `spans` is still out at `slot` goes back; returns it.
    pub fn give_back_within(&mut self, slot: Slot, spans: &[Span]) -> Vec<Span> {
        let common = self.take_out(slot, spans);
        self.free.returned.insert_all(&common);
        common
    }

    fn take_out(&mut self, slot: Slot, spans: &[Span]) -> Vec<Span> {
        let Some(holding) = self.holdings.get_mut(&slot) else { return Vec::new() };
        let mut taken = Vec::new();
        for &span in spans {
            loop {
                let common = holding.out.first_common(span);
                if common.is_empty() {
                    break;
                }
                holding.out.remove(common);
                taken.push(common);
            }
        }
        taken
    }

    fn checked_out(&mut self, slot: Slot, spans: &[Span]) -> Result<Option<&mut Holding>, PoolError> {
        let epoch_len = self.len;
        if let Some(&span) = spans.iter().find(|span| span.end < span.start || span.end > epoch_len) {
            return Err(PoolError::Outside { span, epoch_len });
        }
        // One range overlaps none, and is what a window mostly is.
        if spans.len() > 1 {
            disjoint(spans)?;
        }
        let holding = self.holdings.get_mut(&slot);
        let out = holding.as_ref().map(|holding| &holding.out);
        match spans.iter().find(|&&span| !span.is_empty() && !out.is_some_and(|out| out.contains(span))) {
            Some(&span) => Err(PoolError::NotOut { slot, span }),
            None => Ok(holding),
        }
    }

    /// The snapshot `slot` contributes to `round` holds all it has trained: those ranges are in the round from now on
    /// and its death does not give them back. Returns all that the slot has in that round.
    pub fn enter_round(&mut self, slot: Slot, round: u64) -> Vec<Span> {
        let trained =
            self.holdings.get_mut(&slot).map(|holding| std::mem::take(&mut holding.trained)).unwrap_or_default();
        if trained.total() == 0 {
            return self.in_round.get(&(round, slot)).map(|set| set.spans().collect()).unwrap_or_default();
        }
        let entered = match self.in_round.entry((round, slot)) {
            Entry::Vacant(none) => none.insert(trained),
            Entry::Occupied(some) => {
                let entered = some.into_mut();
                trained.spans().for_each(|span| entered.insert(span));
                entered
            }
        };
        entered.spans().collect()
    }

    /// Ends `round` for what `slot` had in it, and returns that.
    pub fn settle(&mut self, round: u64, slot: Slot, outcome: Settled) -> Vec<Span> {
        let spans = self.in_round.remove(&(round, slot)).map(|mut set| set.drain()).unwrap_or_default();
        match outcome {
            Settled::Commit => {
                self.done.committed.insert_all(&spans);
                spans.iter().for_each(|&span| self.suspects.clear(span));
            }
            Settled::GiveBack => self.free.returned.insert_all(&spans),
            Settled::Repeat => {
                self.free.returned.insert_all(&spans);
                self.done.repeats += spans.iter().map(Span::len).sum::<u64>();
            }
            Settled::Poisoned => self.give_back_blamed(&spans),
            Settled::Keep => self.holdings.entry(slot).or_default().trained.insert_all(&spans),
        }
        spans
    }

    /// `slot` is gone: what is out or trained there goes back and is returned, its reservation is nobody's now. What it
    /// has in a round waits for [`settle`](Self::settle).
    pub fn release(&mut self, slot: Slot) -> Vec<Span> {
        let spans = self.evict(slot);
        self.free.returned.insert_all(&spans);
        spans
    }

    /// As [`release`](Self::release), for a slot that brought itself down (panic, error, fatal signal of its own).
    ///
    /// A range that comes back so for the second time is leased alone from then on, half of it at a time. When it comes
    /// back as a single batch once more it is set aside for good: [`quarantined`](Self::quarantined), and the epoch
    /// completes without it.
    pub fn release_poisoned(&mut self, slot: Slot) -> Vec<Span> {
        let spans = self.evict(slot);
        self.give_back_blamed(&spans);
        spans
    }

    fn evict(&mut self, slot: Slot) -> Vec<Span> {
        let Some(mut holding) = self.holdings.remove(&slot) else { return Vec::new() };
        self.free.unlist(slot, &mut holding);
        self.free.reserved -= holding.reserved.total();
        self.free.unreserved.insert_all(&holding.reserved.drain());
        holding.out.insert_all(&holding.trained.drain());
        holding.out.drain()
    }

    fn give_back_blamed(&mut self, spans: &[Span]) {
        for &span in spans {
            self.free.returned.insert(span);
            for condemned in self.suspects.blame(span, self.batch_size) {
                self.free.returned.remove(condemned);
                self.done.quarantined.insert(condemned);
            }
        }
    }

    /// Samples in the epoch.
    pub fn epoch_len(&self) -> u64 {
        self.len
    }

    /// Samples that can be leased now.
    pub fn available(&self) -> u64 {
        self.free.returned.total() + self.free.unreserved.total() + self.free.reserved
    }

    /// Samples out at `slot`: leased, and neither reported as trained nor given back.
    pub fn out_of(&self, slot: Slot) -> u64 {
        self.holdings.get(&slot).map_or(0, |holding| holding.out.total())
    }

    /// Samples `slot` has trained that are in no round yet.
    pub fn trained_of(&self, slot: Slot) -> u64 {
        self.holdings.get(&slot).map_or(0, |holding| holding.trained.total())
    }

    /// Samples leased and not settled: out, trained or in a round.
    pub fn outstanding(&self) -> u64 {
        // Every position is in exactly one state.
        self.len - self.available() - self.committed() - self.quarantined()
    }

    /// Whether every sample is committed or quarantined.
    pub fn is_complete(&self) -> bool {
        self.committed() + self.quarantined() == self.len
    }

    /// Samples committed, each once.
    pub fn committed(&self) -> u64 {
        self.done.committed.total()
    }

    /// Trainings that have to be done again although a part of them is in the consensus, in samples.
    pub fn repeats(&self) -> u64 {
        self.done.repeats
    }

    /// Samples set aside for good.
    pub fn quarantined(&self) -> u64 {
        self.done.quarantined.total()
    }

    /// The ranges set aside for good, ascending.
    pub fn quarantine(&self) -> Vec<Span> {
        self.done.quarantined.spans().collect()
    }

    /// The committed ranges, ascending: what [`from_coverage`](Self::from_coverage) resumes from.
    pub fn coverage(&self) -> Vec<Span> {
        self.done.committed.spans().collect()
    }
}

/// The union of a list of ranges, which must not overlap.
fn disjoint(spans: &[Span]) -> Result<SpanSet, PoolError> {
    let mut sorted: Vec<Span> = spans.iter().copied().filter(|span| !span.is_empty()).collect();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[1].start < pair[0].end) {
        return Err(PoolError::Twice { span: pair[1] });
    }
    let mut set = SpanSet::default();
    set.insert_all(&sorted);
    Ok(set)
}
