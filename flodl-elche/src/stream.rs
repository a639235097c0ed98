//! Samples that stream over the border of an epoch (Async): the pools of the epochs that are open, oldest first.
//!
//! Where nobody waits at a round nobody should wait at the end of an epoch either: what the open epoch cannot give comes
//! from the next one. Epochs are still closed in order, because schedules, evaluations and checkpoints speak of them. At
//! most two are open: a rank that holds on to the last samples of one epoch must not let the others run through the rest
//! of the run.

use std::collections::VecDeque;

use crate::passes::Passes;
use crate::pool::{Pool, Settled};
use crate::span::{Slot, Span};

/// Epochs that may be open at once.
const OPEN_MAX: usize = 2;

/// Positions of one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochLease {
    /// Which epoch.
    pub epoch: u64,
    /// Positions in it, in the order in which they are to be trained; only their last batch may be short.
    pub spans: Vec<Span>,
}

/// The open epochs of a run.
///
/// ```
/// use flodl_elche::{EpochLease, Settled, Slot, Span, Stream};
///
/// let rank = Slot(0);
/// let mut stream = Stream::new(100, 10, 0..3);
/// stream.lease(rank, 90, &[]);
/// // One batch is left in epoch 0; two more come from epoch 1.
/// let lease = stream.lease(rank, 30, &[]);
/// assert_eq!(lease[0], EpochLease { epoch: 0, spans: vec![Span::new(90, 100)] });
/// assert_eq!(lease[1], EpochLease { epoch: 1, spans: vec![Span::new(0, 20)] });
///
/// // Epoch 1 closes after epoch 0, whatever is trained first.
/// let pool = stream.pool(0).unwrap();
/// pool.trained(rank, &[Span::new(0, 100)])?;
/// pool.enter_round(rank, 1);
/// pool.settle(1, rank, Settled::Commit);
/// assert_eq!((stream.close(), stream.close()), (Some(0), None));
/// # Ok::<(), flodl_elche::PoolError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    passes: Passes,
    batch_size: u32,
    open_max: usize,
    /// The epoch that is opened next, and the end of the run.
    next: u64,
    end: u64,
    open: VecDeque<(u64, Pool)>,
}

impl Stream {
    /// The samples of these epochs, each of `epoch_len` positions, in batches of `batch_size` (0 counts as 1). The first
    /// is open.
    pub fn new(epoch_len: u64, batch_size: u32, epochs: std::ops::Range<u64>) -> Self {
        Self::cut(Passes::new(epoch_len, 1), batch_size, epochs)
    }

    /// The same where epochs are parts of passes.
    pub fn cut(passes: Passes, batch_size: u32, epochs: std::ops::Range<u64>) -> Self {
        let batch_size = batch_size.max(1);
        let (next, end, open) = (epochs.start, epochs.end, VecDeque::new());
        let mut stream = Self { passes, batch_size, open_max: OPEN_MAX, next, end, open };
        stream.open_next(&[]);
        stream
    }

    /// The same with one epoch open at a time, for policies under which everybody waits at its end.
    pub fn one_by_one(mut self) -> Self {
        self.open_max = 1;
        self
    }

    /// An epoch is as a restart finds it; those before it are open then, too. Nothing where it cannot be open.
    pub fn put(&mut self, epoch: u64, pool: Pool) {
        while self.next <= epoch && self.open_next(&[]) {}
        if let Some(open) = self.pool(epoch) {
            *open = pool;
        }
    }

    fn open_next(&mut self, weights: &[(Slot, f64)]) -> bool {
        if self.open.len() >= self.open_max || self.next >= self.end {
            return false;
        }
        let mut pool = Pool::new(self.passes.epoch_len(self.next), self.batch_size);
        pool.reserve(weights);
        self.open.push_back((self.next, pool));
        self.next += 1;
        true
    }

    /// Leases up to `samples` positions to `slot`, over the border of an epoch where one does not hold them; fewer where the run
    /// has no more, or as many epochs are open as may be. The short last batch of an epoch counts as a whole one. `weights`
    /// divide an epoch that is opened by this.
    pub fn lease(&mut self, slot: Slot, samples: u64, weights: &[(Slot, f64)]) -> Vec<EpochLease> {
        let batch = u64::from(self.batch_size);
        let (mut leases, mut left, mut at) = (Vec::new(), samples, 0);
        while left > 0 {
            if at == self.open.len() && !self.open_next(weights) {
                break;
            }
            let (epoch, pool) = &mut self.open[at];
            at += 1;
            let spans = pool.lease(slot, left);
            let taken: u64 = spans.iter().map(Span::len).sum();
            if taken == 0 {
                continue;
            }
            leases.push(EpochLease { epoch: *epoch, spans });
            // What is under suspicion is leased alone.
            if taken < left && pool.available() > 0 {
                break;
            }
            left = left.saturating_sub(taken.div_ceil(batch).saturating_mul(batch));
        }
        leases
    }

    /// Samples that can be leased now, those of an epoch that would be opened for it included.
    pub fn available(&self) -> u64 {
        let open = self.open.iter().fold(0u64, |sum, (_, pool)| sum.saturating_add(pool.available()));
        let opens = self.open_max.saturating_sub(self.open.len()) as u64;
        let more = opens.min(self.end.saturating_sub(self.next));
        let samples = |epochs| self.passes.samples(epochs);
        open.saturating_add(samples(self.next.saturating_add(more)).saturating_sub(samples(self.next)))
    }

    /// The pool of an open epoch.
    pub fn pool(&mut self, epoch: u64) -> Option<&mut Pool> {
        self.open.iter_mut().find(|(open, _)| *open == epoch).map(|(_, pool)| pool)
    }

    /// Samples leased and not settled, of any open epoch.
    pub fn outstanding(&self) -> u64 {
        self.open.iter().fold(0, |sum, (_, pool)| sum.saturating_add(pool.outstanding()))
    }

    /// The open epochs, oldest first.
    pub fn open(&self) -> impl Iterator<Item = (u64, &Pool)> {
        self.open.iter().map(|(epoch, pool)| (*epoch, pool))
    }

    /// Whether every sample of every epoch is committed or quarantined.
    pub fn is_complete(&self) -> bool {
        self.next >= self.end && self.open.iter().all(|(_, pool)| pool.is_complete())
    }

    /// The oldest epoch that is not closed, or the end of the run.
    pub fn oldest(&self) -> u64 {
        self.open.front().map_or(self.next, |(epoch, _)| *epoch)
    }

    /// What `slot` has trained of any open epoch is in `round` now (see [`Pool::enter_round`]). Returns all it has in it.
    pub fn enter_round(&mut self, slot: Slot, round: u64) -> Vec<EpochLease> {
        let entered = |(epoch, pool): &mut (u64, Pool)| {
            let spans = pool.enter_round(slot, round);
            (!spans.is_empty()).then_some(EpochLease { epoch: *epoch, spans })
        };
        self.open.iter_mut().filter_map(entered).collect()
    }

    /// Ends `round` for what `slot` had in it of any epoch; how many samples of which.
    pub fn settle(&mut self, round: u64, slot: Slot, outcome: Settled) -> Vec<(u64, u64)> {
        let settled = |(epoch, pool): &mut (u64, Pool)| {
            let samples = pool.settle(round, slot, outcome).iter().map(Span::len).sum();
            (samples > 0).then_some((*epoch, samples))
        };
        self.open.iter_mut().filter_map(settled).collect()
    }

    /// `slot` is gone: what it holds of any open epoch goes back.
    pub fn release(&mut self, slot: Slot) {
        for (_, pool) in &mut self.open {
            pool.release(slot);
        }
    }

    /// As [`release`](Self::release), for a slot that brought itself down.
    pub fn release_poisoned(&mut self, slot: Slot) {
        for (_, pool) in &mut self.open {
            pool.release_poisoned(slot);
        }
    }

    /// Closes the oldest epoch where it is complete, and opens the next one where none is left.
    pub fn close(&mut self) -> Option<u64> {
        self.open.front().filter(|(_, pool)| pool.is_complete())?;
        let (closed, _) = self.open.pop_front()?;
        if self.open.is_empty() {
            self.open_next(&[]);
        }
        Some(closed)
    }

    /// Whether every epoch is closed.
    pub fn is_done(&self) -> bool {
        self.open.is_empty() && self.next >= self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batches::batches_in;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn at_most_two_epochs_are_open_and_they_close_in_order() {
        let (fast, slow) = (Slot(0), Slot(1));
        let mut stream = Stream::new(40, 10, 5..9);
        assert_eq!(stream.available(), 80);
        let held = stream.lease(slow, 10, &[]);
        assert_eq!(held, [EpochLease { epoch: 5, spans: vec![Span::new(0, 10)] }]);
        let epochs: Vec<u64> = stream.lease(fast, 990, &[]).iter().map(|lease| lease.epoch).collect();
        assert_eq!((epochs, stream.available()), (vec![5, 6], 0), "epoch 7 stays closed while 5 is out");
        stream.release(fast);
        stream.release(slow);
        assert_eq!((stream.close(), stream.available()), (None, 80));
    }

    #[test]
    fn one_by_one_no_epoch_is_opened_before_the_one_before_is_closed() {
        let slot = Slot(0);
        let mut stream = Stream::new(40, 10, 0..2).one_by_one();
        assert_eq!((stream.available(), stream.lease(slot, 99, &[]).len()), (40, 1));
        assert_eq!((stream.available(), stream.outstanding()), (0, 40));
        let pool = stream.pool(0).expect("it is open");
        pool.trained(slot, &[Span::new(0, 40)]).expect("it was leased");
        pool.enter_round(slot, 1);
        pool.settle(1, slot, Settled::Commit);
        assert_eq!((stream.close(), stream.available(), stream.is_done()), (Some(0), 40, false));
    }

    #[test]
    fn what_is_under_suspicion_is_leased_alone_though_the_next_epoch_has_samples() {
        let slot = Slot(0);
        let mut stream = Stream::new(40, 10, 0..2);
        for _ in 0..2 {
            stream.lease(slot, 40, &[]);
            stream.release_poisoned(slot);
        }
        let lease = stream.lease(slot, 40, &[]);
        assert_eq!(lease, [EpochLease { epoch: 0, spans: vec![Span::new(0, 20)] }]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whoever leases, commits or dies in whatever order: every position of every epoch is committed once, and epochs
        /// close in order.
        #[test]
        fn every_epoch_is_committed_once(
            epoch_len in 1u64..200, batch_size in 1u32..20, epochs in 1u64..5,
            ops in prop::collection::vec((0u32..4, 1u64..12, 0u8..6), 0..80),
        ) {
            let mut stream = Stream::new(epoch_len, batch_size, 0..epochs);
            let mut closed = Vec::new();
            let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
            let finish = (0..).map(|i| (i % 4, 7, 0));
            for (round, (slot, batches, dies)) in (1u64..).zip(ops.into_iter().chain(finish)) {
                let slot = Slot(slot);
                let samples = batches * u64::from(batch_size);
                let leases = stream.lease(slot, samples, &[(Slot(0), 2.0), (Slot(1), 1.0)]);
                let taken: u64 = leases.iter()
                    .map(|lease| batches_in(lease.spans.iter().map(Span::len).sum(), batch_size)).sum();
                prop_assert!(taken <= batches);
                prop_assert!(leases.windows(2).all(|pair| pair[0].epoch < pair[1].epoch));
                if dies == 5 {
                    stream.release(slot);
                    continue;
                }
                for EpochLease { epoch, spans } in leases {
                    let pool = stream.pool(epoch).expect("it is open");
                    pool.trained(slot, &spans).expect("it was leased");
                    pool.enter_round(slot, round);
                    pool.settle(round, slot, Settled::Commit);
                    *seen.entry(epoch).or_default() += spans.iter().map(Span::len).sum::<u64>();
                }
                while let Some(epoch) = stream.close() {
                    closed.push(epoch);
                }
                if stream.is_done() {
                    break;
                }
                prop_assert!(round < 100_000, "it does not end");
            }
            prop_assert_eq!(closed, (0..epochs).collect::<Vec<_>>());
            prop_assert!(seen.values().all(|&samples| samples == epoch_len));
        }
    }
}
