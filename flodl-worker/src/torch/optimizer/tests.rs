//! The rules against hand-computed steps and against libtorch's own optimizers; states that are read, restored and refused.

use super::*;
use tch::Kind;
use tch::nn::{self, OptimizerConfig, VarStore};

fn number(tensor: &Tensor) -> f64 {
    f64::try_from(tensor).unwrap()
}

fn parameter(value: f64) -> Tensor {
    Tensor::from(value).set_requires_grad(true)
}

/// Where a parameter that starts at 1 is after each step with these gradients, at a rate of 0.1.
fn path_of(rule: impl Rule + 'static, gradients: &[f64]) -> Vec<f64> {
    let mut optimizer = Optimizer::new(rule, [("p".to_owned(), parameter(1.0))]);
    let mut path = Vec::new();
    for &gradient in gradients {
        optimizer.step(&[Tensor::from(gradient)], 0.1).unwrap();
        path.push(number(&optimizer.parameters()[0]));
    }
    path
}

fn assert_close(found: &[f64], expect: &[f64]) {
    assert_eq!(found.len(), expect.len());
    for (one, other) in found.iter().zip(expect) {
        assert!((one - other).abs() < 1e-12, "{found:?} {expect:?}");
    }
}

#[test]
fn steps_are_those_computed_by_hand() {
    let weight_decay = 0.1;
    // g = 0.6 and then 0.594.
    assert_close(&path_of(Sgd { weight_decay, ..Sgd::default() }, &[0.5, 0.5]), &[0.94, 0.8806]);
    // v = 0.6 and then 0.54 + 0.594.
    let momentum = Sgd { momentum: 0.9, weight_decay, ..Sgd::default() };
    assert_close(&path_of(momentum, &[0.5, 0.5]), &[0.94, 0.8266]);
    // g = 0.6, v = 0.6; then g = 0.5886, v = 1.1286.
    assert_close(&path_of(Sgd { nesterov: true, ..momentum }, &[0.5, 0.5]), &[0.886, 0.725_566]);
    // m = 0.05, v = 0.00025 and then m = 0.02, v = 0.00031225.
    assert_close(&path_of(AdamW::default(), &[0.5, -0.25]), &[0.899_000_002, 0.871_467_298_705_846_2]);
}

/// Numbers in -1..=1 that look like any, and are the same each time whatever other tests draw.
fn numbers(shape: [i64; 2], from: f64) -> Tensor {
    let count = shape[0] * shape[1];
    (Tensor::arange(count, (Kind::Double, Device::Cpu)) * 12.9898 + from).sin().view(shape)
}

/// A small network in double precision, its inputs and its targets.
fn network() -> (VarStore, nn::Func<'static>, Tensor, Tensor) {
    let store = VarStore::new(Device::Cpu);
    let var = |name: &str, values: Tensor| store.root().add(name, values, true);
    let (a, b, bias) =
        (var("a", numbers([6, 8], 0.1)), var("b", numbers([8, 3], 0.2)), var("bias", numbers([1, 3], 0.3)));
    let net = nn::func(move |inputs| inputs.matmul(&a).tanh().matmul(&b) + &bias);
    (store, net, numbers([20, 6], 0.4), numbers([20, 3], 0.5))
}

fn named(store: &VarStore) -> Vec<(String, Tensor)> {
    let mut named: Vec<_> = store.variables().into_iter().collect();
    named.sort_by(|one, other| one.0.cmp(&other.0));
    named
}

fn gradients(net: &nn::Func<'_>, inputs: &Tensor, targets: &Tensor, parameters: &[Tensor]) -> Vec<Tensor> {
    let loss = inputs.apply(net).mse_loss(targets, tch::Reduction::Mean);
    Tensor::run_backward(&[loss], parameters, false, false)
}

/// The largest distance of a parameter from where libtorch's optimizer takes it in 50 steps at rates that change.
fn distance(rule: impl Rule + 'static, of_libtorch: impl OptimizerConfig) -> f64 {
    let rate = |step: i32| 0.05 / (1.0 + f64::from(step) / 10.0);
    let (theirs, net, inputs, targets) = network();
    let mut reference = of_libtorch.build(&theirs, 1.0).unwrap();
    for step in 0..50 {
        reference.set_lr(rate(step));
        reference.backward_step(&inputs.apply(&net).mse_loss(&targets, tch::Reduction::Mean));
    }
    let (ours, net, inputs, targets) = network();
    let mut optimizer = Optimizer::new(rule, named(&ours));
    for step in 0..50 {
        let gradients = gradients(&net, &inputs, &targets, optimizer.parameters());
        optimizer.step(&gradients, rate(step)).unwrap();
    }
    let pairs = named(&theirs).into_iter().zip(named(&ours));
    pairs.map(|((_, theirs), (_, ours))| number(&(theirs - ours).abs().max())).fold(0.0, f64::max)
}

#[test]
fn fifty_steps_are_those_of_libtorch() {
    for weight_decay in [0.0, 0.02] {
        for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
            let found =
                distance(Sgd { momentum, nesterov, weight_decay }, nn::sgd(momentum, 0.0, weight_decay, nesterov));
            assert!(found < 1e-12, "{momentum} {nesterov} {weight_decay}: {found}");
        }
        for betas in [(0.9, 0.999), (0.5, 0.9)] {
            let ours = AdamW { betas, weight_decay, ..AdamW::default() };
            let found = distance(ours, nn::adamw(betas.0, betas.1, weight_decay));
            assert!(found < 1e-12, "{betas:?} {weight_decay}: {found}");
        }
    }
}

/// The bits of all parameters after these many steps, interrupted and resumed by another optimizer after `stop`.
fn resumed<R: Rule + Clone + 'static>(rule: &R, steps: u32, stop: Option<u32>) -> Vec<Vec<f64>> {
    let (store, net, inputs, targets) = network();
    let mut optimizer = Optimizer::new(rule.clone(), named(&store));
    for step in 0..steps {
        if stop == Some(step) {
            let state = optimizer.state().unwrap();
            optimizer = Optimizer::new(rule.clone(), named(&store));
            optimizer.restore(&state).unwrap();
        }
        let gradients = gradients(&net, &inputs, &targets, optimizer.parameters());
        optimizer.step(&gradients, 0.05).unwrap();
    }
    optimizer.parameters().iter().map(|tensor| Vec::try_from(tensor.flatten(0, -1)).unwrap()).collect()
}

#[test]
fn a_restored_optimizer_goes_on_bit_by_bit() {
    let sgd = Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01 };
    let lasting = resumed(&sgd, 20, None);
    assert_eq!(resumed(&sgd, 20, Some(7)), lasting);
    assert_ne!(resumed(&sgd, 19, None), lasting);
    let adamw = AdamW::default();
    assert_eq!(resumed(&adamw, 20, Some(7)), resumed(&adamw, 20, None));
}

#[test]
fn a_state_is_named_by_parameters_and_refused_by_others() {
    let make = |rule: AdamW| Optimizer::new(rule, [("a".to_owned(), parameter(1.0)), ("b".to_owned(), parameter(2.0))]);
    let mut optimizer = make(AdamW::default());
    assert!(optimizer.state().unwrap().is_empty());
    // The loss does not depend on b.
    optimizer.step(&[Tensor::from(0.5), Tensor::new()], 0.1).unwrap();
    assert_eq!(number(&optimizer.parameters()[1]), 2.0);
    let state = optimizer.state().unwrap();
    let names: Vec<&str> = state.keys().map(String::as_str).collect();
    assert_eq!(names, ["a.exp_avg", "a.exp_avg_sq", "a.step"]);

    type Change = fn(&mut State);
    let changes: [(Change, &str); 4] = [
        (|state| drop(state.remove("a.exp_avg")), "the optimizer state lacks \"a.exp_avg\""),
        (|state| drop(state.remove("a.step")), "the optimizer state lacks \"a.step\""),
        (|state| drop(state.insert("c.step".into(), Tensor::from(1i64))), "the optimizer state holds \"c.step\""),
        (
            |state| drop(state.insert("a.exp_avg".into(), Tensor::from_slice(&[1.0, 2.0]))),
            "\"a.exp_avg\" of the optimizer state has the shape [2], expected []",
        ),
    ];
    for (change, expect) in changes {
        let mut state = make_copy(&state);
        change(&mut state);
        let mut other = make(AdamW::default());
        let error = other.restore(&state).unwrap_err().to_string();
        assert!(error.starts_with(expect), "{error}");
        assert!(other.state().unwrap().is_empty(), "a refused state changes nothing");
    }
}

fn make_copy(state: &State) -> State {
    state.iter().map(|(name, tensor)| (name.clone(), tensor.copy())).collect()
}

#[test]
fn state_that_is_not_finite_is_forgotten() {
    let both = [("a".to_owned(), parameter(1.0)), ("b".to_owned(), parameter(2.0))];
    let mut optimizer = Optimizer::new(Sgd { momentum: 0.9, ..Sgd::default() }, both);
    optimizer.step(&[Tensor::from(f64::NAN), Tensor::from(0.5)], 0.1).unwrap();
    optimizer.reset_non_finite().unwrap();
    assert_eq!(optimizer.state().unwrap().keys().collect::<Vec<_>>(), ["b.momentum_buffer", "b.step"]);
}

#[test]
fn gradients_stay_as_they_are() {
    let shared = Tensor::from_slice(&[3.0, 4.0]);
    let mut gradients = [shared.shallow_clone(), Tensor::new(), shared.shallow_clone()];
    for (max_norm, expect) in [(100.0, 3.0), (1.0, 3.0 / 50f64.sqrt())] {
        clip(&mut gradients, max_norm).unwrap();
        assert!((gradients[2].double_value(&[0]) - expect).abs() < 1e-6, "{max_norm}");
    }
    assert!(!gradients[1].defined());
    assert_eq!(Vec::<f64>::try_from(&shared).unwrap(), [3.0, 4.0]);

    let parameter = Tensor::from_slice(&[1.0, 1.0]).set_requires_grad(true);
    let rule = Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.1 };
    let mut optimizer = Optimizer::new(rule, [("p".to_owned(), parameter)]);
    for _ in 0..2 {
        optimizer.step(&[shared.shallow_clone()], 0.1).unwrap();
        assert_eq!(Vec::<f64>::try_from(&shared).unwrap(), [3.0, 4.0]);
    }
}

#[test]
fn gradients_of_several_kinds_have_one_norm() {
    let of = |value: f64, kind| Tensor::from_slice(&[value]).to_kind(kind);
    let mut gradients = [of(2.0, Kind::Float), of(4.0, Kind::Double), of(4.0, Kind::BFloat16)];
    clip(&mut gradients, 3.0).unwrap();
    for (gradient, (value, kind)) in
        gradients.iter().zip([(1.0, Kind::Float), (2.0, Kind::Double), (2.0, Kind::BFloat16)])
    {
        assert_eq!(gradient.kind(), kind);
        assert!((gradient.double_value(&[0]) - value).abs() < 1e-2, "{gradient}");
    }
    let mut none = [Tensor::new()];
    clip(&mut none, 1.0).unwrap();
    assert!(!none[0].defined());
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let sgd = Sgd::default();
    assert_eq!(sgd.check(), Ok(()));
    let nesterov = Sgd { nesterov: true, ..sgd }.check().unwrap_err();
    assert_eq!(nesterov, "Sgd::nesterov needs a momentum: give Sgd::momentum a value above 0");
    let decay = Sgd { weight_decay: f64::NAN, ..sgd }.check().unwrap_err();
    assert_eq!(decay, "Sgd::weight_decay is NaN: give a finite number that is not negative");
    assert!(Sgd { momentum: -0.1, ..sgd }.check().is_err());
    let adamw = AdamW::default();
    assert_eq!(adamw.check(), Ok(()));
    assert!(AdamW { betas: (0.9, 1.0), ..adamw }.check().is_err());
    assert!(AdamW { eps: -1.0, ..adamw }.check().is_err());
}
