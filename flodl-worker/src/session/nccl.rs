//! What of a round is different over NCCL, and the communicator that it needs.
//!
//! ```text
//!            PrepareSync, copied            SyncNow                  Collected
//!  Idle ------------------------> Prepared ---------> Collecting -----------------> Answered
//!                                    ^  ^-------------------'  lost, or replaced        |
//!                                    '--------------------------------------------------'  issued again
//! ```
//!
//! A communicator belongs to no state: the coordinator has it formed when a round needs it, and formed anew when a member is
//! lost. A round that is issued again on another one starts from the copy, also where its first result was there already:
//! others do not have that one.

use super::error::Violation;
use super::message::{Collective, Membership, Output, ResultWhole};
use super::round::{Flight, Over};
use super::{Session, State};
use flodl_wire::message::Report;
use flodl_wire::message::nccl::{NcclAck, NewSession, Standing};
use flodl_wire::{Incarnation, NcclSession, Rank, Round};

/// The communicator that was ordered last.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Group {
    newest: NcclSession,
    /// Its number of members. `None`: it is lost, or there was none.
    size: Option<usize>,
    /// Rounds can be averaged on it.
    is_ready: bool,
}

impl Session {
    pub(super) fn make_nccl_id(&mut self, session: NcclSession) -> Result<(), Violation> {
        self.admitted_run("RequestNewNcclId")?;
        self.outputs.push_back(Output::MakeNcclId { session });
        Ok(())
    }

    pub(super) fn open_session(&mut self, new: NewSession) {
        let me = (self.me.rank, self.me.incarnation);
        let place = (0..).zip(&new.members).find(|(_, member)| **member == me).map(|(place, _)| place);
        let Some(place) = place.filter(|_| new.session > self.work.group.newest) else { return };
        self.work.group = Group { newest: new.session, size: Some(new.members.len()), is_ready: false };
        self.let_go_of_collective();
        let NewSession { session, id, members } = new;
        self.outputs.push_back(Output::OpenSession(Membership { session, id, place, members }));
    }

    /// What was issued will not be done: the round waits to be issued again.
    fn let_go_of_collective(&mut self) {
        self.work.flight = match self.work.flight.take() {
            Some(Flight::Collecting(open, _)) => Some(Flight::Prepared(open)),
            other => other,
        };
    }

    pub(super) fn nccl_stands(&mut self, session: NcclSession, standing: Standing) {
        let group = &mut self.work.group;
        if group.newest != session || group.size.is_none() {
            return;
        }
        match standing {
            Standing::Begun => {}
            Standing::Ready => group.is_ready = true,
            Standing::NotFormed { .. } | Standing::Lost { .. } => {
                (group.size, group.is_ready) = (None, false);
                self.let_go_of_collective();
            }
        }
        self.report(Report::NcclSession { session, standing });
    }

    /// Who is not in the round, or has lost the communicator and said so, has nothing to do with it.
    pub(super) fn sync_now(
        &mut self,
        (round, session): (Round, NcclSession),
        root: Option<u32>,
    ) -> Result<(), Violation> {
        let Group { newest, size, is_ready } = self.work.group;
        let Some(size) = size.filter(|_| is_ready && newest == session) else { return Ok(()) };
        if let Some(root) = root.filter(|&root| usize::try_from(root).is_ok_and(|root| root >= size)) {
            return Err(Violation::Root { round, root, size });
        }
        let issues = |flight: &mut Flight| flight.round().round == round && flight.may_issue(session);
        let Some(flight) = self.work.flight.take_if(issues) else { return Ok(()) };
        let mut open = flight.into_round();
        let again = matches!(open.over, Over::Nccl { issued: Some(_) });
        open.result = None;
        open.over = Over::Nccl { issued: Some(session) };
        self.outputs.push_back(Output::Collective(Collective { round, session, root, mass: open.mass, again }));
        self.work.flight = Some(Flight::Collecting(open, session));
        Ok(())
    }

    pub(super) fn collected(&mut self, on: NcclSession, result: ResultWhole) {
        match self.work.flight.take() {
            Some(Flight::Collecting(mut open, session)) if session == on && open.round == result.round => {
                open.result = Some(result);
                self.report(Report::NcclAck(NcclAck { session, ack: open.ack() }));
                self.work.flight = Some(Flight::Answered(open));
            }
            other => self.work.flight = other,
        }
    }

    /// The round is over: nobody waits for what this rank may still be at.
    pub(super) fn abort_collective(&mut self, flight: &Flight) {
        if let Flight::Collecting(_, session) = *flight {
            self.outputs.push_back(Output::AbortCollective { session });
        }
    }

    pub(super) fn peer_died(&mut self, (rank, incarnation): (Rank, Incarnation)) {
        if self.work.group.size.is_some() && !matches!(self.state, State::Ended) {
            self.outputs.push_back(Output::PeerDied { rank, incarnation });
        }
    }
}
