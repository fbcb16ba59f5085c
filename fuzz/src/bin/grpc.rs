//! libFuzzer's program for gRPC messages.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tessera_fuzz::send_grpc_message(bytes));
