//! Where the ranks of one communicator meet: who has come, and what each brings to each collective. It is in the process
//! that made the id; ranks of other processes come to it through a socket (crossing.rs).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use crate::driver::lock;
use crate::numbers::{self, Op};

/// How long a wait lasts before it looks again whether it was stopped.
const PAUSE: Duration = Duration::from_millis(1);

/// What a rank brings to a collective.
#[derive(Clone)]
pub(crate) struct Brought {
    pub(crate) op: Op,
    pub(crate) kind: i32,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct Meeting {
    size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    joined: BTreeSet<usize>,
    finalized: BTreeSet<usize>,
    /// What each rank brought to each collective.
    collectives: BTreeMap<usize, BTreeMap<usize, Brought>>,
    /// How many collectives each rank has run.
    counts: BTreeMap<usize, usize>,
    /// What each rank wants of a split: its color and key.
    split: BTreeMap<usize, (i32, i32)>,
    /// Those who shrink or grow, by whom they leave out or take in.
    changing: BTreeMap<Vec<usize>, BTreeSet<usize>>,
}

static MEETINGS: LazyLock<Mutex<BTreeMap<[u8; 128], Arc<Meeting>>>> = LazyLock::new(Mutex::default);

/// Whether a wait is to end.
pub(crate) type IsOver<'a> = &'a dyn Fn() -> bool;

impl Meeting {
    /// The meeting of an id, which the first rank to come begins.
    pub(crate) fn of(id: [u8; 128], size: usize) -> Arc<Self> {
        let meeting = Self { size, state: Mutex::default(), changed: Condvar::new() };
        Arc::clone(lock(&MEETINGS).entry(id).or_insert_with(|| Arc::new(meeting)))
    }

    /// Takes a rank in; `false` where it is there already.
    pub(crate) fn join(&self, rank: usize) -> bool {
        rank < self.size && lock(&self.state).joined.insert(rank)
    }

    pub(crate) fn leave(&self, rank: usize) {
        lock(&self.state).joined.remove(&rank);
    }

    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Waits until there is a value, or until it is over.
    fn wait<T>(&self, is_over: IsOver<'_>, mut value: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let mut state = lock(&self.state);
        loop {
            if let Some(value) = value(&mut state) {
                self.changed.notify_all();
                return Some(value);
            }
            if is_over() {
                return None;
            }
            (state, _) = self.changed.wait_timeout(state, PAUSE).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn wait_for_all(&self, is_over: IsOver<'_>) -> bool {
        self.wait(is_over, |state| (state.joined.len() == self.size).then_some(())).is_some()
    }

    pub(crate) fn wait_for_finalized(&self, rank: usize, is_over: IsOver<'_>) -> bool {
        lock(&self.state).finalized.insert(rank);
        self.wait(is_over, |state| (state.finalized.len() == self.size).then_some(())).is_some()
    }

    /// What comes of the next collective of this rank.
    pub(crate) fn exchange(&self, rank: usize, brought: Brought, is_over: IsOver<'_>) -> Option<Vec<u8>> {
        let (op, kind) = (brought.op, brought.kind);
        let turn = {
            let mut state = lock(&self.state);
            let count = state.counts.entry(rank).or_default();
            let turn = *count;
            *count += 1;
            state.collectives.entry(turn).or_default().insert(rank, brought);
            self.changed.notify_all();
            turn
        };
        let all = self.wait(is_over, |state| {
            let brought = state.collectives.get(&turn)?;
            (brought.len() == self.size).then(|| brought.values().cloned().collect::<Vec<_>>())
        })?;
        let all: Vec<(Op, &[u8])> = all.iter().map(|brought| (brought.op, brought.bytes.as_slice())).collect();
        Some(numbers::reduce(&all, op, kind))
    }

    /// The ranks with this color, in order of key and rank.
    pub(crate) fn split(&self, rank: usize, (color, key): (i32, i32), is_over: IsOver<'_>) -> Option<Vec<usize>> {
        lock(&self.state).split.insert(rank, (color, key));
        let all = self.wait(is_over, |state| (state.split.len() == self.size).then(|| state.split.clone()))?;
        let mut members: Vec<(i32, usize)> =
            all.iter().filter(|(_, (of, _))| *of == color).map(|(rank, (_, key))| (*key, *rank)).collect();
        members.sort_unstable();
        Some(members.into_iter().map(|(_, rank)| rank).collect())
    }

    /// Waits until as many ranks want the same change of their communicator.
    pub(crate) fn change(&self, rank: usize, (change, by): (&[usize], usize), is_over: IsOver<'_>) -> bool {
        lock(&self.state).changing.entry(change.to_vec()).or_default().insert(rank);
        self.wait(is_over, |state| (state.changing.get(change)?.len() == by).then_some(())).is_some()
    }
}
