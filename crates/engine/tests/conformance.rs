//! Every engine passes the same suite, on every device that it runs on.

#![allow(missing_docs)]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tessera_core::{DType, Device, Result, Tensor, TensorMut};
use tessera_engine::conformance::CHECKS;
use tessera_engine::{
    CudaEngineSession, Engine, EngineSession, LoadOptions, OnnxRuntime, Program, Rten, to_host,
};

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
        // The test command fetches the library; without it there is nothing to test, and CI says
        // so.
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "CI must have ONNX Runtime: {error}");
            eprintln!("SKIPPED: {error}");
        }
    }
}

/// An engine whose sessions run on a GPU, with results that the CPU can read.
struct OnGpu {
    engine: OnnxRuntime,
    /// Whether runs are captured.
    captures: bool,
}

struct ReadByCpu(Box<dyn EngineSession>);

/// The same, of runs that are captured.
struct Captured(Box<dyn CudaEngineSession>);

/// Runs that were replayed from a CUDA graph.
static REPLAYED: AtomicU64 = AtomicU64::new(0);

impl Engine for OnGpu {
    fn name(&self) -> &'static str {
        "onnxruntime on cuda:0"
    }

    fn version(&self) -> String {
        self.engine.version()
    }

    fn load_program(
        &self,
        program: &Program,
        options: &LoadOptions,
    ) -> Result<Box<dyn EngineSession>> {
        let options = LoadOptions { device: Device::Cuda(0), ..options.clone() };
        if !self.captures {
            return Ok(Box::new(ReadByCpu(self.engine.load_program(program, &options)?)));
        }
        let mut session = self.engine.load_cuda_program(program, &options)?;
        session.capture_cuda_graphs();
        Ok(Box::new(Captured(session)))
    }

    fn load_file(
        &self,
        file: &Path,
        inputs: &[String],
        outputs: &[(String, DType)],
        options: &LoadOptions,
    ) -> Result<Box<dyn EngineSession>> {
        let options = LoadOptions { device: Device::Cuda(0), ..options.clone() };
        let session = self.engine.load_file(file, inputs, outputs, &options)?;
        Ok(Box::new(ReadByCpu(session)))
    }
}

fn on_host(results: Vec<Tensor>) -> Result<Vec<Tensor>> {
    results.iter().map(|result| to_host(result)?.wait_fence_on_host()).collect()
}

impl EngineSession for ReadByCpu {
    fn computes_in_place(&self) -> bool {
        self.0.computes_in_place()
    }

    fn run_inference(
        &mut self,
        inputs: &[Tensor],
        outputs: Vec<Option<TensorMut>>,
    ) -> Result<Vec<Tensor>> {
        on_host(self.0.run_inference(inputs, outputs)?)
    }
}

impl EngineSession for Captured {
    fn computes_in_place(&self) -> bool {
        self.0.computes_in_place()
    }

    fn run_inference(
        &mut self,
        inputs: &[Tensor],
        outputs: Vec<Option<TensorMut>>,
    ) -> Result<Vec<Tensor>> {
        if outputs.iter().all(Option::is_none) {
            // Until it is replayed, or it is clear that it never will.
            let (before, begun) = (self.0.replayed_runs(), Instant::now());
            while self.0.replayed_runs() == before && begun.elapsed() < Duration::from_secs(1) {
                self.0.run_inference(inputs, outputs.iter().map(|_| None).collect())?;
                std::thread::sleep(Duration::from_millis(5));
            }
            REPLAYED.fetch_add(self.0.replayed_runs() - before, Ordering::Relaxed);
        }
        on_host(self.0.run_inference(inputs, outputs)?)
    }
}

#[test]
fn onnx_runtime_keeps_the_promises_of_an_engine_on_a_gpu() {
    if let Err(error) = tessera_cuda::list_gpus() {
        eprintln!("SKIPPED on the GPU: {error}");
        return;
    }
    match OnnxRuntime::new() {
        Ok(engine) => pass(&OnGpu { engine, captures: false }),
        Err(error) => eprintln!("SKIPPED on the GPU: {error}"),
    }
}

#[test]
fn onnx_runtime_keeps_the_promises_of_an_engine_when_runs_are_captured() {
    if let Err(error) = tessera_cuda::list_gpus() {
        eprintln!("SKIPPED on the GPU: {error}");
        return;
    }
    match OnnxRuntime::new() {
        Ok(engine) => {
            pass(&OnGpu { engine, captures: true });
            let replayed = REPLAYED.load(Ordering::Relaxed);
            println!("{replayed} runs were replayed");
            assert!(replayed >= 8, "{replayed} runs were replayed");
        }
        Err(error) => eprintln!("SKIPPED on the GPU: {error}"),
    }
}
