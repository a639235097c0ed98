//! The pool's law: whatever the order of leases, reports, rounds and deaths, every position is in exactly one state, and
//! nothing is committed twice.

use std::collections::BTreeMap;

use flodl_elche::{Pool, PoolError, Settled, Slot, Span, largest_remainder};
use proptest::prelude::*;

const LEN: u64 = 60;
const BATCH: u32 = 4;
const SLOTS: u32 = 4;
const ROUNDS: u64 = 3;

#[derive(Copy, Clone, Debug, PartialEq)]
enum At {
    Free,
    Out(Slot),
    Trained(Slot),
    InRound(u64, Slot),
    Committed,
    Quarantined,
}

#[derive(Clone, Debug)]
enum Op {
    Reserve(Vec<f64>),
    Lease(Slot, u64),
    /// The slot reports the first so many samples of what is out at it.
    Trained(Slot, usize),
    /// The slot claims a range, whatever it holds.
    Claim(Slot, Span),
    /// The slot gives back all but the first so many samples.
    GiveBack(Slot, usize),
    GiveBackUnused(Slot),
    Enter(Slot, u64),
    Settle(u64, Slot, Settled),
    Release(Slot),
    ReleasePoisoned(Slot),
}

fn op() -> impl Strategy<Value = Op> {
    let slot = || (0..SLOTS).prop_map(Slot);
    let span = (0..LEN + 4, 0..LEN + 4).prop_map(|(start, end)| Span::new(start, end));
    let outcome = prop_oneof![
        3 => Just(Settled::Commit),
        1 => Just(Settled::GiveBack),
        1 => Just(Settled::Repeat),
        2 => Just(Settled::Poisoned),
    ];
    prop_oneof![
        1 => prop::collection::vec(any::<f64>(), SLOTS as usize).prop_map(Op::Reserve),
        1 => prop::collection::vec(0.1f64..9.0, SLOTS as usize).prop_map(Op::Reserve),
        6 => (slot(), 0u64..30).prop_map(|(slot, samples)| Op::Lease(slot, samples)),
        4 => (slot(), 0usize..30).prop_map(|(slot, samples)| Op::Trained(slot, samples)),
        2 => (slot(), span).prop_map(|(slot, span)| Op::Claim(slot, span)),
        2 => (slot(), 0usize..30).prop_map(|(slot, samples)| Op::GiveBack(slot, samples)),
        2 => slot().prop_map(Op::GiveBackUnused),
        3 => (slot(), 0..ROUNDS).prop_map(|(slot, round)| Op::Enter(slot, round)),
        3 => (slot(), 0..ROUNDS, outcome).prop_map(|(slot, round, outcome)| Op::Settle(round, slot, outcome)),
        1 => slot().prop_map(Op::Release),
        2 => slot().prop_map(Op::ReleasePoisoned),
    ]
}

/// The pool beside a plain list of each position's state.
struct Pair {
    pool: Pool,
    at: Vec<At>,
    repeats: u64,
}

impl Pair {
    fn new() -> Self {
        Self { pool: Pool::new(LEN, BATCH), at: vec![At::Free; LEN as usize], repeats: 0 }
    }

    fn count(&self, state: impl Fn(At) -> bool) -> u64 {
        self.at.iter().filter(|&&at| state(at)).count() as u64
    }

    /// Moves positions from one state to another; each has to be in the first.
    fn shift(&mut self, spans: &[Span], from: impl Fn(At) -> bool, to: At) {
        for position in spans.iter().flat_map(Span::positions) {
            let at = &mut self.at[position as usize];
            assert!(from(*at), "{position} is {at:?} and becomes {to:?}");
            *at = to;
        }
    }

    /// What is out at the slot, as single positions.
    fn out(&self, slot: Slot) -> Vec<Span> {
        let out = (0..LEN).filter(|&p| self.at[p as usize] == At::Out(slot));
        out.map(|position| Span::new(position, position + 1)).collect()
    }

    /// Positions may have been set aside when they came back.
    fn quarantine(&mut self) {
        for span in self.pool.quarantine() {
            self.shift(&[span], |at| at == At::Free || at == At::Quarantined, At::Quarantined);
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Reserve(ref weights) => {
                let weights: Vec<(Slot, f64)> = (0..SLOTS).map(Slot).zip(weights.iter().copied()).collect();
                self.pool.reserve(&weights);
            }
            Op::Lease(slot, samples) => {
                let free = self.pool.available();
                let lease = self.pool.lease(slot, samples);
                let leased: u64 = lease.iter().map(Span::len).sum();
                assert_eq!(leased > 0, samples > 0 && free > 0, "a lease is empty only where nothing is free");
                assert!(leased <= free);
                self.shift(&lease, |at| at == At::Free, At::Out(slot));
            }
            Op::Trained(slot, samples) => {
                let report: Vec<Span> = self.out(slot).into_iter().take(samples).collect();
                self.pool.trained(slot, &report).expect("it is out at the slot");
                self.shift(&report, |at| at == At::Out(slot), At::Trained(slot));
            }
            Op::Claim(slot, span) => self.claim(slot, span),
            Op::GiveBack(slot, kept) => {
                let unused: Vec<Span> = self.out(slot).into_iter().skip(kept).collect();
                self.pool.give_back(slot, &unused).expect("it is out at the slot");
                self.shift(&unused, |at| at == At::Out(slot), At::Free);
            }
            Op::GiveBackUnused(slot) => {
                let unused = self.pool.give_back_unused(slot);
                self.shift(&unused, |at| at == At::Out(slot), At::Free);
                assert_eq!(self.out(slot), []);
            }
            Op::Enter(slot, round) => {
                let entered = self.pool.enter_round(slot, round);
                self.shift(
                    &entered,
                    |at| at == At::Trained(slot) || at == At::InRound(round, slot),
                    At::InRound(round, slot),
                );
            }
            Op::Settle(round, slot, outcome) => self.settle(round, slot, outcome),
            Op::Release(slot) | Op::ReleasePoisoned(slot) => {
                let poisoned = matches!(op, Op::ReleasePoisoned(_));
                let back = if poisoned { self.pool.release_poisoned(slot) } else { self.pool.release(slot) };
                self.shift(&back, |at| at == At::Out(slot) || at == At::Trained(slot), At::Free);
                self.quarantine();
            }
        }
    }

    /// A claim is granted exactly where all of it is out at the slot, and refused without any change.
    fn claim(&mut self, slot: Slot, span: Span) {
        let reversed = span.end < span.start || span.end > LEN;
        let held = !reversed && span.positions().all(|p| self.at[p as usize] == At::Out(slot));
        let before = self.pool.clone();
        let answer = self.pool.trained(slot, &[span]);
        assert_eq!(answer.is_ok(), held, "{answer:?}");
        if held {
            self.shift(&[span], |at| at == At::Out(slot), At::Trained(slot));
        } else {
            assert_eq!(self.pool, before);
        }
    }

    fn settle(&mut self, round: u64, slot: Slot, outcome: Settled) {
        let spans = self.pool.settle(round, slot, outcome);
        let to = if outcome == Settled::Commit { At::Committed } else { At::Free };
        self.shift(&spans, |at| at == At::InRound(round, slot), to);
        if outcome == Settled::Repeat {
            self.repeats += spans.iter().map(Span::len).sum::<u64>();
        }
        self.quarantine();
    }

    fn check(&self) {
        let pool = &self.pool;
        assert_eq!(pool.available(), self.count(|at| at == At::Free));
        assert_eq!(pool.committed(), self.count(|at| at == At::Committed));
        assert_eq!(pool.quarantined(), self.count(|at| at == At::Quarantined));
        let held = self.count(|at| matches!(at, At::Out(_) | At::Trained(_) | At::InRound(..)));
        assert_eq!(pool.outstanding(), held);
        for slot in (0..SLOTS).map(Slot) {
            assert_eq!(pool.out_of(slot), self.count(|at| at == At::Out(slot)));
            assert_eq!(pool.trained_of(slot), self.count(|at| at == At::Trained(slot)));
        }
        assert_eq!(pool.repeats(), self.repeats);
        assert_eq!(pool.is_complete(), held == 0 && pool.available() == 0);
        let coverage: Vec<u64> = pool.coverage().iter().flat_map(Span::positions).collect();
        let committed: Vec<u64> = (0..LEN).filter(|&p| self.at[p as usize] == At::Committed).collect();
        assert_eq!(coverage, committed);
    }

    /// Everything open ends, one slot trains what is left, and the epoch is complete.
    fn finish(&mut self) {
        for slot in (0..SLOTS).map(Slot) {
            self.apply(&Op::Release(slot));
            (0..ROUNDS).for_each(|round| self.apply(&Op::Settle(round, slot, Settled::GiveBack)));
        }
        while !self.pool.is_complete() {
            let slot = Slot(9);
            let lease = self.pool.lease(slot, LEN);
            assert!(!lease.is_empty());
            self.shift(&lease, |at| at == At::Free, At::Out(slot));
            self.pool.trained(slot, &lease).expect("it is out at the slot");
            self.shift(&lease, |at| at == At::Out(slot), At::Trained(slot));
            self.apply(&Op::Enter(slot, 0));
            self.apply(&Op::Settle(0, slot, Settled::Commit));
            self.check();
        }
    }
}

/// The stretch that each slot has of its own after a reservation of everything.
fn reserve(pool: &mut Pool, weights: &[(Slot, f64)]) -> BTreeMap<Slot, Span> {
    pool.reserve(weights);
    let free = pool.available();
    let mut start = 0;
    let only: Vec<f64> = weights.iter().map(|&(_, weight)| weight).collect();
    weights
        .iter()
        .zip(largest_remainder(free, &only))
        .map(|(&(slot, _), share)| {
            start += share;
            (slot, Span::new(start - share, start))
        })
        .collect()
}

/// A lease by the rule as it is written: own samples from the front, then tails.
fn expected(own: &mut BTreeMap<Slot, Span>, slot: Slot, samples: u64) -> Vec<Span> {
    let mut lease = Vec::new();
    let mut left = samples;
    if let Some(mine) = own.get_mut(&slot) {
        let cut = mine.start + mine.len().min(left);
        lease.push(Span::new(mine.start, cut));
        left -= cut - mine.start;
        mine.start = cut;
    }
    while left > 0
        && let Some(most) = own.values().map(Span::len).max().filter(|&most| most > 0)
        && let Some(theirs) = own.values_mut().find(|span| span.len() == most)
    {
        let cut = theirs.end - most.min(left);
        lease.push(Span::new(cut, theirs.end));
        left -= theirs.end - cut;
        theirs.end = cut;
    }
    lease.retain(|span| !span.is_empty());
    joined(&lease)
}

fn joined(spans: &[Span]) -> Vec<Span> {
    let mut list: Vec<Span> = Vec::new();
    for &span in spans {
        match list.last_mut() {
            Some(last) if last.end == span.start => last.end = span.end,
            _ => list.push(span),
        }
    }
    list
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whoever is out of samples of its own takes the tail of whoever has the most left then, the lowest slot of equals.
    #[test]
    fn tails_are_taken_of_whoever_has_the_most_left(
        weights in prop::collection::vec(1u32..9, 1..6),
        leases in prop::collection::vec((0u32..6, 1u64..70), 1..30),
    ) {
        let mut pool = Pool::new(240, 1);
        let weights: Vec<(Slot, f64)> = (0..).map(Slot).zip(weights.into_iter().map(f64::from)).collect();
        let mut own = reserve(&mut pool, &weights);
        for (index, (slot, samples)) in leases.into_iter().enumerate() {
            prop_assert_eq!(pool.lease(Slot(slot), samples), expected(&mut own, Slot(slot), samples), "lease {}", index);
        }
    }

    #[test]
    fn no_position_is_lost_or_doubled_under_any_order(ops in prop::collection::vec(op(), 0..80)) {
        let mut pair = Pair::new();
        for op in &ops {
            pair.apply(op);
            pair.check();
        }
        pair.finish();
    }

    #[test]
    fn coverage_resumes_with_another_batch_size(spans in prop::collection::btree_set(0..LEN, 0..20), batch in 0u32..9) {
        let coverage: Vec<Span> = spans.iter().rev().map(|&p| Span::new(p, p + 1)).collect();
        let mut pool = Pool::from_coverage(LEN, batch, &coverage).unwrap();
        prop_assert_eq!(pool.committed(), spans.len() as u64);
        let rest: Vec<u64> = pool.lease(Slot(0), LEN).iter().flat_map(Span::positions).collect();
        let expected: Vec<u64> = (0..LEN).filter(|p| !spans.contains(p)).collect();
        prop_assert_eq!(rest, expected);
    }
}

#[test]
fn coverage_that_cannot_be_is_refused() {
    let twice = [Span::new(0, 8), Span::new(4, 6)];
    assert_eq!(Pool::from_coverage(10, 1, &twice), Err(PoolError::Twice { span: Span::new(4, 6) }));
    for span in [Span::new(8, 11), Span::new(4, 3)] {
        let refused = PoolError::Outside { span, epoch_len: 10 };
        assert_eq!(Pool::from_coverage(10, 1, &[span]), Err(refused));
    }
}

#[test]
fn reservations_are_whole_batches_in_slot_order() {
    let mut pool = Pool::new(103, 10);
    pool.reserve(&[(Slot(2), 1.0), (Slot(0), 4.0), (Slot(1), f64::NAN)]);
    // 11 batches by 4 : 2.5 : 1, the last one short.
    assert_eq!(pool.lease(Slot(0), 60), [Span::new(0, 60)]);
    assert_eq!(pool.lease(Slot(1), 40), [Span::new(60, 100)]);
    assert_eq!(pool.lease(Slot(2), 10), [Span::new(100, 103)]);
}

#[test]
fn leases_come_back_first_then_own_then_stolen_tails() {
    let (a, b, c) = (Slot(0), Slot(1), Slot(2));
    let mut pool = Pool::new(90, 10);
    pool.reserve(&[(a, 1.0), (b, 1.0), (c, 1.0)]);
    assert_eq!(pool.lease(b, 20), [Span::new(30, 50)]);
    pool.give_back(b, &[Span::new(40, 50)]).unwrap();
    // What b gave back, all of a's own, and the tail of c's, which is the largest left.
    assert_eq!(pool.lease(a, 50), [Span::new(40, 50), Span::new(0, 30), Span::new(80, 90)]);
    let deaths: BTreeMap<Slot, Vec<Span>> = [a, b].into_iter().map(|slot| (slot, pool.release(slot))).collect();
    assert_eq!(deaths[&b], [Span::new(30, 40)]);
    assert_eq!(deaths[&a], [Span::new(0, 30), Span::new(40, 50), Span::new(80, 90)]);
    assert_eq!(pool.lease(c, 100).iter().map(Span::len).sum::<u64>(), 90);
}

#[test]
fn a_death_does_not_give_back_what_is_in_a_round() {
    let (a, b) = (Slot(0), Slot(1));
    let mut pool = Pool::new(30, 10);
    pool.lease(a, 30);
    pool.trained(a, &[Span::new(0, 20)]).unwrap();
    assert_eq!(pool.enter_round(a, 7), [Span::new(0, 20)]);
    assert_eq!(pool.release(a), [Span::new(20, 30)]);
    assert_eq!((pool.available(), pool.outstanding()), (10, 20));
    assert_eq!(pool.settle(7, a, Settled::Repeat), [Span::new(0, 20)]);
    assert_eq!((pool.available(), pool.repeats()), (30, 20));
    assert_eq!(pool.settle(7, a, Settled::Commit), [], "a round settles once");
    assert_eq!(pool.lease(b, 30), [Span::new(0, 30)]);
}

#[test]
fn a_sample_that_kills_its_holders_is_cornered_and_the_rest_committed() {
    let mut pool = Pool::new(400, 10);
    let mut deaths = 0;
    for life in 0.. {
        let slot = Slot(life % 3);
        let lease = pool.lease(slot, 80);
        if lease.is_empty() {
            break;
        }
        if lease.iter().any(|span| span.positions().any(|p| p == 137)) {
            pool.release_poisoned(slot);
            deaths += 1;
        } else {
            pool.trained(slot, &lease).unwrap();
            pool.enter_round(slot, u64::from(life));
            pool.settle(u64::from(life), slot, Settled::Commit);
        }
    }
    assert!(pool.is_complete());
    assert_eq!((pool.quarantine(), pool.committed()), (vec![Span::new(130, 140)], 390));
    assert!(deaths <= 6, "{deaths} deaths");
}

#[test]
fn what_was_held_before_a_restart_is_held_after_it() {
    let span = Span::new;
    let mut pool = Pool::from_coverage(100, 10, &[span(0, 20)]).expect("fits");
    pool.set_aside(&[span(90, 100)]).expect("is free");
    pool.adopt(Slot(1), &[span(20, 40), span(60, 70)]).expect("is free");
    assert_eq!(pool.out_of(Slot(1)), 30);
    for (slot, spans, error) in [
        (Slot(2), vec![span(50, 60), span(65, 75)], PoolError::NotFree { slot: Slot(2), span: span(65, 75) }),
        (Slot(2), vec![span(10, 12)], PoolError::NotFree { slot: Slot(2), span: span(10, 12) }),
        (Slot(2), vec![span(95, 96)], PoolError::NotFree { slot: Slot(2), span: span(95, 96) }),
        (Slot(2), vec![span(50, 60), span(55, 57)], PoolError::Twice { span: span(55, 57) }),
        (Slot(2), vec![span(95, 101)], PoolError::Outside { span: span(95, 101), epoch_len: 100 }),
    ] {
        let before = pool.clone();
        assert_eq!(pool.adopt(slot, &spans), Err(error));
        assert_eq!(pool, before);
    }
    assert_eq!((pool.available(), pool.outstanding(), pool.quarantined(), pool.committed()), (40, 30, 10, 20));
    pool.trained(Slot(1), &[span(20, 40)]).expect("is out");
    pool.give_back_unused(Slot(1));
    pool.enter_round(Slot(1), 7);
    pool.settle(7, Slot(1), Settled::Commit);
    assert_eq!(pool.coverage(), [span(0, 40)]);
}
