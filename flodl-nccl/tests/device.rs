//! The CUDA driver alone: devices, memory and streams. On the stand-in, and on a GPU where there is one.

#![allow(unsafe_code, clippy::disallowed_methods, reason = "see tests/common")]

mod common;

use common::{Bench, bytes_of, drain, floats_of, tests_on_each};
use flodl_nccl::{CudaError, DataType};

tests_on_each! {
    memory_keeps_what_is_written_to_it, 1;
    more_than_fits_is_refused, 1;
    a_new_stream_is_idle, 1;
    devices_have_names_and_memory, 1;
}

fn memory_keeps_what_is_written_to_it(bench: &Bench) {
    let values: Vec<f32> = (0..10_000).map(|value| value as f32 * 0.5 - 3.0).collect();
    let mut memory = bench.devices[0].alloc(values.len(), DataType::F32).expect("there is memory");
    memory.upload(&bytes_of(&values)).expect("it fits");
    assert_eq!(floats_of(&memory), values);
}

fn more_than_fits_is_refused(bench: &Bench) {
    let mut memory = bench.devices[0].alloc(2, DataType::Bf16).expect("there is memory");
    assert_eq!(memory.upload(&[0; 5]), Err(CudaError::Length { asked: 5, there: 4 }));
}

fn a_new_stream_is_idle(bench: &Bench) {
    let stream = bench.devices[0].stream().expect("a stream");
    drain(&stream);
    assert_eq!(stream.is_idle(), Ok(true));
}

fn devices_have_names_and_memory(bench: &Bench) {
    for device in &bench.devices {
        assert_ne!(device.name(), Ok(String::new()));
        assert!(device.memory().expect("it says") > 1 << 20);
    }
}
