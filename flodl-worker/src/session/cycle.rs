//! The cycle of a round: snapshot, contribute, receive, answer, apply. What is different over NCCL is in `nccl`.

use super::error::{Failure, Violation};
use super::message::{Application, Output, ResultWhole, SnapshotTaken};
use super::round::{Flight, NON_FINITE_ROUNDS_MAX, OpenRound, Over};
use super::{Session, State, Waiting};
use core::time::Duration;
use flodl_wire::message::control::{Next, Part, RosterEntry, RoundOutcome};
use flodl_wire::message::{Control, Report};
use flodl_wire::{Round, Time};

impl Session {
    pub(super) fn open_round(
        &mut self,
        (round, over): (Round, Over),
        roster: &[RosterEntry],
        now: Time,
    ) -> Result<(), Violation> {
        let message = if over == Over::Cpu { "RequestParams" } else { "PrepareSync" };
        let mine = |entry: &&RosterEntry| (entry.rank, entry.incarnation) == (self.me.rank, self.me.incarnation);
        let part = roster.iter().find(mine).map(|entry| entry.part);
        if matches!(self.state, State::Forming) && part.is_none() {
            // A run that has begun goes on while this rank waits to be let in.
            return Ok(());
        }
        self.admitted_run(message)?;
        if let Some(last) = self.newest.round.filter(|&last| last >= round) {
            return Err(Violation::RoundOrder { got: round, last });
        }
        if !matches!(self.state, State::Idle) || self.work.flight.is_some() {
            return Err(self.unexpected(message));
        }
        self.newest.round = Some(round);
        let Some(part) = part else { return Ok(()) };
        // Whoever may still train waits for nobody.
        let trains = self.work.window.as_ref().is_some_and(|window| window.has_more());
        // Told to stop in mid-window: the report comes first.
        self.close_window(now);
        if part == Part::Receive {
            self.drop_windows();
        }
        let waited = if trains { Duration::ZERO } else { now.since(self.marks.window_end) };
        self.outputs.push_back(match over {
            Over::Cpu => Output::Snapshot { round },
            Over::Nccl { .. } => Output::Prepare { round },
        });
        self.state = State::Snapshotting(OpenRound::new((round, over), part, waited));
        Ok(())
    }

    pub(super) fn snapshot_taken(&mut self, taken: SnapshotTaken, now: Time) -> Result<(), Failure> {
        let State::Snapshotting(mut open) = std::mem::replace(&mut self.state, State::Idle) else { return Ok(()) };
        self.count_non_finite(open.part, taken.finite)?;
        let what = self.ledger.contribution(open.part, taken.finite);
        open.finite = taken.finite;
        open.copied = taken.took;
        open.mass = what.mass();
        let (round, base) = (open.round, self.ledger.consensus.unwrap_or_default());
        let (steps, trained) = self.ledger.snapshot();
        let epoch = trained.oldest().unwrap_or(self.newest.epoch);
        let ranges = trained.counted_from(epoch, self.run.as_ref().map_or(0, |run| run.epoch_len));
        match open.over {
            Over::Cpu => {
                self.report(Report::SnapshotReady { round, steps, ranges, epoch });
                self.outputs.push_back(Output::Contribute { round, base, what });
                self.state = State::Contributing(open);
            }
            Over::Nccl { .. } => {
                // Nobody but the coordinator learns from it who adds to the sum.
                let steps = open.mass as u64;
                self.report(Report::SnapshotReady { round, steps, ranges, epoch });
                self.work.flight = Some(Flight::Prepared(open));
            }
        }
        self.pass_snapshot(round, now);
        Ok(())
    }

    fn count_non_finite(&mut self, part: Part, finite: bool) -> Result<(), Failure> {
        // Whoever only receives is about to be overwritten, whatever it holds.
        if finite || part == Part::Receive {
            self.ledger.non_finite_rounds = 0;
            return Ok(());
        }
        self.ledger.non_finite_rounds += 1;
        match self.ledger.non_finite_rounds {
            rounds @ NON_FINITE_ROUNDS_MAX.. => Err(Failure::NonFinite { rounds }),
            _ => Ok(()),
        }
    }

    pub(super) fn contributed(&mut self, round: Round, took: Duration, now: Time) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Contributing(mut open) if open.round == round => {
                open.copied += took;
                let whole = open.result.is_some();
                self.work.flight = Some(Flight::Receiving(open, now));
                if whole {
                    self.acknowledge();
                }
            }
            other => self.state = other,
        }
    }

    /// The round that is open here.
    fn open_here(&mut self) -> Option<&mut OpenRound> {
        match &mut self.state {
            State::Snapshotting(open) | State::Contributing(open) => Some(open),
            _ => self.work.flight.as_mut().map(Flight::round_mut),
        }
    }

    pub(super) fn result_grew(&mut self, round: Round, chunks: u32, now: Time) {
        if let Some(open) = self.open_here().filter(|open| open.round == round) {
            open.chunks = chunks;
        }
        if let Some(Flight::Receiving(open, last)) = &mut self.work.flight
            && open.round == round
        {
            *last = now;
        }
    }

    /// The whole result counts where the round was not answered as incomplete before.
    pub(super) fn result_whole(&mut self, result: ResultWhole) {
        let answered = matches!(self.work.flight, Some(Flight::Answered(_)));
        if let Some(open) = self.open_here().filter(|open| open.round == result.round && !answered) {
            open.result = Some(result);
            self.acknowledge();
        }
    }

    /// Answers the round with what has come of its result, where its contribution is out.
    pub(super) fn acknowledge(&mut self) {
        match self.work.flight.take() {
            Some(Flight::Receiving(open, _)) => {
                self.report(Report::SyncAck(open.ack()));
                self.work.flight = Some(Flight::Answered(open));
            }
            other => self.work.flight = other,
        }
    }

    /// A round's end. Where runs are to be bit-equal no clock may decide how much of a window was trained before its result is
    /// taken: that is after the last batch.
    pub(super) fn hear_round_done(&mut self, round: Round, outcome: RoundOutcome, next: Next) -> Result<(), Violation> {
        let fixed = self.run.as_ref().is_some_and(|run| run.deterministic);
        let trains = self.work.window.as_ref().is_some_and(|window| window.has_more());
        if fixed && trains && next == Next::Window && self.work.ended.is_none() {
            self.work.ended = Some((round, outcome));
            return Ok(());
        }
        self.round_done(round, outcome, next)
    }

    /// Takes the result that waits, where the window is over, or where what comes next does not wait for that. Whether there
    /// was one.
    pub(super) fn take_held_result(&mut self) -> Result<bool, Violation> {
        let next = self.waiting.front();
        let ends = matches!(next, Some(Waiting::Control(Control::RequestParams { .. } | Control::RoundDone { .. })));
        let trains = self.work.window.as_ref().is_some_and(|window| window.has_more());
        match self.work.ended.take_if(|_| ends || !trains) {
            Some((round, outcome)) => self.round_done(round, outcome, Next::Window).map(|()| true),
            None => Ok(false),
        }
    }

    fn round_done(&mut self, round: Round, outcome: RoundOutcome, next: Next) -> Result<(), Violation> {
        if matches!(self.state, State::Forming) {
            return Ok(());
        }
        // The same version again hands a consensus that is in force to ranks that lack it.
        if let (RoundOutcome::Committed { version: got }, Some(held)) = (outcome, self.ledger.consensus)
            && got < held
        {
            return Err(Violation::VersionOrder { got, held });
        }
        self.newest.last |= next == Next::Final;
        self.asked.clear();
        match self.work.flight.take_if(|flight| flight.round().round == round) {
            Some(flight) => {
                self.abort_collective(&flight);
                self.settle(&flight.into_round(), outcome);
            }
            None if self.work.flight.is_none() && self.newest.round.is_none_or(|newest| newest == round) => {
                // A round without this rank (one that began before it was let in, too): what the replica comes from is the
                // consensus no more.
                if matches!(outcome, RoundOutcome::Committed { .. }) {
                    self.ledger.left_out();
                    if self.overlaps() {
                        self.drop_windows();
                    }
                }
            }
            None => {
                let open = self.work.flight.as_ref().map(|flight| flight.round().round);
                return Err(Violation::OtherRound { got: round, open });
            }
        }
        Ok(())
    }

    /// What the end of a round that this rank took part in means for its replica.
    fn settle(&mut self, open: &OpenRound, outcome: RoundOutcome) {
        let whole = open.result.is_some();
        let apply = match (outcome, self.ledger.consensus) {
            (RoundOutcome::Committed { version }, _) if whole => Some(version),
            (RoundOutcome::Committed { .. }, _) => {
                self.ledger.missed();
                self.drop_windows();
                None
            }
            // Nothing was folded, so the result is the consensus that was in force: what a broken replica needs. Over NCCL
            // it is what does not count.
            (RoundOutcome::Nothing, Some(held)) if whole && !open.finite && open.over == Over::Cpu => Some(held),
            (RoundOutcome::Nothing, _) => {
                self.ledger.kept();
                None
            }
            // What it has trained goes into the next round.
            (RoundOutcome::Again, _) => {
                self.ledger.again();
                None
            }
        };
        let Some(version) = apply else {
            self.outputs.push_back(Output::Forget { round: open.round });
            return;
        };
        // Who comes into a run that has begun brings a fresh optimizer to a model that is not.
        self.warm_up |= open.part == Part::Receive && open.round > Round(0) && self.ledger.steps_ever == 0;
        let in_place = !open.finite || open.part == Part::Receive || self.newest.last || self.ledger.is_untouched();
        if self.newest.last {
            self.drop_windows();
        }
        let how = if in_place { Application::InPlace } else { Application::OnTop };
        self.outputs.push_back(Output::Apply { round: open.round, how, reset_optimizer: !open.finite });
        self.state = State::Applying(version);
    }

    /// `digest`: of the replica, where the result took its place.
    pub(super) fn applied(&mut self, digest: Option<u64>) {
        if let State::Applying(version) = self.state {
            self.ledger.applied(version, digest);
            self.state = State::Idle;
        }
    }
}
