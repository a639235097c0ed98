//! What contributors intend, the inputs that follow from it, and the plain reference: add up in order, divide once.

use bytes::Bytes;
use flodl_cpureduce::{
    Absence, ChunkSpec, Consensus, Contributor, Fold, Folded, Layout, Mass, Section, contribution_chunk, integer_chunk,
};

/// How a contributor stops contributing before a chunk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Exit {
    /// It says so.
    Says(Absence),
    /// It is dropped from outside.
    Dies(Absence),
    /// It sends a value that is not finite.
    Poison(f32),
}

/// One contributor's replica, and how far it comes.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) id: Contributor,
    /// Mass of its parameters.
    pub(crate) mass: Mass,
    pub(crate) parameters: Vec<f32>,
    pub(crate) buffers: Vec<f32>,
    pub(crate) integers: Vec<i64>,
    /// The first chunk without it.
    pub(crate) exit: Option<(u32, Exit)>,
}

/// One call into a fold.
#[derive(Debug, Clone)]
pub(crate) enum Input {
    Chunk(Contributor, u32, Mass, Bytes),
    Absent(Contributor, u32, Absence),
    Drop(Contributor, Absence),
}

impl Input {
    pub(crate) fn feed(self, fold: &mut Fold) {
        match self {
            Input::Chunk(from, index, mass, data) => fold.chunk(from, index, mass, data).unwrap(),
            Input::Absent(from, from_chunk, why) => fold.absent(from, from_chunk, why).unwrap(),
            Input::Drop(from, why) => assert!(fold.drop_contributor(from, why)),
        }
    }
}

impl Plan {
    /// The mass it has in a section: that of its parameters, 1 elsewhere if it moved.
    pub(crate) fn mass_in(&self, section: Section) -> Mass {
        match section {
            Section::Parameters => self.mass,
            _ if self.mass.is_zero() => Mass::ZERO,
            _ => Mass::ONE,
        }
    }

    fn data(&self, spec: ChunkSpec) -> Bytes {
        let range = spec.first_element as usize..spec.first_element as usize + spec.elements as usize;
        match spec.section {
            Section::Parameters => contribution_chunk(&self.parameters[range], self.mass).0,
            Section::Buffers => contribution_chunk(&self.buffers[range], Mass::ONE).0,
            Section::Integers => integer_chunk(&self.integers[range]),
        }
    }

    /// Its calls in its own order. Poison goes only where it is looked at; elsewhere the contributor says that it stops.
    pub(crate) fn inputs(&self, layout: &Layout) -> Vec<Input> {
        let end = self.exit.map_or(layout.chunks(), |(chunk, _)| chunk);
        let mut inputs: Vec<Input> = (0..end)
            .map(|index| {
                let spec = layout.chunk(index).unwrap();
                Input::Chunk(self.id, index, self.mass_in(spec.section), self.data(spec))
            })
            .collect();
        match self.exit {
            None => {}
            Some((chunk, Exit::Says(why))) => inputs.push(Input::Absent(self.id, chunk, why)),
            Some((_, Exit::Dies(why))) => inputs.push(Input::Drop(self.id, why)),
            Some((chunk, Exit::Poison(value))) => {
                let spec = layout.chunk(chunk).unwrap();
                let mass = self.mass_in(spec.section);
                if spec.section == Section::Integers || mass.is_zero() {
                    inputs.push(Input::Absent(self.id, chunk, Absence::NonFinite));
                } else {
                    let mut data = self.data(spec).to_vec();
                    data[..4].copy_from_slice(&value.to_le_bytes());
                    inputs.push(Input::Chunk(self.id, chunk, mass, data.into()));
                }
            }
        }
        inputs
    }

    pub(crate) fn why(&self) -> Option<Absence> {
        self.exit.map(|(_, exit)| match exit {
            Exit::Says(why) | Exit::Dies(why) => why,
            Exit::Poison(_) => Absence::NonFinite,
        })
    }
}

/// A sum and its mass; no sum where nobody contributed.
pub(crate) type Sums = Vec<(Mass, Option<Vec<u8>>)>;

/// The events of a fold of these plans, which are in ascending order: sums added one by one, element by element.
pub(crate) fn expected(layout: &Layout, plans: &[Plan]) -> Vec<Folded> {
    let mut events = Vec::new();
    for (spec, (mass, data)) in layout.iter().zip(sums(layout, plans)) {
        for plan in plans {
            if let (Some((from_chunk, _)), Some(why)) = (plan.exit, plan.why())
                && from_chunk == spec.index
            {
                events.push(Folded::Dropped { contributor: plan.id, from_chunk, why });
            }
        }
        events.push(match data {
            Some(data) => Folded::Chunk { index: spec.index, mass, data: data.into() },
            None => Folded::Empty { index: spec.index },
        });
    }
    events.push(Folded::Done);
    events
}

/// The plain sums of every chunk over who contributes to it.
pub(crate) fn sums(layout: &Layout, plans: &[Plan]) -> Sums {
    layout
        .iter()
        .map(|spec| {
            let mut mass = 0.0;
            let mut sum: Option<Vec<u8>> = None;
            for plan in plans.iter().filter(|plan| plan.exit.is_none_or(|(chunk, _)| spec.index < chunk)) {
                let m = plan.mass_in(spec.section);
                if m.is_zero() {
                    continue;
                }
                mass += m.value();
                let values = plan.values(spec, m);
                sum = Some(match sum {
                    None => values,
                    Some(sum) => combine(spec.section, &sum, &values),
                });
            }
            (Mass::new(mass).unwrap(), sum)
        })
        .collect()
}

impl Plan {
    /// `m * x` of a chunk, by the definition.
    fn values(&self, spec: ChunkSpec, mass: Mass) -> Vec<u8> {
        let places = spec.first_element as usize..spec.first_element as usize + spec.elements as usize;
        let mass = mass.value() as f32;
        places
            .flat_map(|i| match spec.section {
                Section::Parameters => (mass * self.parameters[i]).to_le_bytes().to_vec(),
                Section::Buffers => self.buffers[i].to_le_bytes().to_vec(),
                Section::Integers => self.integers[i].to_le_bytes().to_vec(),
            })
            .collect()
    }
}

/// The sum of two chunks, or the larger integers.
pub(crate) fn combine(section: Section, a: &[u8], b: &[u8]) -> Vec<u8> {
    if section == Section::Integers {
        let pairs = i64s(a).into_iter().zip(i64s(b));
        pairs.flat_map(|(a, b)| a.max(b).to_le_bytes()).collect()
    } else {
        let pairs = f32s(a).into_iter().zip(f32s(b));
        pairs.flat_map(|(a, b)| (a + b).to_le_bytes()).collect()
    }
}

/// The average of a chunk's sum.
pub(crate) fn divided(section: Section, mass: Mass, sum: &[u8]) -> Vec<u8> {
    if section == Section::Integers {
        sum.to_vec()
    } else {
        f32s(sum).into_iter().flat_map(|x| (x / mass.value() as f32).to_le_bytes()).collect()
    }
}

pub(crate) fn f32s(data: &[u8]) -> Vec<f32> {
    data.chunks(4).map(|element| f32::from_le_bytes(element.try_into().unwrap())).collect()
}

pub(crate) fn i64s(data: &[u8]) -> Vec<i64> {
    data.chunks(8).map(|element| i64::from_le_bytes(element.try_into().unwrap())).collect()
}

/// All events of a fold that are ready.
pub(crate) fn drain(fold: &mut Fold) -> Vec<Folded> {
    core::iter::from_fn(|| fold.poll()).collect()
}

/// A fold of the plans' contributors.
pub(crate) fn fold_of(layout: Layout, plans: &[Plan]) -> Fold {
    Fold::new(1, layout, plans.iter().map(|plan| plan.id).collect()).unwrap()
}

/// The events of a fold that gets the plans' inputs in the order of `turns`: each entry is the place of the
/// contributor whose next input comes.
pub(crate) fn run(layout: Layout, plans: &[Plan], turns: &[usize]) -> Vec<Folded> {
    run_fold(fold_of(layout, plans), plans, turns)
}

/// The same for a fold that is made already.
pub(crate) fn run_fold(mut fold: Fold, plans: &[Plan], turns: &[usize]) -> Vec<Folded> {
    let layout = *fold.layout();
    let mut inputs: Vec<_> = plans.iter().map(|plan| plan.inputs(&layout).into_iter()).collect();
    let mut events = drain(&mut fold);
    for &turn in turns {
        if let Some(input) = inputs[turn].next() {
            input.feed(&mut fold);
            events.extend(drain(&mut fold));
        }
    }
    assert!(inputs.iter_mut().all(|inputs| inputs.next().is_none()), "turns must cover all inputs");
    assert!(fold.is_done());
    events
}

/// Puts a fold's events into a consensus' open round and returns the bytes of the result.
pub(crate) fn finish(consensus: &mut Consensus, events: &[Folded]) -> Vec<u8> {
    let mut result = Vec::new();
    for event in events.iter().cloned() {
        match event {
            Folded::Chunk { index, mass, data } => {
                result.extend(consensus.finish_chunk(index, mass, Some(data)).unwrap());
            }
            Folded::Empty { index } => result.extend(consensus.finish_chunk(index, Mass::ZERO, None).unwrap()),
            Folded::Dropped { .. } | Folded::Done => {}
        }
    }
    result
}
