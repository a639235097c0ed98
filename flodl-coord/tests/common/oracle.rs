//! An independent ledger of every (epoch, position), and what the coordinator said about the run.

use super::puppet::Since;
use flodl_wire::message::record::{EventKind, Reason};
use flodl_wire::message::report::FoldedPart;
use flodl_wire::{Epoch, Incarnation, Rank, Time, Version};
use std::collections::BTreeMap;

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) exit: Option<i32>,
    /// How often each position was committed, by the world's own count.
    pub(crate) committed: BTreeMap<(Epoch, u64), u32>,
    /// Trained and given back although a part was folded, by the world's own count.
    pub(crate) repeats: u64,
    pub(crate) told_committed: u64,
    pub(crate) told_repeats: u64,
    pub(crate) told_quarantined: u64,
    pub(crate) rounds: u64,
    pub(crate) version: Option<Version>,
    pub(crate) evaluated_by: Vec<Rank>,
    pub(crate) saved: Option<Version>,
    pub(crate) deaths: Vec<(Rank, String)>,
    pub(crate) ended: Time,
    pub(crate) sentences: Vec<String>,
    pub(crate) fenced: Vec<Rank>,
    /// Lives that came into a run that had begun.
    pub(crate) joined: Vec<(Rank, Incarnation)>,
    /// Ranks that left by plan.
    pub(crate) left: Vec<Rank>,
}

#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) outcome: Outcome,
    /// What the replicas hold.
    pub(crate) version: Option<Version>,
}

impl Oracle {
    /// A round that folded something is committed: this was folded of that work.
    pub(crate) fn commit(&mut self, part: FoldedPart, work: &Since, epoch_len: u64) {
        let positions = work.ranges.iter().flat_map(|range| range.start..range.end);
        match part {
            FoldedPart::Whole => {
                for position in positions {
                    // Positions run on over the end of an epoch.
                    let (epoch, position) = (Epoch(work.epoch.0 + position / epoch_len), position % epoch_len);
                    *self.outcome.committed.entry((epoch, position)).or_default() += 1;
                }
            }
            FoldedPart::Chunks(_) => self.outcome.repeats += positions.count() as u64,
            FoldedPart::None => {}
        }
    }

    pub(crate) fn note(&mut self, kind: EventKind, reason: Option<Reason>) {
        let text = reason.map(|reason| reason.text).unwrap_or_default();
        let outcome = &mut self.outcome;
        match kind {
            EventKind::RoundCommitted { committed, repeats, version, .. } => {
                let step = outcome.version.map(|before| version.0.checked_sub(before.0));
                assert!(matches!(step, None | Some(Some(0 | 1))), "{:?} then {version:?}", outcome.version);
                outcome.told_committed += committed.iter().map(|&(_, samples)| samples).sum::<u64>();
                outcome.told_repeats += repeats;
                outcome.rounds += 1;
                outcome.version = Some(version);
            }
            EventKind::Quarantined { samples, .. } => outcome.told_quarantined += samples,
            EventKind::RankJoined { rank, incarnation } => outcome.joined.push((rank, incarnation)),
            EventKind::RankLeft { rank } => outcome.left.push(rank),
            EventKind::Death { rank, .. } => outcome.deaths.push((rank, text)),
            EventKind::Alert | EventKind::Stall | EventKind::RankRefused { .. } => outcome.sentences.push(text),
            EventKind::RunEnded { .. } => outcome.sentences.push(text),
            _ => {}
        }
    }
}

impl Outcome {
    /// Nothing twice, and the coordinator's figures are the world's.
    pub(crate) fn assert_honest(&self) {
        let twice: Vec<_> = self.committed.iter().filter(|(_, times)| **times != 1).take(5).collect();
        assert!(twice.is_empty(), "committed more than once: {twice:?}");
        assert_eq!(self.committed.len() as u64, self.told_committed, "samples committed, then as told");
        assert_eq!(self.repeats, self.told_repeats, "samples repeated, then as told");
    }

    /// Every sample of every epoch exactly once, by both ledgers.
    pub(crate) fn assert_exact(&self, (epochs, samples): (u64, u64)) {
        self.assert_honest();
        assert_eq!(self.committed.len() as u64 + self.told_quarantined, epochs * samples);
    }
}
