//! Ranks as processes, on one host or several: rounds in lockstep and by cadence, a killed rank, a planned leave, a slow one,
//! and a library that is stuck. On the stand-in, and on GPUs where they are.
//!
//! The coordinator is this process: the rendezvous of the crate, and lines to and from each rank.

#![allow(unsafe_code, clippy::disallowed_methods, reason = "see tests/common")]
#![allow(unreachable_pub, reason = "its modules are its own")]

#[path = "../common/mod.rs"]
mod common;

mod cluster;
mod coordinator;
mod rank;
mod word;

use std::time::Duration;

use cluster::Seat;
use coordinator::{Fate, Run};

/// Long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(4);

/// What the process of a rank with a stuck library ends with.
const STUCK: i32 = flodl_nccl::session::STUCK_EXIT as i32;

/// Makes two tests of each body, as `tests_on_each`: a function of where ranks can be, and how many it needs.
macro_rules! tests_on_each {
    ($($name:ident, $ranks:literal;)*) => {
        mod on_stand_in {
            $(#[test]
            fn $name() {
                super::$name(&super::cluster::on_stand_in());
            })*
        }

        mod on_gpus {
            $(#[test]
            fn $name() {
                match super::cluster::on_gpus() {
                    Ok(seats) if seats.len() >= $ranks => super::$name(&seats),
                    Ok(seats) => {
                        let why = format!("{} ranks are needed, there is room for {}", $ranks, seats.len());
                        crate::common::skip(&format!("{} in processes: {why}", stringify!($name)));
                    }
                    Err(why) => crate::common::skip(&format!("{} in processes: {why}", stringify!($name))),
                }
            })*
        }
    };
}

tests_on_each! {
    rounds_in_lockstep_leave_all_ranks_bit_equal, 2;
    rounds_by_cadence_weigh_each_rank_by_what_it_trained, 2;
    a_killed_rank_costs_the_survivors_a_communicator_and_no_work, 3;
    whoever_makes_ids_may_be_killed_as_well, 3;
    a_planned_leave_costs_nothing, 3;
}

/// The ranks of a round, and the batches that each trained for it.
type Round<'a> = &'a [(u32, u32)];

/// What all have after these rounds: each batch of rank r moves it by (r + 1) / 4.
fn after(rounds: &[Round<'_>]) -> f32 {
    let moved = |ranks: &Round<'_>| {
        let mass: u32 = ranks.iter().map(|(_, batches)| batches).sum();
        let sum = |(rank, batches): &(u32, u32)| f64::from(*batches) * 0.25 * f64::from((rank + 1) * batches);
        ranks.iter().map(sum).sum::<f64>() / f64::from(mass)
    };
    10.0 + rounds.iter().map(moved).sum::<f64>() as f32
}

fn close_to(value: f32, expected: f32) {
    assert!((value - expected).abs() < 1e-3, "{value} is not {expected}");
}

fn rounds_in_lockstep_leave_all_ranks_bit_equal(seats: &[Seat]) {
    let mut run = Run::start(&seats[..2], &[Fate::Lives; 2]);
    let value = run.rounds(4, |_, _| 1);
    close_to(value, after(&[[(0, 1), (1, 1)].as_slice(); 3]));
    assert_eq!(run.losses(), 0);
}

fn rounds_by_cadence_weigh_each_rank_by_what_it_trained(seats: &[Seat]) {
    let mut run = Run::start(&seats[..2], &[Fate::Lives; 2]);
    let value = run.rounds(4, |rank, round| rank + round as u32);
    close_to(value, after(&[&[(0, 1), (1, 2)], &[(0, 2), (1, 3)], &[(0, 3), (1, 4)]]));
}

fn a_killed_rank_costs_the_survivors_a_communicator_and_no_work(seats: &[Seat]) {
    let mut run = Run::start(&seats[..3], &[Fate::Lives, Fate::DiesAt(2), Fate::Lives]);
    let value = run.rounds(4, |_, _| 1);
    let (all, left): (Round<'_>, Round<'_>) = (&[(0, 1), (1, 1), (2, 1)], &[(0, 1), (2, 1)]);
    close_to(value, after(&[all, left, left]));
    assert!(run.losses() > 0, "the survivors lost a communicator");
}

fn whoever_makes_ids_may_be_killed_as_well(seats: &[Seat]) {
    let mut run = Run::start(&seats[..3], &[Fate::DiesAt(1), Fate::Lives, Fate::Lives]);
    let value = run.rounds(3, |_, _| 1);
    let left: Round<'_> = &[(1, 1), (2, 1)];
    close_to(value, after(&[left, left]));
}

fn a_planned_leave_costs_nothing(seats: &[Seat]) {
    let mut run = Run::start(&seats[..3], &[Fate::Lives, Fate::Lives, Fate::LeavesAfter(1)]);
    let value = run.rounds(4, |_, _| 1);
    let (all, left): (Round<'_>, Round<'_>) = (&[(0, 1), (1, 1), (2, 1)], &[(0, 1), (1, 1)]);
    close_to(value, after(&[all, left, left]));
    assert_eq!(run.losses(), 0, "nobody aborts");
    assert_eq!(run.statuses(), [Some(0); 3]);
}

#[test]
fn a_slow_rank_is_waited_for() {
    let mut run = Run::start(&cluster::on_stand_in()[..2], &[Fate::Lives, Fate::Suffers("0:4:0:150")]);
    let value = run.rounds(3, |_, _| 1);
    close_to(value, after(&[[(0, 1), (1, 1)].as_slice(); 2]));
    assert_eq!(run.losses(), 0);
}

#[test]
fn a_rank_whose_library_fails_costs_a_communicator_and_stays() {
    // After the fourth collective of the first communicator it has an error.
    let mut run = Run::start(&cluster::on_stand_in()[..2], &[Fate::Lives, Fate::Suffers("0:3:3:6")]);
    let value = run.rounds(3, |_, _| 1);
    close_to(value, after(&[[(0, 1), (1, 1)].as_slice(); 2]));
    assert!(run.losses() > 0);
}

#[test]
fn a_rank_whose_abort_never_returns_ends_with_its_status_and_the_others_go_on() {
    let fates = [Fate::Lives, Fate::DiesAt(2), Fate::Suffers("0:5:0:0"), Fate::Lives];
    let mut run = Run::start(&cluster::on_stand_in(), &fates);
    let value = run.rounds(4, |_, _| 1);
    let all: Round<'_> = &[(0, 1), (1, 1), (2, 1), (3, 1)];
    let left: Round<'_> = &[(0, 1), (3, 1)];
    close_to(value, after(&[all, left, left]));
    assert_eq!(run.statuses()[2], Some(STUCK));
}
