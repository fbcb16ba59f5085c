//! libFuzzer's program for source routes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tessera_fuzz::follow_route(bytes));
