//! What hosts and ranks say: who may come in, who is gone, and whether somebody spoke out of turn.

use crate::averaging::Folder;
use crate::coordinator::{Coordinator, Phase, context};
use crate::members::{HostLink, State};
use crate::{Fate, Output};
use flodl_wire::limits::RANKS_MAX;
use flodl_wire::message::control::Control;
use flodl_wire::message::join::Admit;
use flodl_wire::message::record::{EventKind, Reason};
use flodl_wire::message::report::ExitStatus;
use flodl_wire::message::{HostReport, Report};
use flodl_wire::{HostId, Rank, Round, SessionId, Time};

impl Coordinator {
    pub(crate) fn heard(&mut self, session: SessionId, rank: Option<Rank>, now: Time) {
        self.members.heard(session, rank, now);
    }

    pub(crate) fn host_connected(&mut self, session: SessionId, host: HostId, rank_count: u32, now: Time) {
        self.watch.moved(now);
        if let Err(why) = self.admit(session, host, rank_count, now) {
            self.ctx(now).alert(why.clone());
            self.out.push_back(Output::ToHost { session, control: Control::Refused { why } });
            self.out.push_back(Output::CloseHost { session });
        }
    }

    fn admit(&mut self, session: SessionId, host: HostId, count: u32, now: Time) -> Result<(), Reason> {
        let name = host.name();
        let world = self.config.world_size;
        let late = match &self.phase {
            Phase::Forming(_) => false,
            Phase::Running(running) if running.stopping.is_none() => true,
            Phase::Returning(_) | Phase::Running(_) | Phase::Finishing(_) | Phase::Ended => {
                return Err(Reason::new("too-late", format!("host {name} came too late: the run is ending")));
            }
        };
        if self.members.is_here(host) {
            let text = format!("host {name} is already here: give every host a ticket of its own (flodl ticket HOST)");
            return Err(Reason::new("host-twice", text));
        }
        if count == 0 {
            return Err(Reason::new("no-ranks", format!("host {name} brings no ranks: start join with -n 1 or more")));
        }
        let link = HostLink { host, first: session, ranks: Vec::new(), seen: now };
        let taken = self.members.ever();
        // A run that has begun takes whoever comes; before, it waits for as many as it was told.
        let room = if late { (RANKS_MAX, true) } else { (world, false) };
        let Some(ids) = self.members.admit((session, link), count, room) else {
            let free = (world as usize).saturating_sub(taken);
            let advice = if free == 0 { String::new() } else { format!("start join with -n {free}, or ") };
            let text = format!(
                "host {name} would bring {count} ranks and the run of {world} has room for {free}: {advice}start serve with more"
            );
            return Err(Reason::new("no-room", text));
        };
        let ranks: Vec<Rank> = ids.iter().map(|&(rank, _)| rank).collect();
        self.write_lives(&ranks, now);
        self.ctx(now).event(EventKind::HostJoined { host, ranks }, None);
        let control = Control::Admit(Admit { session, ids, world_size: world });
        self.out.push_back(Output::ToHost { session, control });
        Ok(())
    }

    pub(crate) fn host_report(&mut self, session: SessionId, report: HostReport, now: Time) {
        self.heard(session, None, now);
        let is_of_an_end = matches!(
            report,
            HostReport::Leaving
                | HostReport::Back { .. }
                | HostReport::RankExited { .. }
                | HostReport::RankNotStarted { .. }
        );
        self.host_says(session, report, now);
        if is_of_an_end {
            self.dismiss(session);
        }
    }

    /// Where nothing is waited for of any rank of a host any more, its relay may go.
    fn dismiss(&mut self, session: SessionId) {
        let Some(link) = self.members.host(session).filter(|link| !link.ranks.is_empty()) else { return };
        let is_over = |rank: &Rank| self.members.get(*rank).is_none_or(|m| m.session != session || m.is_gone());
        if link.ranks.iter().all(is_over) {
            self.out.push_back(Output::ToHost { session, control: Control::Dismissed });
        }
    }

    fn host_says(&mut self, session: SessionId, report: HostReport, now: Time) {
        let mine = |rank, incarnation| self.members.speaks_for(session, rank, incarnation);
        match report {
            // What a host has kept counts where a controller is new.
            HostReport::Heartbeat
            | HostReport::RankUp { .. }
            | HostReport::CommitPart { .. }
            | HostReport::Back { .. } => {}
            HostReport::WillRestart { rank, incarnation } if mine(rank, incarnation) => {
                if let Some(mut member) = self.members.get_mut(rank) {
                    member.returns = true;
                }
            }
            HostReport::Leaving => self.host_leaves(session, now),
            HostReport::RankState(state) => self.rank_state(session, *state, now),
            HostReport::Waiting { round, rank, chunk } if self.members.reached_through(session, rank) => {
                self.fold_waits(Folder::Host, round, (rank, chunk), now);
            }
            HostReport::RankNotStarted { rank, incarnation, error } if mine(rank, incarnation) => {
                self.lose(rank, Fate::NotStarted { error }, now);
            }
            HostReport::RankExited { rank, incarnation, status, last_lines } if mine(rank, incarnation) => {
                self.rank_exited(rank, status, last_lines, now);
            }
            HostReport::RankLost { rank, incarnation, error } if mine(rank, incarnation) => {
                self.rank_disconnected(rank, error, now);
            }
            HostReport::Waiting { .. }
            | HostReport::WillRestart { .. }
            | HostReport::RankNotStarted { .. }
            | HostReport::RankExited { .. }
            | HostReport::RankLost { .. } => {}
        }
    }

    pub(crate) fn fold_waits(&mut self, by: Folder, round: Round, of: (Rank, u32), now: Time) {
        let ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
        let late = match &mut self.phase {
            Phase::Running(running) => running.fold_waits(&ctx, by, round, of),
            _ => Vec::new(),
        };
        for (rank, fate) in late {
            self.expel(rank, fate, now);
        }
    }

    fn rank_exited(&mut self, rank: Rank, status: ExitStatus, last_lines: String, now: Time) {
        let finished = self.members.get(rank).is_some_and(|m| matches!(m.state, State::Leaving { finished: true }));
        let fate = if finished && status == ExitStatus::Code(0) {
            Fate::Finished
        } else {
            Fate::Exited { status, last_lines }
        };
        self.lose(rank, fate, now);
    }

    /// The connection is gone; the exit status, which says more, may follow within the grace.
    fn rank_disconnected(&mut self, rank: Rank, error: String, now: Time) {
        let until = now.plus(self.deadlines.exit_grace);
        if let Some(mut member) = self.members.get_mut(rank)
            && member.doubt.is_none()
            && !matches!(member.state, State::Leaving { finished: true })
        {
            member.doubt = Some((until, Fate::Disconnected { error }));
        }
    }

    pub(crate) fn rank_report(&mut self, rank: Rank, report: Report, now: Time) {
        let Some(member) = self.members.get(rank) else { return };
        if let State::Gone(fate) = &member.state {
            // It was given up without its own doing and is back: it is told, once a frame.
            if matches!(fate, Fate::Silent { .. } | Fate::Disconnected { .. }) {
                let (session, incarnation) = (member.session, member.incarnation);
                self.out.push_back(Output::ToRank {
                    session,
                    rank,
                    incarnation,
                    control: Control::Fenced { incarnation },
                });
            }
            return;
        }
        // Until its relay has said where it stands nothing of it counts, but that it has failed.
        if matches!(member.state, State::Detached { .. }) && !matches!(report, Report::Failed { .. }) {
            return;
        }
        let breach = match report {
            Report::Heartbeat { step } => {
                self.stepped(rank, step, now);
                Ok(())
            }
            Report::Failed { error } => {
                self.lose(rank, Fate::Failed { error }, now);
                Ok(())
            }
            report => {
                self.watch.moved(now);
                self.phase_report(rank, report, now)
            }
        };
        if let Err(breach) = breach {
            self.expel(rank, Fate::Breach(breach), now);
        }
    }
}
