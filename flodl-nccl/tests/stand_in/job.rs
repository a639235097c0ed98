//! What the ranks of one communicator share: who has come, and what each brings to each collective.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use crate::comm::{self, Comm};
use crate::driver::lock;
use crate::numbers::{self, Op};

/// How long a wait lasts before it looks again whether it was stopped.
const PAUSE: Duration = Duration::from_millis(1);

/// One collective as one rank asked for it; addresses as numbers, so that it may go to a stream's thread.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) send: usize,
    pub(crate) receive: usize,
    pub(crate) count: usize,
    pub(crate) kind: i32,
    pub(crate) op: Op,
}

/// The ranks of one communicator.
pub(crate) struct Job {
    pub(crate) id: [u8; 128],
    pub(crate) size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    joined: BTreeSet<usize>,
    finalized: BTreeSet<usize>,
    /// What each rank brought to each collective.
    collectives: BTreeMap<usize, BTreeMap<usize, (Op, Vec<f64>)>>,
    /// How many collectives each rank has run.
    counts: BTreeMap<usize, usize>,
    /// What each rank wants of a split: its color and key.
    split: BTreeMap<usize, (i32, i32)>,
    /// Those who shrink, by whom they leave out.
    shrinking: BTreeMap<Vec<usize>, BTreeSet<usize>>,
}

static JOBS: LazyLock<Mutex<BTreeMap<[u8; 128], Arc<Job>>>> = LazyLock::new(Mutex::default);

/// A new id.
pub(crate) fn new_id() -> [u8; 128] {
    static NEXT: Mutex<u64> = Mutex::new(1);
    let mut next = lock(&NEXT);
    *next += 1;
    let mut id = [0x5a; 128];
    id[..8].copy_from_slice(&next.to_le_bytes());
    id
}

impl Job {
    /// The job of an id, which the first rank to come begins.
    pub(crate) fn of(id: [u8; 128], size: usize) -> Arc<Self> {
        let job = Self { id, size, state: Mutex::default(), changed: Condvar::new() };
        Arc::clone(lock(&JOBS).entry(id).or_insert_with(|| Arc::new(job)))
    }

    /// Takes a rank in; `false` where it is there already.
    pub(crate) fn join(&self, rank: usize) -> bool {
        rank < self.size && lock(&self.state).joined.insert(rank)
    }

    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Waits until `is_done`, or until the communicator is aborted or, for collectives, stopped.
    fn wait<T>(&self, is_over: impl Fn() -> bool, mut is_done: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let mut state = lock(&self.state);
        loop {
            if let Some(value) = is_done(&mut state) {
                self.changed.notify_all();
                return Some(value);
            }
            if is_over() {
                return None;
            }
            (state, _) = self.changed.wait_timeout(state, PAUSE).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn wait_for_all(&self, comm: &Comm) -> bool {
        let hangs = comm.faults().init_hangs;
        if hangs {
            lock(&self.state).joined.remove(&comm.rank);
        }
        self.wait(|| comm.is_aborted(), |state| (state.joined.len() == self.size && !hangs).then_some(())).is_some()
    }

    pub(crate) fn wait_for_finalized(&self, comm: &Comm) -> bool {
        lock(&self.state).finalized.insert(comm.rank);
        self.wait(|| comm.is_aborted(), |state| (state.finalized.len() == self.size).then_some(())).is_some()
    }

    /// One collective, on the stream's thread.
    pub(crate) fn run(&self, comm: &Comm, number: usize, work: Work) {
        let faults = comm.faults();
        if let Some(pause) = faults.slow {
            std::thread::sleep(pause);
        }
        if faults.hang_at == Some(number) {
            self.wait(|| comm.is_stopped(), |_| None::<()>);
            return;
        }
        if comm.is_stopped() {
            return;
        }
        let Some(values) = numbers::read(work.send, work.count, work.kind) else { return };
        {
            let mut state = lock(&self.state);
            let count = state.counts.entry(comm.rank).or_default();
            let turn = *count;
            *count += 1;
            state.collectives.entry(turn).or_default().insert(comm.rank, (work.op, values));
            self.changed.notify_all();
            drop(state);
            let all = self.wait(
                || comm.is_stopped(),
                |state| {
                    let brought = state.collectives.get(&turn)?;
                    (brought.len() == self.size).then(|| brought.values().cloned().collect::<Vec<_>>())
                },
            );
            let Some(all) = all else { return };
            numbers::write(work.receive, &numbers::reduce(&all, work.op), work.kind);
        }
    }

    /// Makes the new communicator of the ranks with this color, in order of key and rank.
    pub(crate) fn split(&self, parent: &Arc<Comm>, color: i32, key: i32, out: usize) -> bool {
        lock(&self.state).split.insert(parent.rank, (color, key));
        let all =
            self.wait(|| parent.is_aborted(), |state| (state.split.len() == self.size).then(|| state.split.clone()));
        let Some(all) = all else { return false };
        if color < 0 {
            return true;
        }
        let mut members: Vec<(i32, usize)> =
            all.iter().filter(|(_, (of, _))| *of == color).map(|(rank, (_, key))| (*key, *rank)).collect();
        members.sort_unstable();
        let members: Vec<usize> = members.into_iter().map(|(_, rank)| rank).collect();
        self.child(parent, &members, color, out)
    }

    /// Makes the new communicator of the ranks that are left.
    pub(crate) fn shrink(&self, parent: &Arc<Comm>, excluded: &[usize], out: usize) -> bool {
        let members: Vec<usize> = (0..self.size).filter(|rank| !excluded.contains(rank)).collect();
        lock(&self.state).shrinking.entry(excluded.to_vec()).or_default().insert(parent.rank);
        let all = self.wait(
            || parent.is_aborted(),
            |state| (state.shrinking.get(excluded)?.len() == members.len()).then_some(()),
        );
        all.is_some() && self.child(parent, &members, 100, out)
    }

    fn child(&self, parent: &Arc<Comm>, members: &[usize], salt: i32, out: usize) -> bool {
        let Some(place) = members.iter().position(|rank| *rank == parent.rank) else { return false };
        let mut id = self.id;
        id[8] ^= 1;
        id[12..16].copy_from_slice(&salt.to_le_bytes());
        id[16] = id[16].wrapping_add(1);
        let job = Self::of(id, members.len());
        if !job.join(place) {
            return false;
        }
        let child = Comm::new(job, place);
        let handle = comm::handle_of(&child);
        // The caller's pointer is written when the child is there, as the real library does.
        unsafe { std::ptr::write_volatile(out as *mut *mut c_void, handle) };
        child.in_background(|child| child.job.wait_for_all(child));
        true
    }
}
