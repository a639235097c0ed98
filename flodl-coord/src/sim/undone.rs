//! What a mutant makes of what the controller is told and says.

use super::controller::Controller;
use super::fabric::Fabric;
use super::mutant::Mutant;
use crate::coordinator::Phase;
use crate::ledger::For;
use crate::{Input, Output};
use flodl_wire::message::control::Part;
use flodl_wire::message::nccl::NcclAck;
use flodl_wire::message::record::{Body, EventKind};
use flodl_wire::message::report::{Evaluation, Folded, SyncAck, SyncOutcome};
use flodl_wire::message::{Control, HostReport, Report};
use flodl_wire::{Incarnation, NcclSession, Rank, Round, SessionId};

impl Controller {
    pub(super) fn mutated(&mut self, fab: &Fabric, mut input: Input) -> Option<Input> {
        use HostReport::{RankExited, RankLost};
        if fab.off(Mutant::DigestCompare)
            && let Input::FromRank { report, .. } = &mut input
        {
            match report {
                Report::SyncAck(SyncAck { outcome: SyncOutcome::Whole(received), .. }) => {
                    received.digest = self.auditor.digest.unwrap_or(received.digest);
                }
                Report::WindowReport(report) => report.replica_digest = None,
                _ => {}
            }
        }
        match &mut input {
            Input::FromHost { report: HostReport::RankState(state), .. } if fab.off(Mutant::LastWords) => {
                state.words.clear();
            }
            Input::FromRank { report: Report::Heartbeat { step }, .. } if fab.off(Mutant::StallCeiling) => {
                *step = fab.events;
            }
            Input::FromHost { report: HostReport::RankState(state), .. } if fab.off(Mutant::LeasesKept) => {
                state.plan = None;
            }
            _ => {}
        }
        if fab.off(Mutant::CommunicatorNumber)
            && let Input::FromRank { report: Report::NcclAck(_), .. } = &input
        {
            self.answers.push(input.clone());
        }
        if fab.off(Mutant::NobodyInside)
            && input == Input::Stop
            && let Phase::Running(running) = &mut self.core.phase
            && let Some(nccl) = &mut running.nccl
        {
            nccl.inside.clear();
        }
        let notice = matches!(input, Input::FromHost { report: RankExited { .. } | RankLost { .. }, .. });
        (!(notice && fab.off(Mutant::DeathNotice))).then_some(input)
    }

    pub(super) fn misdirected(&mut self, fab: &Fabric, mut output: Output) -> Option<Output> {
        if self.forgets(fab, &mut output) {
            return None;
        }
        if fab.off(Mutant::CommunicatorNumber)
            && let Output::Broadcast(Control::SyncNow { round, session, .. }) = &output
        {
            self.answers_again((*round, *session));
        }
        if fab.off(Mutant::ConsensusBeforeSource)
            && let Output::Broadcast(Control::RequestParams { roster, .. }) = &mut output
        {
            for entry in roster.iter_mut().filter(|entry| entry.part == Part::Receive) {
                entry.part = Part::Source;
            }
        }
        let lost = match &output {
            Output::ToRank { control: Control::Fenced { .. }, .. } => fab.off(Mutant::Fence),
            Output::ToHost { control: Control::Admit(admit), .. } => {
                let known = |&(rank, _): &(Rank, Incarnation)| self.auditor.newest(rank).is_some();
                fab.off(Mutant::LostLives) && admit.ids.iter().any(known)
            }
            Output::ToHost { control: Control::Restart { rank, incarnation }, .. } => {
                let known = self.auditor.newest(*rank).is_some_and(|(_, newest)| newest == *incarnation);
                fab.off(Mutant::LostLives) && known
            }
            Output::ToRank { rank, control: Control::Window(plan), .. } => {
                fab.off(Mutant::LostOrders) && self.auditor.knows(*rank, plan)
            }
            _ => false,
        };
        self.other_evaluations(fab, &mut output);
        (!lost).then_some(output)
    }

    /// Evaluations by another rank, or before they are made.
    fn other_evaluations(&mut self, fab: &Fabric, output: &mut Output) {
        if let Output::ToRank { session, rank, incarnation, control: Control::ExecuteEval { schedule } } = output {
            let first = *self.evaluator.get_or_insert((*session, *rank, *incarnation));
            if fab.off(Mutant::DutyReelected) {
                (*session, *rank, *incarnation) = first;
            }
            if fab.off(Mutant::DutyAwaited) {
                let outcome = Ok(Evaluation { loss: 0.0, accuracy: None, samples: 1 });
                let (session, rank, incarnation) = (*session, *rank, *incarnation);
                let report = Report::EvalResult { schedule: *schedule, outcome };
                self.pending.push_back(Input::FromRank { session, rank, incarnation, report });
            }
        }
    }

    /// A word of a life that is over, as if the rank's next life had said it.
    pub(super) fn reborn(&self, fab: &Fabric, mut input: Input) -> Input {
        if fab.off(Mutant::IncarnationCheck) {
            let newest = |rank, old| self.auditor.newest(rank).filter(|&(_, newest)| old < newest);
            match &mut input {
                Input::FromRank { session, rank, incarnation, .. } => {
                    if let Some(newest) = newest(*rank, *incarnation) {
                        (*session, *incarnation) = newest;
                    }
                }
                Input::FromHost { session, report: HostReport::RankState(state) } => {
                    if let Some(newest) = newest(state.rank, state.incarnation) {
                        (*session, state.incarnation) = newest;
                    }
                }
                _ => {}
            }
        }
        input
    }

    /// The session that took the place of one that is over.
    pub(super) fn replacement(&self, session: SessionId) -> SessionId {
        let Some(old) = self.peers.get(&session).filter(|peer| !peer.open) else { return session };
        let newer = self.peers.iter().find(|(_, peer)| peer.open && peer.host == old.host);
        newer.map_or(session, |(&session, _)| session)
    }

    /// The dead take as much again as they held.
    pub(super) fn keeps_leases(&mut self, fab: &Fabric, output: &Output) {
        if fab.off(Mutant::Forfeit)
            && let Output::Record(Body::Event(event)) = output
            && let EventKind::Death { rank, .. } = event.kind
            && let Phase::Running(running) = &mut self.core.phase
        {
            let lease = (For::This(running.ledger.epoch), &[][..]);
            running.ledger.lease(rank, self.auditor.held_by(rank), lease);
        }
    }

    /// What was answered on the communicator before counts for this one.
    fn answers_again(&mut self, (round, on): (Round, NcclSession)) {
        for mut input in core::mem::take(&mut self.answers) {
            if let Input::FromRank { report: Report::NcclAck(NcclAck { session, ack }), .. } = &mut input
                && ack.round == round
            {
                *session = on;
                self.pending.push_back(input);
            }
        }
    }

    pub(super) fn acknowledge_all(&mut self, folded: &Folded) {
        let received = self.auditor.received(folded.digest);
        for (session, rank, incarnation) in self.auditor.roster.clone() {
            let outcome = SyncOutcome::Whole(received);
            let ack = SyncAck { round: folded.round, outcome, waited: Default::default(), copied: Default::default() };
            self.pending.push_back(Input::FromRank { session, rank, incarnation, report: Report::SyncAck(ack) });
        }
    }
}
