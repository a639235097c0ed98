//! Chunks that are added up elsewhere, at any time and in any order, give the events of a fold that does all itself.

use crate::arrival::{layouts, plans, turns};
use crate::plan::{Input, Plan, drain, expected, fold_of};
use flodl_cpureduce::{
    Absence, Contributor, Fold, Folded, Layout, Mass, Section, Summed, Work, contribution_chunk, integer_chunk,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::mpsc;

/// Threads that add up, played by one: each draw is what happens next.
#[derive(Default)]
struct Pool {
    work: Vec<Work>,
    sums: Vec<Summed>,
}

impl Pool {
    /// Takes, runs or puts back something that a draw names.
    fn play(&mut self, fold: &mut Fold, draw: u32) {
        let place = draw as usize / 4;
        match draw % 4 {
            0 | 1 => self.work.extend(fold.take_work()),
            2 if !self.work.is_empty() => {
                let work = self.work.swap_remove(place % self.work.len());
                self.sums.push(work.run());
            }
            _ if !self.sums.is_empty() => {
                let sum = self.sums.swap_remove(place % self.sums.len());
                assert!(fold.put_back(sum));
            }
            _ => {}
        }
    }

    fn finish(&mut self, fold: &mut Fold) {
        self.sums.extend(self.work.drain(..).map(Work::run));
        self.sums.drain(..).for_each(|sum| assert!(fold.put_back(sum)));
    }
}

/// Feeds the inputs in the order of the turns, plays with the pool in between, and drains now and then.
fn run(mut fold: Fold, inputs: Vec<Vec<Input>>, turns: &[usize], draws: &[u32]) -> Vec<Folded> {
    let mut inputs: Vec<_> = inputs.into_iter().map(Vec::into_iter).collect();
    let mut pool = Pool::default();
    let mut events = Vec::new();
    let mut draws = draws.iter().cycle().copied();
    for &turn in turns {
        if let Some(input) = inputs[turn].next() {
            input.feed_or_pass_over(&mut fold);
        }
        let times = draws.next().unwrap_or(0) % 5;
        for draw in draws.by_ref().take(times as usize) {
            pool.play(&mut fold, draw);
        }
        if times < 3 {
            events.extend(drain(&mut fold));
        }
    }
    pool.finish(&mut fold);
    events.extend(drain(&mut fold));
    assert!(fold.is_done());
    events
}

impl Input {
    /// A contributor that the fold has dropped may not know it yet.
    fn feed_or_pass_over(self, fold: &mut Fold) {
        use flodl_cpureduce::Reject;
        match self {
            Input::Chunk(from, index, mass, data) => {
                let result = fold.chunk(from, index, mass, data);
                assert!(matches!(result, Ok(()) | Err(Reject::Absent { .. })), "{result:?}");
            }
            Input::Absent(from, from_chunk, why) => {
                let result = fold.absent(from, from_chunk, why);
                assert!(matches!(result, Ok(()) | Err(Reject::Absent { .. })), "{result:?}");
            }
            Input::Drop(from, why) => {
                fold.drop_contributor(from, why);
            }
        }
    }
}

fn rounds() -> impl Strategy<Value = (Layout, Vec<Plan>, Vec<usize>, Vec<u32>)> {
    let draws = vec(any::<u32>(), 7..60);
    (layouts(), 1..5_usize).prop_flat_map(move |(layout, count)| {
        (Just(layout), plans(layout, 2, count), turns(count, layout), draws.clone())
    })
}

/// Eight chunks of two parameters. Each contributor has a mass for each chunk, often none, and now and then values whose
/// sum with another's is out of range.
type Masses = Vec<Vec<(u8, bool)>>;

fn overflowing() -> impl Strategy<Value = (Masses, Vec<usize>, Vec<u32>)> {
    (2..5_usize).prop_flat_map(|count| {
        let layout = Layout::new(16, 0, 0).unwrap().with_chunk_bytes(8).unwrap();
        (vec(vec((0..3_u8, proptest::bool::weighted(0.2)), 8), count), turns(count, layout), vec(any::<u32>(), 7..60))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_events_are_those_of_one_thread((layout, plans, turns, draws) in rounds()) {
        let inputs = plans.iter().map(|plan| plan.inputs(&layout)).collect();
        prop_assert_eq!(run(fold_of(layout, &plans), inputs, &turns, &draws), expected(&layout, &plans));
    }

    /// Who is dropped where a sum overflows is in later chunks that were handed out before it was known.
    #[test]
    fn whoever_an_overflow_drops_is_in_no_later_chunk((masses, turns, draws) in overflowing()) {
        let layout = Layout::new(16, 0, 0).unwrap().with_chunk_bytes(8).unwrap();
        let inputs: Vec<Vec<Input>> = masses.iter().enumerate().map(|(who, masses)| {
            masses.iter().enumerate().map(|(index, &(mass, huge))| {
                let mass = Mass::new(f64::from(mass)).unwrap();
                let value = if huge { 1.7e38 } else { 0.1 + who as f32 };
                Input::Chunk(Contributor(who as u32), index as u32, mass, contribution_chunk(&[value; 2], mass).0)
            }).collect()
        }).collect();
        let fold = || Fold::new(1, layout, (0..masses.len() as u32).map(Contributor).collect()).unwrap();
        let alone = run(fold(), inputs.clone(), &turns, &[0]);
        prop_assert_eq!(run(fold(), inputs, &turns, &draws), alone);
    }
}

#[test]
fn real_threads_give_the_same_bits_however_many() {
    let layout = Layout::new(300_000, 70_000, 5).unwrap();
    let data = |who: u32, index: u32| -> bytes::Bytes {
        let spec = layout.chunk(index).unwrap();
        let value = |i: u32| ((i.wrapping_mul(2_654_435_761) ^ (who << 20)) as f32 / 4e9 - 0.5) * (who + 1) as f32;
        match spec.section {
            Section::Integers => integer_chunk(&[i64::from(who); 5]),
            _ => contribution_chunk(&(0..spec.elements).map(value).collect::<Vec<_>>(), Mass::ONE).0,
        }
    };
    let fold = || {
        let mut fold = Fold::new(3, layout, (0..4).map(Contributor).collect()).unwrap();
        for index in 0..layout.chunks() {
            for who in (0..4).rev().filter(|&who| who != 2 || index < 3) {
                fold.chunk(Contributor(who), index, Mass::ONE, data(who, index)).unwrap();
            }
        }
        fold.drop_contributor(Contributor(2), Absence::Dead);
        fold
    };
    let alone = drain(&mut fold());
    for threads in 1..=3 {
        let mut fold = fold();
        let mut events = Vec::new();
        std::thread::scope(|scope| {
            let (sums, back) = mpsc::channel();
            let mut queues: Vec<mpsc::Sender<Work>> = Vec::new();
            for _ in 0..threads {
                let (queue, work) = mpsc::channel::<Work>();
                let sums = sums.clone();
                scope.spawn(move || work.into_iter().for_each(|work| sums.send(work.run()).unwrap()));
                queues.push(queue);
            }
            let mut given = 0;
            while let Some(work) = fold.take_work() {
                queues[given % threads].send(work).unwrap();
                given += 1;
            }
            for _ in 0..given {
                assert!(fold.put_back(back.recv().unwrap()));
                events.extend(drain(&mut fold));
            }
            drop(queues);
        });
        events.extend(drain(&mut fold));
        assert_eq!(events, alone, "{threads} threads");
    }
}

#[test]
fn a_sum_of_another_round_or_one_that_came_already_is_passed_over() {
    let layout = Layout::new(2, 0, 0).unwrap();
    let fold = |round| {
        let mut fold = Fold::new(round, layout, vec![Contributor(0)]).unwrap();
        assert!(fold.take_work().is_none(), "nothing has come");
        fold.chunk(Contributor(0), 0, Mass::ONE, contribution_chunk(&[1.0, 2.0], Mass::ONE).0).unwrap();
        fold
    };
    let (mut first, mut second) = (fold(1), fold(2));
    let (one, other) = (first.take_work().unwrap(), second.take_work().unwrap());
    assert_eq!((one.index(), first.queued(Contributor(0))), (0, 8));
    assert!(first.take_work().is_none());
    assert_eq!(first.poll(), None, "the only chunk is elsewhere");
    assert!(!first.put_back(other.run()));
    assert!(first.put_back(one.run()));
    assert!(matches!(first.poll(), Some(Folded::Chunk { index: 0, .. })));
    assert_eq!((first.poll(), first.poll(), first.queued(Contributor(0))), (Some(Folded::Done), None, 0));
}
