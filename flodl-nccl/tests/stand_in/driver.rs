//! The CUDA driver's part: four devices of host memory, and streams that are threads.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

const INVALID_VALUE: c_int = 1;
const NOT_READY: c_int = 600;
const DEVICES: c_int = 4;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Task = Box<dyn FnOnce() + Send>;

/// A stream: a thread that does one task after the other.
#[derive(Clone, Default)]
pub(crate) struct Stream(Arc<Queue>);

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    is_busy: bool,
    has_ended: bool,
}

impl Stream {
    fn start() -> Self {
        let stream = Self::default();
        let own = stream.clone();
        std::thread::spawn(move || own.run());
        stream
    }

    pub(crate) fn push(&self, task: Task) {
        lock(&self.0.state).tasks.push_back(task);
        self.0.changed.notify_all();
    }

    fn is_idle(&self) -> bool {
        let state = lock(&self.0.state);
        state.tasks.is_empty() && !state.is_busy
    }

    fn end(&self) {
        lock(&self.0.state).has_ended = true;
        self.0.changed.notify_all();
    }

    fn run(&self) {
        loop {
            let mut state = lock(&self.0.state);
            let task = loop {
                if let Some(task) = state.tasks.pop_front() {
                    break task;
                }
                if state.has_ended {
                    return;
                }
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            state.is_busy = true;
            drop(state);
            task();
            lock(&self.0.state).is_busy = false;
        }
    }
}

/// An event: how often it was put on a stream, and how often it was reached there.
#[derive(Clone, Default)]
struct Event(Arc<(Mutex<(u64, u64)>, Condvar)>);

/// Streams and events by handle, and the size of each piece of memory by address.
#[derive(Default)]
struct Tables {
    streams: BTreeMap<usize, Stream>,
    events: BTreeMap<usize, Event>,
    next_stream: usize,
    memory: BTreeMap<u64, Vec<u64>>,
}

static TABLES: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);

/// The stream of a handle; the null handle is a stream too.
pub(crate) fn stream(handle: *mut c_void) -> Stream {
    let mut tables = lock(&TABLES);
    let found = tables.streams.get(&(handle as usize)).cloned();
    if let (None, false) = (&found, handle.is_null()) {
        use_after_end("a stream");
    }
    found.unwrap_or_else(|| tables.streams.entry(0).or_insert_with(Stream::start).clone())
}

/// Ends the process: what happened would have damaged memory.
pub(crate) fn use_after_end(what: &str) -> ! {
    use std::io::Write;
    // Past the test harness, which keeps what a test prints.
    drop(writeln!(std::io::stderr(), "stand-in: {what} was used after its end"));
    std::process::abort()
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    unsafe { *version = 13_000 };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: c_int, name: *mut *const c_char) -> c_int {
    let text = match code {
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        NOT_READY => c"CUDA_ERROR_NOT_READY",
        _ => return INVALID_VALUE,
    };
    unsafe { *name = text.as_ptr() };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    unsafe { *count = DEVICES };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    if !(0..DEVICES).contains(&ordinal) {
        return INVALID_VALUE;
    }
    unsafe { *device = ordinal };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) -> c_int {
    let text = c"stand-in";
    if (length as usize) < text.count_bytes() + 1 {
        return INVALID_VALUE;
    }
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name, text.count_bytes() + 1) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> c_int {
    unsafe { *bytes = 1 << 30 };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> c_int {
    unsafe { *context = (device as usize + 1) as *mut c_void };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(_context: *mut c_void) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    let mut memory = vec![0_u64; bytes.div_ceil(8).max(1)];
    let start = memory.as_mut_ptr() as u64;
    lock(&TABLES).memory.insert(start, memory);
    unsafe { *address = start };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    if lock(&TABLES).memory.remove(&address).is_some() { 0 } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> c_int {
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to as *mut u8, bytes) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> c_int {
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.cast::<u8>(), bytes) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(out: *mut *mut c_void, _flags: c_uint) -> c_int {
    let mut tables = lock(&TABLES);
    tables.next_stream += 64;
    let handle = tables.next_stream;
    tables.streams.insert(handle, Stream::start());
    unsafe { *out = handle as *mut c_void };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(handle: *mut c_void) -> c_int {
    if stream(handle).is_idle() { 0 } else { NOT_READY }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(handle: *mut c_void) -> c_int {
    match lock(&TABLES).streams.remove(&(handle as usize)) {
        Some(stream) => {
            stream.end();
            0
        }
        None => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, on: *mut c_void) -> c_int {
    stream(on).push(Box::new(move || unsafe {
        std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes);
    }));
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, on: *mut c_void) -> c_int {
    stream(on).push(Box::new(move || unsafe { std::ptr::write_bytes(to as *mut u8, value, bytes) }));
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(out: *mut *mut c_void, _flags: c_uint) -> c_int {
    let mut tables = lock(&TABLES);
    tables.next_stream += 64;
    let handle = tables.next_stream;
    tables.events.insert(handle, Event::default());
    unsafe { *out = handle as *mut c_void };
    0
}

fn event(handle: *mut c_void) -> Event {
    lock(&TABLES).events.get(&(handle as usize)).cloned().unwrap_or_else(|| use_after_end("an event"))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(handle: *mut c_void, on: *mut c_void) -> c_int {
    let event = event(handle);
    let number = {
        let mut state = lock(&event.0.0);
        state.0 += 1;
        state.0
    };
    stream(on).push(Box::new(move || {
        let mut state = lock(&event.0.0);
        state.1 = state.1.max(number);
        event.0.1.notify_all();
    }));
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(on: *mut c_void, handle: *mut c_void, _flags: c_uint) -> c_int {
    let event = event(handle);
    // What was put on a stream last is what is waited for; nothing, where it never was.
    let number = lock(&event.0.0).0;
    stream(on).push(Box::new(move || {
        let mut state = lock(&event.0.0);
        while state.1 < number {
            state = event.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }));
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(handle: *mut c_void) -> c_int {
    if lock(&TABLES).events.remove(&(handle as usize)).is_some() { 0 } else { INVALID_VALUE }
}
