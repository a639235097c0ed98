//! The way to the controller: its loss, the wait for another, and what is said first on it.

use super::lives::Process;
use super::{Output, Relay, RelayError, Stage, Uplink};
use crate::fold::Order;
use flodl_wire::commit::CommitState;
use flodl_wire::frame::{Frame, Stream};
use flodl_wire::message::{Control, HostReport};
use flodl_wire::{Incarnation, Rank, SessionId, Time};

impl Relay {
    /// A connection to the controller or the root has ended.
    pub(super) fn link_lost(&mut self, why: String, now: Time) {
        match self.first {
            Some(first) if self.intent.resumes => self.resume(first, why, now),
            _ => self.controller_lost(why),
        }
    }

    fn resume(&mut self, first: SessionId, why: String, now: Time) {
        if !matches!(self.uplink, Uplink::Up) || matches!(self.stage, Stage::Over) {
            return;
        }
        if matches!(self.stage, Stage::Running) {
            self.say_to_ranks(&Control::ControllerLost);
        }
        // What was on its way is lost, and the round goes on without this host.
        if let Some(open) = self.round.take() {
            self.out.push_back(Output::Fold(Order::Close { round: open.round }));
        }
        self.uplink = Uplink::Down { until: now.plus(self.patience), why };
        self.out.push_back(Output::Redial { session: first });
    }

    /// The controller is there again: it hears what became of each rank, and decides what follows.
    pub(super) fn resumed(&mut self, (session, anew): (SessionId, bool), now: Time) {
        if !matches!(self.uplink, Uplink::Down { .. }) || matches!(self.stage, Stage::Over) {
            return;
        }
        self.uplink = Uplink::Up;
        self.session = Some(session);
        self.heard = now;
        // The link may break again before everything is said.
        self.records.untold |= anew;
        let mut reports = if self.records.untold { self.newest_record() } else { Vec::new() };
        for (&rank, life) in &mut self.lives {
            let incarnation = life.incarnation;
            match &life.process {
                Process::Told { exit: Some((status, last_lines)) } => {
                    // That it ended as it should was its last word, and may be lost with the link.
                    let state = life.memory.state((rank, incarnation));
                    reports.extend(life.finished.then(|| HostReport::RankState(Box::new(state))));
                    let (status, last_lines) = (*status, last_lines.clone());
                    reports.push(HostReport::RankExited { rank, incarnation, status, last_lines });
                }
                Process::Told { exit: None } => {
                    let error = "it did not start while the controller was out of reach".to_owned();
                    reports.push(HostReport::RankNotStarted { rank, incarnation, error });
                }
                Process::Live | Process::Ended { .. } if life.gone => {
                    let error = "its connection to its relay ended while the controller was out of reach".to_owned();
                    reports.push(HostReport::RankLost { rank, incarnation, error });
                }
                Process::Live | Process::Ended { .. } => {
                    life.memory.attached = false;
                    reports.push(HostReport::RankState(Box::new(life.memory.state((rank, incarnation)))));
                    if life.returns(self.intent.restarts) {
                        reports.push(HostReport::WillRestart { rank, incarnation });
                    }
                }
            }
        }
        reports.extend(self.intent.leaving.then_some(HostReport::Leaving));
        let (consensus, result) = (self.records.consensus.version(), self.records.consensus.result());
        reports.push(HostReport::Back { record: self.records.commit.moment(), consensus, result });
        reports.iter().for_each(|report| self.tell(report));
    }

    /// What a controller needs that does not know the run.
    fn newest_record(&self) -> Vec<HostReport> {
        let records = self.records.commit.state().map(CommitState::parts).unwrap_or_default();
        let parts = u32::try_from(records.len()).unwrap_or(u32::MAX);
        let part = |(part, record)| HostReport::CommitPart { part, parts, record: Box::new(record) };
        (0..).zip(records).map(part).collect()
    }

    pub(super) fn controller_lost(&mut self, why: String) {
        match self.stage {
            Stage::Running => self.end(Err(RelayError::ControllerLost { why })),
            // The run is over: nobody is owed anything any more.
            Stage::Ending { .. } | Stage::Killing { .. } | Stage::Parting { .. } => self.uplink = Uplink::Done,
            Stage::Over => {}
        }
    }

    /// The controller knows of the end of every rank here, or ends without.
    pub(super) fn dismissed(&mut self) {
        let goes = self.intent.leaving || !matches!(self.stage, Stage::Running);
        if goes {
            self.uplink = Uplink::Done;
        }
    }

    /// Every process has ended and was told. What was told may be lost with the link, so a relay that can come back waits
    /// until the controller says that it knows.
    pub(super) fn part(&mut self, now: Time) {
        if self.intent.resumes && !matches!(self.uplink, Uplink::Done) {
            self.stage = Stage::Parting { until: now.plus(self.patience) };
        } else {
            self.end(Ok(()));
        }
    }

    pub(super) fn watch_uplink(&mut self, now: Time) {
        match &self.uplink {
            Uplink::Up if self.heard.plus(self.patience) <= now => {
                let why = format!("it was silent for {:.1} s", now.since(self.heard).as_secs_f64());
                self.link_lost(why, now);
            }
            Uplink::Down { until, why } if *until <= now => {
                let why = format!("{why}, and it was not there again within {:?}", self.patience);
                self.controller_lost(why);
            }
            Uplink::Up | Uplink::Down { .. } | Uplink::Done => {}
        }
    }

    /// While the controller is out of reach or silent, its ranks hear a heart beat all the same: they are not alone. Whether
    /// the controller is gone is for this relay to find out, which tells them.
    pub(super) fn reassure(&mut self, now: Time) {
        let silent = self.heard.plus(self.patience / 5) <= now || matches!(self.uplink, Uplink::Down { .. });
        if silent && matches!(self.stage, Stage::Running) {
            self.say_to_ranks(&Control::Heartbeat);
        }
    }

    fn say_to_ranks(&mut self, control: &Control) {
        let Ok(frame) = Frame::control(Stream::AllRanks, Incarnation(0), control) else { return };
        let ranks: Vec<Rank> = self.lives.keys().copied().collect();
        for connection in ranks.into_iter().filter_map(|rank| self.routes.control(rank)) {
            self.out.push_back(Output::ToRank { connection, frame: frame.clone() });
        }
    }
}
