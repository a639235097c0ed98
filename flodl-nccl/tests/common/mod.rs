//! What the tests of communicators share: the library and devices they run on, and ranks as threads.
//!
//! Every body is a test on the stand-in and a test on GPUs (`on_gpus::`). Where a driver, GPUs or NCCL are missing the second
//! says so past the harness, and with `FLODL_REQUIRE_GPU=1` it fails.

#![allow(dead_code, unused_imports, unused_macros, reason = "each test program uses its own part of it")]
#![allow(unreachable_pub, reason = "it is a module of several test programs")]
#![allow(unsafe_code, reason = "views of memory that the test keeps until all is done")]
#![allow(clippy::disallowed_methods, reason = "ranks are threads here, and tests wait")]

pub mod stand_in;

use std::io::Write;
use std::time::{Duration, Instant};

use flodl_nccl::{Buffer, Comm, Cuda, DataType, Device, Library, Memory, Place, Stream, StreamRef, UniqueId};

/// How long anything in a test may take.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A library and devices to run on.
#[derive(Clone)]
pub struct Bench {
    /// The library.
    pub library: Library,
    /// The devices, of which each rank of a test has its own.
    pub devices: Vec<Device>,
    /// Whether it is the stand-in, which does wrong on request.
    pub is_stand_in: bool,
}

/// Makes two tests of each body (a function of a [`Bench`], and the ranks that it needs): one on the stand-in, and one on
/// GPUs, which says that it is skipped where there are fewer than ranks.
macro_rules! tests_on_each {
    ($($name:ident, $ranks:literal;)*) => {
        mod on_stand_in {
            $(#[test]
            fn $name() {
                super::$name(&crate::common::stand_in::bench());
            })*
        }

        mod on_gpus {
            $(#[test]
            fn $name() {
                match crate::common::real($ranks) {
                    Ok(bench) => super::$name(&bench),
                    Err(why) => crate::common::skip(&format!("{} on GPUs: {why}", stringify!($name))),
                }
            })*
        }
    };
}

pub(crate) use tests_on_each;

/// The real library and devices.
pub fn real(ranks: usize) -> Result<Bench, String> {
    let cuda = Cuda::load().map_err(|error| error.to_string())?;
    let devices = cuda.devices().map_err(|error| error.to_string())?;
    if devices.len() < ranks {
        return Err(format!("{} GPUs are needed, {} are here", ranks, devices.len()));
    }
    let library = Library::find().map_err(|error| error.to_string())?;
    Ok(Bench { library, devices, is_stand_in: false })
}

/// Says past the harness that something is left out; fails where nothing may be.
pub fn skip(why: &str) {
    let required = std::env::var_os("FLODL_REQUIRE_GPU").is_some_and(|value| value == "1");
    assert!(!required, "FLODL_REQUIRE_GPU=1, but {why}");
    writeln!(std::io::stderr(), "skipped: {}", why.replace('\n', " ")).expect("stderr can be written");
}

/// One rank of a test: its device, stream and communicator.
pub struct RankOf {
    pub rank: u32,
    pub comm: Comm,
    pub stream: Stream,
    pub device: Device,
}

impl RankOf {
    /// The stream, which lives as long as the rank.
    pub fn on(&self) -> StreamRef {
        // SAFETY: every test waits for its stream, or aborts, before it drops the rank.
        unsafe { self.stream.view() }
    }

    /// Memory with these values.
    pub fn memory(&self, values: &[f32]) -> Memory {
        let mut memory = self.device.alloc(values.len(), DataType::F32).expect("there is memory");
        memory.upload(&bytes_of(values)).expect("the values fit");
        memory
    }

    /// Waits until the stream is idle.
    pub fn drain(&self) {
        drain(&self.stream);
    }
}

/// Waits until a stream is idle.
pub fn drain(stream: &Stream) {
    let started = Instant::now();
    while !stream.is_idle().expect("the stream can be asked") {
        assert!(started.elapsed() < LIMIT, "the stream is not idle after {LIMIT:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A view of memory that the caller keeps.
pub fn view(memory: &Memory) -> Buffer {
    // SAFETY: every test keeps its memory until its stream is idle or its communicator was aborted.
    unsafe { memory.view() }
}

pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

pub fn floats_of(memory: &Memory) -> Vec<f32> {
    let bytes = memory.download().expect("the memory can be read");
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

/// Runs a body on `size` ranks, each a thread with its own communicator, and returns what each made of it.
pub fn ranks<T: Send>(bench: &Bench, size: u32, body: impl Fn(RankOf) -> T + Sync) -> Vec<T> {
    let id = bench.library.unique_id().expect("an id");
    ranks_of(bench, id, size, body)
}

/// As [`ranks`], with an id that faults were asked for.
pub fn ranks_of<T: Send>(bench: &Bench, id: UniqueId, size: u32, body: impl Fn(RankOf) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let body = &body;
                scope.spawn(move || {
                    let device = bench.devices[rank as usize % bench.devices.len()].clone();
                    let stream = device.stream().expect("a stream");
                    let place = Place { id, rank, size };
                    let comm = Comm::init_rank(&bench.library, place, LIMIT).expect("it begins");
                    comm.settle(LIMIT).expect("every rank comes");
                    body(RankOf { rank, comm, stream, device })
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}
