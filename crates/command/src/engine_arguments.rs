//! Flags that say which engine runs units, and on what.

use std::num::NonZeroUsize;
use std::sync::Arc;

use clap::Args;
use tessera_core::{Device, Result};
use tessera_engine::{
    ConvolutionSearch, CudaOptions, Engine, EngineName, LoadOptions, choose_engine,
};
use tessera_report::output;

/// Which engine, and on what.
#[derive(Args)]
pub struct EngineArguments {
    /// auto, onnxruntime or rten; auto takes ONNX Runtime where its library is found
    #[arg(long, default_value_t = EngineName::Auto)]
    pub engine: EngineName,
    /// Threads that a unit may use
    #[arg(long, default_value_t = NonZeroUsize::MIN)]
    pub threads: NonZeroUsize,
    /// What units run on: cpu, or cuda:N for a GPU; see `tessera devices`
    #[arg(long, default_value_t = Device::Cpu)]
    pub device: Device,
    /// How they run there.
    #[command(flatten)]
    pub cuda: CudaArguments,
}

/// How units run on a GPU.
#[derive(Args)]
pub struct CudaArguments {
    /// On a GPU: compute products of f32 with ten bits of fraction, which is faster
    #[arg(long)]
    pub tf32: bool,
    /// On a GPU, how the algorithm of a convolution is chosen: exhaustive, heuristic or default
    #[arg(long, default_value_t = ConvolutionSearch::default(), value_name = "HOW")]
    pub convolution_search: ConvolutionSearch,
}

impl CudaArguments {
    /// The same for the engine.
    pub fn cuda_options(&self) -> CudaOptions {
        CudaOptions {
            tf32: self.tf32,
            convolution: self.convolution_search,
            ..CudaOptions::default()
        }
    }
}

impl EngineArguments {
    /// The engine that the user asked for; says so where it is not the fast one.
    pub fn choose_engine(&self) -> Result<Arc<dyn Engine>> {
        let (engine, note) = choose_engine(self.engine)?;
        if let Some(note) = note {
            output::print_notice(&note);
        }
        Ok(engine)
    }

    /// How it loads units.
    pub fn load_options(&self) -> LoadOptions {
        let cuda = self.cuda.cuda_options();
        let (threads, device) = (self.threads, self.device);
        LoadOptions { threads, device, cuda, ..LoadOptions::default() }
    }
}
