//! ElChe: the scheduler that the settings describe, as a [`Cadence`].

use std::fmt;
use std::time::Duration;

use crate::arbiter::Arbiter;
use crate::batches::batches_in;
use crate::cadence::{Cadence, Demand, Plan, RoundFeedback, Share, WindowSample};
use crate::change::{Change, Rejected, Replan, Unrepeatable};
use crate::config::{Settings, SettingsError};
use crate::election::{self, Election};
use crate::feedback::Feedback;
use crate::growth::Growth;
use crate::guard::Guard;
use crate::lead::Lead;
use crate::mode::Policy;
use crate::promise::Promise;
use crate::roster::Roster;
use crate::span::Slot;
use crate::speed::{Shift, Speed, is_usable, median_in};
use crate::split::Split;
use crate::state::{Remembered, State};
use crate::tail::{self, Tail};
use crate::window::{self, Known, Length, RATIO_MAX, Row};

/// Since when a window is planned and not averaged.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Open {
    No,
    Planned,
    Moved,
}

/// The scheduler.
pub struct Elche {
    settings: Settings,
    roster: Roster,
    election: Election,
    arbiter: Arbiter,
    growth: Growth,
    lead: Lead,
    open: Open,
    promise: Promise,
    changes: Vec<Change>,
    scratch: Scratch,
}

/// Buffers that are used again, so that a call allocates nothing while the members stay the same.
#[derive(Default)]
struct Scratch {
    known: Vec<Known>,
    rows: Vec<Row>,
    times: Vec<(Slot, f64)>,
    values: Vec<f64>,
    split: Split,
    tail: Tail,
    feedback: Feedback,
}

impl Elche {
    /// A scheduler without members.
    ///
    /// # Errors
    ///
    /// Where the settings contradict each other.
    pub fn new(settings: Settings, guard: Box<dyn Guard>) -> Result<Self, SettingsError> {
        settings.validate()?;
        let hints = settings.speed_hints.iter().copied().collect();
        Ok(Self {
            growth: Growth::new(&settings),
            promise: Promise::new(settings.deterministic),
            lead: Lead::new(settings.policy, settings.overshoot),
            roster: Roster { hints, fixed: settings.deterministic, ..Roster::default() },
            settings,
            election: Election::default(),
            arbiter: Arbiter::new(guard),
            open: Open::No,
            changes: Vec::new(),
            scratch: Scratch::default(),
        })
    }

    /// A scheduler that goes on where another one was when it gave its [`state`](Cadence::state).
    ///
    /// The members join again; who was known then has its speed, whoever is missing or new. The anchor is kept within the
    /// settings' bounds, and the guard goes on where it is the same one. Numbers that cannot be are left out.
    ///
    /// # Errors
    ///
    /// Where the settings contradict each other.
    pub fn restore(settings: Settings, guard: Box<dyn Guard>, state: &State) -> Result<Self, SettingsError> {
        let mut elche = Self::new(settings, guard)?;
        let kept = state.guard.restore(&mut elche.arbiter);
        elche.growth = Growth::restored(&elche.settings, state.anchor, state.calibrations, &state.reduce);
        elche.lead.recall(state.lead);
        elche.roster.remembered = Remembered::of(state);
        let members = u32::try_from(elche.roster.remembered.speeds.len()).unwrap_or(u32::MAX);
        elche.changes.push(Change::Restored { anchor: elche.growth.anchor(), members, guard: kept });
        elche.promise.breaks(Unrepeatable::Restored, &mut elche.changes);
        Ok(elche)
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Lists the batch times of all members that have one, ascending by slot.
    fn list_times(&mut self) {
        let Scratch { known, times, values, .. } = &mut self.scratch;
        self.roster.know(self.roster.members.keys().copied(), &[], known, values);
        times.clear();
        times.extend(times_of(known));
    }

    /// What is known of all members.
    fn know_all(&self) -> Vec<Known> {
        let mut known = Vec::new();
        self.roster.know(self.roster.members.keys().copied(), &[], &mut known, &mut Vec::new());
        known
    }

    /// Looks at the members' speeds and elects the slowest.
    fn elect(&mut self) {
        self.list_times();
        let elected = self.election.update(&self.scratch.times, self.growth.calibrations());
        self.changes.extend(elected);
    }

    /// Holds the election that somebody's coming or going called for.
    fn settle_election(&mut self) {
        if !self.election.is_called() {
            return;
        }
        if !self.roster.is_unmeasured() {
            return self.elect();
        }
        self.list_times();
        let pinned = self.election.pin(&self.scratch.times);
        self.changes.extend(pinned);
    }

    /// The batch time the anchor counts among `members`, after clamping the others' distance from it.
    fn scale(&self, members: &mut [Known]) -> Option<f64> {
        let elected = self.election.current().and_then(|slot| times_of(members).find(|&(other, _)| other == slot));
        let slowest = elected.or_else(|| election::slowest(times_of(members)))?.1;
        for member in members {
            member.batch = member.batch.map(|batch| batch.clamp(slowest / RATIO_MAX, slowest * RATIO_MAX));
        }
        Some(slowest)
    }

    fn note_replan(&mut self) {
        match std::mem::replace(&mut self.open, Open::Planned) {
            Open::No => {}
            Open::Planned => self.changes.push(Change::Replan(Replan::NothingMoved)),
            // The round of the window before is opened together with the window.
            Open::Moved if self.settings.policy == Policy::Async => {}
            Open::Moved => self.changes.push(Change::Replan(Replan::NoRound)),
        }
    }

    /// Lowers the anchor to the first whose window holds a whole epoch.
    fn cap_to_epoch(&mut self, epoch_batches: u64, slowest: f64, scratch: &mut Scratch) {
        let Scratch { known, values, .. } = scratch;
        let Some(unknown) = median_of(known, values) else { return };
        let per_anchor: f64 = known.iter().map(|member| slowest / member.batch.unwrap_or(unknown)).sum();
        // The tolerance keeps a whole number whole in spite of the division's rounding.
        let cap = (epoch_batches as f64 / per_anchor - 1e-9).ceil().max(1.0);
        self.growth.cap_to_epoch(cap as u32, &mut self.changes);
    }

    /// Makes the rows of the next window; the counts are batches, at most `left` in all. Whether the epoch ends with it or
    /// the next one.
    fn make_rows(&mut self, demand: &Demand<'_>, left: u64, scratch: &mut Scratch) -> bool {
        self.roster.know(demand.live.iter().copied(), demand.callbacks, &mut scratch.known, &mut scratch.values);
        let slowest = self.scale(&mut scratch.known);
        if let Some(slowest) = slowest
            && self.settings.policy != Policy::Sync
        {
            let epoch = if demand.epoch_len > 0 { demand.epoch_len } else { demand.remaining };
            self.cap_to_epoch(batches_in(epoch, self.settings.batch_size), slowest, scratch);
        }
        let Scratch { known, rows, split, tail, .. } = scratch;
        let length = Length { anchor: self.growth.anchor(), lead: self.lead.limit() };
        window::full(&self.settings, length, slowest, known, rows);
        let window: u64 = rows.iter().map(|row| u64::from(row.quota)).sum();
        let windows = tail::windows_left(&self.settings, left, window);
        let is_tail = tail::is_tail(windows);
        if is_tail {
            tail.divide(&self.settings, (left, windows), known, rows);
            tail::bound(&self.settings, known, rows, self.growth.another_round());
            let planned = rows.iter().map(|row| u64::from(row.quota)).sum();
            self.changes.push(Change::Tail { left, windows, planned });
        } else {
            self.cut_leases(left, window, rows, split);
        }
        for (member, row) in known.iter().zip(&*rows).filter(|(member, _)| member.callback > 0.0) {
            let cost = Duration::try_from_secs_f64(member.callback).unwrap_or(Duration::MAX);
            self.changes.push(Change::Callback { slot: member.slot, cost, quota: row.quota });
        }
        is_tail
    }

    /// Where full leases hold more than is left, each gets its quota and a proportional part of the rest.
    fn cut_leases(&mut self, left: u64, window: u64, rows: &mut [Row], split: &mut Split) {
        let wanted = rows.iter().fold(0u64, |sum, row| sum.saturating_add(row.leased()));
        if wanted <= left {
            return;
        }
        self.changes.push(Change::LeasesCut { wanted, left });
        let spare = rows.iter().map(|row| (row.leased() - u64::from(row.quota)) as f64);
        let extra = split.divide(left.saturating_sub(window), spare);
        for (row, &extra) in rows.iter_mut().zip(extra) {
            let extra = u32::try_from(extra).unwrap_or(u32::MAX);
            let in_window = extra.min(row.quota_max - row.quota);
            row.lead = row.lead.min(extra - in_window);
            row.quota_max = row.quota + in_window;
        }
    }
}

impl fmt::Debug for Elche {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elche")
            .field("settings", &self.settings)
            .field("roster", &self.roster)
            .field("election", &self.election)
            .field("growth", &self.growth)
            .finish_non_exhaustive()
    }
}

impl Cadence for Elche {
    fn join(&mut self, slot: Slot) {
        let speed = self.roster.remembered.speeds.remove(&slot).unwrap_or_default();
        let known = speed.batch().is_some();
        self.roster.members.insert(slot, speed);
        if known && self.roster.remembered.elected == Some(slot) {
            self.election.recall(slot);
        }
        let hint = self.roster.hints.get(&slot).copied();
        self.changes.push(Change::Joined { slot, hint });
        self.promise.breaks(Unrepeatable::Joined(slot), &mut self.changes);
        if self.growth.calibrations() == 0 && self.roster.is_expected(slot) {
            self.election.call();
        }
    }

    fn expect(&mut self, slot: Slot, speed: f64) {
        if speed.is_finite() && speed > 0.0 && !self.settings.deterministic {
            self.roster.specs.insert(slot, speed);
        }
    }

    fn leave(&mut self, slot: Slot) {
        self.promise.breaks(Unrepeatable::Left(slot), &mut self.changes);
        if self.roster.members.remove(&slot).is_none() {
            return;
        }
        self.changes.push(Change::Left { slot });
        self.election.leave(slot);
    }

    fn observe(&mut self, slot: Slot, sample: WindowSample) {
        if sample == WindowSample::default() {
            return;
        }
        if sample.batches > 0 && self.open == Open::Planned {
            self.open = Open::Moved;
        }
        // A report that counts for nothing does not hold an election by when it came either.
        if !self.settings.deterministic && self.roster.members.contains_key(&slot) && is_usable(sample) {
            self.settle_election();
        }
        let Some(speed) = self.roster.members.get_mut(&slot) else {
            self.changes.push(Change::SampleRejected { slot, why: Rejected::NotAMember });
            return;
        };
        let seconds =
            |speed: &Speed| Duration::try_from_secs_f64(speed.batch().unwrap_or(0.0)).unwrap_or(Duration::MAX);
        match speed.take(sample) {
            Ok(Shift::Steady) => {}
            Ok(Shift::Calibrated) => self.changes.push(Change::Calibrated { slot, batch: seconds(speed) }),
            Ok(Shift::Regime { from }) => {
                let from = Duration::try_from_secs_f64(from).unwrap_or(Duration::MAX);
                self.changes.push(Change::Regime { slot, from, to: seconds(speed) });
            }
            Err(why) => self.changes.push(Change::SampleRejected { slot, why }),
        }
    }

    fn round_done_into(&mut self, outcome: &RoundFeedback, changes: &mut Vec<Change>) {
        self.open = Open::No;
        self.settle_election();
        if self.settings.deterministic {
            // Speeds are known for deadlines and for people.
            for speed in self.roster.members.values_mut() {
                speed.window_over();
            }
            changes.clear();
            return changes.append(&mut self.changes);
        }
        if self.roster.members.values().any(Speed::is_fresh) {
            self.growth.calibrated();
            self.elect();
        }
        let Scratch { feedback, .. } = &mut self.scratch;
        let slowest = self.election.current().and_then(|slot| self.roster.measured(slot));
        let reduce_counts = self.settings.policy != Policy::Async;
        let costs = feedback.costs((outcome, reduce_counts), &self.roster.members, slowest, &mut self.changes);
        for (&slot, speed) in &mut self.roster.members {
            if speed.window_over() {
                self.changes.push(Change::Forgotten { slot });
            }
        }
        feedback.check(outcome, &mut self.changes);
        let ruling = self.arbiter.rule(&feedback.round, &mut feedback.rates, &mut self.changes);
        self.growth.round(&self.settings, &costs, &ruling, &mut self.changes);
        self.lead.judged(ruling.verdict, &mut self.changes);
        changes.clear();
        changes.append(&mut self.changes);
    }

    fn plan_into(&mut self, demand: &Demand<'_>, plan: &mut Plan) {
        self.note_replan();
        self.promise.begins();
        self.settle_election();
        let left = batches_in(demand.remaining, self.settings.batch_size);
        let mut scratch = std::mem::take(&mut self.scratch);
        plan.tail = if left == 0 || demand.live.is_empty() {
            scratch.rows.clear();
            scratch.rows.resize(demand.live.len(), Row::counted(0));
            false
        } else {
            self.make_rows(demand, left, &mut scratch)
        };
        let batch = u64::from(self.settings.batch_size);
        plan.shares.clear();
        plan.shares.extend(demand.live.iter().zip(&scratch.rows).map(|(&slot, row)| {
            let lease = row.leased().saturating_mul(batch);
            let Row { quota, quota_max, budget, lead } = *row;
            Share { slot, quota, quota_max, lead, lease, budget }
        }));
        // The epoch's last batch may be short: its lease is the last one.
        let leased = plan.shares.iter().fold(0u64, |sum, share| sum.saturating_add(share.lease));
        if let Some(last) = plan.shares.iter_mut().rfind(|share| share.lease > 0) {
            last.lease -= leased.saturating_sub(demand.remaining).min(last.lease);
        }
        plan.anchor = self.growth.anchor();
        plan.quota_sum = scratch.rows.iter().map(|row| u64::from(row.quota)).sum();
        plan.reasons.clear();
        plan.reasons.append(&mut self.changes);
        self.scratch = scratch;
    }

    fn anchor(&self) -> u32 {
        self.growth.anchor()
    }

    fn batch_time(&self, slot: Slot) -> Option<Duration> {
        Duration::try_from_secs_f64(self.roster.measured(slot)?).ok()
    }

    fn fastest(&self) -> Option<Slot> {
        times_of(&self.know_all()).reduce(|best, next| if next.1 < best.1 { next } else { best }).map(|(slot, _)| slot)
    }

    fn slowest(&self) -> Option<Slot> {
        match self.election.current() {
            Some(elected) if !self.election.is_called() || !self.roster.is_unmeasured() => Some(elected),
            _ if self.election.is_called() => election::slowest(times_of(&self.know_all())).map(|(slot, _)| slot),
            elected => elected,
        }
    }

    fn weights(&self, live: &[Slot]) -> Vec<(Slot, f64)> {
        let (mut members, mut values) = (Vec::new(), Vec::new());
        self.roster.know(live.iter().copied(), &[], &mut members, &mut values);
        self.scale(&mut members);
        let unknown = median_of(&members, &mut values).unwrap_or(1.0);
        members.iter().map(|member| (member.slot, 1.0 / member.batch.unwrap_or(unknown))).collect()
    }

    fn state(&self) -> State {
        let remembered = &self.roster.remembered;
        State::of((&self.growth, self.lead.limit()), self.slowest().or(remembered.elected), &self.arbiter)
            .with_members(remembered.speeds.iter().chain(&self.roster.members))
    }
}

fn times_of(members: &[Known]) -> impl Iterator<Item = (Slot, f64)> {
    members.iter().filter_map(|member| Some((member.slot, member.batch?)))
}

/// The median batch time of those that have one; for those that have none.
fn median_of(members: &[Known], values: &mut Vec<f64>) -> Option<f64> {
    values.clear();
    values.extend(members.iter().filter_map(|member| member.batch));
    median_in(values)
}
