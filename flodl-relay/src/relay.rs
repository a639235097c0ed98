//! A relay's control: which ranks it runs, what passes between them and the controller, and when it ends.
//!
//! It obeys and reports, and decides nothing: it forwards reports as they are, forwards control by stream, and reads for
//! itself only what concerns its processes and its fold.
//!
//! Sans-IO: [`Relay::handle`], then [`Relay::poll`] until `None`; [`Relay::next_deadline`] says when [`Input::Tick`] is due.

mod event;
mod kept;
mod lives;
mod memory;
mod newest;
mod uplink;

pub use event::{Closing, Input, Output, Place, RelayError, Warning};
pub use newest::{Answer, Newest};

use crate::fold::{self, Member, Order};
use crate::id;
use crate::routes::{Connection, Peer, Routes, check_frame};
use core::time::Duration;
use flodl_wire::commit::Keeper;
use flodl_wire::frame::{Frame, Kind, Stream};
use flodl_wire::handshake::Channel;
use flodl_wire::message::control::{RosterEntry, RoundOutcome};
use flodl_wire::message::data::AbsentWhy;
use flodl_wire::message::join::{Admit, LayoutSizes};
use flodl_wire::message::{Control, Data, HostReport, Report};
use flodl_wire::{Incarnation, Rank, Round, SessionId, Time, Version};
use kept::Kept;
use lives::{Life, Process};
use std::collections::{BTreeMap, VecDeque};

/// What a relay does of itself.
#[derive(Copy, Clone, Debug, Default)]
struct Intent {
    /// How often it starts each of its ranks again.
    restarts: u32,
    /// It goes: its ranks are to end, and then it does.
    leaving: bool,
    /// It connects again where its link breaks.
    resumes: bool,
}

/// The way to the controller.
#[derive(Debug)]
enum Uplink {
    Up,
    /// It is lost, and given up at that time.
    Down {
        until: Time,
        why: String,
    },
    /// Nobody waits for this relay any more.
    Done,
}

/// The control of one host.
#[derive(Debug)]
pub struct Relay {
    patience: Duration,
    intent: Intent,
    uplink: Uplink,
    routes: Routes,
    session: Option<SessionId>,
    /// The session of the first link, by which the controller knows this relay on any later one.
    first: Option<SessionId>,
    lives: BTreeMap<Rank, Life>,
    round: Option<OpenRound>,
    /// The consensus in force.
    version: Version,
    layout: Option<LayoutSizes>,
    records: Records,
    heard: Time,
    heartbeat: Time,
    stage: Stage,
    strays: u64,
    out: VecDeque<Output>,
}

/// What is kept for a controller that does not know the run.
#[derive(Debug, Default)]
struct Records {
    /// The newest record of a commit.
    commit: Keeper,
    /// The newest consensus.
    consensus: Kept,
    /// The controller has yet to be told: it does not know the run.
    untold: bool,
}

/// The round whose result is passed on.
#[derive(Debug)]
struct OpenRound {
    round: Round,
    /// The chunk that comes next.
    next: u32,
    /// What its ranks send up travels as differences from the consensus in force.
    coded: bool,
    /// The root goes on without this host from that chunk on.
    left_out: Option<u32>,
    /// The roster's ranks of this host.
    ranks: Vec<Rank>,
}

/// How far the relay's life is.
#[derive(Debug)]
enum Stage {
    /// The run goes on.
    Running,
    /// The controller said that the run is over: ranks end by themselves, or are killed at that time.
    Ending { kill_at: Time },
    /// They were killed, and are not waited for after that time.
    Killing { give_up_at: Time },
    /// All have ended and the controller was told. Its link may break under that, so it has yet to say that it knows.
    Parting { until: Time },
    /// [`Output::End`] is out.
    Over,
}

impl Relay {
    /// A relay that waits to be admitted.
    #[must_use]
    pub fn new(patience: Duration, now: Time) -> Relay {
        Relay {
            patience,
            intent: Intent::default(),
            uplink: Uplink::Up,
            routes: Routes::default(),
            session: None,
            first: None,
            lives: BTreeMap::new(),
            round: None,
            version: Version(0),
            layout: None,
            records: Records::default(),
            heard: now,
            heartbeat: now.plus(patience / 10),
            stage: Stage::Running,
            strays: 0,
            out: VecDeque::new(),
        }
    }

    /// The same, which starts each of its ranks again up to so many times.
    #[must_use]
    pub fn restarting(self, restarts: u32) -> Relay {
        Relay { intent: Intent { restarts, ..self.intent }, ..self }
    }

    /// The same, which asks for another link where this one breaks.
    #[must_use]
    pub fn resuming(self, resumes: bool) -> Relay {
        Relay { intent: Intent { resumes, ..self.intent }, ..self }
    }

    /// The same, under the session of its handshake: where its link breaks before it is admitted, it comes back as that.
    #[must_use]
    pub fn of_session(self, session: SessionId) -> Relay {
        Relay { session: Some(session), first: Some(session), ..self }
    }

    /// Takes one input. Afterwards every output is to be taken with [`Relay::poll`].
    pub fn handle(&mut self, input: Input, now: Time) {
        match input {
            Input::Upstream(frame) => self.upstream(frame, now),
            Input::Result(data) => self.result(data, now),
            Input::Wire(codec) => self.records.consensus.travel_as(codec),
            Input::UpstreamLost { why } => self.link_lost(why, now),
            Input::Resumed { session, anew } => self.resumed((session, anew), now),
            Input::NotResumed { why } => self.controller_lost(why),
            Input::Connected { connection, peer } => self.connected(connection, &peer),
            Input::RankFrame { connection, frame } => self.rank_frame(connection, frame),
            Input::Closed { connection, why } => self.closed(connection, &why),
            Input::Started { rank, incarnation, pid } => self.started(rank, incarnation, pid),
            Input::NotStarted { rank, incarnation, error } => {
                self.tell(&HostReport::RankNotStarted { rank, incarnation, error });
                self.forget(rank, incarnation, None);
            }
            Input::Exited { rank, incarnation, status, last_lines } => {
                let tell_at = now.plus(self.patience / 20);
                if let Some(life) = self.life(rank, incarnation) {
                    life.process = Process::Ended { status, last_lines, tell_at };
                }
            }
            Input::Fold(output) => self.fold_says(output),
            Input::Leave => self.leave(),
            Input::Tick => {}
        }
        self.tell_exits(now);
        self.tick(now);
    }

    /// The next thing to be done.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// When [`Input::Tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let stage = match self.stage {
            Stage::Running => None,
            Stage::Ending { kill_at: at } | Stage::Killing { give_up_at: at } | Stage::Parting { until: at } => {
                Some(at)
            }
            Stage::Over => return None,
        };
        let uplink = match self.uplink {
            Uplink::Up => Some(self.heard.plus(self.patience)),
            Uplink::Down { until, .. } => Some(until),
            Uplink::Done => None,
        };
        let exits = self.lives.values().filter_map(|life| match life.process {
            Process::Ended { .. } if matches!(self.uplink, Uplink::Down { .. }) => None,
            Process::Ended { tell_at, .. } => Some(tell_at),
            Process::Live | Process::Told { .. } => None,
        });
        let fenced = self.lives.values().filter_map(|life| life.kill_at);
        exits.chain(fenced).chain(stage).chain(uplink).chain([self.heartbeat]).min()
    }

    /// Who may connect now, for the shell's handshakes.
    #[must_use]
    pub const fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Messages of other rounds or lives that were passed over.
    #[must_use]
    pub const fn strays(&self) -> u64 {
        self.strays
    }

    fn upstream(&mut self, frame: Frame, now: Time) {
        self.heard = now;
        if frame.kind != Kind::Control {
            self.warn(Warning::Misplaced("a frame that is no control message"));
            return;
        }
        let control = match frame.to_control() {
            Ok(control) => control,
            Err(error) => return self.warn(Warning::Unreadable(error)),
        };
        match frame.stream {
            Stream::Host => self.obey(control, now),
            Stream::AllRanks => {
                self.obey(control.clone(), now);
                self.pass_to_all(&frame, &control);
            }
            Stream::Rank(rank) => self.pass_to(rank, frame, &control, now),
        }
    }

    /// Every rank hears what concerns all, but of rounds only those of which the controller knows where they stand.
    fn pass_to_all(&mut self, frame: &Frame, control: &Control) {
        for (&rank, life) in &mut self.lives {
            let Some(connection) = self.routes.control(rank) else { continue };
            if life.memory.hears((rank, life.incarnation), control) {
                self.out.push_back(Output::ToRank { connection, frame: frame.clone() });
            }
        }
    }

    fn pass_to(&mut self, rank: Rank, frame: Frame, control: &Control, now: Time) {
        self.overhear(rank, control);
        let (incarnation, grace) = (frame.incarnation, self.patience / 2);
        let Some(life) = self.life(rank, incarnation) else {
            self.strays += 1;
            return;
        };
        life.memory.is_told((rank, incarnation), control);
        if matches!(control, Control::Fenced { .. }) {
            // It ends itself and says why, unless it hangs.
            life.kill_at.get_or_insert(now.plus(grace));
        }
        if let Control::RoundDone { round, outcome: RoundOutcome::Committed { version }, .. } = *control {
            self.version = version;
            self.records.consensus.commit(round, version);
        }
        match self.routes.control(rank) {
            Some(connection) => self.out.push_back(Output::ToRank { connection, frame }),
            None => self.strays += 1,
        }
    }

    /// The settings of the run go to ranks; the relay needs the sizes of the model in them.
    fn overhear(&mut self, rank: Rank, control: &Control) {
        if let Control::Admitted(config) = control
            && self.layout.is_none()
            && self.lives.contains_key(&rank)
        {
            self.layout = Some(config.layout);
            if let Ok(layout) = id::layout(config.layout) {
                self.records.consensus.lay_out(layout);
            }
            self.out.push_back(Output::Fold(Order::Layout(config.layout)));
        }
    }

    fn obey(&mut self, control: Control, now: Time) {
        match control {
            Control::Admit(admit) => self.admit(&admit),
            Control::Refused { why } if matches!(self.stage, Stage::Running) => {
                self.end(Err(RelayError::Refused { why: why.text }));
            }
            Control::Refused { .. } => self.uplink = Uplink::Done,
            Control::Dismissed => self.dismissed(),
            Control::RequestParams { round, roster } => self.open_round(round, &roster),
            Control::RoundDone { round, outcome, .. } => {
                let open = self.round.take_if(|open| open.round == round);
                if let RoundOutcome::Committed { version } = outcome {
                    // One that hands out the consensus in force has taken nothing in.
                    let chunks = open.filter(|open| open.coded && version != self.version).map(|open| open.left_out);
                    let commit = |chunks: Option<u32>| Order::Commit { round, chunks: chunks.unwrap_or(u32::MAX) };
                    self.out.extend(chunks.map(commit).map(Output::Fold));
                    self.version = version;
                    self.records.consensus.commit(round, version);
                }
                self.out.push_back(Output::Fold(Order::Close { round }));
            }
            Control::DeclareDead { rank, incarnation, .. } => self.bury(rank, incarnation),
            Control::Shutdown | Control::ShutdownWithSave { .. } => {
                if matches!(self.stage, Stage::Running) {
                    self.stage = Stage::Ending { kill_at: now.plus(self.patience) };
                    // Who is not connected does not hear of it.
                    self.kill_where(|routes, rank, life| !life.finished && routes.control(rank).is_none());
                }
            }
            Control::Restart { rank, incarnation } => self.restart(rank, incarnation),
            Control::Commit(change) => {
                self.records.untold = false;
                if let Err(error) = self.records.commit.take_change(&change) {
                    self.warn(Warning::NotNext(error));
                }
            }
            Control::CommitPart { part, parts, record } => {
                self.records.untold = false;
                self.records.commit.take_part(part, parts, *record);
            }
            Control::SendConsensus { round, version } => {
                let chunks = self.records.consensus.offer(version, round);
                self.out.push_back(Output::Offer(chunks));
            }
            Control::Heartbeat
            | Control::ControllerLost
            | Control::ControllerBack
            | Control::Admitted(_)
            | Control::SendManifest
            | Control::Window(_)
            | Control::ExtendPartition { .. }
            | Control::ExecuteEval { .. }
            | Control::ExecuteCheckpoint { .. }
            | Control::EpochAggregated(_)
            | Control::EvalBroadcast { .. }
            | Control::Fenced { .. } => {}
            // A round over NCCL is between the coordinator and its ranks.
            Control::PrepareSync { .. }
            | Control::RequestNewNcclId { .. }
            | Control::NewNcclSession(_)
            | Control::SyncNow { .. } => {}
        }
    }

    fn admit(&mut self, admit: &Admit) {
        if !matches!(self.stage, Stage::Running) || self.intent.leaving {
            return;
        }
        if !self.lives.is_empty() {
            // It is said once more after a link that broke early.
            let known = |&(rank, _): &(Rank, Incarnation)| self.lives.contains_key(&rank);
            if admit.ids.len() != self.lives.len() || !admit.ids.iter().all(known) {
                self.warn(Warning::Misplaced("a second admission"));
            }
            return;
        }
        self.session = Some(admit.session);
        self.first.get_or_insert(admit.session);
        let (world_size, local_world_size) = (admit.world_size, u32::try_from(admit.ids.len()).unwrap_or(u32::MAX));
        for (local_rank, &(rank, incarnation)) in (0..).zip(&admit.ids) {
            self.begin(rank, Life::first(incarnation, Place { local_rank, local_world_size, world_size }));
        }
    }

    fn open_round(&mut self, round: Round, roster: &[RosterEntry]) {
        let ours = roster.iter().filter(|entry| Some(entry.session) == self.session);
        let members: Vec<Member> =
            ours.map(|&RosterEntry { rank, incarnation, part, .. }| Member { rank, incarnation, part }).collect();
        let ranks = members.iter().map(|member| member.rank).collect();
        let base = self.records.consensus.base(self.version);
        self.round = Some(OpenRound { round, next: 0, coded: base.is_some(), left_out: None, ranks });
        self.records.consensus.begin(round);
        self.out.extend(base.map(Order::Hold).map(Output::Fold));
        self.out.push_back(Output::Fold(Order::Open { round, version: self.version, members: members.clone() }));
        // The coordinator may not know yet that one of them has ended.
        for Member { rank, incarnation, .. } in members {
            if self.life(rank, incarnation).is_none_or(|life| life.gone || !life.is_live()) {
                self.out.push_back(Output::Fold(Order::Drop { rank, incarnation, why: AbsentWhy::Dead }));
            }
        }
    }

    /// A rank that the coordinator has declared dead.
    fn bury(&mut self, rank: Rank, incarnation: Incarnation) {
        let Some(life) = self.life(rank, incarnation) else { return };
        life.gone = true;
        let live = life.is_live();
        self.out.push_back(Output::Fold(Order::Drop { rank, incarnation, why: AbsentWhy::Dead }));
        if live {
            self.out.push_back(Output::Kill { rank, incarnation });
        }
        self.close_both(rank);
    }

    fn result(&mut self, data: Data, now: Time) {
        self.heard = now;
        let chunk = match data {
            Data::Consensus(chunk) => chunk,
            Data::LeftOut { round, from_chunk, .. } => return self.is_left_out(round, from_chunk),
            Data::Contribution(_) | Data::Absent { .. } | Data::Dropped { .. } | Data::Holds { .. } => {
                return self.warn(Warning::Misplaced("a data message that is no result"));
            }
        };
        let Some(open) = self.round.as_mut().filter(|open| (open.round, open.next) == (chunk.round, chunk.chunk))
        else {
            self.strays += 1;
            return;
        };
        let kept = &mut self.records.consensus;
        let own = chunk.codec.base().is_some();
        let chunk = match kept.plain(chunk) {
            Ok(chunk) => chunk,
            Err(error) => return self.warn(Warning::Undecodable(error)),
        };
        open.next += 1;
        if self.intent.resumes || kept.is_base() {
            kept.take(&chunk, own);
        }
        let connections = open.ranks.iter().filter_map(|&rank| self.routes.data(rank));
        self.out.extend(connections.map(|connection| Output::Result { connection, chunk: chunk.clone() }));
    }

    fn is_left_out(&mut self, round: Round, from_chunk: u32) {
        match self.round.as_mut().filter(|open| open.round == round) {
            Some(open) => open.left_out = Some(from_chunk),
            None => self.strays += 1,
        }
    }

    fn connected(&mut self, connection: Connection, peer: &Peer) {
        match self.routes.connect(connection, peer) {
            Err(refused) => self.close(connection, refused.into()),
            Ok(()) => {
                if let Some(life) = self.life(peer.rank, peer.incarnation) {
                    life.had_data |= peer.channel == Channel::Data;
                }
            }
        }
    }

    fn rank_frame(&mut self, connection: Connection, frame: Frame) {
        let Some(peer) = self.routes.owner(connection) else {
            self.strays += 1;
            return;
        };
        if let Err(breach) = check_frame(&frame, peer) {
            self.close(connection, breach.clone().into());
            self.closed(connection, &breach.to_string());
            return;
        }
        // What cannot be read is the coordinator's to judge: reports pass as they are.
        if let Ok(report) = frame.to_report()
            && let Some(life) = self.life(peer.0, peer.1)
        {
            life.finished |= matches!(report, Report::Finished { .. });
            life.memory.says(report);
        }
        if matches!(self.uplink, Uplink::Up) {
            self.out.push_back(Output::Up(frame));
        }
    }

    /// A rank that has lost one of its connections is lost, unless it has finished.
    fn closed(&mut self, connection: Connection, why: &str) {
        let Some((rank, incarnation, channel)) = self.routes.leave(connection) else { return };
        let Some(life) = self.life(rank, incarnation) else { return };
        if life.finished || life.gone {
            return;
        }
        // Told to end, it closes both, and its last word may still be on the other one.
        if channel == Channel::Data && matches!(self.stage, Stage::Ending { .. }) {
            return;
        }
        let Some(life) = self.life(rank, incarnation) else { return };
        life.gone = true;
        let had_data = life.had_data;
        let error = format!("its {channel} connection to its relay ended: {why}");
        self.tell(&HostReport::RankLost { rank, incarnation, error });
        // The other connection is read to its end: what came through it counts. The coordinator buries the rank.
        if !had_data {
            self.out.push_back(Output::Fold(Order::Drop { rank, incarnation, why: AbsentWhy::LinkLost }));
        }
    }

    fn close_both(&mut self, rank: Rank) {
        for connection in [self.routes.control(rank), self.routes.data(rank)].into_iter().flatten() {
            self.close(connection, Closing::Gone(rank));
            self.routes.leave(connection);
        }
    }

    fn close(&mut self, connection: Connection, why: Closing) {
        if !matches!(why, Closing::Gone(_)) {
            self.warn(Warning::Closed(why.clone()));
        }
        self.out.push_back(Output::Close { connection, why });
    }

    fn fold_says(&mut self, output: fold::Output) {
        match output {
            fold::Output::Waiting { round, rank, chunk } => self.tell(&HostReport::Waiting { round, rank, chunk }),
            fold::Output::Breach { rank, incarnation, why } => {
                if self.life(rank, incarnation).is_some()
                    && let Some(data) = self.routes.data(rank)
                {
                    self.close(data, why.clone().into());
                    self.closed(data, &why.to_string());
                }
            }
            fold::Output::Unusable(error) => self.warn(Warning::Fold(error)),
            fold::Output::Up(_) => self.strays += 1,
        }
    }

    fn tick(&mut self, now: Time) {
        self.kill_fenced(now);
        self.watch_uplink(now);
        let all_ended = self.lives.values().all(|life| matches!(life.process, Process::Told { .. }));
        match self.stage {
            Stage::Running if self.intent.leaving && all_ended => self.part(now),
            Stage::Ending { .. } | Stage::Killing { .. } if all_ended => self.part(now),
            Stage::Parting { until } if until <= now || matches!(self.uplink, Uplink::Done) => self.end(Ok(())),
            Stage::Ending { kill_at } if kill_at <= now => {
                self.kill_where(|_, _, _| true);
                self.stage = Stage::Killing { give_up_at: now.plus(self.patience / 2) };
            }
            Stage::Killing { give_up_at } if give_up_at <= now => {
                let live = self.lives.iter().filter(|(_, life)| life.is_live());
                self.out.extend(live.map(|(&rank, _)| Output::Warn(Warning::Undying(rank))));
                self.end(Ok(()));
            }
            Stage::Running | Stage::Ending { .. } | Stage::Killing { .. } | Stage::Parting { .. } | Stage::Over => {}
        }
        if self.heartbeat <= now && !matches!(self.stage, Stage::Over) {
            self.heartbeat = now.plus(self.patience / 10);
            self.tell(&HostReport::Heartbeat);
            self.reassure(now);
        }
    }

    fn kill_where(&mut self, condemned: impl Fn(&Routes, Rank, &Life) -> bool) {
        let lives = self.lives.iter().filter(|&(&rank, life)| life.is_live() && condemned(&self.routes, rank, life));
        self.out.extend(lives.map(|(&rank, life)| Output::Kill { rank, incarnation: life.incarnation }));
    }

    fn end(&mut self, how: Result<(), RelayError>) {
        self.stage = Stage::Over;
        self.out.push_back(Output::End(how));
    }

    fn life(&mut self, rank: Rank, incarnation: Incarnation) -> Option<&mut Life> {
        self.lives.get_mut(&rank).filter(|life| life.incarnation == incarnation)
    }

    /// Says something to the controller. Where it is out of reach it is told when it is back.
    fn tell(&mut self, report: &HostReport) {
        if !matches!(self.uplink, Uplink::Up) {
            return;
        }
        match Frame::host_report(report) {
            Ok(frame) => self.out.push_back(Output::Up(frame)),
            Err(error) => self.warn(Warning::Unwritable(error)),
        }
    }

    fn warn(&mut self, warning: Warning) {
        self.out.push_back(Output::Warn(warning));
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
