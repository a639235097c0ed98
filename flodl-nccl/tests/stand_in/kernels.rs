//! The kernels of src/average/kernels.cu over host memory, and the driver's functions that load and launch them.
//!
//! A kernel is there where the text that was loaded has an entry of its name, and does on the stream's thread what the
//! device would do. One block finds everything.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;

use crate::driver::{self, lock};

const INVALID_VALUE: c_int = 1;
const NOT_FOUND: c_int = 500;

const NAMES: [&str; 6] = [
    "flodl_divide",
    "flodl_measure",
    "flodl_measure_longs",
    "flodl_fill_longs",
    "flodl_slow_momentum",
    "flodl_nesterov",
];

/// The texts that were loaded.
static LOADED: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_void) -> c_int {
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy().into_owned();
    if !text.contains(".version") {
        return INVALID_VALUE;
    }
    let mut loaded = lock(&LOADED);
    loaded.push(text);
    unsafe { *module = loaded.len() as *mut c_void };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char) -> c_int {
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let loaded = lock(&LOADED);
    let has =
        loaded.get((module as usize).wrapping_sub(1)).is_some_and(|text| text.contains(&format!(".entry {name}(")));
    match NAMES.iter().position(|known| *known == name) {
        Some(place) if has => {
            unsafe { *function = (place + 1) as *mut c_void };
            0
        }
        _ => NOT_FOUND,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    blocks: c_uint,
    _blocks_y: c_uint,
    _blocks_z: c_uint,
    threads: c_uint,
    _threads_y: c_uint,
    _threads_z: c_uint,
    _shared: c_uint,
    stream: *mut c_void,
    arguments: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> c_int {
    let name = NAMES.get((function as usize).wrapping_sub(1)).copied().unwrap_or_default();
    // The kernels sum in blocks of this many, and more would not fit what the blocks share.
    if blocks == 0 || threads != 256 {
        return INVALID_VALUE;
    }
    let number = |place: usize| unsafe { (*arguments.add(place)).cast::<u64>().read() };
    let float = |place: usize| unsafe { (*arguments.add(place)).cast::<f32>().read() };
    let task: Box<dyn FnOnce() + Send> = match name {
        "flodl_divide" => {
            let [values, count, total] = [0, 1, 2].map(number);
            Box::new(move || divide(values, count, total))
        }
        "flodl_measure" => {
            let [theta, values, count, first, found] = [0, 1, 2, 3, 4].map(number);
            Box::new(move || measure(theta, (values, count), first, found))
        }
        "flodl_measure_longs" => {
            let [values, count, first, found] = [0, 1, 2, 3].map(number);
            Box::new(move || measure_longs((values, count), first, found))
        }
        "flodl_fill_longs" => {
            let [values, count, value] = [0, 1, 2].map(number);
            Box::new(move || longs(values, count).fill(value))
        }
        "flodl_slow_momentum" | "flodl_nesterov" => {
            let [previous, average, velocity, next, count] = [0, 1, 2, 3, 4].map(number);
            let (rate, momentum) = (float(5), float(6));
            let is_nesterov = name == "flodl_nesterov";
            Box::new(move || step([previous, average, velocity, next], count, (rate, momentum), is_nesterov))
        }
        _ => return INVALID_VALUE,
    };
    driver::stream(stream).push(task);
    0
}

fn floats(address: u64, count: u64) -> &'static mut [f32] {
    unsafe { std::slice::from_raw_parts_mut(address as *mut f32, count as usize) }
}

fn longs(address: u64, count: u64) -> &'static mut [u64] {
    unsafe { std::slice::from_raw_parts_mut(address as *mut u64, count as usize) }
}

/// What a block has found.
#[repr(C)]
struct Partial {
    squared_distance: f64,
    squared_norm: f64,
    squared_theta: f64,
    not_finite: u64,
    checksum: u64,
}

fn partial(address: u64) -> &'static mut Partial {
    unsafe { &mut *(address as *mut Partial) }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn share(at: u64, bits: u64) -> u64 {
    mix(bits.wrapping_add((at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

fn divide(values: u64, count: u64, total: u64) {
    let mass = unsafe { *(total as *const f64) } as f32;
    floats(values, count).iter_mut().for_each(|value| *value /= mass);
}

fn measure(theta: u64, (values, count): (u64, u64), first: u64, found: u64) {
    let found = partial(found);
    for (at, value) in (first..).zip(floats(values, count).iter()) {
        found.not_finite += u64::from(!value.is_finite());
        found.checksum = found.checksum.wrapping_add(share(at, u64::from(value.to_bits())));
    }
    if theta == 0 {
        return;
    }
    for (before, value) in floats(theta, count).iter().zip(floats(values, count).iter()) {
        let (before, value) = (f64::from(*before), f64::from(*value));
        found.squared_distance += (before - value) * (before - value);
        found.squared_norm += value * value;
        found.squared_theta += before * before;
    }
}

fn measure_longs((values, count): (u64, u64), first: u64, found: u64) {
    let found = partial(found);
    for (at, value) in (first..).zip(longs(values, count).iter()) {
        found.checksum = found.checksum.wrapping_add(share(at, *value));
    }
}

fn step(memories: [u64; 4], count: u64, (rate, momentum): (f32, f32), is_nesterov: bool) {
    let [previous, average, velocity, next] = memories.map(|address| floats(address, count));
    for (place, average) in average.iter_mut().enumerate() {
        let gradient = previous[place] - *average;
        let moved = momentum * velocity[place] + gradient;
        next[place] = moved;
        let by = if is_nesterov { rate * (gradient + momentum * moved) } else { rate * moved };
        *average = previous[place] - by;
    }
}
