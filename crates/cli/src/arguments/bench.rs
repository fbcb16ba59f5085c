//! The command line of the benchmarks.

pub(crate) mod placement;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use tessera_core::Device;
use tessera_plan::Isolation;
use tessera_tensormq::Transport;

use placement::BenchPlacement;

use super::{EngineArguments, ModelArguments, RepositoryArgument, SplitArguments};

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// A chain of blocks against the whole model, measured in turns
    Chain(BenchChain),
    /// Many siblings of a model: bytes in the repository, and in memory with all of them loaded
    Siblings(BenchSiblings),
    /// How long a tensor takes to the next block, one way, over each transport
    ///
    /// Between two processes (two threads for `thread`) that take turns: the receiver notes when a
    /// message is there, compared with the time that the sender wrote into its tensor just before.
    Hop(BenchHop),
    /// A chain of processes that pass tensors on for a while: hops per second, and memory
    Relay(BenchRelay),
    /// A server with a model in blocks beside the bare engine with the whole model
    ///
    /// Latency with one client, throughput with several, with blocks on threads and in processes, and
    /// with ten tasks that share stages; and the memory of an idle server.
    Serve(BenchServe),
    /// A server that is asked for more than it can do: goodput, and memory
    Overload(BenchOverload),
    /// Change the tasks of a server under load, and count the failed requests of one that stays
    Change(BenchChange),
    /// Kill the processes of a server's blocks under load, and count answers and how soon blocks are back
    Faults(BenchFaults),
    /// Kill processes that hand tensors over, at random, and count what is left of them
    ///
    /// Three processes in a row, of which some are killed at a random moment from their start on. The
    /// others must learn it within 100 ms and get their buffers back. Fails where anything is left:
    /// shared memory, temporary files, sockets, processes.
    Kill(BenchKill),
    /// A model in blocks on a GPU beside the whole model: latency, energy, throughput and video memory
    ///
    /// The experiments of the BlockFlow thesis' chapter 4, on whatever GPU there is: `--device cuda:0`. Without it they run on
    /// the CPU, to try them out.
    Gpu(BenchGpu),
    /// Strategies of placement: how long they plan, and how far from the optimum they are
    ///
    /// On hierarchies of nodes that are drawn as in the addnn thesis' section 7.2, or on instances from a
    /// file.
    Placement(BenchPlacement),
    /// Another process of one of these
    #[command(hide = true)]
    Peer(BenchPeer),
    /// Load every model of a repository and print the memory that this process holds
    Resident(BenchResident),
}

#[derive(Args)]
pub(crate) struct BenchChain {
    /// ONNX file, or the name of a zoo architecture
    #[arg(long, default_value = "resnet50")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) arguments: ModelArguments,
    #[command(flatten)]
    pub(crate) split: SplitArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Measured runs of each
    #[arg(long, default_value_t = 100)]
    pub(crate) runs: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct BenchGpu {
    /// ONNX file with one input and an open batch, or the name of a zoo architecture
    #[arg(long, default_value = "resnet50")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) split: SplitArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Tell the GPU every kernel of every run, instead of recording runs that take long to tell (CUDA graphs)
    #[arg(long)]
    pub(crate) no_recordings: bool,
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
    pub(crate) crowds: Vec<usize>,
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

#[derive(Args)]
pub(crate) struct BenchServe {
    /// ONNX file with one input, or the name of a zoo architecture
    #[arg(long, default_value = "resnet50")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) split: SplitArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Measured requests of one client
    #[arg(long, default_value_t = 100)]
    pub(crate) runs: usize,
    /// Clients for the throughput
    #[arg(long, default_value_t = 8)]
    pub(crate) clients: usize,
    /// Seconds of each measurement of throughput
    #[arg(long, default_value_t = 4.0)]
    pub(crate) seconds: f64,
    /// How often each is measured, in turns
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct BenchOverload {
    /// ONNX file, or the name of a zoo architecture
    #[arg(long, default_value = "resnet50")]
    pub(crate) model: String,
    /// thread or process
    #[arg(long, default_value = "thread", value_parser = crate::serve::isolation)]
    pub(crate) isolation: Isolation,
    /// How much more than its capacity it is asked for
    #[arg(long, default_value_t = 2.0)]
    pub(crate) times: f64,
    /// Milliseconds that a request may take
    #[arg(long, default_value_t = 1000.0, value_name = "MS")]
    pub(crate) deadline: f64,
    /// How long
    #[arg(long, default_value_t = 60.0)]
    pub(crate) seconds: f64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct BenchChange {
    /// Zoo architecture
    #[arg(long, default_value = "resnet18")]
    pub(crate) model: String,
    /// thread or process
    #[arg(long, default_value = "thread", value_parser = crate::serve::isolation)]
    pub(crate) isolation: Isolation,
    /// How many updates
    #[arg(long, default_value_t = 200)]
    pub(crate) count: usize,
    /// Clients that ask meanwhile
    #[arg(long, default_value_t = 4)]
    pub(crate) clients: usize,
    /// Most milliseconds between a change and the next
    #[arg(long, default_value_t = 200, value_name = "MS")]
    pub(crate) pause: u64,
    /// Seed of the changes
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct BenchFaults {
    /// Zoo architecture
    #[arg(long, default_value = "resnet18")]
    pub(crate) model: String,
    /// What blocks run on: cpu, or cuda:N for a GPU, whose memory must be back at the end
    #[arg(long, default_value_t = Device::Cpu)]
    pub(crate) device: Device,
    /// Blocks that may be away at the same time
    #[arg(long, default_value_t = 1)]
    pub(crate) at_once: usize,
    /// How many kills
    #[arg(long, default_value_t = 200)]
    pub(crate) count: usize,
    /// Clients that ask meanwhile
    #[arg(long, default_value_t = 4)]
    pub(crate) clients: usize,
    /// Most milliseconds between a block that is back and the next kill
    #[arg(long, default_value_t = 300, value_name = "MS")]
    pub(crate) pause: u64,
    /// Seed of who is killed when
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct BenchHop {
    /// thread, shm, zmq-ipc or zmq-tcp
    #[arg(long, default_value = "shm")]
    pub(crate) transport: Transport,
    /// Bytes of the tensor
    #[arg(long, default_value_t = 3_211_264)]
    pub(crate) bytes: usize,
    /// Messages that are measured
    #[arg(long, default_value_t = 10_000)]
    pub(crate) count: usize,
    /// Microseconds between a message and the next; with a gap the receiver has gone to sleep
    #[arg(long, default_value_t = 0)]
    pub(crate) gap: u64,
    /// Microseconds to look again and again before going to sleep; default by measurement
    #[arg(long)]
    pub(crate) spin: Option<u64>,
    /// All transports at 4 KB, 3.2 MB and 12.8 MB, beside ZeroMQ with pickled tensors in Python
    #[arg(long)]
    pub(crate) compare: bool,
    /// How much gets through when tensors follow each other, beside a plain TCP socket
    #[arg(long, conflicts_with = "compare")]
    pub(crate) stream: bool,
    /// Connections, for streams over zmq-tcp
    #[arg(long, default_value_t = 1)]
    pub(crate) lanes: u16,
    /// Encrypt (CURVE), for streams over zmq-tcp
    #[arg(long)]
    pub(crate) encrypt: bool,
    /// The Python for --compare, with pyzmq (and numpy)
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    pub(crate) python: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct BenchRelay {
    /// shm, zmq-ipc or zmq-tcp
    #[arg(long, default_value = "shm")]
    pub(crate) transport: Transport,
    /// Processes that pass on
    #[arg(long, default_value_t = 4)]
    pub(crate) processes: usize,
    /// Bytes of the tensor
    #[arg(long, default_value_t = 3_211_264)]
    pub(crate) bytes: usize,
    /// How long
    #[arg(long, default_value_t = 30)]
    pub(crate) seconds: u64,
    /// Tensors that are under way at the same time
    #[arg(long, default_value_t = 8)]
    pub(crate) window: usize,
    /// Microseconds to look again and again before going to sleep; default by measurement
    #[arg(long)]
    pub(crate) spin: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct BenchKill {
    /// shm, zmq-ipc or zmq-tcp
    #[arg(long, default_value = "shm")]
    pub(crate) transport: Transport,
    /// How many kills
    #[arg(long, default_value_t = 1000)]
    pub(crate) count: usize,
    /// Seed of who is killed when
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct BenchPeer {
    /// What to do, as JSON
    pub(crate) task: String,
}

#[derive(Args)]
pub(crate) struct BenchSiblings {
    /// Zoo architecture
    #[arg(long, default_value = "resnet50")]
    pub(crate) model: String,
    /// How many siblings
    #[arg(long, default_value_t = 20)]
    pub(crate) count: u64,
    /// How many of their first stages they have in common
    #[arg(long, default_value_t = 3)]
    pub(crate) stages: usize,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct BenchResident {
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
