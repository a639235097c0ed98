//! A stand-in for NCCL and the CUDA driver: the same symbols over host memory and threads, with faults on request.
//!
//! Tests compile this file with `rustc --crate-type cdylib` (see `tests/common/stand_in.rs`) and load the result through
//! the crate's own loader. Devices are host memory, streams are threads, and the ranks of a communicator are threads of
//! one process or of several on one machine. What it is strict about is what goes wrong with the real library: a communicator that is used after
//! its end ends the process, a call on one that is at work is refused, destroying waits for peers, and aborting does not.
//!
//! A process whose faults nobody can ask for has them in `STAND_IN_FAULTS`, as `COMMUNICATOR:FAULT:AT:VALUE` with commas
//! between, communicators counted from 0 as the process begins them, the rest as in `stand_in_fault`.
//!
//! `--cfg old` makes it a version without non-blocking communicators, `--cfg broken` leaves a function out, and
//! `--cfg new` is a version with everything.
//!
//! As a test target of its own this file is formatted and linted like the rest, and its sums are tested.

#![allow(unsafe_code, reason = "it is a C library")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every pointer is what NCCL's header says of it: the caller's promise"
)]
#![allow(dead_code, reason = "a test target uses none of the exported functions")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "streams are threads, and slowness is asked for"
)]
#![allow(clippy::too_many_arguments, reason = "the signatures are NCCL's")]
#![allow(unexpected_cfgs, reason = "the variants are chosen by whoever compiles it")]

mod comm;
mod crossing;
mod driver;
mod faults;
mod job;
mod kernels;
mod meeting;
mod numbers;

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use comm::Comm;
use driver::Stream;
use job::{Job, Work};

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;
const IN_PROGRESS: c_int = 7;

const VERSION: c_int = if cfg!(old) {
    21_212
} else if cfg!(new) {
    23_007
} else {
    22_809
};

#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId {
    bytes: [u8; 128],
}

/// The configuration as 2.14 has it.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

thread_local! {
    /// The calls of an open group: depth, and what to launch at its end.
    static GROUP: RefCell<(usize, Vec<Launch>)> = const { RefCell::new((0, Vec::new())) };
}

type Launch = Box<dyn FnOnce() + Send>;

#[unsafe(no_mangle)]
extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    unsafe { *version = VERSION };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let text: &CStr = match code {
        0 => c"no error",
        1 => c"unhandled cuda error",
        5 => c"invalid usage",
        7 => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_comm: *mut c_void) -> *const c_char {
    c"the stand-in's last error".as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    std::thread::sleep(faults::id_blocks());
    unsafe { (*id).bytes = job::new_id() };
    SUCCESS
}

#[cfg(not(old))]
#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankConfig(
    out: *mut *mut c_void,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> c_int {
    let config = unsafe { &*config };
    let is_whole = config.magic == 0xcafe_beef && config.size == size_of::<Config>() && config.version == 21_403;
    if !is_whole || config.blocking != 0 || rank < 0 || rank >= size {
        return INVALID_ARGUMENT;
    }
    let job = Job::of(id.bytes, size as usize);
    if !job.join(rank as usize) {
        return INVALID_USAGE;
    }
    faults::ask_from_environment(id.bytes, rank as usize);
    let comm = Comm::new(job, rank as usize);
    std::thread::sleep(comm.faults().init_blocks.unwrap_or_default());
    unsafe { *out = comm::handle_of(&comm) };
    comm.in_background(|comm| comm.job.wait_for_all(comm));
    IN_PROGRESS
}

#[cfg(not(old))]
#[unsafe(no_mangle)]
extern "C" fn ncclCommGetAsyncError(comm: *mut c_void, code: *mut c_int) -> c_int {
    let comm = comm::of(comm, "ncclCommGetAsyncError");
    unsafe { *code = comm.status() };
    SUCCESS
}

#[cfg(not(old))]
#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(comm: *mut c_void) -> c_int {
    let comm = comm::of(comm, "ncclCommFinalize");
    if comm.is_revoked() || comm.status() != SUCCESS {
        return INVALID_USAGE;
    }
    comm.in_background(|comm| comm.drain() && comm.job.wait_for_finalized(comm));
    IN_PROGRESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(comm: *mut c_void) -> c_int {
    let comm = comm::end(comm, "ncclCommDestroy");
    // As the real one: whoever destroys waits for what is in flight, for as long as it takes.
    comm.drain();
    SUCCESS
}

#[cfg(not(any(old, broken)))]
#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(comm: *mut c_void) -> c_int {
    let comm = comm::end(comm, "ncclCommAbort");
    if comm.faults().abort_hangs {
        loop {
            std::thread::park();
        }
    }
    comm.abort();
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    kind: c_int,
    op: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    let comm = comm::of(comm, "ncclAllReduce");
    let Some(op) = comm.op(op, kind) else { return INVALID_ARGUMENT };
    collective(comm, Work { send: send as usize, receive: receive as usize, count, kind, op }, stream)
}

#[cfg(not(old))]
#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    kind: c_int,
    root: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> c_int {
    let comm = comm::of(comm, "ncclBroadcast");
    if root < 0 || root as usize >= comm.job.size {
        return INVALID_ARGUMENT;
    }
    let op = numbers::Op::CopyFrom(root as usize);
    collective(comm, Work { send: send as usize, receive: receive as usize, count, kind, op }, stream)
}

/// Puts a collective on its stream, or into the open group.
fn collective(comm: Arc<Comm>, work: Work, stream: *mut c_void) -> c_int {
    if let Err(code) = comm.may_enqueue() {
        return code;
    }
    let Some(number) = comm.next_collective() else { return comm.status() };
    if let Some(code) = comm.faults().call_fails(number) {
        return code;
    }
    if let Some(pause) = comm.faults().call_blocks(number) {
        std::thread::sleep(pause);
    }
    let stream = driver::stream(stream);
    let target = Arc::clone(&comm);
    let launch: Launch = Box::new(move || enqueue(&target, &stream, number, work));
    let at_once = GROUP.with_borrow_mut(|(depth, calls)| {
        if *depth > 0 {
            calls.push(launch);
            return None;
        }
        Some(launch)
    });
    match at_once {
        None => SUCCESS,
        Some(launch) => launched(&comm, number, launch),
    }
}

fn enqueue(comm: &Arc<Comm>, stream: &Stream, number: usize, work: Work) {
    comm.begin();
    let comm = Arc::clone(comm);
    stream.push(Box::new(move || {
        comm.job.run(&comm, number, work);
        comm.finish(number);
    }));
}

/// Every second collective is put on its stream in the background, so that nobody comes to rely on the other kind.
fn launched(comm: &Arc<Comm>, number: usize, launch: Launch) -> c_int {
    if number.is_multiple_of(2) {
        launch();
        return SUCCESS;
    }
    comm.in_background(move |_| {
        std::thread::sleep(std::time::Duration::from_micros(200));
        launch();
        true
    });
    IN_PROGRESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> c_int {
    GROUP.with_borrow_mut(|(depth, _)| *depth += 1);
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> c_int {
    let calls = GROUP.with_borrow_mut(|(depth, calls)| match *depth {
        0 => None,
        1 => {
            *depth = 0;
            Some(std::mem::take(calls))
        }
        _ => {
            *depth -= 1;
            Some(Vec::new())
        }
    });
    let Some(calls) = calls else { return INVALID_USAGE };
    calls.into_iter().for_each(|launch| launch());
    SUCCESS
}

#[cfg(not(old))]
#[unsafe(no_mangle)]
extern "C" fn ncclRedOpCreatePreMulSum(
    op: *mut c_int,
    scalar: *const c_void,
    kind: c_int,
    residence: c_int,
    comm: *mut c_void,
) -> c_int {
    let comm = comm::of(comm, "ncclRedOpCreatePreMulSum");
    if let Err(code) = comm.may_enqueue() {
        return code;
    }
    match numbers::read(scalar as usize, 1, kind) {
        Some(values) if residence == 1 => {
            unsafe { *op = comm.new_op(values[0], kind) };
            SUCCESS
        }
        _ => INVALID_ARGUMENT,
    }
}

#[cfg(not(old))]
#[unsafe(no_mangle)]
extern "C" fn ncclRedOpDestroy(op: c_int, comm: *mut c_void) -> c_int {
    if comm::of(comm, "ncclRedOpDestroy").drop_op(op) { SUCCESS } else { INVALID_ARGUMENT }
}

#[cfg(not(old))]
#[unsafe(no_mangle)]
extern "C" fn ncclCommSplit(
    comm: *mut c_void,
    color: c_int,
    key: c_int,
    out: *mut *mut c_void,
    _config: *const Config,
) -> c_int {
    let parent = comm::of(comm, "ncclCommSplit");
    if parent.status() != SUCCESS {
        return INVALID_USAGE;
    }
    unsafe { *out = std::ptr::null_mut() };
    let out = out as usize;
    parent.in_background(move |parent| parent.job.split(parent, color, key, out));
    IN_PROGRESS
}

#[cfg(not(old))]
#[unsafe(no_mangle)]
extern "C" fn ncclCommShrink(
    comm: *mut c_void,
    excluded: *const c_int,
    count: c_int,
    out: *mut *mut c_void,
    _config: *const Config,
    flags: c_int,
) -> c_int {
    let parent = comm::of(comm, "ncclCommShrink");
    let excluded = unsafe { std::slice::from_raw_parts(excluded, count as usize) };
    let excluded: Vec<usize> = excluded.iter().map(|rank| *rank as usize).collect();
    if excluded.contains(&parent.rank) || excluded.iter().any(|rank| *rank >= parent.job.size) {
        return INVALID_ARGUMENT;
    }
    if flags == 1 {
        parent.stop_work();
    } else if parent.status() != SUCCESS {
        return INVALID_USAGE;
    }
    unsafe { *out = std::ptr::null_mut() };
    let out = out as usize;
    parent.in_background(move |parent| parent.drain() && parent.job.shrink(parent, &excluded, out));
    IN_PROGRESS
}

#[cfg(new)]
#[unsafe(no_mangle)]
extern "C" fn ncclCommGetUniqueId(comm: *mut c_void, id: *mut UniqueId) -> c_int {
    let comm = comm::of(comm, "ncclCommGetUniqueId");
    unsafe { (*id).bytes = comm.job.id_to_grow() };
    SUCCESS
}

#[cfg(new)]
#[unsafe(no_mangle)]
extern "C" fn ncclCommGrow(
    comm: *mut c_void,
    size: c_int,
    id: *const UniqueId,
    rank: c_int,
    out: *mut *mut c_void,
    _config: *const Config,
) -> c_int {
    if comm.is_null() {
        // A new member: it brings the id and its rank.
        if id.is_null() || rank < 0 || rank >= size {
            return INVALID_ARGUMENT;
        }
        let job = Job::of(unsafe { (*id).bytes }, size as usize);
        return if job::born(job, rank as usize, out as usize) { IN_PROGRESS } else { INVALID_USAGE };
    }
    let parent = comm::of(comm, "ncclCommGrow");
    let brings_another = !id.is_null() && unsafe { (*id).bytes } != parent.job.id_to_grow();
    if rank != -1 || size as usize <= parent.job.size || brings_another {
        return INVALID_ARGUMENT;
    }
    if parent.status() != SUCCESS {
        return INVALID_USAGE;
    }
    unsafe { *out = std::ptr::null_mut() };
    let out = out as usize;
    parent.in_background(move |parent| parent.drain() && parent.job.grow(parent, size as usize, out));
    IN_PROGRESS
}

#[cfg(not(old))]
#[unsafe(no_mangle)]
extern "C" fn ncclCommRevoke(comm: *mut c_void, flags: c_int) -> c_int {
    let comm = comm::of(comm, "ncclCommRevoke");
    if flags != 0 || comm.is_revoked() {
        return INVALID_ARGUMENT;
    }
    std::thread::sleep(comm.faults().revoke_blocks.unwrap_or_default());
    comm.revoke();
    comm.in_background(|comm| comm.drain());
    IN_PROGRESS
}

/// The control of the faults: for the rank of the communicator with this id. Not part of NCCL.
#[unsafe(no_mangle)]
extern "C" fn stand_in_fault(id: *const u8, rank: usize, fault: c_int, at: usize, value: c_int) -> c_int {
    let mut bytes = [0; 128];
    bytes.copy_from_slice(unsafe { std::slice::from_raw_parts(id, 128) });
    if faults::ask(bytes, rank, fault, at, value) { SUCCESS } else { INVALID_ARGUMENT }
}
