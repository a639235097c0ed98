//! What a machine has for averaging over NCCL, one fact a line: `cargo xtask cuda-probe` reads and explains it.
//!
//! The lines are `driver: VERSION`, `gpu: NUMBER NAME, MEMORY`, `nccl: VERSION at PATH`, `can: WHAT` and `cannot: WHY`;
//! what is missing is `driver: none, WHY` or `nccl: none, WHY`.

#![expect(clippy::print_stdout, reason = "its lines are what it is for")]

use flodl_nccl::{Capability, Cuda, CudaError, Library};

fn main() {
    if let Err(why) = devices() {
        println!("driver: none, {}", one_line(&why.to_string()));
    }
    match Library::find() {
        Ok(library) => {
            println!("nccl: {} at {}", library.version(), library.path());
            for capability in Capability::ALL {
                match library.features().require(capability) {
                    Ok(()) => println!("can: {capability}"),
                    Err(missing) => println!("cannot: {missing}"),
                }
            }
        }
        Err(why) => println!("nccl: none, {}", one_line(&why.to_string())),
    }
}

fn devices() -> Result<(), CudaError> {
    let cuda = Cuda::load()?;
    println!("driver: CUDA {}", cuda.version()?);
    for (number, device) in cuda.devices()?.iter().enumerate() {
        println!("gpu: {number} {}, {} MiB", device.name()?, device.memory()? >> 20);
    }
    Ok(())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
