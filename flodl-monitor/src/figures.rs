//! The three numbers a person looks for first: throughput, ceiling, and the fraction of it.

use crate::store::Store;
use core::time::Duration;
use flodl_wire::Rank;

/// The run's speed against what its ranks could do. `None` where the records do not tell it.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// From the first window (the first `WindowPlanned`) to the end of the last round after round 0 (the last
    /// `RoundCommitted` or `RoundEmpty`).
    pub wall: Option<Duration>,
    /// Committed samples a second of wall time.
    pub throughput: Option<f64>,
    /// What the ranks do without ever waiting, in samples a second: the sum over ranks of the batch size divided by
    /// the median of their batch times, each for the fraction of the wall time in which it was active. A rank that did
    /// no batch adds nothing.
    pub ceiling: Option<f64>,
    /// `throughput / ceiling`.
    pub fraction: Option<f64>,
}

impl Figures {
    /// The figures of what `store` has taken so far.
    #[must_use]
    pub fn of(store: &Store) -> Figures {
        let (Some(start), Some(end)) = (store.clock().start, store.clock().end) else { return Figures::default() };
        let wall = end.since(start);
        if wall.is_zero() {
            return Figures::default();
        }
        let throughput = store.rounds().committed as f64 / wall.as_secs_f64();
        let ceiling = store.meta().and_then(|meta| {
            let alone = |(_, rank): (Rank, &crate::RankLog)| {
                let batch = rank.batch_times.median()?.as_secs_f64();
                (batch > 0.0).then(|| f64::from(meta.batch_size) / batch * rank.active.fraction(start, end))
            };
            let sum: f64 = store.ranks().filter_map(alone).sum();
            (sum > 0.0).then_some(sum)
        });
        Figures {
            wall: Some(wall),
            throughput: Some(throughput),
            ceiling,
            fraction: ceiling.map(|ceiling| throughput / ceiling),
        }
    }
}
