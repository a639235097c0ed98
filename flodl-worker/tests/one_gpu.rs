//! Two ranks whose models lie on one GPU, and whose averages are the CPU's. On the stand-in, and on a GPU where there is one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a test asks the environment what it may skip")]

mod common;
mod stand_in;

use common::{Conductor, Numbers, Seat, windows};
use flodl_nccl::{Cuda, DataType, Device, Memory};
use flodl_wire::message::control::Next;
use flodl_wire::message::join::TrainerSettings;
use flodl_wire::{Incarnation, Rank, Time};
use flodl_worker::trainee::{
    EvalOutcome, Fault, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter, Trainee,
};
use flodl_worker::worker::{Callbacks, Job, Worker};
use flodl_worker::{Dtype, Section, TensorSpec};
use std::io::Write;
use std::time::Duration;

const PARAMETERS: usize = 5000;

/// A model in a device's memory, lent through the host.
struct OnDevice(Memory);

impl OnDevice {
    fn values(&self) -> Result<Vec<f32>, Fault> {
        let bytes = self.0.download()?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect())
    }

    fn set(&mut self, values: &[f32]) -> Result<(), Fault> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        Ok(self.0.upload(&bytes)?)
    }
}

impl Trainee for OnDevice {
    type Batch = Vec<u64>;

    fn manifest(&self) -> Vec<TensorSpec> {
        let (name, dtype, shape) = ("theta".to_owned(), Dtype::F32, vec![PARAMETERS as u64]);
        vec![TensorSpec { name, dtype, shape, section: Section::Parameters }]
    }

    fn step(&mut self, batch: &Vec<u64>, _: &StepContext) -> Result<StepOutcome, Fault> {
        let moved: Vec<f32> = self.values()?.iter().map(|value| value + 0.25 * batch.len() as f32).collect();
        self.set(&moved)?;
        Ok(StepOutcome { loss_sum: 0.0, samples: batch.len() as u64 })
    }

    fn evaluate(&mut self, _: &Vec<u64>) -> Result<EvalOutcome, Fault> {
        Ok(EvalOutcome::default())
    }

    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
        reader.read(TensorRef::F32(&self.values()?));
        Ok(())
    }

    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
        let mut values = self.values()?;
        writer.write(TensorMut::F32(&mut values));
        self.set(&values)
    }
}

fn two_ranks_on_one_gpu_average_over_the_cpu(device: &Device) {
    let seat = |rank: u32| {
        let mut model = OnDevice(device.alloc(PARAMETERS, DataType::F32).unwrap());
        model.set(&[rank as f32; PARAMETERS]).unwrap();
        let job = Job {
            trainee: model,
            train_set: Box::new(Numbers(60)),
            eval_set: None,
            schedule: Box::new(|_| 0.1),
            settings: TrainerSettings { batch_size: Some(4), ..TrainerSettings::default() },
            callbacks: Callbacks::default(),
        };
        let worker = Worker::new(job, (Rank(rank), Incarnation(1)), common::PATIENCE, Time::ZERO).unwrap();
        Seat::new(worker, Duration::from_millis(1))
    };
    let mut conductor = Conductor::new(vec![seat(0), seat(1)], 1);
    for window in windows(60, 4, &[1, 2]) {
        conductor.step(0, &window, Next::Window);
    }
    let [one, other] = [0, 1].map(|rank| conductor.seats[rank].worker.trainee().values().unwrap());
    assert!(one == other, "the replicas differ");
    // Five windows: one step moves by 1, and (1 x 1 + 2 x 2) / 3 is what both take.
    assert!(one.iter().all(|value| (value - 25.0 / 3.0).abs() < 1e-5), "{}", one[0]);
}

mod on_stand_in {
    #[test]
    fn two_ranks_on_one_gpu_average_over_the_cpu() {
        super::two_ranks_on_one_gpu_average_over_the_cpu(&super::stand_in::place(0).unwrap().device);
    }
}

mod on_gpus {
    #[test]
    fn two_ranks_on_one_gpu_average_over_the_cpu() {
        let devices = super::Cuda::load().and_then(|cuda| cuda.devices());
        match devices.map(|devices| devices.into_iter().next()) {
            Ok(Some(device)) => super::two_ranks_on_one_gpu_average_over_the_cpu(&device),
            Ok(None) => super::skip("the driver finds no GPU"),
            Err(error) => super::skip(&error.to_string()),
        }
    }
}

/// Says past the harness that a test is left out; fails where nothing may be.
fn skip(why: &str) {
    let required = std::env::var_os("FLODL_REQUIRE_GPU").is_some_and(|value| value == "1");
    assert!(!required, "FLODL_REQUIRE_GPU=1, but {why}");
    writeln!(std::io::stderr(), "skipped: two ranks on one GPU: {why}").expect("stderr can be written");
}
