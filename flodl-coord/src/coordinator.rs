//! The coordinator's state machine: inputs in, outputs out, time as an argument.

use crate::agreement::ManifestPart;
use crate::averaging::{Folder, Snapshot};
use crate::chronicle::Chronicle;
use crate::config::{Config, ConfigError, Deadlines};
use crate::context::Context;
use crate::finishing::{Ending, Finishing};
use crate::formation::{Agreed, Formed, Forming};
use crate::joining;
use crate::journal::Entry;
use crate::ledger::Told;
use crate::members::Members;
use crate::reattach::Loss;
use crate::restart::{self, Returning};
use crate::running::{Running, Step, Stopping};
use crate::standstill::Standstill;
use crate::watch::Watch;
use crate::{Breach, Input, Output};
use flodl_elche::{Elche, Guard};
use flodl_wire::limits::MANIFEST_PART;
use flodl_wire::message::Report;
use flodl_wire::message::control::Control;
use flodl_wire::message::record::{EventKind, Reason};
use flodl_wire::{Incarnation, Rank, SessionId, Time};
use std::collections::VecDeque;

/// Decides for a whole run. Feed it with [`Coordinator::handle`] and [`Coordinator::tick`], take every output with
/// [`Coordinator::poll`] after each, and tick it again at [`Coordinator::next_deadline`].
pub struct Coordinator {
    pub(crate) config: Config,
    pub(crate) deadlines: Deadlines,
    pub(crate) members: Members,
    pub(crate) phase: Phase,
    pub(crate) out: VecDeque<Output>,
    pub(crate) watch: Watch,
    pub(crate) still: Standstill,
    guard: Option<Box<dyn Guard>>,
    stops: u32,
    /// What others must know to go on without this coordinator is written down, by the so-manyth one after the first.
    recording: Option<u64>,
}

/// Where the run is.
pub(crate) enum Phase {
    Forming(Forming),
    Returning(Box<Returning>),
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
        let guard = config.scheduling.guard.build(1.0);
        Coordinator::with_guard(config, guard, now)
    }

    /// The same with a convergence guard of the caller's in place of the settings'.
    ///
    /// # Errors
    /// Settings that contradict each other.
    pub fn with_guard(config: Config, guard: Box<dyn Guard>, now: Time) -> Result<Coordinator, ConfigError> {
        config.validate()?;
        let deadlines = Deadlines::from_patience(config.patience);
        Ok(Coordinator {
            config,
            deadlines,
            members: Members::new(deadlines),
            phase: Phase::Forming(Forming::default()),
            out: VecDeque::new(),
            watch: Watch::new(now, deadlines),
            still: Standstill::new(now, deadlines.heartbeat),
            guard: Some(guard),
            stops: 0,
            recording: None,
        })
    }

    /// The same, which tells relays and the journal what another coordinator would need to go on when this one dies. It is
    /// the `generation`th after the run's first.
    #[must_use]
    pub fn recording(self, generation: u64) -> Coordinator {
        Coordinator { recording: Some(generation), ..self }
    }

    /// The deadlines that follow from the patience.
    #[must_use]
    pub fn deadlines(&self) -> Deadlines {
        self.deadlines
    }

    /// Whether `session` may speak for that life of that rank.
    #[must_use]
    pub fn speaks_for(&self, session: SessionId, rank: Rank, incarnation: Incarnation) -> bool {
        match &self.phase {
            Phase::Returning(returning) => returning.is_back(session),
            _ => self.members.speaks_for(session, rank, incarnation),
        }
    }

    /// Whether that life of the rank is over and a later one has begun: what is said in its name is answered with
    /// `Fenced`, and dropped.
    #[must_use]
    pub fn outlived(&self, rank: Rank, incarnation: Incarnation) -> bool {
        self.members.outlived(rank, incarnation)
    }

    /// The next output, if any. Take them all after each input.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// Takes an input. Once the run has ended, inputs change nothing.
    pub fn handle(&mut self, input: Input, now: Time) {
        let now = self.called(now);
        self.take(input, now);
    }

    /// Its own time, now that it is called.
    pub(crate) fn called(&mut self, now: Time) -> Time {
        let mut still = self.still;
        let now = still.passes(now, || self.due());
        self.still = still;
        now
    }

    pub(crate) fn take(&mut self, input: Input, now: Time) {
        match self.phase {
            Phase::Ended => return,
            Phase::Returning(_) => {
                self.returning(input, now);
                return self.advance(now);
            }
            Phase::Forming(_) | Phase::Running(_) | Phase::Finishing(_) => {}
        }
        match input {
            Input::HostConnected { session, host, rank_count } => self.host_connected(session, host, rank_count, now),
            Input::HostLost { session, error } => self.host_lost(session, (Loss::Broken, &error), now),
            Input::HostResumed { session, host, first } => self.host_resumed(session, (host, first), now),
            Input::FromHost { session, report } => self.host_report(session, report, now),
            Input::FromRank { session, rank, incarnation, report } => {
                if self.members.speaks_for(session, rank, incarnation) {
                    self.heard(session, Some(rank), now);
                    self.rank_report(rank, report, now);
                } else if self.members.outlived(rank, incarnation) {
                    self.fence((session, rank, incarnation), &report);
                }
            }
            Input::Folded(folded) => {
                self.watch.moved(now);
                if let Phase::Running(running) = &mut self.phase {
                    running.folded(folded, now);
                }
            }
            Input::RootWaits { round, rank, chunk } => self.fold_waits(Folder::Root, round, (rank, chunk), now),
            Input::Saved { version, result } => {
                self.watch.moved(now);
                let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
                match &mut self.phase {
                    Phase::Running(running) => {
                        running.saving.done(&mut ctx, version, result);
                    }
                    Phase::Finishing(finishing) => finishing.saved(&mut ctx, version, result),
                    Phase::Forming(_) | Phase::Returning(_) | Phase::Ended => {}
                }
            }
            Input::Restored { .. } => {}
            Input::Stop => self.stop(now),
        }
        self.advance(now);
    }

    pub(crate) fn ctx(&mut self, now: Time) -> Context<'_> {
        context(&self.config, self.deadlines, &mut self.members, &mut self.out, now)
    }

    pub(crate) fn phase_report(&mut self, rank: Rank, report: Report, now: Time) -> Result<(), Breach> {
        let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
        match (&mut self.phase, report) {
            (Phase::Forming(_) | Phase::Running(_), Report::Ready(ready)) => joining::ready(&mut ctx, rank, ready),
            (Phase::Forming(forming), Report::Manifest { part, parts, tensors }) => {
                forming.lists.take(&ctx, rank, ManifestPart { part, parts, tensors })
            }
            (Phase::Running(running), Report::Manifest { part, parts, tensors }) => {
                running.lists.take(&ctx, rank, ManifestPart { part, parts, tensors })
            }
            (Phase::Running(running), Report::WindowReport(report)) => running.window_report(&mut ctx, rank, &report),
            (Phase::Running(running), Report::SnapshotReady { round, steps, ranges, epoch }) => {
                running.snapshot(&mut ctx, rank, &Snapshot { round, steps, told: Told { epoch, ranges } })
            }
            (Phase::Running(running), Report::SyncAck(ack)) => running.acknowledged(rank, ack),
            (Phase::Running(running), Report::NcclAck(ack)) => running.nccl_answered(rank, ack),
            (Phase::Running(running), Report::NewNcclIdGenerated { session, outcome }) => {
                running.nccl_id(&mut ctx, (rank, session), outcome);
                Ok(())
            }
            (Phase::Running(running), Report::NcclSession { session, standing }) => {
                running.nccl_stands(&mut ctx, (rank, session), &standing);
                Ok(())
            }
            (Phase::Running(running), Report::Intent(intent)) => {
                running.intent(rank, intent);
                Ok(())
            }
            (Phase::Running(running), Report::EvalResult { schedule, outcome }) => {
                running.evaluated(&mut ctx, (rank, schedule), &outcome);
                Ok(())
            }
            (Phase::Running(running), Report::CheckpointResult { schedule, outcome }) => {
                running.part_saved(&mut ctx, (rank, schedule), &outcome);
                Ok(())
            }
            (Phase::Finishing(finishing), Report::EvalResult { schedule, outcome }) => {
                finishing.evaluated(&mut ctx, (rank, schedule), &outcome);
                Ok(())
            }
            (Phase::Finishing(finishing), Report::CheckpointResult { schedule, outcome }) => {
                finishing.part_saved(&mut ctx, (rank, schedule), &outcome);
                Ok(())
            }
            (Phase::Finishing(finishing), Report::Finished { version, replica_digest }) => {
                finishing.finished(&mut ctx, rank, version.map(|version| (version, replica_digest)));
                Ok(())
            }
            (Phase::Running(running), Report::Finished { version, replica_digest }) => {
                running.last_word(&mut ctx, rank, version.map(|version| (version, replica_digest)));
                Ok(())
            }
            // Late words of a phase that is over, and progress, need no answer.
            _ => Ok(()),
        }
    }

    fn stop(&mut self, now: Time) {
        self.stops += 1;
        self.watch.moved(now);
        let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
        match &mut self.phase {
            Phase::Running(running) if self.stops == 1 => running.stop(&mut ctx, Stopping::Request),
            Phase::Finishing(_) if self.stops == 1 => {}
            Phase::Finishing(finishing) if finishing.is_saved() => {
                self.end(4, Some(Reason::new("stopped-at-once", "stopped at once, on request, after saving")), now);
            }
            Phase::Forming(_) => self.end(1, Some(Reason::new("stopped", "stopped before the run began")), now),
            Phase::Running(running) if running.anybody_inside() => {
                running.lose_collective(&mut ctx, Reason::new("stopped-at-once", "stopped at once, on request"));
            }
            Phase::Running(_) | Phase::Finishing(_) => self.end_at_once(now),
            Phase::Returning(_) | Phase::Ended => {}
        }
    }

    fn end_at_once(&mut self, now: Time) {
        let why = Reason::new("stopped-at-once", "stopped at once, on request: what was not saved is lost");
        self.end(1, Some(why), now);
    }

    pub(crate) fn advance(&mut self, now: Time) {
        loop {
            // Nobody is told to end while anybody is in a collective.
            if self.stops > 1 && matches!(&self.phase, Phase::Running(running) if !running.anybody_inside()) {
                return self.end_at_once(now);
            }
            let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
            match &mut self.phase {
                Phase::Ended => return,
                Phase::Returning(_) => {
                    if self.advance_returning(now) {
                        continue;
                    }
                }
                Phase::Forming(forming) => match forming.advance(&mut ctx) {
                    Formed::Waiting => {}
                    Formed::TooFew(why) => return self.end(1, Some(why), now),
                    Formed::Run(agreed) => match self.scheduler(agreed.batch_size) {
                        Ok(scheduler) => {
                            self.start(agreed, scheduler, now);
                            continue;
                        }
                        Err(why) => return self.end(1, Some(why), now),
                    },
                },
                Phase::Running(running) => match running.advance(&mut ctx) {
                    Step::Again => continue,
                    Step::Hold => {}
                    Step::Final => {
                        let ending = match running.stopping {
                            Some(why) if !running.is_done() => Ending::Stopped(why),
                            _ => {
                                running.close_epochs(&mut ctx);
                                Ending::Done
                            }
                        };
                        self.finish(ending, now);
                        continue;
                    }
                    Step::Expel(ranks) => {
                        for (rank, fate) in ranks {
                            self.expel(rank, fate, now);
                        }
                        continue;
                    }
                    Step::Deserted => {
                        let brought_itself_down = self.watch.last_brought_itself_down();
                        self.finish(Ending::Deserted { brought_itself_down }, now);
                        continue;
                    }
                },
                Phase::Finishing(finishing) => {
                    finishing.give_up_lost(&mut ctx);
                    if let Some((exit, why)) = finishing.advance(&ctx) {
                        return self.end(exit, why, now);
                    }
                }
            }
            return self.report_stall(now);
        }
    }

    /// Says why nothing moves, where nothing has for a while. The reason is that of the phase's own verdict.
    fn report_stall(&mut self, now: Time) {
        if !self.watch.is_still(now) {
            return;
        }
        let ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
        let hold = match &self.phase {
            Phase::Ended => None,
            Phase::Returning(returning) => Some(returning.hold()),
            Phase::Forming(forming) => forming.waits(&ctx).map(|waiting| waiting.reason(forming, &ctx)),
            Phase::Running(running) => running.hold(&ctx),
            Phase::Finishing(finishing) => finishing.hold(&ctx),
        };
        if let Some(stall) = hold.and_then(|hold| self.watch.stall(now, hold)) {
            let stall = match &self.phase {
                Phase::Running(running) => running.with_plan(stall),
                _ => stall,
            };
            self.ctx(now).event(EventKind::Stall, Some(stall));
        }
    }

    /// The run begins.
    fn start(&mut self, agreed: Box<Agreed>, scheduler: Box<Elche>, now: Time) {
        if self.recording.is_some() {
            let tensors = agreed.tensors.chunks(MANIFEST_PART).map(|part| Entry::Tensors(part.to_vec()));
            let formed = Entry::Formed(Box::new(restart::formed(&agreed)));
            self.out.extend(tensors.chain([formed]).map(Output::Journal));
        }
        let mut running = Running::start(&mut self.ctx(now), agreed, scheduler);
        running.chronicle = self.recording.map(|generation| Chronicle::new(generation, None));
        self.phase = Phase::Running(Box::new(running));
        let ranks: Vec<Rank> = self.members.iter().map(|member| member.rank).collect();
        self.write_lives(&ranks, now);
    }

    /// Something has become of these ranks' lives, which another coordinator would have to know.
    pub(crate) fn write_lives(&mut self, ranks: &[Rank], now: Time) {
        let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
        if let Some(chronicle) = chronicle(&mut self.phase) {
            chronicle.write_lives(&mut ctx, ranks);
        }
    }

    /// A relay is back.
    pub(crate) fn bring_up_to_date(&mut self, session: SessionId, now: Time) {
        let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
        if let Some(chronicle) = chronicle(&mut self.phase) {
            chronicle.bring_up_to_date(&mut ctx, session);
        }
    }

    /// The convergence guard: the caller's where there is one.
    pub(crate) fn take_guard(&mut self) -> Box<dyn Guard> {
        self.guard.take().unwrap_or_else(|| self.config.scheduling.guard.build(1.0))
    }

    fn scheduler(&mut self, batch_size: u32) -> Result<Box<Elche>, Reason> {
        let guard = self.take_guard();
        Elche::new(self.config.settings(batch_size), guard)
            .map(Box::new)
            .map_err(|error| Reason::new("settings", error.to_string()))
    }

    pub(crate) fn finish(&mut self, ending: Ending, now: Time) {
        let Phase::Running(running) = std::mem::replace(&mut self.phase, Phase::Ended) else { return };
        let finishing = Finishing::start(&mut self.ctx(now), *running, ending);
        self.phase = Phase::Finishing(Box::new(finishing));
    }

    pub(crate) fn end(&mut self, exit: i32, why: Option<Reason>, now: Time) {
        let somebody = self.members.anybody_lives() || matches!(self.phase, Phase::Returning(_));
        if exit == 1
            && somebody
            && let Some(why) = &why
        {
            self.out.push_back(Output::Broadcast(Control::ShutdownWithSave { why: why.clone() }));
        }
        let hosts = self.members.hosts().map(|(session, _)| Output::ToHost { session, control: Control::Dismissed });
        self.out.extend(hosts.collect::<Vec<Output>>());
        self.ctx(now).event(EventKind::RunEnded { exit }, why);
        self.phase = Phase::Ended;
        if self.recording.is_some() {
            self.out.push_back(Output::Journal(Entry::Ended { exit }));
        }
        self.out.push_back(Output::End { exit });
    }
}

/// What others must know of the run's commits, where there is a run and it is to survive its controller.
fn chronicle(phase: &mut Phase) -> Option<&mut Chronicle> {
    match phase {
        Phase::Running(running) => running.chronicle.as_mut(),
        Phase::Finishing(finishing) => finishing.chronicle(),
        Phase::Forming(_) | Phase::Returning(_) | Phase::Ended => None,
    }
}

/// The context out of a coordinator's parts, where its phase is borrowed beside it.
pub(crate) fn context<'a>(
    config: &'a Config,
    deadlines: Deadlines,
    members: &'a mut Members,
    out: &'a mut VecDeque<Output>,
    now: Time,
) -> Context<'a> {
    Context { config, deadlines, members, out, now }
}
