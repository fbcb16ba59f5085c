//! libFuzzer's program for HTTP bodies.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tessera_fuzz::send_http_body(bytes));
