//! The lives of a host's ranks: their processes' beginnings, ends and next beginnings.

use super::memory::Memory;
use super::{Output, Place, Relay, Stage, Uplink, Warning};
use crate::fold::Order;
use flodl_wire::message::HostReport;
use flodl_wire::message::data::AbsentWhy;
use flodl_wire::message::report::ExitStatus;
use flodl_wire::{Incarnation, Rank, Time};

/// One rank of this host.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) incarnation: Incarnation,
    pub(super) process: Process,
    /// It said `Finished`: the end of its connections is as it should be.
    pub(super) finished: bool,
    /// The controller knows that it is gone.
    pub(super) gone: bool,
    /// It had a data connection, whose end takes it out of the fold, behind the last chunk.
    pub(super) had_data: bool,
    pub(super) memory: Memory,
    /// It is fenced, and is killed then if it is still there.
    pub(super) kill_at: Option<Time>,
    place: Place,
    /// Lives of this rank before it that this relay began.
    before: u32,
    /// The life that is to begin once this one's process is gone.
    next: Option<Incarnation>,
}

#[derive(Debug)]
pub(super) enum Process {
    /// Ordered, started or not.
    Live,
    /// It has ended; told once its connections have ended too, so that its last words come first, or at that time.
    Ended { status: ExitStatus, last_lines: String, tell_at: Time },
    /// The controller was told: how it exited, or that it never ran.
    Told { exit: Option<(ExitStatus, String)> },
}

impl Life {
    /// The first life of a rank that this relay begins.
    pub(super) fn first(incarnation: Incarnation, place: Place) -> Life {
        let (finished, gone, had_data) = (false, false, false);
        let (process, memory, kill_at) = (Process::Live, Memory::default(), None);
        Life { incarnation, process, finished, gone, had_data, memory, kill_at, place, before: 0, next: None }
    }

    /// Whether a relay that starts each rank again so many times would start this one again.
    pub(super) fn returns(&self, restarts: u32) -> bool {
        self.before < restarts
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.process, Process::Live)
    }
}

impl Relay {
    /// A life begins: it may connect, and its process is started.
    pub(super) fn begin(&mut self, rank: Rank, life: Life) {
        let (incarnation, place) = (life.incarnation, life.place);
        self.routes.expect(rank, incarnation);
        self.lives.insert(rank, life);
        self.out.push_back(Output::Start { rank, incarnation, place });
    }

    pub(super) fn started(&mut self, rank: Rank, incarnation: Incarnation, pid: u32) {
        self.tell(&HostReport::RankUp { rank, incarnation, pid });
        let (restarts, leaving) = (self.intent.restarts, self.intent.leaving);
        let killing = matches!(self.stage, Stage::Killing { .. });
        let Some(life) = self.life(rank, incarnation) else { return };
        // It may have been condemned while it was being started.
        if life.gone || killing || leaving {
            self.out.push_back(Output::Kill { rank, incarnation });
        } else if life.returns(restarts) {
            self.tell(&HostReport::WillRestart { rank, incarnation });
        }
    }

    /// The controller gives a rank its next life.
    pub(super) fn restart(&mut self, rank: Rank, incarnation: Incarnation) {
        if !matches!(self.stage, Stage::Running) || self.intent.leaving {
            return;
        }
        let is_begun = |life: &Life| life.incarnation == incarnation || life.next == Some(incarnation);
        if self.lives.get(&rank).is_some_and(is_begun) {
            // It is said once more after a link that broke.
            return;
        }
        let Some(life) = self.lives.get_mut(&rank).filter(|life| life.incarnation < incarnation) else {
            self.warn(Warning::Misplaced("a restart of a rank that this host does not run"));
            return;
        };
        life.next = Some(incarnation);
        let old = life.incarnation;
        if life.is_live() {
            self.out.push_back(Output::Kill { rank, incarnation: old });
        }
        self.begin_again(rank);
    }

    /// Begins the next life of a rank whose process is gone, if there is to be one.
    fn begin_again(&mut self, rank: Rank) {
        let Some(life) = self.lives.get_mut(&rank).filter(|life| matches!(life.process, Process::Told { .. })) else {
            return;
        };
        if let Some(incarnation) = life.next.take() {
            let next = Life { before: life.before + 1, ..Life::first(incarnation, life.place) };
            self.begin(rank, next);
        }
    }

    /// This host goes. Ranks that are in the run are told by the controller; those that are not connected yet hear nobody.
    pub(super) fn leave(&mut self) {
        if matches!(self.stage, Stage::Running) && !std::mem::replace(&mut self.intent.leaving, true) {
            self.tell(&HostReport::Leaving);
            self.kill_where(|routes, rank, _| routes.control(rank).is_none());
        }
    }

    /// Tells the coordinator of processes that have ended, once nothing more comes from them.
    pub(super) fn tell_exits(&mut self, now: Time) {
        if matches!(self.uplink, Uplink::Down { .. }) {
            return;
        }
        let mut told = Vec::new();
        for (&rank, life) in &mut self.lives {
            let silent = self.routes.control(rank).is_none() && self.routes.data(rank).is_none();
            if let Process::Ended { status, last_lines, tell_at } = &life.process
                && (silent || *tell_at <= now)
            {
                told.push((rank, life.incarnation, (*status, last_lines.clone())));
            }
        }
        for (rank, incarnation, exit) in told {
            let (status, last_lines) = exit.clone();
            self.tell(&HostReport::RankExited { rank, incarnation, status, last_lines });
            self.forget(rank, incarnation, Some(exit));
        }
    }

    /// Kills those that were told that they are fenced and have not ended since.
    pub(super) fn kill_fenced(&mut self, now: Time) {
        for (&rank, life) in &mut self.lives {
            if life.kill_at.take_if(|at| *at <= now).is_some() && life.is_live() {
                self.out.push_back(Output::Kill { rank, incarnation: life.incarnation });
            }
        }
    }

    /// A life whose process is gone: it is out of the fold and the routes.
    pub(super) fn forget(&mut self, rank: Rank, incarnation: Incarnation, exit: Option<(ExitStatus, String)>) {
        let Some(life) = self.life(rank, incarnation) else { return };
        life.process = Process::Told { exit };
        life.gone = true;
        if !life.had_data {
            self.out.push_back(Output::Fold(Order::Drop { rank, incarnation, why: AbsentWhy::Dead }));
        }
        self.close_both(rank);
        self.routes.forget(rank);
        self.begin_again(rank);
    }
}
