//! A round as one rank sees it, and what the rank carries from round to round.

use super::message::{Contribution, ResultWhole};
use core::time::Duration;
use flodl_wire::message::control::Part;
use flodl_wire::message::data::AbsentWhy;
use flodl_wire::message::report::{Received, SyncAck, SyncOutcome};
use flodl_wire::{Range, Round, Version};

/// So many rounds in a row with a replica that is not finite end the rank.
pub(super) const NON_FINITE_ROUNDS_MAX: u32 = 3;

/// What a rank has trained since the last consensus it took, and which one that was.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// Optimizer steps in this life.
    pub(super) steps_ever: u64,
    /// Optimizer steps since the last consensus: the mass.
    pub(super) steps: u64,
    /// The ranges trained and not yet named in a `SnapshotReady` whose round is over.
    pub(super) ranges: Vec<Range>,
    /// The consensus that the replica comes from.
    pub(super) consensus: Option<Version>,
    /// Digest of the live tensors right after applying, until it is reported.
    pub(super) replica_digest: Option<(Version, u64)>,
    /// Rounds in a row at whose snapshot the replica was not finite.
    pub(super) non_finite_rounds: u32,
}

impl Ledger {
    /// A batch of those positions is trained.
    pub(super) fn trained(&mut self, positions: &[Range]) {
        self.steps_ever += 1;
        self.steps += 1;
        for &range in positions {
            match self.ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => self.ranges.push(range),
            }
        }
    }

    /// What this rank gives to a round, given whether its snapshot is finite. Why not, where nothing.
    pub(super) fn contribution(&self, part: Part, finite: bool) -> Contribution {
        let why = match part {
            Part::Receive => AbsentWhy::Joining,
            _ if !finite => AbsentWhy::NonFinite,
            Part::Source => return Contribution::Chunks { mass: 1.0 },
            Part::Contribute if self.consensus.is_none() => AbsentWhy::Joining,
            Part::Contribute if self.steps == 0 => AbsentWhy::NothingTrained,
            Part::Contribute => return Contribution::Chunks { mass: self.steps as f64 },
        };
        Contribution::Absent(why)
    }

    /// The round's result is the replica now.
    pub(super) fn applied(&mut self, version: Version, digest: u64) {
        self.consensus = Some(version);
        self.replica_digest = Some((version, digest));
        self.steps = 0;
        self.ranges.clear();
    }

    /// A round was committed that this rank did not get: it joins the next one.
    pub(super) fn missed(&mut self) {
        self.consensus = None;
        self.steps = 0;
        self.ranges.clear();
    }

    /// A round was committed without this rank. What it trained was in no round yet, so it still has to be told.
    pub(super) fn left_out(&mut self) {
        self.consensus = None;
        self.steps = 0;
    }

    /// A round ended with nothing: the replica keeps its steps, their ranges have gone back.
    pub(super) fn kept(&mut self) {
        self.ranges.clear();
    }
}

/// A round that is open at this rank.
#[derive(Clone, Debug)]
pub(super) struct OpenRound {
    pub(super) round: Round,
    pub(super) part: Part,
    /// From the end of the rank's window to the round's `RequestParams`.
    pub(super) waited: Duration,
    /// Spent copying and sending so far.
    pub(super) copied: Duration,
    /// Whether the snapshot was finite.
    pub(super) finite: bool,
    /// Whether the rank gave anything.
    pub(super) contributed: bool,
    /// Result chunks here, all from the first on.
    pub(super) chunks: u32,
    /// The whole result, once it is here.
    pub(super) result: Option<ResultWhole>,
}

impl OpenRound {
    pub(super) fn new(round: Round, part: Part, waited: Duration) -> OpenRound {
        OpenRound {
            round,
            part,
            waited,
            copied: Duration::ZERO,
            finite: true,
            contributed: false,
            chunks: 0,
            result: None,
        }
    }

    /// The answer to the round as far as its result has come.
    pub(super) fn ack(&self) -> SyncAck {
        let outcome = match self.result {
            Some(result) => SyncOutcome::Whole(Received {
                digest: result.digest,
                divergence: self.contributed.then_some(result.divergence),
                pre_norm: result.pre_norm,
                post_norm: result.post_norm,
            }),
            None => SyncOutcome::Incomplete { from_chunk: self.chunks },
        };
        SyncAck { round: self.round, outcome, waited: self.waited, copied: self.copied }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contribution_has_the_mass_of_its_steps_or_a_reason() {
        let fresh = Ledger::default();
        let held = Ledger { consensus: Some(Version(3)), ..Ledger::default() };
        let trained = Ledger { steps: 5, ..held.clone() };
        let absent = Contribution::Absent;
        let chunks = |mass| Contribution::Chunks { mass };
        for (ledger, part, finite, expect) in [
            (&fresh, Part::Source, true, chunks(1.0)),
            (&fresh, Part::Source, false, absent(AbsentWhy::NonFinite)),
            (&fresh, Part::Receive, true, absent(AbsentWhy::Joining)),
            (&trained, Part::Receive, false, absent(AbsentWhy::Joining)),
            (&fresh, Part::Contribute, true, absent(AbsentWhy::Joining)),
            (&held, Part::Contribute, true, absent(AbsentWhy::NothingTrained)),
            (&trained, Part::Contribute, true, chunks(5.0)),
            (&trained, Part::Contribute, false, absent(AbsentWhy::NonFinite)),
        ] {
            assert_eq!(ledger.contribution(part, finite), expect, "{part:?} {finite} {ledger:?}");
        }
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let mut ledger = Ledger::default();
        let range = |start, end| Range { start, end };
        ledger.trained(&[range(0, 4)]);
        ledger.trained(&[range(4, 6), range(20, 22)]);
        assert_eq!((ledger.steps, ledger.ranges), (2, vec![range(0, 6), range(20, 22)]));
    }
}
