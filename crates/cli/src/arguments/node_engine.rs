//! How a role runs units.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tessera_command::{CudaArguments, parse_byte_size, parse_engine};
use tessera_core::{Error, Result};
use tessera_engine::{CudaOptions, EngineName, WeightLoading};
use tessera_plan::residency::eviction::EvictionPolicy;
use tessera_server::{GpuBudget, NodeConfig, RunLimits, WeightLimits};

fn parse_eviction(name: &str) -> Result<EvictionPolicy> {
    match EvictionPolicy::from_name(name)? {
        EvictionPolicy::Offline => Err(Error::usage(
            "policy \"offline\" knows what comes, which only a simulation does; expected \
             reload-cost or least-recently-used",
        )),
        policy => Ok(policy),
    }
}

fn parse_gpu_budget(text: &str) -> Result<GpuBudget> {
    match text {
        "unlimited" => Ok(GpuBudget::Unbounded),
        size => match parse_byte_size(size) {
            Ok(bytes) => Ok(GpuBudget::Bytes(bytes)),
            Err(error) => Err(Error::usage(format!("{error}; or unlimited"))),
        },
    }
}

fn parse_loading(name: &str) -> Result<WeightLoading> {
    match name.parse()? {
        WeightLoading::Once => {
            Err(Error::usage("expected load-then-run, pipeline or direct-host-access"))
        }
        loading => Ok(loading),
    }
}

#[derive(Args)]
pub(crate) struct NodeArguments {
    #[command(flatten)]
    pub(crate) cuda: CudaArguments,
    /// On a GPU: launch every kernel of every run, instead of capturing runs that take long to
    /// launch as CUDA graphs
    #[arg(long)]
    pub(crate) no_cuda_graphs: bool,
    /// auto, onnxruntime or rten; auto takes ONNX Runtime where its library is found
    #[arg(long, default_value_t = EngineName::Auto, value_parser = parse_engine)]
    pub(crate) engine: EngineName,
    /// Cores to compute on [default: all]
    #[arg(long)]
    pub(crate) cores: Option<NonZeroUsize>,
    /// Memory that runs may take at a time, all of the server's or those of one process; such as
    /// 2GB [default: half of what there is]
    #[arg(long, value_name = "SIZE", value_parser = parse_byte_size)]
    pub(crate) max_run_memory: Option<u64>,
    /// Memory that the weights of units on the CPU may take, such as 2GB: what is asked for is
    /// loaded, what is not leaves [default: as much as they need]
    #[arg(long, visible_alias = "memory", value_name = "SIZE", value_parser = parse_byte_size)]
    pub(crate) host_memory: Option<u64>,
    /// Memory of each GPU that the weights of units on threads may take, or unlimited: the same, at
    /// the speed of the bus [default: all that is free at the start but a tenth of the GPU's]
    #[arg(long, value_name = "SIZE", value_parser = parse_gpu_budget)]
    pub(crate) gpu_memory: Option<GpuBudget>,
    /// Whose weights leave where there is no room: reload-cost or least-recently-used
    #[arg(long, value_name = "POLICY", default_value = "reload-cost", value_parser = parse_eviction)]
    pub(crate) eviction: EvictionPolicy,
    /// How weights come to a GPU: load-then-run; pipeline, in parts while the run that needs them is
    /// under way; or direct-host-access, the same with tables read over the bus
    #[arg(long, value_name = "HOW", default_value = "pipeline", value_parser = parse_loading)]
    pub(crate) loading: WeightLoading,
    /// Seconds after which a run is ended, whoever waits for it [default: 100 times the longest so
    /// far, 10 to 600]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) max_run_time: Option<NonZeroU64>,
}

impl NodeArguments {
    /// The node that the user asks for.
    pub(crate) fn node_config(&self, repository: PathBuf) -> NodeConfig {
        NodeConfig {
            repository,
            engine: self.engine,
            cuda: CudaOptions { cuda_graphs: !self.no_cuda_graphs, ..self.cuda.cuda_options() },
            cores: self.cores_to_use(),
            first_start: 1,
            weight_limits: WeightLimits {
                host: self.host_memory,
                gpu: self.gpu_memory.unwrap_or(GpuBudget::AllButMargin),
                eviction: self.eviction,
                loading: self.loading,
            },
            run_limits: RunLimits {
                memory: self.max_run_memory,
                time: self.max_run_time.map(|seconds| Duration::from_secs(seconds.get())),
            },
        }
    }

    fn cores_to_use(&self) -> NonZeroUsize {
        let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.cores.unwrap_or(all)
    }
}
