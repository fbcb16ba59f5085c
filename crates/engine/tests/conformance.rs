//! Every engine passes the same suite, on every device that it runs on.

#![allow(missing_docs)]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
struct OnGpu {
    engine: OnnxRuntime,
    /// Whether runs are recorded.
    records: bool,
}

struct ReadByCpu {
    session: Box<dyn Session>,
    records: bool,
}

/// Runs that were played from a recording.
static PLAYED: AtomicU64 = AtomicU64::new(0);

impl Engine for OnGpu {
    fn name(&self) -> &'static str {
        "onnxruntime on cuda:0"
    }

    fn version(&self) -> String {
        self.engine.version()
    }

    fn load(&self, program: &Program, options: &LoadOptions) -> Result<Box<dyn Session>> {
        let options = LoadOptions { device: Device::Cuda(0), ..options.clone() };
        let mut session = self.engine.load(program, &options)?;
        if self.records {
            session.record_runs();
        }
        Ok(Box::new(ReadByCpu { session, records: self.records }))
    }

    fn load_file(
        &self,
        file: &Path,
        inputs: &[String],
        outputs: &[(String, DType)],
        options: &LoadOptions,
    ) -> Result<Box<dyn Session>> {
        let options = LoadOptions { device: Device::Cuda(0), ..options.clone() };
        let session = self.engine.load_file(file, inputs, outputs, &options)?;
        Ok(Box::new(ReadByCpu { session, records: false }))
    }
}

impl Session for ReadByCpu {
    fn computes_in_place(&self) -> bool {
        self.session.computes_in_place()
    }

    fn run(&mut self, inputs: &[Tensor], outputs: Vec<Option<TensorMut>>) -> Result<Vec<Tensor>> {
        if self.records && outputs.iter().all(Option::is_none) {
            // Until it is played, or it is clear that it never will.
            let (before, begun) = (self.session.played_runs(), Instant::now());
            while self.session.played_runs() == before && begun.elapsed() < Duration::from_secs(1) {
                self.session.run(inputs, outputs.iter().map(|_| None).collect())?;
                std::thread::sleep(Duration::from_millis(5));
            }
            PLAYED.fetch_add(self.session.played_runs() - before, Ordering::Relaxed);
        }
        let results = self.session.run(inputs, outputs)?;
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
        Ok(engine) => pass(&OnGpu { engine, records: false }),
        Err(error) => eprintln!("SKIPPED on the GPU: {error}"),
    }
}

#[test]
fn onnx_runtime_keeps_the_promises_of_an_engine_when_runs_are_recorded() {
    if let Err(error) = tessera_cuda::devices() {
        eprintln!("SKIPPED on the GPU: {error}");
        return;
    }
    match OnnxRuntime::new() {
        Ok(engine) => {
            pass(&OnGpu { engine, records: true });
            let played = PLAYED.load(Ordering::Relaxed);
            println!("{played} runs were played");
            assert!(played >= 8, "{played} runs were played");
        }
        Err(error) => eprintln!("SKIPPED on the GPU: {error}"),
    }
}
