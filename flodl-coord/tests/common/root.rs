//! The root reducer: it has a round's result when everybody on the roster has contributed or is declared dead.

use super::oracle::Outcome;
use super::puppet::{Since, ack, received};
use super::{DIGEST, Event, LIFE, MS, World};
use flodl_coord::Input;
use flodl_elche::Mode;
use flodl_wire::message::control::{Part, RosterEntry, RoundOutcome};
use flodl_wire::message::report::{Folded, FoldedPart, HostReport, SyncOutcome};
use flodl_wire::message::{Control, Report};
use flodl_wire::{Incarnation, Rank, Round};
use std::collections::BTreeMap;

/// How often is looked whether a rank that keeps silent speaks again.
const STEP: u64 = 10 * MS;
/// A quarter of the patience: how often a fold that waits says so.
const QUARTER: u64 = 2500 * MS;

/// A round at the root.
pub(crate) struct Open {
    pub(crate) round: Round,
    pub(crate) roster: Vec<RosterEntry>,
    /// What has come of whom, with the work that is in it.
    pub(crate) parts: BTreeMap<Rank, (FoldedPart, Since)>,
    pub(crate) folded: bool,
}

impl World {
    pub(crate) fn root(&mut self, control: &Control) {
        match control {
            Control::RequestParams { round, roster } => {
                assert!(self.open.is_none(), "{round} began before the one before it ended");
                let (round, roster) = (*round, roster.clone());
                self.open = Some(Open { round, roster, parts: BTreeMap::new(), folded: false });
            }
            Control::DeclareDead { rank, incarnation, .. } => self.without(*rank, *incarnation),
            Control::RoundDone { round, outcome, .. } => self.round_done(*round, *outcome),
            _ => {}
        }
    }

    /// A contribution is here, whole unless the odds say otherwise.
    pub(crate) fn data(&mut self, rank: Rank, round: Round) {
        let Some(part) = self.part_of(rank, round) else { return };
        if self.puppet(rank).silent || self.puppet(rank).hangs {
            if self.now.0 % QUARTER < STEP {
                self.waits(rank, round);
            }
            return self.post(STEP, Event::Data { rank, round });
        }
        let since = self.given(rank);
        let left_out = part == Part::Contribute && self.happens(self.scenario.odds.left_out);
        let whole = match part {
            Part::Source => FoldedPart::Whole,
            Part::Contribute if since.steps > 0 => FoldedPart::Whole,
            Part::Contribute | Part::Receive => FoldedPart::None,
        };
        let folded = match whole {
            FoldedPart::Whole if left_out && self.roll(2) == 0 => FoldedPart::Chunks(1),
            FoldedPart::Whole if left_out => FoldedPart::None,
            other => other,
        };
        self.folds(rank, folded);
    }

    /// The folds of a rank's host and of the root wait for it, and say so.
    fn waits(&mut self, rank: Rank, round: Round) {
        let way = self.way();
        self.of_host(way, rank, HostReport::Waiting { round, rank, chunk: 0 });
        self.post(way, Event::Input(Input::RootWaits { round, rank, chunk: 0 }));
    }

    /// A rank is gone; what was on its way is folded as the fault says.
    pub(crate) fn cut_off(&mut self, rank: Rank, folded: u8) {
        let mine = |event: &Event| matches!(event, Event::Data { rank: from, .. } if *from == rank);
        let pending: Vec<_> = self.queue.iter().filter(|(_, event)| mine(event)).map(|(key, _)| *key).collect();
        for key in pending {
            let Some(Event::Data { round, .. }) = self.queue.remove(&key) else { continue };
            let contributes = match self.part_of(rank, round) {
                Some(Part::Source) => true,
                Some(Part::Contribute) => self.given(rank).steps > 0,
                Some(Part::Receive) | None => false,
            };
            match folded {
                1 if contributes => self.folds(rank, FoldedPart::Chunks(1)),
                2 if contributes => self.folds(rank, FoldedPart::Whole),
                _ => {}
            }
        }
    }

    /// What a rank's last snapshot holds.
    fn given(&mut self, rank: Rank) -> Since {
        let overlaps = self.overlaps();
        let puppet = self.puppet(rank);
        if overlaps { puppet.ahead.sent.clone() } else { puppet.since.clone() }
    }

    fn part_of(&self, rank: Rank, round: Round) -> Option<Part> {
        let open = self.open.as_ref().filter(|open| open.round == round)?;
        let life = self.puppets.get(rank.0 as usize)?.life;
        open.roster.iter().find(|entry| (entry.rank, entry.incarnation) == (rank, life)).map(|entry| entry.part)
    }

    fn without(&mut self, rank: Rank, incarnation: Incarnation) {
        if let Some(open) = &self.open
            && !open.parts.contains_key(&rank)
            && open.roster.iter().any(|entry| (entry.rank, entry.incarnation) == (rank, incarnation))
        {
            self.folds(rank, FoldedPart::None);
        }
    }

    fn folds(&mut self, rank: Rank, part: FoldedPart) {
        let since = self.given(rank);
        let Some(open) = self.open.as_mut().filter(|open| !open.parts.contains_key(&rank)) else { return };
        open.parts.insert(rank, (part, since));
        if open.parts.len() < open.roster.len() || open.folded {
            return;
        }
        open.folded = true;
        let parts = open.parts.iter();
        let life =
            |rank: Rank| open.roster.iter().find(|entry| entry.rank == rank).map_or(LIFE, |entry| entry.incarnation);
        let folded = Folded {
            round: open.round,
            ranks: parts.map(|(&rank, &(part, _))| (rank, life(rank), part)).collect(),
            digest: DIGEST,
            any_mass: open.parts.values().any(|(part, _)| *part != FoldedPart::None),
        };
        let roster = open.roster.clone();
        let way = self.way();
        self.post(way, Event::Input(Input::Folded(folded)));
        for entry in roster {
            self.sends_result(&entry);
        }
    }

    /// The result reaches a rank, which answers.
    fn sends_result(&mut self, entry: &RosterEntry) {
        let rank = entry.rank;
        let Some(round) = self.open.as_ref().map(|open| open.round) else { return };
        if !self.puppet(rank).alive || self.puppet(rank).life != entry.incarnation {
            return;
        }
        let mut answer = ack(round);
        if self.happens(self.scenario.odds.incomplete) {
            answer.outcome = SyncOutcome::Incomplete { from_chunk: 0 };
        } else if self.happens(self.scenario.odds.digest) {
            answer.outcome = SyncOutcome::Whole(received(1));
        }
        self.puppet(rank).has_result = answer.received().is_some_and(|received| received.digest == DIGEST);
        let way = self.way();
        self.say(way, rank, Report::SyncAck(answer));
    }

    fn round_done(&mut self, round: Round, outcome: RoundOutcome) {
        let open = self.open.take().expect("a round ended that had not begun");
        assert_eq!(open.round, round);
        assert!(open.folded, "{round} was closed before its fold");
        let RoundOutcome::Committed { version } = outcome else { return };
        let is_new = self.oracle.version.is_some_and(|before| before != version);
        self.oracle.version = Some(version);
        for (rank, (part, since)) in &open.parts {
            if !is_new {
                continue;
            }
            let puppet = &self.puppets[rank.0 as usize];
            let (unheard, lease) = match self.scenario.mode {
                Mode::CpuAsync => (puppet.ahead.unheard, puppet.ahead.lease.clone()),
                _ => (puppet.unheard, puppet.window.iter().flat_map(|plan| plan.leases.clone()).collect()),
            };
            let samples = self.scenario.samples;
            if unheard && *part != FoldedPart::None {
                // Nobody knows what is in it: all that might be is trained again.
                self.oracle.commit(FoldedPart::Chunks(1), &Since { ranges: lease, ..since.clone() }, samples);
            } else {
                self.oracle.commit(*part, since, samples);
            }
        }
    }
}

/// The outcome of a scenario.
pub(crate) fn run(scenario: super::Scenario) -> Outcome {
    World::new(scenario).run()
}
