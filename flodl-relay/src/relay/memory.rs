//! What a relay remembers of each rank for the day its link to the controller breaks: what the rank was told, and what it
//! has said since.

use flodl_wire::limits::RANK_WORDS;
use flodl_wire::message::control::{RoundOutcome, WindowPlan};
use flodl_wire::message::report::{Pace, RankState, WindowReport};
use flodl_wire::message::{Control, Report};
use flodl_wire::{Incarnation, Rank, Round, Version, WindowId};
use std::collections::VecDeque;

/// One life's memory.
#[derive(Debug)]
pub(super) struct Memory {
    /// The controller knows where it stands. Until it does the rank hears of no round.
    pub(super) attached: bool,
    admitted: bool,
    window: Option<WindowId>,
    /// The newest round that it takes part in.
    round: Option<Round>,
    round_done: bool,
    /// The newest round that it heard the beginning of, its own or not: it hears of the end of no other.
    heard: Option<Round>,
    words: VecDeque<Report>,
    version: Option<Version>,
    plan: Option<Box<WindowPlan>>,
    pace: Option<Pace>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            attached: true,
            admitted: false,
            window: None,
            round: None,
            round_done: false,
            heard: None,
            words: VecDeque::new(),
            version: None,
            plan: None,
            pace: None,
        }
    }
}

impl Memory {
    /// The rank is told this. Whether it may hear it.
    pub(super) fn hears(&mut self, (rank, incarnation): (Rank, Incarnation), control: &Control) -> bool {
        match control {
            Control::RequestParams { .. } | Control::PrepareSync { .. } | Control::RoundDone { .. }
                if !self.attached =>
            {
                return false;
            }
            Control::ControllerBack => self.attached = true,
            Control::Admitted(_) => self.admitted = true,
            Control::Window(plan) => {
                self.window = Some(plan.window);
                self.plan = Some(Box::new(plan.clone()));
                self.words.clear();
            }
            Control::RoundDone { round, .. } if self.heard.is_some_and(|heard| heard != *round) => return false,
            Control::ExtendPartition { window, leases } => {
                if let Some(plan) = self.plan.as_mut().filter(|plan| plan.window == *window) {
                    plan.leases.extend(leases.iter().copied());
                }
            }
            Control::RequestParams { round, roster } | Control::PrepareSync { round, roster } => {
                self.heard = Some(*round);
                if roster.iter().any(|entry| (entry.rank, entry.incarnation) == (rank, incarnation)) {
                    self.round = Some(*round);
                    self.round_done = false;
                }
            }
            // What it has trained is as it was.
            Control::RoundDone { round, outcome: RoundOutcome::Again, .. } => {
                self.round_done |= self.round == Some(*round);
            }
            Control::RoundDone { round, outcome, .. } if self.round == Some(*round) => {
                self.version = match *outcome {
                    RoundOutcome::Committed { version } => self.has_result(*round).then_some(version),
                    // What it has trained stays in its replica, and is nobody else's.
                    RoundOutcome::Nothing | RoundOutcome::Again => self.version.filter(|_| self.plan.is_none()),
                };
                self.round_done = true;
                self.plan = None;
                self.words.clear();
            }
            // A round without it: what its replica comes from is the consensus no more.
            Control::RoundDone { outcome: RoundOutcome::Committed { .. }, .. } => self.version = None,
            _ => {}
        }
        true
    }

    /// The same for what only this rank is told: it concerns it wherever it stands.
    pub(super) fn is_told(&mut self, life: (Rank, Incarnation), control: &Control) {
        let attached = std::mem::replace(&mut self.attached, true);
        self.hears(life, control);
        self.attached = attached || matches!(control, Control::ControllerBack);
    }

    /// Whether it said that it has that round's whole result.
    fn has_result(&self, round: Round) -> bool {
        let whole = |word: &Report| word.sync_ack().is_some_and(|ack| ack.round == round && ack.received().is_some());
        self.words.iter().any(whole)
    }

    /// The rank says this.
    pub(super) fn says(&mut self, report: Report) {
        if let Report::WindowReport(report) = &report
            && report.batches > 0
        {
            let WindowReport { batches, first, rest, data_wait, .. } = **report;
            self.pace = Some(Pace { batches, first, rest, data_wait });
        }
        if matches!(report, Report::Heartbeat { .. } | Report::Progress { .. } | Report::Manifest { .. }) {
            return;
        }
        if self.words.len() == RANK_WORDS {
            self.words.pop_front();
        }
        self.words.push_back(report);
    }

    /// Where the rank stands.
    pub(super) fn state(&self, (rank, incarnation): (Rank, Incarnation)) -> RankState {
        let words = self.words.iter().cloned().collect();
        let Memory { window, round, round_done, admitted, version, pace, .. } = *self;
        let plan = self.plan.clone();
        RankState { rank, incarnation, window, round, round_done, admitted, words, version, plan, pace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flodl_wire::SessionId;
    use flodl_wire::message::control::{Next, Part, RosterEntry};
    use flodl_wire::message::report::{Received, SyncAck, SyncOutcome};
    use flodl_wire::{Epoch, Range};

    const LIFE: (Rank, Incarnation) = (Rank(3), Incarnation(2));

    fn request(round: u64, incarnation: u32) -> Control {
        let (incarnation, session, part) = (Incarnation(incarnation), SessionId(1), Part::Contribute);
        Control::RequestParams {
            round: Round(round),
            roster: vec![RosterEntry { rank: LIFE.0, incarnation, session, part }],
        }
    }

    fn done(round: u64) -> Control {
        Control::RoundDone { round: Round(round), outcome: RoundOutcome::Nothing, next: Next::Window }
    }

    #[test]
    fn words_are_kept_until_their_round_is_over() {
        let mut memory = Memory::default();
        memory.hears(LIFE, &request(4, 1));
        assert_eq!(memory.state(LIFE).round, None, "another life's");
        memory.hears(LIFE, &request(5, 2));
        memory.says(Report::Heartbeat { step: 1 });
        memory.says(Report::Failed { error: "x".into() });
        let state = memory.state(LIFE);
        assert_eq!((state.round, state.round_done, state.words.len()), (Some(Round(5)), false, 1));
        memory.hears(LIFE, &done(4));
        assert_eq!(memory.state(LIFE).words.len(), 1);
        memory.hears(LIFE, &done(5));
        let state = memory.state(LIFE);
        assert_eq!((state.round_done, state.words.len()), (true, 0));
        (0..200).for_each(|step| memory.says(Report::Failed { error: step.to_string() }));
        assert_eq!(memory.state(LIFE).words.len(), RANK_WORDS);
    }

    #[test]
    fn who_missed_the_beginning_of_a_round_hears_nothing_of_its_end() {
        let mut memory = Memory::default();
        memory.hears(LIFE, &request(4, 2));
        memory.attached = false;
        assert!(!memory.hears(LIFE, &request(5, 2)));
        memory.is_told(LIFE, &Control::ControllerBack);
        memory.is_told(LIFE, &done(4));
        assert!(!memory.hears(LIFE, &done(5)));
        assert!(memory.hears(LIFE, &request(6, 1)) && memory.hears(LIFE, &done(6)), "one that it is not in");
    }

    #[test]
    fn a_new_controller_hears_what_the_rank_holds_and_was_given() {
        let range = |start, end| Range { start, end };
        let committed = |round, version| Control::RoundDone {
            round: Round(round),
            outcome: RoundOutcome::Committed { version: Version(version) },
            next: Next::Window,
        };
        let plan = |window| WindowPlan {
            window: WindowId(window),
            epoch: Epoch(0),
            leases: vec![range(0, 8)],
            quota: 1,
            quota_max: 2,
            budget: None,
            global_step: 0,
            quota_sum: 1,
            overlap: None,
        };
        let whole = |round| {
            let received = Received { digest: 1, divergence: None, pre_norm: 0.0, post_norm: 0.0 };
            let outcome = SyncOutcome::Whole(received);
            Report::SyncAck(SyncAck {
                round: Round(round),
                outcome,
                waited: Default::default(),
                copied: Default::default(),
            })
        };
        let mut memory = Memory::default();
        memory.is_told(LIFE, &Control::Window(plan(3)));
        let grant = |window| Control::ExtendPartition { window: WindowId(window), leases: vec![range(8, 12)] };
        memory.is_told(LIFE, &grant(2));
        memory.is_told(LIFE, &grant(3));
        memory.says(Report::WindowReport(Box::new(WindowReport { batches: 2, ..WindowReport::default() })));
        memory.hears(LIFE, &request(5, 2));
        memory.says(whole(5));
        let outcome = RoundOutcome::Again;
        memory.hears(LIFE, &Control::RoundDone { round: Round(5), outcome, next: Next::Window });
        let state = memory.state(LIFE);
        assert_eq!(state.plan.map(|plan| plan.leases), Some(vec![range(0, 8), range(8, 12)]));
        assert_eq!((state.version, state.words.len(), state.pace.map(|pace| pace.batches)), (None, 2, Some(2)));
        // (the round, whether its result is whole here, which version its end makes, what is held then)
        for (round, has_it, version, held) in [(6, true, 6, Some(6)), (7, false, 7, None), (8, true, 8, Some(8))] {
            memory.hears(LIFE, &request(round, 2));
            if has_it {
                memory.says(whole(round));
            }
            memory.hears(LIFE, &committed(round, version));
            let state = memory.state(LIFE);
            assert_eq!((state.version, state.plan), (held.map(Version), None), "round {round}");
        }
        memory.hears(LIFE, &request(9, 1));
        memory.hears(LIFE, &committed(9, 9));
        assert_eq!(memory.state(LIFE).version, None, "a round without it");
        // (whether it has a window's work, what it holds after a round that folded nothing)
        for (round, trained, held) in [(10, false, Some(Version(10))), (12, true, None)] {
            memory.hears(LIFE, &request(round, 2));
            memory.says(whole(round));
            memory.hears(LIFE, &committed(round, round));
            if trained {
                memory.is_told(LIFE, &Control::Window(plan(round)));
            }
            memory.hears(LIFE, &request(round + 1, 2));
            memory.hears(LIFE, &done(round + 1));
            assert_eq!(memory.state(LIFE).version, held, "trained: {trained}");
        }
    }

    #[test]
    fn who_is_not_known_to_be_back_hears_of_no_round() {
        let mut memory = Memory { attached: false, ..Memory::default() };
        assert!(!memory.hears(LIFE, &request(5, 2)) && memory.hears(LIFE, &Control::Heartbeat));
        memory.is_told(LIFE, &done(4));
        assert!(!memory.attached);
        memory.is_told(LIFE, &Control::ControllerBack);
        assert!(memory.hears(LIFE, &request(5, 2)));
        assert_eq!(memory.state(LIFE).round, Some(Round(5)));
    }
}
