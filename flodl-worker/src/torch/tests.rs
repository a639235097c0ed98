//! The adapter alone: which tensors it lends and how, losses that wait, modes, and what is refused.

use super::*;
use crate::dataset::Dataset;
use crate::loader::idx::LabelledImages;
use crate::trainee::{LrPosition, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter, Trainee};
use crate::{Dtype, Section};
use flodl_wire::Epoch;
use tch::nn::{self, Module, ModuleT, VarStore};
use tch::{Device, Kind, Reduction, Tensor};

const AT: StepContext = StepContext { epoch: Epoch(0), position: LrPosition { batch: 0, total: 1 }, lr: 0.5 };

/// What was lent, as numbers.
#[derive(Default)]
struct Seen(Vec<Vec<f64>>);

impl TensorReader for Seen {
    fn read(&mut self, tensor: TensorRef<'_>) {
        self.0.push(match tensor {
            TensorRef::F32(values) => values.iter().map(|&value| f64::from(value)).collect(),
            TensorRef::I64(values) => values.iter().map(|&value| value as f64).collect(),
        });
    }
}

/// Adds 1 to everything.
struct AddOne;

impl TensorWriter for AddOne {
    fn write(&mut self, tensor: TensorMut<'_>) {
        match tensor {
            TensorMut::F32(values) => values.iter_mut().for_each(|value| *value += 1.0),
            TensorMut::I64(values) => values.iter_mut().for_each(|value| *value += 1),
        }
    }
}

fn seen(model: &TorchModel<'_>) -> Vec<Vec<f64>> {
    let mut seen = Seen::default();
    model.read_tensors(&mut seen).unwrap();
    seen.0
}

/// output = input * weight, and a target of anything: the loss is the mean output.
fn scale(store: VarStore, rule: impl Rule + 'static) -> TorchModel<'static> {
    let weight = store.root().var("weight", &[1], nn::Init::Const(2.0));
    let net = nn::func(move |inputs: &Tensor| inputs * &weight);
    TorchModel::new(store, net, rule).unwrap().loss(|output, _| output.mean(None))
}

fn batch(inputs: &[f32]) -> Batch {
    Batch { inputs: Tensor::from_slice(inputs), targets: Tensor::from_slice(inputs) }
}

#[test]
fn tensors_of_all_kinds_are_lent_in_the_order_of_their_names() {
    let store = VarStore::new(Device::Cpu);
    let root = store.root();
    let held = |kind| Tensor::from_slice(&[1.5f32, -2.0]).to_kind(kind);
    drop(root.add("half", held(Kind::Half), true));
    let bf16 = root.add("bf16", held(Kind::BFloat16), false);
    drop(root.add("double", held(Kind::Double), true));
    drop(root.add("empty", Tensor::zeros([0, 3], (Kind::Float, Device::Cpu)), false));
    drop(root.add("count", Tensor::from(40i64), false));
    // A matrix whose columns are the rows of its memory.
    drop(root.add("turned", Tensor::from_slice2(&[[1f32, 2.0], [3.0, 4.0]]).tr(), true));
    let mut model = scale(store, Sgd::default());

    let manifest = model.manifest();
    let found: Vec<_> =
        manifest.iter().map(|spec| (&spec.name[..], spec.dtype, &spec.shape[..], spec.section)).collect();
    use Section::{Buffers, Integers, Parameters};
    let expect: [(&str, Dtype, &[u64], Section); 7] = [
        ("bf16", Dtype::Bf16, &[2], Buffers),
        ("count", Dtype::I64, &[], Integers),
        ("double", Dtype::F64, &[2], Parameters),
        ("empty", Dtype::F32, &[0, 3], Buffers),
        ("half", Dtype::F16, &[2], Parameters),
        ("turned", Dtype::F32, &[2, 2], Parameters),
        ("weight", Dtype::F32, &[1], Parameters),
    ];
    assert_eq!(found, expect);
    let values = seen(&model);
    assert_eq!(values[..4], [vec![1.5, -2.0], vec![40.0], vec![1.5, -2.0], vec![]]);
    assert_eq!(values[4..], [vec![1.5, -2.0], vec![1.0, 3.0, 2.0, 4.0], vec![2.0]]);

    model.write_tensors(&mut AddOne).unwrap();
    let more: Vec<Vec<f64>> = values.iter().map(|values| values.iter().map(|value| value + 1.0).collect()).collect();
    assert_eq!(seen(&model), more);
    assert_eq!((bf16.kind(), bf16.double_value(&[1])), (Kind::BFloat16, -1.0));
    assert!(model.store().variables()["half"].requires_grad());
}

/// Writes these numbers, one for each tensor.
struct Each(Vec<f32>);

impl TensorWriter for Each {
    fn write(&mut self, tensor: TensorMut<'_>) {
        match tensor {
            TensorMut::F32(values) => values.fill(self.0.remove(0)),
            TensorMut::I64(values) => panic!("{values:?} are no floats"),
        }
    }
}

#[test]
fn what_16_bits_cannot_hold_is_kept_until_a_step_changes_it() {
    let store = VarStore::new(Device::Cpu);
    let held = |kind| Tensor::from_slice(&[1f32, 1.0]).to_kind(kind);
    let (used, unused) =
        (store.root().add("a", held(Kind::BFloat16), true), store.root().add("b", held(Kind::Half), true));
    let net = nn::func(move |inputs: &Tensor| used.narrow(0, 0, 1).to_kind(Kind::Float) * inputs);
    let mut model = TorchModel::new(store, net, Sgd::default()).unwrap().loss(|output, _| output.mean(None));
    // Between two numbers that 16 bits can hold.
    let (a, b) = (f64::from(1.001f32), f64::from(-2.0003f32));
    model.write_tensors(&mut Each(vec![1.001, -2.0003])).unwrap();
    assert_eq!(seen(&model), [[a, a], [b, b]]);
    assert_eq!((unused.double_value(&[0]), unused.kind()), (-2.0, Kind::Half));
    model.step(&batch(&[1.0]), &AT).unwrap();
    assert_eq!(seen(&model), [[0.5, a], [b, b]], "the rounded value makes the step");
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let build = |name: &str, tensor: Tensor, trainable, rule: Sgd| {
        let store = VarStore::new(Device::Cpu);
        drop(store.root().add(name, tensor, trainable));
        let net = nn::func(Tensor::shallow_clone);
        TorchModel::new(store, net, rule).map(|_| ()).map_err(|error| error.to_string())
    };
    let float = || Tensor::from(1f32);
    let good = Sgd::default();
    assert_eq!(build("w", float(), true, good), Ok(()));
    let cases = [
        (build("steps", Tensor::from(1i32), false, good), "tensor \"steps\" is of kind Int: ranks average"),
        (build("mask", Tensor::from(true), false, good), "tensor \"mask\" is of kind Bool: ranks average"),
        (build("w", float(), false, good), "no tensor of the VarStore requires a gradient"),
        (build("w", float(), true, Sgd { momentum: -1.0, ..good }), "Sgd::momentum is -1: give"),
    ];
    for (found, expect) in cases {
        let error = found.unwrap_err();
        assert!(error.starts_with(expect), "{error}");
    }
}

#[test]
fn warming_up_leaves_the_tensors_as_they_were() {
    let store = VarStore::new(Device::Cpu);
    let norm = nn::batch_norm1d(store.root() / "norm", 2, nn::BatchNormConfig::default());
    let mut passes = store.root().add("passes", Tensor::from(0i64), false);
    let counted = passes.shallow_clone();
    let net = nn::func_t(move |inputs: &Tensor, train| {
        let mut passes = counted.shallow_clone();
        passes += i64::from(train);
        norm.forward_t(inputs, train)
    });
    let mut model = TorchModel::new(store, net, Sgd::default()).unwrap().loss(|output, _| output.square().mean(None));
    passes += 7;
    let before = seen(&model);
    let inputs = Tensor::from_slice2(&[[1f32, 2.0], [3.0, -4.0], [0.0, 1.0]]);
    let batch = Batch { targets: inputs.shallow_clone(), inputs };
    let step = model.warm_up(&batch).unwrap();
    assert!(step.is_some_and(|step| step < std::time::Duration::from_secs(60)), "{step:?}");
    assert_eq!(seen(&model), before);
    model.step(&batch, &AT).unwrap();
    let after = seen(&model);
    let changed: Vec<bool> = after.iter().zip(&before).map(|(after, before)| after != before).collect();
    assert_eq!(changed, [true; 5], "a step changes scale, shift, both statistics and the count: {after:?}");
    assert_eq!(passes.int64_value(&[]), 8);
}

#[test]
fn losses_wait_on_the_device() {
    let mut model = scale(VarStore::new(Device::Cpu), Sgd::default()).read_loss_every(3);
    let none = StepOutcome::default();
    // The gradient is the mean of the inputs, so the weight falls from 2 by half of it each step.
    for (inputs, expect) in [
        (&[1.0, 1.0][..], none),
        (&[2.0], none),
        (&[0.0, 4.0], StepOutcome { loss_sum: 2.0 * 2.0 + 1.5 * 2.0 + 0.5 * 4.0, samples: 5 }),
        (&[1.0], none),
    ] {
        assert_eq!(model.step(&batch(inputs), &AT).unwrap(), expect, "{inputs:?}");
    }
    assert_eq!(model.take_loss().unwrap(), StepOutcome { loss_sum: -0.5, samples: 1 });
    assert_eq!(model.take_loss().unwrap(), none);
}

#[test]
fn frozen_and_unused_tensors_stay_as_they_are() {
    let store = VarStore::new(Device::Cpu);
    drop(store.root().var("unused", &[1], nn::Init::Const(5.0)));
    let frozen = store.root().var("frozen", &[1], nn::Init::Const(7.0)).set_requires_grad(false);
    let mut model = scale(store, Sgd::default());
    assert_eq!(model.manifest()[0].section, Section::Buffers);
    model.step(&batch(&[2.0]), &AT).unwrap();
    assert_eq!(seen(&model), [vec![7.0], vec![5.0], vec![1.0]]);
    assert_eq!(frozen.double_value(&[0]), 7.0);
}

#[test]
fn long_gradients_are_clipped() {
    let mut model = scale(VarStore::new(Device::Cpu), Sgd::default()).clip_norm(0.5);
    model.step(&batch(&[2.0]), &AT).unwrap();
    let [weight] = seen(&model)[0][..] else { panic!("one weight") };
    assert!((weight - 1.75).abs() < 1e-6, "{weight}");
}

#[test]
fn dropout_is_for_steps_alone() {
    tch::manual_seed(5);
    let store = VarStore::new(Device::Cpu);
    let weights = store.root().var("weights", &[64], nn::Init::Const(1.0));
    let net = nn::func_t(move |inputs: &Tensor, train| (inputs * &weights).dropout(0.5, train));
    let mut model = TorchModel::new(store, net, Sgd::default()).unwrap().loss(|output, _| output.sum(Kind::Float));
    let batch = Batch {
        inputs: Tensor::ones([1, 64], (Kind::Float, Device::Cpu)),
        targets: Tensor::zeros([1], (Kind::Float, Device::Cpu)),
    };
    assert_eq!(model.evaluate(&batch).unwrap().loss_sum, 64.0);
    // What is dropped has no gradient, and what is left counts twice.
    model.step(&batch, &AT).unwrap();
    let after = seen(&model).remove(0);
    let kept = after.iter().filter(|weight| **weight == 0.0).count();
    assert!((8..=56).contains(&kept), "{after:?}");
    assert_eq!(after.iter().filter(|weight| **weight == 1.0).count(), 64 - kept);
    assert_eq!(model.evaluate(&batch).unwrap().loss_sum, (64 - kept) as f64);
}

#[test]
fn another_model_goes_on_from_a_state_that_was_read() {
    let inputs = batch(&[0.5, -2.0, 3.0]);
    let make = |rule: AdamW| scale(VarStore::new(Device::Cpu), rule).clip_norm(0.4);
    let mut lasting = make(AdamW::default());
    for _ in 0..3 {
        lasting.step(&inputs, &AT).unwrap();
    }
    let state = lasting.optimizer().state().unwrap();
    let names: Vec<&str> = state.keys().map(String::as_str).collect();
    assert_eq!(names, ["weight.exp_avg", "weight.exp_avg_sq", "weight.step"]);
    // Through a file, as a checkpoint would.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("optimizer.safetensors");
    Tensor::write_safetensors(&state.iter().collect::<Vec<_>>(), &path).unwrap();
    let state = Tensor::read_safetensors(&path).unwrap().into_iter().collect();

    let value = seen(&lasting)[0][0];
    let resumed = |state| {
        let mut model = make(AdamW::default());
        model.write_tensors(&mut Each(vec![value as f32])).unwrap();
        model.optimizer_mut().restore(state).unwrap();
        model.step(&inputs, &AT).unwrap();
        seen(&model)
    };
    lasting.step(&inputs, &AT).unwrap();
    assert_eq!(resumed(&state), seen(&lasting));
    assert_ne!(resumed(&State::new()), seen(&lasting));
}

/// A classifier with batch normalisation and dropout.
#[derive(Debug)]
struct Moody {
    norm: nn::BatchNorm,
    linear: nn::Linear,
}

impl ModuleT for Moody {
    fn forward_t(&self, inputs: &Tensor, train: bool) -> Tensor {
        self.linear.forward(&inputs.apply_t(&self.norm, train).dropout(0.5, train))
    }
}

#[test]
fn evaluation_changes_nothing_and_counts_hits() {
    tch::manual_seed(3);
    let store = VarStore::new(Device::Cpu);
    let norm = nn::batch_norm1d(store.root() / "norm", 3, nn::BatchNormConfig::default());
    let net = Moody { norm, linear: nn::linear(store.root() / "linear", 3, 2, nn::LinearConfig::default()) };
    let mut model = TorchModel::new(store, net, AdamW::default()).unwrap();
    let inputs = Tensor::randn([8, 3], (Kind::Float, Device::Cpu));
    let batch = Batch { inputs, targets: Tensor::from_slice(&[0i64, 1, 0, 1, 0, 1, 0, 1]) };
    let before = seen(&model);
    let outcome = model.evaluate(&batch).unwrap();
    assert_eq!(model.evaluate(&batch).unwrap(), outcome);
    assert_eq!(seen(&model), before);
    assert_eq!(outcome.samples, 8);
    let opposite = Batch { inputs: batch.inputs.shallow_clone(), targets: 1 - &batch.targets };
    let other = model.evaluate(&opposite).unwrap();
    assert_eq!(outcome.correct.zip(other.correct).map(|(right, wrong)| right + wrong), Some(8));
    model.step(&batch, &AT).unwrap();
    let after = seen(&model);
    let changed: Vec<bool> = before.iter().zip(&after).map(|(before, after)| before != after).collect();
    assert_eq!(changed, [true; 6], "weights, and running statistics too");

    let regression = Batch { inputs: batch.inputs, targets: Tensor::zeros([8, 2], (Kind::Float, Device::Cpu)) };
    let mut model = model.loss(|output, targets| output.mse_loss(targets, Reduction::Mean));
    assert_eq!(model.evaluate(&regression).unwrap().correct, None);
}

#[test]
fn images_become_tensors_of_normalised_values() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/softmax/data");
    let images = LabelledImages::read_split(&dir, "t10k").unwrap().truncated(50);
    let set = TensorSet::images(&images, 0.25, 0.5).unwrap();
    let (Batch { inputs, targets }, raw) = (set.batch(&[3, 0, 3]).unwrap(), images.batch(&[3, 0, 3]).unwrap());
    assert_eq!((inputs.size(), inputs.kind()), (vec![3, 1, 28, 28], Kind::Float));
    assert_eq!((set.len(), targets.kind()), (50, Kind::Int64));
    let expect: Vec<f32> = raw.pixels.iter().map(|grey| (grey - 0.25) / 0.5).collect();
    assert_eq!(Vec::<f32>::try_from(inputs.flatten(0, -1)).unwrap(), expect);
    let labels: Vec<i64> = raw.labels.iter().map(|&label| i64::from(label)).collect();
    assert_eq!(Vec::<i64>::try_from(targets).unwrap(), labels);
    let same = TensorSet::images(&images, 0.25, 0.5).unwrap();
    let other = TensorSet::images(&images, 0.25, 0.25).unwrap();
    assert_eq!(set.signature(), same.signature());
    assert_ne!(set.signature(), other.signature());
    let error = TensorSet::images(&images, 0.25, 0.0).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "the deviation 0 cannot be divided by: give a finite number above 0");
}

#[test]
fn tensors_of_equal_first_sides_are_a_dataset() {
    let rows = |rows, columns| Tensor::arange(rows * columns, (Kind::Float, Device::Cpu)).view([rows, columns]);
    let set = TensorSet::new(rows(4, 2), rows(4, 1)).unwrap();
    let batch = set.batch(&[2, 1]).unwrap();
    assert_eq!(Vec::<f32>::try_from(batch.inputs.flatten(0, -1)).unwrap(), [4.0, 5.0, 2.0, 3.0]);
    assert_eq!(Vec::<f32>::try_from(batch.targets.flatten(0, -1)).unwrap(), [2.0, 1.0]);
    assert!(set.batch(&[4]).is_err());
    assert_ne!(set.signature(), TensorSet::new(rows(4, 2), rows(4, 1) + 1).unwrap().signature());
    for (inputs, targets) in [(rows(4, 2), rows(3, 1)), (Tensor::from(1f32), Tensor::from(1f32))] {
        let error = TensorSet::new(inputs, targets).map(|_| ()).unwrap_err().to_string();
        assert!(error.ends_with("the first side of both must count the samples"), "{error}");
    }
}
