//! `frame` under the fuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| flodl_wire_fuzz::fuzzed::frame(bytes));
