//! A run without clocks: members of given speeds train, report and average in computed time, through the public
//! interface of scheduler, pool, lease and stop rule as a coordinator and its ranks use them.

use std::time::Duration;

use flodl_elche::{
    Batches, Cadence, Demand, Elche, NoGuard, Plan, Pool, RoundFeedback, Settings, Settled, Share, Slot, Span,
    StopRule, WindowSample,
};

/// A member's time for its n-th batch of the run.
pub(crate) type Pace = Box<dyn Fn(u64) -> Duration>;

/// What one member did in one window.
struct Done {
    used: Vec<Span>,
    elapsed: Duration,
    batches: u32,
}

/// The run.
pub(crate) struct Model {
    pub(crate) elche: Elche,
    pub(crate) live: Vec<Slot>,
    /// Time from the first window's start to the last commit.
    pub(crate) elapsed: Duration,
    /// Batches each slot trained.
    pub(crate) batches: Vec<u64>,
    pub(crate) rounds: u64,
    pub(crate) plans: Vec<Plan>,
    pub(crate) repeats: u64,
    /// Who dies in which window, and what of its work the round then holds.
    pub(crate) deaths: Vec<(usize, Slot, Settled)>,
    batch_size: u32,
    paces: Vec<Pace>,
    reduce: Duration,
}

impl Model {
    /// All members in from the start; every reduce takes `reduce`.
    pub(crate) fn new(settings: Settings, paces: Vec<Pace>, reduce: Duration) -> Self {
        let batch_size = settings.batch_size;
        let mut elche = Elche::new(settings, Box::new(NoGuard)).expect("the case's settings are valid");
        let live: Vec<Slot> = (0..paces.len() as u32).map(Slot).collect();
        live.iter().for_each(|&slot| elche.join(slot));
        let batches = vec![0; paces.len()];
        let (elapsed, rounds, plans) = (Duration::ZERO, 0, Vec::new());
        Self { elche, live, elapsed, batches, rounds, plans, repeats: 0, deaths: Vec::new(), batch_size, paces, reduce }
    }

    /// One epoch, to the commit of its last sample; returns the windows it took.
    pub(crate) fn epoch(&mut self, epoch_len: u64) -> u64 {
        let mut pool = Pool::new(epoch_len, self.batch_size);
        pool.reserve(&self.elche.weights(&self.live));
        let mut windows = 0;
        while !pool.is_complete() {
            self.window(&mut pool);
            windows += 1;
            assert!(windows <= 2 * epoch_len + 10, "the epoch does not end: {:?}", self.plans.last());
        }
        assert_eq!((pool.committed() + pool.quarantined(), pool.outstanding()), (epoch_len, 0));
        self.repeats += pool.repeats();
        windows
    }

    /// One window and its round.
    pub(crate) fn window(&mut self, pool: &mut Pool) {
        let (remaining, epoch_len) = (pool.available(), pool.epoch_len());
        let plan = self.elche.plan(&Demand { live: &self.live, remaining, epoch_len, callbacks: &[] });
        let done: Vec<Done> = plan.shares.iter().map(|share| self.train(pool, share)).collect();
        self.plans.push(plan);
        if done.iter().all(|done| done.batches == 0) {
            return;
        }
        let end = done.iter().map(|done| done.elapsed).max().unwrap_or_default();
        let mut feedback = RoundFeedback { window_wall: end + self.reduce, reduce: self.reduce, ..Default::default() };
        for (slot, done) in self.live.clone().into_iter().zip(&done) {
            feedback.waits.push((slot, end - done.elapsed));
            feedback.steps.push((slot, done.batches));
            self.end_window(pool, slot, done);
        }
        self.elche.round_done(&feedback);
        self.rounds += 1;
        self.elapsed += end + self.reduce;
    }

    /// The member reports and contributes, unless it dies: before its report, or in a round that holds nothing of its
    /// work, a part of it, or all.
    fn end_window(&mut self, pool: &mut Pool, slot: Slot, done: &Done) {
        let window = self.plans.len() - 1;
        let dies = self.deaths.iter().find(|death| death.0 == window && death.1 == slot).map(|death| death.2);
        if dies != Some(Settled::Poisoned) {
            pool.trained(slot, &done.used).expect("it was leased");
            pool.enter_round(slot, self.rounds);
        }
        match dies.filter(|_| self.live.len() > 1) {
            None => drop(pool.give_back_unused(slot)),
            Some(outcome) => {
                let lost = if outcome == Settled::Poisoned { pool.release_poisoned(slot) } else { pool.release(slot) };
                assert!(outcome == Settled::Poisoned || lost.iter().all(|span| !done.used.contains(span)));
                self.elche.leave(slot);
                self.live.retain(|&other| other != slot);
            }
        }
        pool.settle(self.rounds, slot, dies.unwrap_or(Settled::Commit));
    }

    fn train(&mut self, pool: &mut Pool, share: &Share) -> Done {
        let Share { slot, quota_max, lease, budget, .. } = *share;
        let mut lease = Batches::new(pool.lease(slot, lease), self.batch_size);
        let mut rule = StopRule::new(budget, quota_max);
        let mut times = Vec::new();
        while lease.next_batch().is_some() {
            let took = self.paces[slot.0 as usize](self.batches[slot.0 as usize]);
            self.batches[slot.0 as usize] += 1;
            times.push(took);
            if rule.after_batch(took, times.iter().sum()).is_some() {
                break;
            }
        }
        let elapsed: Duration = times.iter().sum();
        let batches = times.len() as u32;
        let first = times.first().copied().unwrap_or_default();
        let sample = WindowSample { batches, first, rest: elapsed - first, data_wait: Duration::ZERO };
        self.elche.observe(slot, sample);
        Done { used: lease.used().to_vec(), elapsed, batches }
    }

    /// Batches done over what the members could have done alone in the same time, each at its mean pace.
    pub(crate) fn fraction_of_ceiling(&self) -> f64 {
        let rate = |pace: &Pace, batches: u64| {
            let alone: Duration = (0..batches).map(pace).sum();
            batches as f64 / alone.as_secs_f64()
        };
        let solo: f64 = self.paces.iter().zip(&self.batches).map(|(pace, &n)| rate(pace, n.max(1))).sum();
        self.batches.iter().sum::<u64>() as f64 / (solo * self.elapsed.as_secs_f64())
    }
}

/// A pace that never changes.
pub(crate) fn steady(batch: Duration) -> Pace {
    Box::new(move |_| batch)
}
