//! The coordinator's state machine: inputs in, outputs out, time as an argument.

use crate::config::{Config, ConfigError, Deadlines};
use crate::context::Context;
use crate::finishing::{Ending, Finishing};
use crate::formation::{Formed, Forming};
use crate::members::{HostLink, Member, Members, State};
use crate::running::{Running, Step};
use crate::watch::Watch;
use crate::{Breach, Fate, Input, Output};
use flodl_elche::{Elche, Guard, NoGuard, Settings};
use flodl_wire::message::control::Control;
use flodl_wire::message::join::Admit;
use flodl_wire::message::record::{EventKind, Reason};
use flodl_wire::message::report::ExitStatus;
use flodl_wire::message::{HostReport, Report};
use flodl_wire::{HostId, Incarnation, Rank, SessionId, Time};
use std::collections::VecDeque;

/// Decides for a whole run. Feed it with [`Coordinator::handle`] and [`Coordinator::tick`], take every output with
/// [`Coordinator::poll`] after each, and tick it again at [`Coordinator::next_deadline`].
pub struct Coordinator {
    config: Config,
    deadlines: Deadlines,
    members: Members,
    phase: Phase,
    out: VecDeque<Output>,
    watch: Watch,
    guard: Option<Box<dyn Guard>>,
    stops: u32,
}

enum Phase {
    Forming(Forming),
    Running(Box<Running>),
    Finishing(Box<Finishing>),
    Ended,
}

impl Coordinator {
    /// A coordinator that waits for hosts.
    ///
    /// # Errors
    /// Settings that contradict each other.
    pub fn new(config: Config, now: Time) -> Result<Coordinator, ConfigError> {
        Coordinator::with_guard(config, Box::new(NoGuard), now)
    }

    /// The same with a convergence guard of the caller's.
    ///
    /// # Errors
    /// Settings that contradict each other.
    pub fn with_guard(config: Config, guard: Box<dyn Guard>, now: Time) -> Result<Coordinator, ConfigError> {
        config.validate()?;
        let deadlines = Deadlines::from_patience(config.patience);
        Ok(Coordinator {
            config,
            deadlines,
            members: Members::default(),
            phase: Phase::Forming(Forming::default()),
            out: VecDeque::new(),
            watch: Watch::new(now, deadlines.silence),
            guard: Some(guard),
            stops: 0,
        })
    }

    /// The deadlines that follow from the patience.
    #[must_use]
    pub fn deadlines(&self) -> Deadlines {
        self.deadlines
    }

    /// Whether `session` may speak for that life of that rank.
    #[must_use]
    pub fn speaks_for(&self, session: SessionId, rank: Rank, incarnation: Incarnation) -> bool {
        self.members.speaks_for(session, rank, incarnation)
    }

    /// The next output, if any. Take them all after each input.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// Takes an input. Once the run has ended, inputs change nothing.
    pub fn handle(&mut self, input: Input, now: Time) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        match input {
            Input::HostConnected { session, host, rank_count } => self.host_connected(session, (host, rank_count), now),
            Input::HostLost { session, error } => self.host_lost(session, &error, now),
            Input::FromHost { session, report } => self.host_report(session, report, now),
            Input::FromRank { session, rank, incarnation, report } => {
                if self.members.speaks_for(session, rank, incarnation) {
                    self.heard(session, Some(rank), now);
                    self.rank_report(rank, report, now);
                }
            }
            Input::Folded(folded) => {
                self.watch.moved(now);
                if let Phase::Running(running) = &mut self.phase {
                    running.folded(folded);
                }
            }
            Input::Saved { version, result } => {
                self.in_finishing(now, |finishing, ctx| finishing.saved(ctx, version, result));
            }
            Input::Stop => self.stop(now),
        }
        self.advance(now);
    }

    /// Lets time pass: deadlines that are over take effect.
    pub fn tick(&mut self, now: Time) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        for (session, error) in self.silent_hosts(now) {
            self.out.push_back(Output::CloseHost { session });
            self.host_lost(session, &error, now);
        }
        for (rank, fate) in self.overdue_members(now) {
            self.lose(rank, fate, now);
        }
        if let Phase::Finishing(finishing) = &mut self.phase {
            let late =
                finishing.overdue(&mut context((&self.config, self.deadlines), &mut self.members, &mut self.out, now));
            for (rank, fate) in late {
                self.lose(rank, fate, now);
            }
        }
        if self.watch.beat(now, self.deadlines.heartbeat) {
            self.out.push_back(Output::Broadcast(Control::Heartbeat));
        }
        self.advance(now);
    }

    /// When to tick next; `None` once the run has ended.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let finishing = match &self.phase {
            Phase::Ended => return None,
            Phase::Finishing(finishing) => Some(finishing.deadline()),
            Phase::Forming(_) | Phase::Running(_) => None,
        };
        let hosts = self.members.hosts().map(|(_, link)| link.seen.plus(self.deadlines.silence));
        let members = self.members.living().filter_map(|member| self.member_deadline(member));
        hosts.chain(members).chain(finishing).chain([self.watch.next()]).min()
    }

    fn ctx(&mut self, now: Time) -> Context<'_> {
        context((&self.config, self.deadlines), &mut self.members, &mut self.out, now)
    }

    fn in_finishing(&mut self, now: Time, act: impl FnOnce(&mut Finishing, &mut Context<'_>)) {
        if let Phase::Finishing(finishing) = &mut self.phase {
            self.watch.moved(now);
            let mut ctx = context((&self.config, self.deadlines), &mut self.members, &mut self.out, now);
            act(finishing, &mut ctx);
        }
    }

    fn heard(&mut self, session: SessionId, rank: Option<Rank>, now: Time) {
        if let Some(link) = self.members.host_mut(session) {
            link.seen = now;
        }
        if let Some(member) = rank.and_then(|rank| self.members.get_mut(rank)) {
            member.seen = Some(now);
        }
    }

    fn host_connected(&mut self, session: SessionId, (host, rank_count): (HostId, u32), now: Time) {
        self.watch.moved(now);
        if let Err(why) = self.admit(session, (host, rank_count), now) {
            self.ctx(now).alert(why.clone());
            self.out.push_back(Output::ToHost { session, control: Control::Refused { why } });
            self.out.push_back(Output::CloseHost { session });
        }
    }

    fn admit(&mut self, session: SessionId, (host, count): (HostId, u32), now: Time) -> Result<(), Reason> {
        let name = host.name();
        let world = self.config.world_size;
        if !matches!(self.phase, Phase::Forming(_)) {
            let text =
                format!("host {name} came too late: the run has started, and joining a running one is not available");
            return Err(Reason::new("too-late", text));
        }
        if self.members.hosts().any(|(_, link)| link.host == host) {
            let text = format!("host {name} is already here: give every host a ticket of its own (flodl ticket HOST)");
            return Err(Reason::new("host-twice", text));
        }
        let link = HostLink { host, ranks: Vec::new(), seen: now };
        let taken = self.members.iter().count();
        let Some(ids) = self.members.admit(session, link, (count, world)) else {
            let free = (world as usize).saturating_sub(taken);
            let text = format!(
                "host {name} would bring {count} ranks and the run of {world} has room for {free}: start join with -n {free}, or serve with more"
            );
            return Err(Reason::new("no-room", text));
        };
        let ranks = ids.iter().map(|&(rank, _)| rank).collect();
        self.ctx(now).event(EventKind::HostJoined { host, ranks }, None);
        let control = Control::Admit(Admit { session, ids, world_size: world });
        self.out.push_back(Output::ToHost { session, control });
        Ok(())
    }

    fn host_lost(&mut self, session: SessionId, error: &str, now: Time) {
        let Some(link) = self.members.remove_host(session) else { return };
        self.watch.moved(now);
        let why = Reason::new("host-lost", error).about(link.ranks.iter().copied());
        self.ctx(now).event(EventKind::HostLost { host: link.host }, Some(why));
        let until = now.plus(self.deadlines.detached);
        for rank in link.ranks {
            let Some(member) = self.members.get_mut(rank).filter(|member| !member.is_gone()) else { continue };
            if matches!(member.state, State::Leaving { finished: true }) {
                member.state = State::Gone(Fate::Finished);
                continue;
            }
            member.state = State::Detached { until, error: error.to_owned() };
        }
        for (rank, fate) in self.overdue_members(now) {
            self.lose(rank, fate, now);
        }
    }

    fn host_report(&mut self, session: SessionId, report: HostReport, now: Time) {
        self.heard(session, None, now);
        let mine = |rank, incarnation| self.members.speaks_for(session, rank, incarnation);
        match report {
            HostReport::Heartbeat | HostReport::Waiting { .. } | HostReport::RankUp { .. } => {}
            HostReport::RankNotStarted { rank, incarnation, error } if mine(rank, incarnation) => {
                self.lose(rank, Fate::NotStarted { error }, now);
            }
            HostReport::RankExited { rank, incarnation, status, last_lines } if mine(rank, incarnation) => {
                self.rank_exited(rank, (status, last_lines), now);
            }
            HostReport::RankLost { rank, incarnation, error } if mine(rank, incarnation) => {
                self.rank_disconnected(rank, error, now);
            }
            HostReport::RankNotStarted { .. } | HostReport::RankExited { .. } | HostReport::RankLost { .. } => {}
        }
    }

    fn rank_exited(&mut self, rank: Rank, (status, last_lines): (ExitStatus, String), now: Time) {
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
        if let Some(member) = self.members.get_mut(rank)
            && member.doubt.is_none()
            && !matches!(member.state, State::Leaving { finished: true })
        {
            member.doubt = Some((until, Fate::Disconnected { error }));
        }
    }

    fn rank_report(&mut self, rank: Rank, report: Report, now: Time) {
        if self.members.get(rank).is_none_or(Member::is_gone) {
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
            self.ctx(now).tell(rank, Control::Refused { why: Fate::Breach(breach.clone()).reason(rank) });
            self.lose(rank, Fate::Breach(breach), now);
        }
    }

    fn stepped(&mut self, rank: Rank, step: u64, now: Time) {
        if let Some(member) = self.members.get_mut(rank)
            && member.step != step
        {
            member.step = step;
            self.watch.moved(now);
        }
    }

    fn phase_report(&mut self, rank: Rank, report: Report, now: Time) -> Result<(), Breach> {
        let mut ctx = context((&self.config, self.deadlines), &mut self.members, &mut self.out, now);
        match (&mut self.phase, report) {
            (Phase::Forming(forming), Report::Ready(ready)) => forming.ready(&mut ctx, rank, ready),
            (Phase::Forming(forming), Report::Manifest { part, parts, tensors }) => {
                forming.manifest(&ctx, rank, (part, parts), tensors)
            }
            (Phase::Running(running), Report::WindowReport(report)) => running.window_report(&mut ctx, rank, &report),
            (Phase::Running(running), Report::SnapshotReady { round, steps, ranges }) => {
                running.snapshot(rank, (round, steps), &ranges)
            }
            (Phase::Running(running), Report::SyncAck(ack)) => {
                running.acknowledged(rank, ack);
                Ok(())
            }
            (Phase::Finishing(finishing), Report::EvalResult { schedule, outcome }) => {
                finishing.evaluated(&mut ctx, (rank, schedule), outcome);
                Ok(())
            }
            (Phase::Finishing(finishing), Report::Finished { version, replica_digest }) => {
                finishing.finished(&mut ctx, rank, version.map(|version| (version, replica_digest)));
                Ok(())
            }
            // Late words of a phase that is over, and progress, need no answer.
            _ => Ok(()),
        }
    }

    fn stop(&mut self, now: Time) {
        self.stops += 1;
        self.watch.moved(now);
        let mut ctx = context((&self.config, self.deadlines), &mut self.members, &mut self.out, now);
        match &mut self.phase {
            Phase::Running(running) if self.stops == 1 => running.stop(&mut ctx),
            Phase::Finishing(_) if self.stops == 1 => {}
            Phase::Finishing(finishing) if finishing.is_saved() => {
                self.end(4, Some(Reason::new("stopped-at-once", "stopped at once, on request, after saving")), now);
            }
            Phase::Forming(_) => self.end(1, Some(Reason::new("stopped", "stopped before the run began")), now),
            Phase::Running(_) | Phase::Finishing(_) => {
                let why = Reason::new("stopped-at-once", "stopped at once, on request: what was not saved is lost");
                self.end(1, Some(why), now);
            }
            Phase::Ended => {}
        }
    }

    /// A member's life is over: the one place where that happens.
    fn lose(&mut self, rank: Rank, fate: Fate, now: Time) {
        let Some(member) = self.members.get_mut(rank).filter(|member| !member.is_gone()) else { return };
        let incarnation = member.incarnation;
        let formed = !matches!(member.state, State::Starting | State::Joining(_));
        member.doubt = None;
        member.state = State::Gone(fate.clone());
        self.watch.moved(now);
        let mut ctx = context((&self.config, self.deadlines), &mut self.members, &mut self.out, now);
        if fate.is_loss() {
            ctx.event(EventKind::Death { rank, incarnation }, Some(fate.reason(rank)));
        } else {
            ctx.event(EventKind::RankFinished { rank }, None);
        }
        match &mut self.phase {
            Phase::Running(running) if formed => running.lose(&mut ctx, rank, &fate),
            Phase::Finishing(finishing) => finishing.lose(&mut ctx, rank),
            Phase::Forming(_) | Phase::Running(_) | Phase::Ended => {}
        }
        if fate.is_loss() {
            let why = fate.reason(rank);
            self.out.push_back(Output::Broadcast(Control::DeclareDead { rank, incarnation, why }));
        }
        self.watch.last_loss(fate.brought_itself_down());
    }

    fn advance(&mut self, now: Time) {
        loop {
            let mut ctx = context((&self.config, self.deadlines), &mut self.members, &mut self.out, now);
            let hold = match &mut self.phase {
                Phase::Ended => return,
                Phase::Forming(forming) => match forming.advance(&mut ctx) {
                    Formed::Waiting(waiting) => Reason::from(&waiting),
                    Formed::TooFew(why) => return self.end(1, Some(why), now),
                    Formed::Run(agreed) => match self.scheduler(agreed.batch_size) {
                        Ok(scheduler) => {
                            self.phase =
                                Phase::Running(Box::new(Running::start(&mut self.ctx(now), agreed, scheduler)));
                            continue;
                        }
                        Err(why) => return self.end(1, Some(why), now),
                    },
                },
                Phase::Running(running) => match running.advance(&mut ctx) {
                    Step::Again => continue,
                    Step::Hold(reason) => reason,
                    Step::Final => {
                        let ending = if self.stops > 0 { Ending::Stopped } else { Ending::Done };
                        self.finish(ending, now);
                        continue;
                    }
                    Step::Deserted => {
                        let brought_itself_down = self.watch.last_brought_itself_down();
                        self.finish(Ending::Deserted { brought_itself_down }, now);
                        continue;
                    }
                },
                Phase::Finishing(finishing) => match finishing.advance(&ctx) {
                    Ok(exit) => return self.end(exit, None, now),
                    Err(reason) => reason,
                },
            };
            if let Some(stall) = self.watch.stall(now, hold) {
                self.ctx(now).event(EventKind::Stall, Some(stall));
            }
            return;
        }
    }

    fn scheduler(&mut self, batch_size: u32) -> Result<Box<Elche>, Reason> {
        let settings = Settings { policy: self.config.mode.policy(), batch_size, ..Settings::default() };
        let guard = self.guard.take().unwrap_or(Box::new(NoGuard));
        Elche::new(settings, guard).map(Box::new).map_err(|error| Reason::new("settings", error.to_string()))
    }

    fn finish(&mut self, ending: Ending, now: Time) {
        let Phase::Running(running) = std::mem::replace(&mut self.phase, Phase::Ended) else { return };
        let finishing = Finishing::start(&mut self.ctx(now), *running, ending);
        self.phase = Phase::Finishing(Box::new(finishing));
    }

    fn end(&mut self, exit: i32, why: Option<Reason>, now: Time) {
        if exit == 1
            && let Some(why) = &why
        {
            self.out.push_back(Output::Broadcast(Control::ShutdownWithSave { why: why.clone() }));
        }
        self.ctx(now).event(EventKind::RunEnded { exit }, why);
        self.phase = Phase::Ended;
        self.out.push_back(Output::End { exit });
    }

    fn silent_hosts(&self, now: Time) -> Vec<(SessionId, String)> {
        let silence = self.deadlines.silence;
        let silent = self.members.hosts().filter(|(_, link)| now >= link.seen.plus(silence));
        silent.map(|(session, _)| (session, format!("nothing was heard from its relay for {silence:?}"))).collect()
    }

    fn overdue_members(&self, now: Time) -> Vec<(Rank, Fate)> {
        let due = |member: &&Member| self.member_deadline(member).is_some_and(|deadline| now >= deadline);
        self.members.living().filter(due).map(|member| (member.rank, self.fate_at_deadline(member))).collect()
    }

    fn member_deadline(&self, member: &Member) -> Option<Time> {
        if let State::Detached { until, .. } = member.state {
            return Some(until);
        }
        if matches!(member.state, State::Leaving { finished: true }) {
            return None;
        }
        let doubt = member.doubt.as_ref().map(|(until, _)| *until);
        let silence = member.seen.map(|seen| seen.plus(self.deadlines.silence));
        doubt.into_iter().chain(silence).min()
    }

    fn fate_at_deadline(&self, member: &Member) -> Fate {
        match (&member.state, &member.doubt) {
            (State::Detached { error, .. }, _) => Fate::HostLost { error: error.clone() },
            (_, Some((_, fate))) => fate.clone(),
            (_, None) => Fate::Silent { patience: self.deadlines.silence },
        }
    }
}

fn context<'a>(
    (config, deadlines): (&'a Config, Deadlines),
    members: &'a mut Members,
    out: &'a mut VecDeque<Output>,
    now: Time,
) -> Context<'a> {
    Context { config, deadlines, members, out, now }
}
