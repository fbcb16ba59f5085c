//! The command line of `tessera bench gpu`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tessera_command::{EngineArguments, SplitArguments};

/// Options of `tessera bench gpu`.
#[derive(Args)]
pub struct BenchGpu {
    /// ONNX file with one input and an open batch, or the name of a zoo architecture
    #[arg(long, default_value = "resnet50")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) split: SplitArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Launch every kernel of every run, instead of capturing runs that take long to launch as CUDA
    /// graphs
    #[arg(long)]
    pub(crate) no_cuda_graphs: bool,
    /// Rows of requests
    #[arg(long, default_value = "1,2,4,8,16,32", value_delimiter = ',')]
    pub(crate) batches: Vec<usize>,
    /// Measured requests of each batch, for the latency
    #[arg(long, default_value_t = 200)]
    pub(crate) runs: usize,
    /// Seconds of each measurement of energy and of throughput
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// Tasks of the scenarios of video memory
    #[arg(long, default_value_t = 20)]
    pub(crate) tasks: usize,
    /// Which experiments to run [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) only: Vec<GpuExperiment>,
    /// Most clients that wait for their answers, counted up from one
    #[arg(long, default_value_t = 10, hide = true)]
    pub(crate) most_clients: usize,
    /// How many clients the throughput is taken with
    #[arg(long, default_value = "64,128", value_delimiter = ',', hide = true)]
    pub(crate) throughput_clients: Vec<usize>,
    /// Most rows that requests are put together to
    #[arg(long, default_value_t = 32, hide = true)]
    pub(crate) most_rows: usize,
    /// How often each throughput is measured, in turns
    #[arg(long, default_value_t = 3, hide = true)]
    pub(crate) rounds: usize,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The experiments of `bench gpu`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GpuExperiment {
    /// One client, batch by batch
    Latency,
    /// Joules per row
    Energy,
    /// One to ten clients
    Clients,
    /// Requests that come at random, at rising rates
    Arrivals,
    /// Rows per second at most
    Throughput,
    /// Video memory of each block
    Memory,
    /// Video memory of many tasks that share blocks
    Scenarios,
}
