//! When which fault strikes whom, and what it does.

use super::class::Class;
use super::fabric::{Event, Fabric};
use super::net::Node;
use super::rng::Rng;
use super::world::World;
use crate::Input;
use flodl_relay::relay;
use flodl_wire::message::report::ExitStatus;
use flodl_wire::{Rank, Time};
use std::collections::BTreeMap;

/// A step that is so many times longer never ends.
const HANG: f64 = 1e8;

/// Rounds in a row after which a rank is out that does not come to hold the consensus.
const OUT_OF_SYNC: u32 = 3;

/// One strike.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Strike {
    pub(crate) class: Class,
    pub(crate) at: Time,
    /// Chance that was drawn for it: whom, for how long, where.
    dice: [u64; 3],
}

/// The strikes of a run.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) strikes: Vec<Strike>,
    /// How many of each class came to something.
    pub(crate) struck: BTreeMap<Class, u64>,
    /// How often each rank was given something wrong as a result.
    corrupted: BTreeMap<Rank, u32>,
}

impl Faults {
    /// Draws the strikes of a run's options.
    pub(crate) fn draw(fab: &Fabric, rng: &mut Rng) -> Faults {
        let options = &fab.options;
        let span = options.expected_ns() * 1.2 + 1e8;
        let mut strikes = Vec::new();
        for _ in 0..options.strikes {
            let Some(&class) = rng.pick(&options.classes) else { break };
            // Some of them very early: the start of a run is short and delicate.
            let span = if rng.chance(0.2) { span.min(3e8) } else { span };
            let at = Time((rng.unit() * span) as u64);
            strikes.push(Strike { class, at, dice: [rng.next(), rng.next(), rng.next()] });
        }
        strikes.sort_by_key(|strike| strike.at);
        Faults { strikes, struck: BTreeMap::new(), corrupted: BTreeMap::new() }
    }
}

impl World {
    /// Strikes.
    pub(crate) fn strike(&mut self, index: usize) {
        let Some(&strike) = self.faults.strikes.get(index) else { return };
        let mut rng = Rng::new(strike.dice[0]);
        let Some(until) = self.carry_out(strike.class, &mut rng) else { return };
        self.fab.say(|| format!("FAULT {} until {:.6} s", strike.class, until.as_secs_f64()));
        *self.faults.struck.entry(strike.class).or_default() += 1;
        self.fab.healed = self.fab.healed.max(until);
    }

    /// Does it; gives when it is over, or nothing where it found nobody to strike.
    fn carry_out(&mut self, class: Class, rng: &mut Rng) -> Option<Time> {
        let now = self.fab.now;
        match class {
            Class::RankCrash | Class::RankError | Class::Slow | Class::Hang | Class::NonFinite => {
                self.strike_rank(class, rng)
            }
            Class::WrongShape | Class::StaleRound | Class::CorruptResult => self.strike_rank(class, rng),
            Class::RelayDeath => {
                let host = self.some_host(rng)?;
                self.fab.touch(host);
                self.fab.hosts[host as usize].fuse = Some(rng.within(1, 200));
                Some(now)
            }
            Class::HostDeath => {
                let host = self.some_host(rng)?;
                self.fab.touch(host);
                self.machine_dies(host);
                Some(now)
            }
            Class::Restart => {
                let host = (0..self.hosts.len() as u32).find(|&host| self.hosts[host as usize].is_none())?;
                let after = self.some_time(rng, 0.1, 2.0);
                self.fab.touch(host);
                self.fab.after(after, Event::Dial(host));
                Some(Time(now.0 + after))
            }
            Class::Leave => {
                let host = self.some_host(rng)?;
                let relay = self.hosts[host as usize].as_ref()?.number();
                // Others may hold up the round that it leaves by.
                self.fab.touch(host);
                let input = Box::new(relay::Input::Leave);
                self.fab.after(0, Event::Agent { host, relay, input });
                Some(now)
            }
            Class::Pause => self.pause(rng),
            Class::ClockJump => {
                let host = self.some_host(rng)?;
                let jump = self.some_time(rng, 0.05, 3.0);
                self.fab.touch(host);
                self.jump(host, jump);
                Some(now)
            }
            Class::Reset | Class::HalfOpen | Class::Stall | Class::SlowLink | Class::OneWay => {
                self.strike_link(class, rng)
            }
            Class::ControlAlone | Class::DataAlone | Class::Reorder => self.strike_lane(class, rng),
            Class::Replay | Class::Flip => self.tamper(class, rng),
            Class::DiskFull | Class::FailedSync | Class::TornWrite => self.strike_disk(class, rng),
            Class::Stop | Class::StopTwice => self.asks_for_the_end(class),
            Class::NcclInitHang
            | Class::NcclAsyncError
            | Class::NcclAbortHang
            | Class::NcclLateId
            | Class::NcclCrash => self.strike_library(class, rng),
            Class::DutyError | Class::DutyHang | Class::DutyCrash => {
                self.fab.duty_fault = Some(class);
                Some(now)
            }
            Class::ControllerDeath
            | Class::ControllerRestart
            | Class::SecondController
            | Class::LostJournal
            | Class::FullJournal => self.strike_controller(class, rng),
        }
    }

    fn asks_for_the_end(&mut self, class: Class) -> Option<Time> {
        match class {
            Class::StopTwice if !self.fab.options.work.mode.is_cpu() => self.fab.gathering.stops = true,
            Class::StopTwice => (0..2).for_each(|after| self.tell(after, Input::Stop)),
            _ => self.tell(0, Input::Stop),
        }
        Some(self.fab.now)
    }

    /// Waits for its occasion in some rank.
    fn strike_library(&mut self, class: Class, rng: &mut Rng) -> Option<Time> {
        let living = self.fab.seats.iter().zip(&self.seats).filter(|(vital, _)| vital.alive);
        let ranks: Vec<Rank> = living.filter_map(|(_, seat)| Some(seat.as_ref()?.life.0)).collect();
        let &rank = rng.pick(&ranks)?;
        self.fab.gathering.armed.insert(rank, class);
        if class != Class::NcclLateId {
            self.fab.touched.insert(rank);
        }
        Some(self.fab.now)
    }

    fn strike_controller(&mut self, class: Class, rng: &mut Rng) -> Option<Time> {
        let now = self.fab.now;
        match class {
            Class::ControllerDeath => {
                self.fab.controller.fuse = Some(rng.within(1, 300));
                Some(now)
            }
            Class::ControllerRestart => {
                let after = self.some_time(rng, 0.02, 0.4);
                self.succession.after_ns = Some(after);
                self.fab.controller.fuse = Some(rng.within(1, 300));
                Some(Time(now.0 + after))
            }
            Class::SecondController => self.second_controller(rng),
            Class::LostJournal => {
                self.succession.loses = rng.within(1, 400) as usize;
                Some(now)
            }
            _ => {
                let until = Time(now.0 + self.some_time(rng, 0.05, 3.0));
                self.controller.paper().full.set(true);
                self.fab.post(until, Event::PaperIsThere);
                Some(until)
            }
        }
    }

    fn strike_rank(&mut self, class: Class, rng: &mut Rng) -> Option<Time> {
        let now = self.fab.now;
        let living = |seat: &u32| self.fab.seats[*seat as usize].alive;
        let living: Vec<u32> = (0..self.seats.len() as u32).filter(living).collect();
        let &victim = rng.pick(&living)?;
        let until = Time(now.0 + self.some_time(rng, 0.2, 5.0));
        let slowness = rng.log_within(2.0, 50.0);
        let seat = self.seats.get_mut(victim as usize)?.as_mut()?;
        let (rank, _) = seat.life;
        // A slow device is no excuse for anybody, unless one of its steps is as long as a program that hangs.
        match class {
            Class::Slow => {
                seat.device.slowed = (slowness, until);
                let batch = self.fab.options.speed(rank).batch_ns * slowness;
                if batch > self.fab.options.work.patience.as_nanos() as f64 {
                    self.fab.touched.insert(rank);
                }
                return Some(until);
            }
            Class::Hang => seat.device.slowed = (HANG, Time(u64::MAX)),
            Class::RankCrash => self.fab.seats[victim as usize].fuse = Some(rng.within(1, 400)),
            Class::RankError => {
                let status = if rng.chance(0.5) { ExitStatus::Code(1) } else { ExitStatus::Signal(11) };
                self.kill_seat(victim, status);
            }
            Class::NonFinite => seat.log.borrow_mut().breaks = true,
            Class::WrongShape => {
                seat.armed.wrong_shape = true;
                self.fab.forged.insert(rank);
            }
            // Both are noticed, and cost nobody its life.
            Class::StaleRound => {
                seat.armed.stale = true;
                return Some(now);
            }
            Class::CorruptResult => {
                if rng.chance(0.5) {
                    seat.armed.corrupt_chunk = true;
                } else {
                    seat.log.borrow_mut().corrupts = true;
                }
                // Whose results are wrong in three rounds in a row is out.
                let often = self.faults.corrupted.entry(rank).or_default();
                *often += 1;
                if *often < OUT_OF_SYNC {
                    return Some(now);
                }
            }
            _ => return None,
        }
        self.fab.touched.insert(rank);
        Some(now)
    }

    fn pause(&mut self, rng: &mut Rng) -> Option<Time> {
        let now = self.fab.now;
        let until = Time(now.0 + self.some_time(rng, 0.05, 3.0));
        let node = match rng.below(8) {
            0 => Node::Controller,
            1 => Node::Host(self.some_host(rng)?),
            _ => Node::Seat(rng.below(self.seats.len() as u64) as u32),
        };
        if matches!(node, Node::Seat(seat) if self.seats.len() <= seat as usize) {
            return None;
        }
        match node {
            // Hosts look for a controller that stands still for so long, and give up.
            Node::Controller | Node::Former if until.since(now) > self.fab.options.work.patience => {
                (0..self.hosts.len() as u32).for_each(|host| self.fab.touch(host));
            }
            Node::Controller | Node::Former => {}
            Node::Host(host) => self.fab.touch(host),
            Node::Seat(seat) => {
                let (rank, _) = self.seats[seat as usize].as_ref()?.life;
                self.fab.touched.insert(rank);
            }
        }
        let vital = self.fab.vital(node);
        if !vital.alive || vital.paused {
            return None;
        }
        vital.paused = true;
        self.fab.post(until, Event::Resume(node));
        Some(until)
    }

    /// Some connection between two hosts, or inside one where that makes sense.
    fn strike_link(&mut self, class: Class, rng: &mut Rng) -> Option<Time> {
        let now = self.fab.now;
        let host = self.some_host(rng)?;
        let (control, data) = self.hosts[host as usize].as_ref()?.upstream()?;
        let conn = if rng.chance(0.5) { control } else { data };
        let until = Time(now.0 + self.some_time(rng, 0.05, 3.0));
        let up = rng.chance(0.5);
        // A slow link may be so slow that heartbeats come too late. One that breaks is dialled again, and costs nobody its life.
        if class != Class::Reset || self.dials_slowly() {
            self.fab.touch(host);
        }
        match class {
            Class::Reset if rng.chance(0.3) => self.reset_of_a_rank(host, rng)?,
            Class::Reset => self.fab.reset(conn),
            Class::HalfOpen => self.fab.net.cut(conn, true, true),
            Class::OneWay => self.fab.net.cut(conn, up, !up),
            Class::Stall => {
                self.fab.net.stall(conn, up, !up || rng.chance(0.5), until);
                return Some(until);
            }
            Class::SlowLink => {
                let slowness = rng.log_within(5.0, 500.0);
                self.fab.net.slow(conn, slowness, until);
                return Some(until);
            }
            _ => return None,
        }
        Some(now)
    }

    fn reset_of_a_rank(&mut self, host: u32, rng: &mut Rng) -> Option<()> {
        let seats: Vec<u32> = self.hosts[host as usize].as_ref()?.seats.values().copied().collect();
        let seat = self.seats.get(*rng.pick(&seats)? as usize)?.as_ref()?;
        let ((control, data), (rank, _)) = (seat.conns(), seat.life);
        self.fab.touched.insert(rank);
        self.fab.reset(if rng.chance(0.5) { control } else { data });
        Some(())
    }

    fn strike_lane(&mut self, class: Class, rng: &mut Rng) -> Option<Time> {
        let now = self.fab.now;
        let host = self.some_host(rng)?;
        let (control, data) = self.hosts[host as usize].as_ref()?.upstream()?;
        self.fab.touch(host);
        match class {
            Class::ControlAlone => self.fab.net.cut(data, true, true),
            Class::DataAlone => self.fab.net.cut(control, true, true),
            _ => {
                let behind = if rng.chance(0.5) { control } else { data };
                let until = Time(now.0 + self.some_time(rng, 0.01, 0.8));
                self.fab.net.stall(behind, true, true, until);
                return Some(until);
            }
        }
        Some(now)
    }

    /// Whether a relay whose link broke may be back too late: it learns of it, and two handshakes follow.
    pub(crate) fn dials_slowly(&self) -> bool {
        let [control, data] = &self.fab.options.wide;
        let trips = 4.0 * (control.latency_ns * (1.0 + control.jitter) + data.latency_ns * (1.0 + data.jitter));
        trips + 5e6 > self.fab.options.work.patience.as_nanos() as f64
    }

    pub(crate) fn some_host(&self, rng: &mut Rng) -> Option<u32> {
        let up: Vec<u32> = (0..self.hosts.len() as u32)
            .filter(|&host| self.hosts[host as usize].is_some() && self.fab.hosts[host as usize].alive)
            .collect();
        rng.pick(&up).copied()
    }

    /// Between so many and so many patiences.
    pub(crate) fn some_time(&self, rng: &mut Rng, low: f64, high: f64) -> u64 {
        (self.fab.options.work.patience.as_nanos() as f64 * rng.log_within(low, high)) as u64
    }
}
