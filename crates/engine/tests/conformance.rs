//! Every engine passes the same suite, on every device that it runs on.

#![allow(missing_docs)]

use std::path::Path;

use tessera_core::{DType, Device, Result, Tensor, TensorMut};
use tessera_engine::conformance::CHECKS;
use tessera_engine::{Engine, LoadOptions, OnnxRuntime, Program, Rten, Session, to_host};

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

/// An engine whose sessions run on a GPU, with results that the CPU can read.
struct OnGpu(OnnxRuntime);

struct ReadByCpu(Box<dyn Session>);

impl Engine for OnGpu {
    fn name(&self) -> &'static str {
        "onnxruntime on cuda:0"
    }

    fn version(&self) -> String {
        self.0.version()
    }

    fn load(&self, program: &Program, options: &LoadOptions) -> Result<Box<dyn Session>> {
        let options = LoadOptions { device: Device::Cuda(0), ..options.clone() };
        Ok(Box::new(ReadByCpu(self.0.load(program, &options)?)))
    }

    fn load_file(
        &self,
        file: &Path,
        inputs: &[String],
        outputs: &[(String, DType)],
        options: &LoadOptions,
    ) -> Result<Box<dyn Session>> {
        let options = LoadOptions { device: Device::Cuda(0), ..options.clone() };
        Ok(Box::new(ReadByCpu(self.0.load_file(file, inputs, outputs, &options)?)))
    }
}

impl Session for ReadByCpu {
    fn computes_in_place(&self) -> bool {
        self.0.computes_in_place()
    }

    fn run(&mut self, inputs: &[Tensor], outputs: Vec<Option<TensorMut>>) -> Result<Vec<Tensor>> {
        let results = self.0.run(inputs, outputs)?;
        results.iter().map(|result| to_host(result)?.settled()).collect()
    }
}

#[test]
fn onnx_runtime_keeps_the_promises_of_an_engine_on_a_gpu() {
    if let Err(error) = tessera_cuda::devices() {
        eprintln!("SKIPPED on the GPU: {error}");
        return;
    }
    match OnnxRuntime::new() {
        Ok(engine) => pass(&OnGpu(engine)),
        Err(error) => eprintln!("SKIPPED on the GPU: {error}"),
    }
}
