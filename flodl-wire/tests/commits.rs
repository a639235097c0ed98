//! Records of commits: what is told of a change is what has changed, and parts make a whole again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use flodl_wire::codec::{decode, encode};
use flodl_wire::commit::{CommitState, Keeper};
use flodl_wire::limits::{COMMIT_LIVES, COMMIT_PART, COMMIT_RANGES, SCHEDULER_STATE};
use flodl_wire::message::Control;
use flodl_wire::message::commit::{CommitHead, EpochRecord, LifeRecord, Moment, Standing};
use flodl_wire::{Epoch, HostId, Incarnation, Range, Rank, Round, Version, WindowId};
use proptest::collection::vec;
use proptest::prelude::*;

fn head(round: u64, epoch: u64) -> CommitHead {
    let moment = Moment { generation: 0, round: Round(round) };
    CommitHead { moment, epoch: Epoch(epoch), version: Version(round), ..CommitHead::default() }
}

fn life(rank: u32, incarnation: u32, standing: Standing) -> LifeRecord {
    let host = HostId::from_name("box").unwrap();
    let (rank, incarnation) = (Rank(rank), Incarnation(incarnation));
    LifeRecord { rank, incarnation, host, standing, losses: 0, missing: false }
}

/// A step of a run: which epoch is the oldest, what is committed and set aside of it and the next, and a life.
#[derive(Clone, Debug)]
struct Step {
    next_epoch: bool,
    committed: Vec<(u64, u64, u64)>,
    aside: Vec<(u64, u64, u64)>,
    life: (u32, u32, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let ranges = || vec((0..2u64, 0..400u64, 1..40u64), 0..4);
    (any::<bool>(), ranges(), ranges(), (0..5u32, 1..4u32, any::<bool>()))
        .prop_map(|(next_epoch, committed, aside, life)| Step { next_epoch, committed, aside, life })
}

/// The same run as one state after each step, each told in full.
fn states(steps: &[Step]) -> Vec<CommitState> {
    let (mut states, mut first) = (Vec::new(), 0);
    let (mut lives, mut epochs) = (Vec::new(), Vec::new());
    for (round, step) in (1..).zip(steps) {
        first += u64::from(step.next_epoch);
        for (list, is_aside) in [(&step.committed, false), (&step.aside, true)] {
            for &(epoch, start, len) in list {
                let ranges = vec![Range { start, end: start + len }];
                let (committed, aside) = if is_aside { (vec![], ranges) } else { (ranges, vec![]) };
                epochs.push(EpochRecord { epoch: Epoch(first + epoch), committed, aside });
            }
        }
        let (rank, incarnation, lost) = step.life;
        lives.push(life(rank, incarnation, if lost { Standing::Lost } else { Standing::InRun }));
        states.push(CommitState::new(head(round, first), lives.clone(), epochs.clone()));
    }
    states
}

fn whole(state: &CommitState) -> Keeper {
    let (mut keeper, parts) = (Keeper::default(), state.parts());
    let count = u32::try_from(parts.len()).unwrap();
    (0..).zip(parts).for_each(|(part, record)| keeper.take_part(part, count, record));
    keeper
}

proptest! {
    #[test]
    fn changes_lead_from_one_record_to_the_next(steps in vec(step(), 2..12), lost in 0..12usize) {
        let states = states(&steps);
        let mut keeper = whole(&states[0]);
        prop_assert_eq!(keeper.state(), Some(&states[0]));
        for (number, pair) in states.windows(2).enumerate() {
            let change = pair[1].change_since(&pair[0]);
            prop_assert_eq!(decode(&encode(&change).unwrap()), Ok(change.clone()));
            if number == lost {
                // Whoever misses one keeps what it has until it gets a complete one.
                continue;
            }
            prop_assert_eq!(keeper.take_change(&change).is_ok(), number < lost);
            let newest = if number < lost { &pair[1] } else { &states[lost] };
            prop_assert_eq!(keeper.state(), Some(newest));
        }
        let last = states.last().unwrap();
        let keeper = whole(last);
        prop_assert_eq!(keeper.state(), Some(last));
    }
}

#[test]
fn every_part_of_a_large_record_fits() {
    let scheduler = vec![0xff; SCHEDULER_STATE];
    let top = CommitHead {
        moment: Moment { generation: u64::MAX, round: Round(u64::MAX) },
        version: Version(u64::MAX),
        digest: u64::MAX,
        is_final: true,
        window: WindowId(u64::MAX),
        epoch: Epoch(0),
        global_step: u64::MAX,
        committed: u64::MAX,
        repeats: u64::MAX,
        scheduler,
    };
    let lives = (0..u32::try_from(COMMIT_LIVES).unwrap() + 5)
        .map(|rank| LifeRecord { losses: u32::MAX, ..life(rank, u32::MAX, Standing::Lost) });
    let ranges =
        |from: u64| (0..COMMIT_RANGES as u64 + 3).map(move |at| Range { start: from + 2 * at, end: from + 2 * at + 1 });
    let epoch =
        EpochRecord { epoch: Epoch(u64::MAX), committed: ranges(1 << 47).collect(), aside: ranges(1 << 46).collect() };
    let state = CommitState::new(top, lives, [epoch]);
    let parts = state.parts();
    assert_eq!(parts.len(), 6);
    for record in &parts {
        let message = Control::CommitPart { part: 0, parts: 6, record: Box::new(record.clone()) };
        assert!(encode(&message).unwrap().len() <= COMMIT_PART);
    }
    assert_eq!(whole(&state).state(), Some(&state));
}

#[test]
fn an_older_life_does_not_replace_a_newer_one() {
    let mut state = CommitState::new(head(1, 0), [life(3, 2, Standing::InRun)], []);
    state.set_lives([life(3, 1, Standing::Lost), life(4, 1, Standing::Coming)]);
    let lives: Vec<(u32, u32)> = state.lives().map(|life| (life.rank.0, life.incarnation.0)).collect();
    assert_eq!(lives, [(3, 2), (4, 1)]);
}
