//! Has the program export what takes the place of a function of cuBLAS (see `cublas_workspace.rs` of
//! the engine).

const FUNCTION: &str = "cublasSetStream_v2";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        // Also where nothing in the program calls it.
        println!("cargo:rustc-link-arg-bins=-Wl,--undefined={FUNCTION}");
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={FUNCTION}");
    }
}
