//! What a relay remembers of each rank for the day its link to the controller breaks: what the rank was told, and what it
//! has said since.

use flodl_wire::limits::RANK_WORDS;
use flodl_wire::message::report::RankState;
use flodl_wire::message::{Control, Report};
use flodl_wire::{Incarnation, Rank, Round, WindowId};
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
}

impl Default for Memory {
    fn default() -> Memory {
        let (window, round, heard, words) = (None, None, None, VecDeque::new());
        Memory { attached: true, admitted: false, window, round, round_done: false, heard, words }
    }
}

impl Memory {
    /// The rank is told this. Whether it may hear it.
    pub(super) fn hears(&mut self, (rank, incarnation): (Rank, Incarnation), control: &Control) -> bool {
        match control {
            Control::RequestParams { .. } | Control::RoundDone { .. } if !self.attached => return false,
            Control::ControllerBack => self.attached = true,
            Control::Admitted(_) => self.admitted = true,
            Control::Window(plan) => {
                self.window = Some(plan.window);
                self.words.clear();
            }
            Control::RoundDone { round, .. } if self.heard.is_some_and(|heard| heard != *round) => return false,
            Control::RequestParams { round, roster } => {
                self.heard = Some(*round);
                if roster.iter().any(|entry| (entry.rank, entry.incarnation) == (rank, incarnation)) {
                    self.round = Some(*round);
                    self.round_done = false;
                }
            }
            Control::RoundDone { round, .. } if self.round == Some(*round) => {
                self.round_done = true;
                self.words.clear();
            }
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

    /// The rank says this.
    pub(super) fn says(&mut self, report: Report) {
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
        let Memory { window, round, round_done, admitted, .. } = *self;
        RankState { rank, incarnation, window, round, round_done, admitted, words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flodl_wire::SessionId;
    use flodl_wire::message::control::{Next, Part, RosterEntry, RoundOutcome};

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
