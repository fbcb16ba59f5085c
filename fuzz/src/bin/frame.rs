//! libFuzzer's program for headers of TensorMQ messages.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tessera_fuzz::parse_header(bytes));
