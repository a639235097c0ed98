//! ElChe: the scheduler that the settings describe, as a [`Cadence`].

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::arbiter::Arbiter;
use crate::batches::batches_in;
use crate::cadence::{Cadence, Demand, Plan, RoundFeedback, Share, WindowSample};
use crate::change::{Change, Figure, Rejected, Replan};
use crate::config::{Settings, SettingsError};
use crate::election::{self, Election};
use crate::growth::{Costs, Growth};
use crate::guard::{Guard, GuardInput};
use crate::mode::Policy;
use crate::span::Slot;
use crate::speed::{Shift, Speed, median};
use crate::split::largest_remainder;
use crate::state::{Remembered, State};
use crate::tail;
use crate::window::{self, Known, RATIO_MAX, Row};

/// No window and no reduce is longer than this; what says so is a broken clock.
const ROUND_MAX: Duration = Duration::from_secs(24 * 3600);

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
    hints: BTreeMap<Slot, f64>,
    arbiter: Arbiter,
    members: BTreeMap<Slot, Speed>,
    /// From before a restart, of those that have not joined since.
    remembered: Remembered,
    election: Election,
    growth: Growth,
    open: Open,
    changes: Vec<Change>,
}

impl Elche {
    /// A scheduler without members.
    ///
    /// # Errors
    ///
    /// Where the settings contradict each other.
    pub fn new(settings: Settings, guard: Box<dyn Guard>) -> Result<Self, SettingsError> {
        settings.validate()?;
        let growth = Growth::new(&settings);
        let hints = settings.speed_hints.iter().copied().collect();
        Ok(Self {
            settings,
            hints,
            arbiter: Arbiter::new(guard),
            members: BTreeMap::new(),
            remembered: Remembered::default(),
            election: Election::default(),
            growth,
            open: Open::No,
            changes: Vec::new(),
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
        elche.remembered = Remembered::of(state);
        let members = u32::try_from(elche.remembered.speeds.len()).unwrap_or(u32::MAX);
        elche.changes.push(Change::Restored { anchor: elche.growth.anchor(), members, guard: kept });
        Ok(elche)
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What is known of `slots`: measured times, and what the hints say of the others on the same scale. Where nobody is
    /// measured the hints' own scale serves.
    fn known(&self, slots: impl Iterator<Item = Slot>, callbacks: &[(Slot, Duration)]) -> Vec<Known> {
        let measured = |slot: Slot| self.members.get(&slot).and_then(Speed::batch);
        let anybody = self.members.values().any(|speed| speed.batch().is_some());
        // Seconds a batch at a hinted speed of 1.
        let unit = if anybody {
            median(self.hints.iter().filter_map(|(&slot, hint)| measured(slot).map(|batch| batch * hint)))
        } else {
            Some(1.0)
        };
        let costs: BTreeMap<Slot, Duration> =
            if anybody { callbacks.iter().copied().collect() } else { BTreeMap::new() };
        slots
            .map(|slot| {
                let own = measured(slot);
                let prior = || Some(unit? / self.hints.get(&slot)?);
                Known {
                    slot,
                    batch: own.or_else(prior),
                    measured: own.is_some(),
                    callback: costs.get(&slot).map_or(0.0, Duration::as_secs_f64),
                }
            })
            .collect()
    }

    /// Batch times of all members that have one, ascending by slot.
    fn times(&self) -> Vec<(Slot, f64)> {
        times_of(&self.known(self.members.keys().copied(), &[]))
    }

    /// The batch time the anchor counts among `members`, after clamping the others' distance from it.
    fn scale(&self, members: &mut [Known]) -> Option<f64> {
        let times = times_of(members);
        let elected = self.election.current().and_then(|slot| times.iter().find(|&&(other, _)| other == slot));
        let slowest = elected.copied().or_else(|| election::slowest(&times))?.1;
        for member in members {
            member.batch = member.batch.map(|batch| batch.clamp(slowest / RATIO_MAX, slowest * RATIO_MAX));
        }
        Some(slowest)
    }

    fn note_replan(&mut self) {
        match std::mem::replace(&mut self.open, Open::Planned) {
            Open::No => {}
            Open::Planned => self.changes.push(Change::Replan(Replan::NothingMoved)),
            Open::Moved => self.changes.push(Change::Replan(Replan::NoRound)),
        }
    }

    /// Lowers the anchor to the first whose window holds a whole epoch.
    fn cap_to_epoch(&mut self, epoch_batches: u64, slowest: f64, members: &[Known]) {
        let Some(unknown) = median(members.iter().filter_map(|member| member.batch)) else { return };
        let per_anchor: f64 = members.iter().map(|member| slowest / member.batch.unwrap_or(unknown)).sum();
        // The tolerance keeps a whole number whole in spite of the division's rounding.
        let cap = (epoch_batches as f64 / per_anchor - 1e-9).ceil().max(1.0);
        self.growth.cap_to_epoch(cap as u32, &mut self.changes);
    }

    /// The rows of the next window; the counts are batches, at most `left` in all.
    fn rows(&mut self, demand: &Demand<'_>, left: u64) -> (bool, Vec<Row>) {
        let mut members = self.known(demand.live.iter().copied(), demand.callbacks);
        let slowest = self.scale(&mut members);
        if let Some(slowest) = slowest
            && self.settings.policy != Policy::Sync
        {
            let epoch = batches_in(demand.epoch_len.max(demand.remaining), self.settings.batch_size);
            self.cap_to_epoch(epoch, slowest, &members);
        }
        let mut rows = window::full(&self.settings, self.growth.anchor(), slowest, &members);
        let window: u64 = rows.iter().map(|row| u64::from(row.quota)).sum();
        let windows = tail::windows_left(&self.settings, left, window);
        let tail = tail::is_tail(windows);
        if tail {
            rows = tail::divide(&self.settings, left, windows, &members, &rows);
            let planned = rows.iter().map(|row| u64::from(row.quota)).sum();
            self.changes.push(Change::Tail { left, windows, planned });
        } else {
            self.cut_leases(left, window, &mut rows);
        }
        for (member, row) in members.iter().zip(&rows).filter(|(member, _)| member.callback > 0.0) {
            let cost = Duration::try_from_secs_f64(member.callback).unwrap_or(Duration::MAX);
            self.changes.push(Change::Callback { slot: member.slot, cost, quota: row.quota });
        }
        (tail, rows)
    }

    /// Where full leases hold more than is left, each gets its quota and a proportional part of the rest.
    fn cut_leases(&mut self, left: u64, window: u64, rows: &mut [Row]) {
        let wanted: u64 = rows.iter().map(|row| u64::from(row.quota_max)).sum();
        if wanted <= left {
            return;
        }
        self.changes.push(Change::LeasesCut { wanted, left });
        let spare: Vec<f64> = rows.iter().map(|row| f64::from(row.quota_max - row.quota)).collect();
        for (row, extra) in rows.iter_mut().zip(largest_remainder(left.saturating_sub(window), &spare)) {
            row.quota_max = row.quota.saturating_add(u32::try_from(extra).unwrap_or(u32::MAX));
        }
    }

    /// The round's timing in seconds, or nothing where its figures cannot be.
    fn costs(&mut self, outcome: &RoundFeedback) -> Costs {
        let (wall, reduce) = (outcome.window_wall, outcome.reduce);
        if reduce.is_zero() || wall < reduce || wall > ROUND_MAX {
            self.changes.push(Change::FeedbackRejected { what: Figure::Timing, slot: None });
            return Costs::default();
        }
        let mut waits = Vec::with_capacity(outcome.waits.len());
        for &(slot, wait) in &outcome.waits {
            if wait > wall {
                self.changes.push(Change::FeedbackRejected { what: Figure::Wait, slot: Some(slot) });
            } else {
                waits.push(wait.as_secs_f64());
            }
        }
        let fill = mean(self.members.values().filter(|speed| speed.is_fresh()).map(Speed::fill));
        let (wall, reduce) = (wall.as_secs_f64(), reduce.as_secs_f64());
        let overhead = ((mean(waits) + reduce + fill) / wall).min(1.0);
        let batch = self.election.current().and_then(|slot| self.members.get(&slot)).and_then(Speed::batch);
        Costs { overhead: Some(overhead), reduce: Some(reduce), fill, batch }
    }

    /// Learning rates that can be.
    fn rates(&mut self, outcome: &RoundFeedback) -> Vec<f64> {
        let mut rates = Vec::with_capacity(outcome.rates.len());
        for &(slot, rate) in &outcome.rates {
            if usable(rate) {
                rates.push(rate);
            } else {
                self.changes.push(Change::FeedbackRejected { what: Figure::Rate, slot: Some(slot) });
            }
        }
        rates
    }

    /// What the guard may see: a figure that is no number is missing, not 0.
    fn guard_input(&mut self, outcome: &RoundFeedback) -> GuardInput {
        let mut input = GuardInput { steps: outcome.steps.clone(), ..GuardInput::default() };
        input.k_max = outcome.steps.iter().map(|&(_, steps)| steps).max().unwrap_or(0);
        for &(slot, divergence) in &outcome.divergence {
            if usable(divergence) {
                input.divergence.push((slot, divergence));
            } else {
                self.changes.push(Change::FeedbackRejected { what: Figure::Divergence, slot: Some(slot) });
            }
        }
        for &(slot, norms) in &outcome.norms {
            if usable(norms.pre) && usable(norms.post) {
                input.norms.push((slot, norms));
            } else {
                self.changes.push(Change::FeedbackRejected { what: Figure::Norm, slot: Some(slot) });
            }
        }
        input
    }
}

/// Whether a measured quantity can be.
fn usable(x: f64) -> bool {
    x.is_finite() && x >= 0.0
}

impl fmt::Debug for Elche {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elche")
            .field("settings", &self.settings)
            .field("members", &self.members)
            .field("election", &self.election)
            .field("growth", &self.growth)
            .finish_non_exhaustive()
    }
}

impl Cadence for Elche {
    fn join(&mut self, slot: Slot) {
        let speed = self.remembered.speeds.remove(&slot).unwrap_or_default();
        let known = speed.batch().is_some();
        self.members.insert(slot, speed);
        if known && self.remembered.elected == Some(slot) {
            self.election.recall(slot);
        }
        let hint = self.hints.get(&slot).copied();
        self.changes.push(Change::Joined { slot, hint });
        if hint.is_some() && self.members.values().all(|speed| speed.batch().is_none()) {
            let pinned = self.election.pin(&self.times());
            self.changes.extend(pinned);
        }
    }

    fn leave(&mut self, slot: Slot) {
        if self.members.remove(&slot).is_none() {
            return;
        }
        self.changes.push(Change::Left { slot });
        self.election.leave(slot);
        if self.election.current().is_none() {
            let elected = self.election.update(&self.times(), self.growth.calibrations());
            self.changes.extend(elected);
        }
    }

    fn observe(&mut self, slot: Slot, sample: WindowSample) {
        if sample == WindowSample::default() {
            return;
        }
        if sample.batches > 0 && self.open == Open::Planned {
            self.open = Open::Moved;
        }
        let Some(speed) = self.members.get_mut(&slot) else {
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

    fn round_done(&mut self, outcome: &RoundFeedback) -> Vec<Change> {
        self.open = Open::No;
        if self.members.values().any(Speed::is_fresh) {
            self.growth.calibrated();
            let elected = self.election.update(&self.times(), self.growth.calibrations());
            self.changes.extend(elected);
        }
        let costs = self.costs(outcome);
        for (&slot, speed) in &mut self.members {
            if speed.window_over() {
                self.changes.push(Change::Forgotten { slot });
            }
        }
        let input = self.guard_input(outcome);
        let mut rates = self.rates(outcome);
        let ruling = self.arbiter.rule(&input, &mut rates, &mut self.changes);
        self.growth.round(&self.settings, &costs, &ruling, &mut self.changes);
        std::mem::take(&mut self.changes)
    }

    fn plan(&mut self, demand: &Demand<'_>) -> Plan {
        self.note_replan();
        let batch = u64::from(self.settings.batch_size);
        let left = batches_in(demand.remaining, self.settings.batch_size);
        let (tail, rows) = if left == 0 || demand.live.is_empty() {
            (false, vec![Row::counted(0); demand.live.len()])
        } else {
            self.rows(demand, left)
        };
        let mut shares: Vec<Share> = demand
            .live
            .iter()
            .zip(&rows)
            .map(|(&slot, row)| {
                let lease = u64::from(row.quota_max).saturating_mul(batch);
                Share { slot, quota: row.quota, quota_max: row.quota_max, lease, budget: row.budget }
            })
            .collect();
        // The epoch's last batch may be short: its lease is the last one.
        let leased = shares.iter().fold(0u64, |sum, share| sum.saturating_add(share.lease));
        if let Some(last) = shares.iter_mut().rfind(|share| share.lease > 0) {
            last.lease -= leased.saturating_sub(demand.remaining).min(last.lease);
        }
        Plan {
            anchor: self.growth.anchor(),
            tail,
            quota_sum: rows.iter().map(|row| u64::from(row.quota)).sum(),
            shares,
            reasons: std::mem::take(&mut self.changes),
        }
    }

    fn anchor(&self) -> u32 {
        self.growth.anchor()
    }

    fn batch_time(&self, slot: Slot) -> Option<Duration> {
        let seconds = self.members.get(&slot)?.batch()?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    fn fastest(&self) -> Option<Slot> {
        let times = self.times();
        times.into_iter().reduce(|best, next| if next.1 < best.1 { next } else { best }).map(|(slot, _)| slot)
    }

    fn slowest(&self) -> Option<Slot> {
        self.election.current()
    }

    fn weights(&self, live: &[Slot]) -> Vec<(Slot, f64)> {
        let mut members = self.known(live.iter().copied(), &[]);
        self.scale(&mut members);
        let unknown = median(members.iter().filter_map(|member| member.batch)).unwrap_or(1.0);
        members.iter().map(|member| (member.slot, 1.0 / member.batch.unwrap_or(unknown))).collect()
    }

    fn state(&self) -> State {
        State::of(&self.growth, self.election.current().or(self.remembered.elected), &self.arbiter)
            .with_members(self.remembered.speeds.iter().chain(&self.members))
    }
}

fn times_of(members: &[Known]) -> Vec<(Slot, f64)> {
    members.iter().filter_map(|member| Some((member.slot, member.batch?))).collect()
}

/// The mean, 0 of nothing.
fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = values.into_iter().fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}
