//! A model of all sections goes out in chunks and comes back, and what does not fit is named.

use super::*;
use crate::session::Violation;
use crate::trainee::{
    EvalOutcome, Fault, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter, Trainee,
};
use flodl_cpureduce::{Digest, LayoutError, Pull};
use flodl_wire::message::Data;
use flodl_wire::message::data::{AbsentWhy, Chunk, Codec};
use flodl_wire::message::join::{Dtype, Section, TensorSpec};
use flodl_wire::{Round, Version};

/// Elements past one chunk of floats.
const MANY: usize = 65_536 + 5;

/// Tensors of mixed sections; what it lends can be made to differ from what it names.
struct Model {
    steps: Vec<i64>,
    weight: Vec<f32>,
    mean: Vec<f32>,
    bias: Vec<f32>,
    lends: Lends,
}

#[derive(Copy, Clone, PartialEq)]
enum Lends {
    All,
    OneLess,
    OneMore,
    Swapped,
    Short,
    Nothing,
}

impl Model {
    fn new() -> Model {
        let weight = (0..MANY).map(|i| (i % 251) as f32 - 100.0).collect();
        Model { steps: vec![7, -9], weight, mean: vec![0.5], bias: vec![3.0, -4.0], lends: Lends::All }
    }

    fn flat_bytes(&self) -> Vec<u8> {
        let floats = self.weight.iter().chain(&self.bias).chain(&self.mean).flat_map(|value| value.to_le_bytes());
        floats.chain(self.steps.iter().flat_map(|value| value.to_le_bytes())).collect()
    }
}

fn spec(name: &str, shape: &[u64], section: Section) -> TensorSpec {
    TensorSpec { name: name.to_owned(), dtype: Dtype::F32, shape: shape.to_vec(), section }
}

impl Trainee for Model {
    type Batch = ();

    fn manifest(&self) -> Vec<TensorSpec> {
        vec![
            spec("steps", &[2], Section::Integers),
            spec("weight", &[MANY as u64], Section::Parameters),
            spec("mean", &[], Section::Buffers),
            spec("bias", &[1, 2], Section::Parameters),
        ]
    }

    fn step(&mut self, (): &(), _: &StepContext) -> Result<StepOutcome, Fault> {
        Ok(StepOutcome::default())
    }

    fn evaluate(&mut self, (): &()) -> Result<EvalOutcome, Fault> {
        Ok(EvalOutcome::default())
    }

    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
        if self.lends == Lends::Nothing {
            return Err("the device is gone".into());
        }
        match self.lends {
            Lends::Swapped => reader.read(TensorRef::F32(&self.mean)),
            _ => reader.read(TensorRef::I64(&self.steps)),
        }
        reader.read(TensorRef::F32(&self.weight));
        reader.read(TensorRef::F32(&self.mean));
        match self.lends {
            Lends::OneLess => {}
            Lends::Short => reader.read(TensorRef::F32(&self.bias[1..])),
            _ => reader.read(TensorRef::F32(&self.bias)),
        }
        if self.lends == Lends::OneMore {
            reader.read(TensorRef::F32(&self.bias));
        }
        Ok(())
    }

    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
        writer.write(TensorMut::I64(&mut self.steps));
        writer.write(TensorMut::F32(&mut self.weight));
        writer.write(TensorMut::F32(&mut self.mean));
        writer.write(TensorMut::F32(&mut self.bias));
        Ok(())
    }
}

fn chunks(reduce: &CpuReduce, mass: f64) -> Vec<Data> {
    (0..).map_while(|chunk| reduce.contribution(Round(4), Version(3), mass, chunk)).collect()
}

fn contributions(data: Vec<Data>) -> Vec<Chunk> {
    let chunk = |data| match data {
        Data::Contribution(chunk) => chunk,
        other => panic!("{other:?}"),
    };
    data.into_iter().map(chunk).collect()
}

#[test]
fn a_contribution_scales_parameters_alone() {
    let model = Model::new();
    let mut reduce = CpuReduce::new(&model.manifest()).unwrap();
    assert!(reduce.snapshot(&model, Round(4)).unwrap());
    let sent = contributions(chunks(&reduce, 3.0));
    let heads: Vec<(u32, f64, usize)> = sent.iter().map(|chunk| (chunk.chunk, chunk.mass, chunk.bytes.len())).collect();
    assert_eq!(heads, [(0, 3.0, 262_144), (1, 3.0, 28), (2, 1.0, 4), (3, 1.0, 16)]);
    assert!(sent.iter().all(|chunk| (chunk.round, chunk.version) == (Round(4), Version(3))));
    let first = f32::from_le_bytes(sent[0].bytes[..4].try_into().unwrap());
    assert_eq!(first, -300.0);
    let unscaled: Vec<u8> = contributions(chunks(&reduce, 1.0)).iter().flat_map(|chunk| chunk.bytes.to_vec()).collect();
    assert_eq!(unscaled, model.flat_bytes());
}

#[test]
fn a_result_is_measured_and_applied_bit_by_bit() {
    let mut source = Model::new();
    source.weight.iter_mut().for_each(|value| *value *= 0.5);
    source.steps = vec![i64::MAX, 0];
    let mut sender = CpuReduce::new(&source.manifest()).unwrap();
    sender.snapshot(&source, Round(4)).unwrap();
    let result = contributions(chunks(&sender, 1.0));

    let mut model = Model::new();
    let mut reduce = CpuReduce::new(&model.manifest()).unwrap();
    reduce.snapshot(&model, Round(4)).unwrap();
    let mut measured = None;
    for (place, chunk) in (1..).zip(&result) {
        let (here, whole) = reduce.receive(chunk).unwrap().unwrap();
        assert_eq!((here, whole.is_some()), (place, place == 4));
        measured = whole;
    }
    let measured = measured.unwrap();
    let digest = Digest::of(&source.flat_bytes());
    let norm = |model: &Model, scale: f64| {
        let squares = model.weight.iter().chain(&model.bias).map(|&value| f64::from(value) * f64::from(value));
        (squares.sum::<f64>()).sqrt() * scale
    };
    assert_eq!(measured.digest, digest);
    assert!((measured.pre_norm - norm(&model, 1.0)).abs() < 1e-6 * measured.pre_norm);
    assert!((measured.post_norm - norm(&source, 1.0)).abs() < 1e-6 * measured.post_norm);
    // The biases are equal, so the distance is half of the weights.
    assert!((measured.divergence - 1.0).abs() < 1e-3, "{}", measured.divergence);
    assert_eq!(reduce.apply(&mut model).unwrap(), digest);
    assert_eq!(model.flat_bytes(), source.flat_bytes());
    assert_eq!(reduce.replica_digest(&model).unwrap(), digest);
    assert_eq!(reduce.receive(&result[0]), Ok(None), "the round is over");
    assert_eq!(reduce.stray_chunks(), 1);
}

#[test]
fn a_late_result_moves_a_replica_that_was_trained_on() {
    let mut source = Model::new();
    source.weight.iter_mut().for_each(|value| *value *= 0.5);
    source.steps = vec![12, 0];
    let mut sender = CpuReduce::new(&source.manifest()).unwrap();
    sender.snapshot(&source, Round(4)).unwrap();
    let result = contributions(chunks(&sender, 1.0));

    let mut model = Model::new();
    let mut reduce = CpuReduce::new(&model.manifest()).unwrap();
    reduce.snapshot(&model, Round(4)).unwrap();
    result.iter().for_each(|chunk| assert!(reduce.receive(chunk).unwrap().is_some()));
    // Trained meanwhile: every weight by a quarter, three steps.
    model.weight.iter_mut().for_each(|value| *value += 0.25);
    model.steps[0] += 3;
    reduce.apply_on_top(&mut model, Pull::FULL).unwrap();
    // All of these are sums of few binary digits, so that they are exact.
    assert!(model.weight.iter().zip(&source.weight).all(|(value, consensus)| *value == consensus + 0.25));
    assert_eq!((model.steps[0], model.steps[1], model.mean[0]), (15, 0, source.mean[0]));
    assert_eq!(reduce.receive(&result[0]), Ok(None), "the round is over");

    let live = model.flat_bytes();
    reduce.set_aside(&mut model).unwrap();
    assert_eq!(model.flat_bytes(), source.flat_bytes());
    reduce.put_back(&mut model).unwrap();
    assert_eq!(model.flat_bytes(), live, "bit by bit");

    reduce.snapshot(&model, Round(5)).unwrap();
    for chunk in result.iter().map(|chunk| Chunk { round: Round(5), ..chunk.clone() }) {
        reduce.receive(&chunk).unwrap();
    }
    let before = model.weight[7];
    reduce.apply_on_top(&mut model, Pull::new(0.5).unwrap()).unwrap();
    assert_eq!(model.weight[7], (before + source.weight[7]) / 2.0, "half of the way");
}

#[test]
fn results_that_do_not_fit_are_refused() {
    let model = Model::new();
    let good = Chunk {
        round: Round(4),
        version: Version(4),
        chunk: 0,
        mass: 1.0,
        codec: Codec::Exact,
        bytes: vec![0; 262_144].into(),
    };
    let last = Chunk { chunk: 3, bytes: vec![0; 16].into(), ..good.clone() };
    let with = |chunk: u32, len: usize| Chunk { chunk, bytes: vec![0; len].into(), ..good.clone() };
    for (chunks, problem) in [
        (vec![last.clone()], "chunk 3 of the result of round 4 is not the next one"),
        (vec![good.clone(), good.clone()], "chunk 0 of the result of round 4 is not the next one"),
        (vec![with(0, 262_140)], "chunk 0 of the result of round 4 has another length than the model's layout says"),
        (vec![with(0, 0)], "chunk 0 of the result of round 4 has another length than the model's layout says"),
        (vec![with(u32::MAX, 4)], "chunk 4294967295 of the result of round 4 is not the next one"),
        (
            vec![good.clone(), with(1, 28), with(2, 4), last, with(4, 4)],
            "chunk 4 of the result of round 4 is past the model's end",
        ),
    ] {
        let mut reduce = CpuReduce::new(&model.manifest()).unwrap();
        reduce.snapshot(&model, Round(4)).unwrap();
        let outcome: Result<Vec<_>, Violation> = chunks.iter().map(|chunk| reduce.receive(chunk)).collect();
        assert_eq!(outcome.unwrap_err().to_string(), problem);
    }
}

#[test]
fn chunks_may_come_before_their_round_and_not_after_it() {
    let model = Model::new();
    let mut sender = CpuReduce::new(&model.manifest()).unwrap();
    let result = |sender: &mut CpuReduce, round| {
        sender.snapshot(&model, Round(round)).unwrap();
        (0..4).map(|chunk| sender.contribution(Round(round), Version(0), 1.0, chunk).unwrap()).collect::<Vec<_>>()
    };
    let [four, five, six] = [4, 5, 6].map(|round| contributions(result(&mut sender, round)));
    let mut reduce = CpuReduce::new(&model.manifest()).unwrap();
    let keep = |reduce: &mut CpuReduce, chunk| assert_eq!(reduce.receive(chunk), Ok(None));
    let early = |reduce: &mut CpuReduce| std::iter::from_fn(|| reduce.take_early()).collect::<Vec<_>>();

    // The whole of it, twice: the second time is dropped.
    four.iter().chain(&four).for_each(|chunk| keep(&mut reduce, chunk));
    assert_eq!((early(&mut reduce), reduce.stray_chunks()), (vec![], 4), "the round is not open yet");
    reduce.snapshot(&model, Round(4)).unwrap();
    let waiting = early(&mut reduce);
    assert_eq!(waiting, four);
    let last = waiting.iter().map(|chunk| reduce.receive(chunk).unwrap().unwrap()).last().unwrap();
    assert!(last.1.is_some());

    // A later round displaces an earlier one, and one that was skipped is dropped.
    keep(&mut reduce, &five[0]);
    keep(&mut reduce, &six[0]);
    assert_eq!(reduce.stray_chunks(), 5);
    reduce.snapshot(&model, Round(5)).unwrap();
    assert_eq!(early(&mut reduce), []);
    reduce.snapshot(&model, Round(7)).unwrap();
    assert_eq!((early(&mut reduce), reduce.stray_chunks()), (vec![], 6));

    // Of an older round, of another length, past the end: dropped.
    let long = Chunk { round: Round(9), bytes: vec![0; 262_148].into(), ..six[0].clone() };
    let past = Chunk { round: Round(9), chunk: 4, ..six[3].clone() };
    [&six[0], &long, &past].into_iter().for_each(|chunk| keep(&mut reduce, chunk));
    assert_eq!(reduce.stray_chunks(), 9);
    reduce.forget();
    keep(&mut reduce, &Chunk { round: Round(7), ..six[0].clone() });
    assert_eq!(reduce.stray_chunks(), 10, "the round was forgotten");
}

#[test]
fn what_is_not_finite_is_seen() {
    let mut model = Model::new();
    let mut reduce = CpuReduce::new(&model.manifest()).unwrap();
    for value in [f32::NAN, f32::INFINITY] {
        model.mean[0] = value;
        assert!(!reduce.snapshot(&model, Round(4)).unwrap());
    }
    // Finite by itself, past the largest float when scaled: the chunks before it stand.
    model.mean[0] = 0.0;
    model.bias[1] = 2e38;
    assert!(reduce.snapshot(&model, Round(4)).unwrap());
    let sent = chunks(&reduce, 2.0);
    let absent = Data::Absent { round: Round(4), from_chunk: 1, why: AbsentWhy::NonFinite };
    assert!(matches!(sent[0], Data::Contribution(_)));
    assert_eq!(sent[1], absent);
    assert_eq!(
        reduce.contribution(Round(4), Version(3), f64::NAN, 0),
        Some(Data::Absent { round: Round(4), from_chunk: 0, why: AbsentWhy::NonFinite })
    );
}

#[test]
fn models_that_lend_other_tensors_than_they_name_are_told() {
    for (lends, expect) in [
        (Lends::OneLess, "the model lends 3 tensors, its manifest names 4"),
        (Lends::OneMore, "the model lends 5 tensors, its manifest names 4"),
        (Lends::Swapped, "the model lends 1 f32 values for tensor \"steps\", its manifest says 2 i64 values"),
        (Lends::Short, "the model lends 1 f32 values for tensor \"bias\", its manifest says 2 f32 values"),
        (Lends::Nothing, "the device is gone"),
    ] {
        let model = Model { lends, ..Model::new() };
        let mut reduce = CpuReduce::new(&model.manifest()).unwrap();
        assert_eq!(reduce.snapshot(&model, Round(4)).unwrap_err().to_string(), expect);
    }
}

#[test]
fn manifests_that_cannot_be_averaged_are_refused() {
    let parameter = |name: &str, shape: &[u64]| spec(name, shape, Section::Parameters);
    let shape = vec![u64::MAX, 2];
    for (manifest, expect) in [
        (vec![], ManifestError::Empty),
        (vec![spec("only", &[3], Section::Buffers)], ManifestError::Empty),
        (vec![parameter("twice", &[1]), parameter("twice", &[2])], ManifestError::Name { name: "twice".to_owned() }),
        (vec![parameter("huge", &shape)], ManifestError::Shape { name: "huge".to_owned(), shape: shape.clone() }),
        (vec![parameter("large", &[1 << 40])], ManifestError::Layout(LayoutError::TooLarge { bytes: 1 << 42 })),
    ] {
        assert_eq!(CpuReduce::new(&manifest).map(|_| ()), Err(expect));
    }
}
