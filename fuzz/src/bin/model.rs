//! libFuzzer's program for a model file.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tessera_fuzz::cut_model(bytes));
