//! Every engine passes the same suite.

use tessera_engine::conformance::CHECKS;
use tessera_engine::{Engine, OnnxRuntime, Rten};

fn pass(engine: &dyn Engine) {
    for (name, check) in CHECKS {
        println!("{}: {name}", engine.name());
        check(engine);
    }
}

#[test]
fn rten_keeps_the_promises_of_an_engine() {
    pass(&Rten::new());
}

#[test]
fn onnx_runtime_keeps_the_promises_of_an_engine() {
    match OnnxRuntime::new() {
        Ok(engine) => pass(&engine),
        // The test command fetches the library; without it there is nothing to test, and CI says so.
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "CI must have ONNX Runtime: {error}");
            eprintln!("SKIPPED: {error}");
        }
    }
}
