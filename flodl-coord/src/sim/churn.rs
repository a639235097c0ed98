//! An hour in which ranks die all the time and are started again: who contributes, and what is left of the work.
//!
//! 32 ranks, 125 faults an hour at random moments, half a minute from a rank's end to its next life's first word. A fault is a
//! kill, which its relay sees at once, or a silence: the process stands still until the coordinator gives it up.

use super::auditor::Attendance;
use super::ceiling::cluster;
use super::net::Node;
use super::options::{Options, Work};
use super::rng::Rng;
use super::world::World;
use flodl_elche::Windowing;
use flodl_wire::Time;
use flodl_wire::message::report::ExitStatus;
use serde_json::{Value, json};

const SECOND: u64 = 1_000_000_000;
const HOUR: Time = Time(3600 * SECOND);
const RANKS: u32 = 32;
const FAULTS_AN_HOUR: f64 = 125.0;
const RESTART: u64 = 30 * SECOND;
/// How often the living are counted.
const LOOK: u64 = SECOND / 4;
/// With kills, so many of the living contribute to each round, and so much of the work without faults is done.
const CONTRIBUTING_MIN: f64 = 0.8;
const WORK_MIN: f64 = 0.9;

/// What ends a rank's life.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    Silence,
}

/// What an hour came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `none`, `kill` or `silence`.
    pub faults: &'static str,
    /// How many struck.
    pub struck: u32,
    /// Rounds that committed samples.
    pub rounds: u64,
    /// Living processes at a commit, on the average.
    pub alive: f64,
    /// Ranks on a round's roster, on the average.
    pub participating: f64,
    /// Ranks with samples in it, on the average.
    pub contributing: f64,
    /// The smallest fraction of the living that contributed to a round.
    pub least: f64,
    /// Steps that count in a living rank's second, over those without faults.
    pub work: f64,
    /// What has to hold was held against it: not so where faults are silent.
    pub bound: bool,
    /// The first broken rule, a sentence.
    pub broken: Option<String>,
}

impl Row {
    /// Whether nothing is broken, enough contribute and enough is done.
    #[must_use]
    pub fn holds(&self) -> bool {
        let enough = self.least >= CONTRIBUTING_MIN && self.work >= WORK_MIN;
        self.broken.is_none() && (enough || !self.bound)
    }
}

/// An hour without faults, one with kills and one with silences.
#[must_use]
pub fn rows() -> Vec<Row> {
    rows_until(HOUR)
}

fn rows_until(end: Time) -> Vec<Row> {
    let calm = hour(None, end);
    let faults = [("none", None), ("kill", Some(Fault::Kill)), ("silence", Some(Fault::Silence))];
    let row = |(faults, fault): (&'static str, Option<Fault>)| {
        let hour = if fault.is_none() { calm.clone() } else { hour(fault, end) };
        let Attendance { rounds, alive, participating, contributing, least, .. } = hour.attendance;
        let each = |sum: u64| sum as f64 / rounds.max(1) as f64;
        Row {
            faults,
            struck: hour.struck,
            rounds,
            alive: each(alive),
            participating: each(participating),
            contributing: each(contributing),
            least: least.unwrap_or(0.0),
            work: hour.rate() / calm.rate(),
            bound: fault != Some(Fault::Silence),
            broken: hour.broken,
        }
    };
    faults.into_iter().map(row).collect()
}

/// The rows as JSON.
#[must_use]
pub fn json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "faults": row.faults, "struck": row.struck, "rounds": row.rounds, "alive": row.alive,
            "participating": row.participating, "contributing": row.contributing, "least": row.least, "work": row.work,
            "broken": row.broken,
        })
    };
    json!({ "ranks": RANKS, "faults_an_hour": FAULTS_AN_HOUR, "rows": rows.iter().map(row).collect::<Vec<_>>() })
}

#[derive(Clone, Debug, Default)]
struct Hour {
    attendance: Attendance,
    /// Seconds of all living processes.
    lived_s: f64,
    struck: u32,
    broken: Option<String>,
}

impl Hour {
    fn rate(&self) -> f64 {
        self.attendance.samples as f64 / self.lived_s.max(1e-9)
    }
}

fn options(end: Time) -> Options {
    let slowness: Vec<f64> = (0..RANKS).map(|rank| 1.0 + f64::from(rank) / f64::from(RANKS - 1)).collect();
    let cluster = cluster(&slowness, Windowing::Budget, end);
    let work = Work { restarts: u32::MAX, ..cluster.work };
    Options { work, starting_ns: RESTART, ..cluster }
}

fn hour(fault: Option<Fault>, end: Time) -> Hour {
    let mut hour = Hour::default();
    let mut rng = Rng::new(23);
    let mut world = match World::of(options(end), Rng::new(1)) {
        Ok(world) => world,
        Err(error) => return Hour { broken: Some(error.to_string()), ..hour },
    };
    let every = HOUR.0 as f64 / FAULTS_AN_HOUR;
    let mut next = fault.map(|_| wait(&mut rng, every));
    let mut now = 0;
    while now < end.0 {
        let look = (now + LOOK).min(end.0);
        let until = next.map_or(look, |next| next.min(look));
        if let Err(violation) = world.run_until(Time(until)) {
            hour.broken = Some(violation.to_string());
            break;
        }
        let living: Vec<u32> =
            (0..).zip(&world.fab.seats).filter(|(_, seat)| seat.alive).map(|(seat, _)| seat).collect();
        hour.lived_s += living.len() as f64 * (until - now) as f64 / SECOND as f64;
        now = until;
        if let (Some(fault), Some(at)) = (fault, next)
            && at <= now
        {
            hour.struck += u32::from(world.strike_seat(fault, rng.pick(&living).copied()));
            next = Some(at + wait(&mut rng, every));
        }
    }
    hour.attendance = world.controller.auditor.attendance.clone();
    hour
}

/// Faults come at any moment, whatever came before.
fn wait(rng: &mut Rng, every: f64) -> u64 {
    (-(1.0 - rng.unit()).max(1e-12).ln() * every) as u64
}

impl World {
    /// Whether it found somebody to strike.
    fn strike_seat(&mut self, fault: Fault, seat: Option<u32>) -> bool {
        let Some(seat) = seat else { return false };
        let Some(&(rank, _)) = self.seats.get(seat as usize).and_then(Option::as_ref).map(|seat| &seat.life) else {
            return false;
        };
        self.fab.touched.insert(rank);
        match fault {
            Fault::Kill => self.kill_seat(seat, ExitStatus::Signal(9)),
            Fault::Silence => self.fab.vital(Node::Seat(seat)).paused = true,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank is killed every half minute, and comes back in another half: the others hardly notice.
    #[test]
    fn most_of_the_living_contribute_and_most_of_the_work_is_done() {
        let rows = rows_until(Time(HOUR.0 / 6));
        for row in &rows {
            assert!(row.holds(), "{row:?}");
            assert!(row.contributing <= row.participating && row.participating <= row.alive + 1.0, "{row:?}");
        }
        let [calm, kill, silence] = &rows[..] else { panic!("three rows") };
        assert_eq!((calm.struck, calm.alive, calm.work), (0, f64::from(RANKS), 1.0));
        assert!(kill.struck > 10 && silence.struck > 10);
        assert!(silence.work < kill.work, "a silence costs a patience: {silence:?}");
    }
}
