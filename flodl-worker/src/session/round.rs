//! A round as one rank sees it, and what the rank carries from round to round.

use super::message::{Contribution, ResultWhole};
use super::stock::Positions;
use core::time::Duration;
use flodl_wire::message::control::Part;
use flodl_wire::message::data::AbsentWhy;
use flodl_wire::message::report::{Received, SyncAck, SyncOutcome};
use flodl_wire::{Epoch, NcclSession, Range, Round, Time, Version};

/// So many rounds in a row with a replica that is not finite end the rank.
pub(super) const NON_FINITE_ROUNDS_MAX: u32 = 3;

/// What a rank has trained since its last snapshot, and which consensus it comes from.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// Optimizer steps in this life.
    pub(super) steps_ever: u64,
    /// Optimizer steps since the snapshot of the last contribution: the mass of the next one.
    pub(super) steps: u64,
    /// The positions trained in those steps.
    pub(super) trained: Positions,
    /// Those of the contribution of the round that is open.
    in_round: (u64, Positions),
    /// The consensus that the replica comes from.
    pub(super) consensus: Option<Version>,
    /// Digest of the live tensors right after applying, until it is reported.
    pub(super) replica_digest: Option<(Version, u64)>,
    /// Rounds in a row at whose snapshot the replica was not finite.
    pub(super) non_finite_rounds: u32,
}

impl Ledger {
    /// A batch of those positions is trained.
    pub(super) fn trained(&mut self, epoch: Epoch, positions: &[Range]) {
        self.steps_ever += 1;
        self.steps += 1;
        self.trained.push(epoch, positions);
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

    /// What the snapshot holds is the round's from now on; what comes counts anew. Gives the steps and positions in it.
    pub(super) fn snapshot(&mut self) -> (u64, Positions) {
        self.in_round = (std::mem::take(&mut self.steps), std::mem::take(&mut self.trained));
        self.in_round.clone()
    }

    /// Whether the replica is what its last consensus made of it.
    pub(super) fn is_untouched(&self) -> bool {
        self.steps == 0
    }

    /// The round's result is in the replica now; `digest`: of the replica, where it is nothing but that result. What was
    /// trained since the snapshot is lost then.
    pub(super) fn applied(&mut self, version: Version, digest: Option<u64>) {
        self.consensus = Some(version);
        self.in_round = Default::default();
        self.replica_digest = digest.map(|digest| (version, digest));
        if digest.is_some() {
            self.forget_training();
        }
    }

    /// What was trained since the last snapshot counts for nothing.
    pub(super) fn forget_training(&mut self) {
        self.steps = 0;
        self.trained.clear();
    }

    /// A round was committed that this rank did not get: it joins the next one.
    pub(super) fn missed(&mut self) {
        self.consensus = None;
        self.in_round = Default::default();
        self.forget_training();
    }

    /// A round was committed without this rank. What it trained was in no round yet, so it still has to be told.
    pub(super) fn left_out(&mut self) {
        self.consensus = None;
        self.steps = 0;
    }

    /// A round ended with nothing: the replica keeps its steps, their positions have gone back.
    pub(super) fn kept(&mut self) {
        self.steps += std::mem::take(&mut self.in_round).0;
    }

    /// A round is run again under another number: what was in it is in the next one.
    pub(super) fn again(&mut self) {
        let (steps, mut trained) = std::mem::take(&mut self.in_round);
        self.steps += steps;
        trained.append(&mut self.trained);
        self.trained = trained;
    }
}

/// A round whose contribution is out.
#[derive(Clone, Debug)]
pub(super) enum Flight {
    /// Its result is coming; the last of it came at that time.
    Receiving(OpenRound, Time),
    /// Over NCCL: its copy is made, and its collectives are waited for.
    Prepared(OpenRound),
    /// Over NCCL: its collectives are issued on that communicator.
    Collecting(OpenRound, NcclSession),
    /// It is answered; its end is waited for.
    Answered(OpenRound),
}

impl Flight {
    /// Whether its collectives can be issued on that communicator: they were not, and none are out. Who is told twice has
    /// answered, or is about to.
    pub(super) fn may_issue(&self, on: NcclSession) -> bool {
        match self {
            Flight::Prepared(open) | Flight::Answered(open) => {
                matches!(open.over, Over::Nccl { issued } if issued != Some(on))
            }
            Flight::Receiving(..) | Flight::Collecting(..) => false,
        }
    }

    pub(super) fn round(&self) -> &OpenRound {
        match self {
            Flight::Receiving(open, _)
            | Flight::Prepared(open)
            | Flight::Collecting(open, _)
            | Flight::Answered(open) => open,
        }
    }

    pub(super) fn round_mut(&mut self) -> &mut OpenRound {
        match self {
            Flight::Receiving(open, _)
            | Flight::Prepared(open)
            | Flight::Collecting(open, _)
            | Flight::Answered(open) => open,
        }
    }

    pub(super) fn into_round(self) -> OpenRound {
        match self {
            Flight::Receiving(open, _)
            | Flight::Prepared(open)
            | Flight::Collecting(open, _)
            | Flight::Answered(open) => open,
        }
    }
}

/// How a round is averaged.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// Over the CPU.
    Cpu,
    /// Over NCCL; on which communicator the rank issued its collectives last.
    Nccl { issued: Option<NcclSession> },
}

/// A round that is open at this rank.
#[derive(Clone, Debug)]
pub(super) struct OpenRound {
    pub(super) round: Round,
    pub(super) part: Part,
    /// From the end of the rank's window to the round's `RequestParams` or `PrepareSync`.
    pub(super) waited: Duration,
    /// Spent copying and sending so far.
    pub(super) copied: Duration,
    /// Whether the snapshot was finite.
    pub(super) finite: bool,
    /// What the rank gives; above 0 where it gives anything.
    pub(super) mass: f64,
    /// How it is averaged.
    pub(super) over: Over,
    /// Result chunks here, all from the first on.
    pub(super) chunks: u32,
    /// The whole result, once it is here.
    pub(super) result: Option<ResultWhole>,
}

impl OpenRound {
    pub(super) fn new((round, over): (Round, Over), part: Part, waited: Duration) -> OpenRound {
        OpenRound {
            round,
            part,
            waited,
            copied: Duration::ZERO,
            finite: true,
            mass: 0.0,
            over,
            chunks: 0,
            result: None,
        }
    }

    /// The answer to the round as far as its result has come.
    pub(super) fn ack(&self) -> SyncAck {
        let outcome = match self.result {
            Some(result) => SyncOutcome::Whole(Received {
                digest: result.digest,
                divergence: (self.mass > 0.0).then_some(result.divergence),
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
    fn steps_count_from_the_snapshot_of_the_last_round_that_gave_something() {
        let range = |start, end| Range { start, end };
        let mut ledger = Ledger { consensus: Some(Version(0)), ..Ledger::default() };
        ledger.trained(Epoch(0), &[range(0, 4)]);
        ledger.trained(Epoch(0), &[range(4, 6)]);
        let (steps, trained) = ledger.snapshot();
        assert_eq!((steps, trained.counted_from(Epoch(0), 10)), (2, vec![range(0, 6)]));
        // Trained while the round was averaged: that stays, where its result comes on top.
        ledger.trained(Epoch(0), &[range(6, 8)]);
        ledger.applied(Version(1), None);
        assert_eq!((ledger.steps, ledger.replica_digest), (1, None));
        // A round that gives nothing leaves its steps in the replica.
        assert_eq!(ledger.snapshot().0, 1);
        ledger.trained(Epoch(0), &[range(8, 9)]);
        ledger.kept();
        assert_eq!(ledger.snapshot().0, 2);
        ledger.trained(Epoch(0), &[range(9, 10)]);
        // Nor does one that is run again, and its positions are told again.
        let (steps, trained) = ledger.snapshot();
        assert_eq!((steps, trained.counted_from(Epoch(0), 10)), (1, vec![range(9, 10)]));
        ledger.trained(Epoch(1), &[range(0, 1)]);
        ledger.again();
        let (steps, trained) = ledger.snapshot();
        assert_eq!((steps, trained.counted_from(Epoch(0), 10)), (2, vec![range(9, 10), range(10, 11)]));
        ledger.trained(Epoch(1), &[range(1, 2)]);
        // A result in the replica's place takes what was trained since with it.
        ledger.applied(Version(2), Some(7));
        assert_eq!(ledger.snapshot(), (0, Positions::default()));
    }
}
