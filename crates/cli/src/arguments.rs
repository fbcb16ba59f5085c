//! The command line; benchmarks bring their own.

mod access;
mod admin;
mod controller;
mod gateway;
mod logs;
mod node;
mod node_engine;
pub(crate) mod plan;
mod serve;
mod served_models;
mod serving;
mod wrong_flags;

pub(crate) use admin::{AdminArguments, AskerArguments, ListArguments, TokenCommand};
pub(crate) use controller::ControllerArguments;
pub(crate) use logs::LogArguments;
pub(crate) use node::{NodeAction, NodeCommand, RunNodeArguments};
pub(crate) use plan::PlanArguments;
pub(crate) use serve::ServeArguments;
pub(crate) use serving::{
    LiveArguments, PutArguments, RequestsArguments, RmArguments, ServerArguments, UndoArguments,
    WatchArguments,
};

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tessera_bench::BenchCommand;
use tessera_command::{EngineArguments, ModelArguments, RepositoryArgument, SplitArguments};
use tessera_core::Device;
use tessera_object_store::StoreAddress;

/// Serves neural networks as blocks: cut any ONNX model, share what is the same, run the pieces.
#[derive(Parser)]
#[command(name = "tessera", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Write a well-known architecture with made-up weights as an ONNX file
    ///
    /// Writes NAME.onnx, the same bytes every time for the same options. The weights are made up
    /// but scaled so that activations stay finite, so that every benchmark runs without a download.
    Zoo(ZooArguments),
    /// Show what a model is made of and where it can be cut
    Inspect(InspectArguments),
    /// Cut a model into blocks and keep them in a repository
    ///
    /// Each block is stored once under the hash of its content, however many models use it; see
    /// `tessera repo list` for what there is.
    Split(SplitCommand),
    /// Cut several models so that the layers they have in common become shared blocks
    ///
    /// Finds the layers that the models have in common and cuts so that each common run of layers
    /// becomes a block of its own, which the repository then holds once.
    Share(ShareArguments),
    /// Run a model block by block on an input
    ///
    /// Runs a model from a file (cut as `split` cuts it) or from the repository, and prints the top
    /// five classes, or the output where it is no classification, with the time of each block.
    Run(RunArguments),
    /// Cut a model, run it whole and in blocks, and print how far the results are apart
    ///
    /// Runs the file as it is and the blocks it is cut into on the same random inputs. Fails where
    /// the results differ by more than --tolerance, relative to the largest element of an output.
    Verify(VerifyArguments),
    /// Count and measure what each layer and block of a model costs
    ///
    /// Layers are what lies between neighbouring cut points. FLOPs are counted as one per
    /// multiply-add; memory is input, weights and output together. Times are medians on this
    /// machine.
    Profile(ProfileArguments),
    /// List what blocks can run on: the CPU, and GPUs with their memory and how they are connected
    Devices(DevicesArguments),
    /// Look after a repository of blocks
    #[command(subcommand)]
    Repo(Repo),
    /// Serve models over the Open Inference Protocol
    ///
    /// Cuts the models so that the layers they have in common are shared, stores them in the
    /// repository and serves each as a task under its file's name; without models, serves what was
    /// served last (or what PUT /v1/system asked for since). Clients of Triton and KServe work
    /// unchanged. SIGTERM and Ctrl-C let requests finish first; a second one does not.
    Serve(ServeArguments),
    /// Put models into a running server, which serves each as a task
    ///
    /// What a model has in common with those that are served is shared: they are cut further where
    /// that takes it, while they answer. Weights that the server has are not kept twice.
    Put(PutArguments),
    /// Stop serving tasks
    Rm(RmArguments),
    /// List the tasks of a running server
    Tasks(ServerArguments),
    /// Show what a running server runs, and what sharing saves
    Status(ServerArguments),
    /// Follow what happens at a running server: requests, instances that come and go, changes
    Events(WatchArguments),
    /// Watch a running server: rates, times, queues and memory, each second
    Top(LiveArguments),
    /// List the requests of a running server that are worth a look: the slowest, and those that
    /// failed
    Requests(RequestsArguments),
    /// List what was changed at a running server, and which instances came and went
    History(ServerArguments),
    /// Make tasks of a running server be as they were before a change
    Undo(UndoArguments),
    /// Decide for a cluster: which tasks there are, and which nodes run them
    ///
    /// Keeps tasks, tokens and nodes in the repository, whose blocks nodes fetch. It neither
    /// computes nor answers requests: nodes do, and go on while it is away.
    Controller(ControllerArguments),
    /// Run units of a cluster, and answer its clients with --gateway
    ///
    /// Joins with a token of `tessera token create`; from then on its certificate, which it renews,
    /// says who it is. Also: what happens to a node of the cluster (drain, undrain, remove).
    Node(NodeCommand),
    /// List the nodes of a cluster
    Nodes(ListArguments),
    /// Make, list and revoke tokens that let nodes join a cluster
    #[command(subcommand)]
    Token(TokenCommand),
    /// Send requests to a server that speaks the Open Inference Protocol, and measure
    ///
    /// A closed loop of clients (--clients), an open loop at a rate (--rate), or a sweep of rates
    /// to find out where the server is saturated (--sweep). Works with any server of the protocol.
    Load(LoadArguments),
    /// Plan where blocks and weights should be, and say what a plan would cost
    ///
    /// From problem files in YAML or JSON (see examples/plan), with a table for people, --svg for a
    /// picture and --json for machines; nothing is carried out. Or what the planner of a running
    /// cluster does, with --cluster.
    Plan(PlanArguments),
    /// Measure, and compare within one run
    #[command(subcommand)]
    Bench(BenchCommand),
    /// The process of an instance, started by its node
    #[command(hide = true)]
    Instance,
}

#[derive(Args)]
pub(crate) struct LoadArguments {
    /// Name of the model
    pub(crate) model: String,
    /// Where the server is
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub(crate) url: String,
    /// Version of the model
    #[arg(long)]
    pub(crate) version: Option<String>,
    /// Clients that each send the next request when they have the answer to the last [default: 1]
    #[arg(long, conflicts_with_all = ["rate", "sweep"])]
    pub(crate) clients: Option<usize>,
    /// Requests per second, whether or not answers come back
    #[arg(long, conflicts_with = "sweep")]
    pub(crate) rate: Option<f64>,
    /// Rates to try: "10,20,40", START:END:STEP, or auto, auto:START or auto:START:LIMIT, which
    /// doubles and then bisects
    #[arg(long, value_name = "RATES", num_args = 0..=1, default_missing_value = "auto")]
    pub(crate) sweep: Option<String>,
    /// poisson or constant
    #[arg(long, default_value = "poisson")]
    pub(crate) arrivals: String,
    /// Seconds to measure, per rate in a sweep
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    pub(crate) duration: f64,
    /// Stop after so many requests instead (closed loop)
    #[arg(long)]
    pub(crate) requests: Option<u64>,
    /// Seconds before the measurement
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub(crate) warm_up: f64,
    /// Milliseconds within which an answer is worth something (goodput)
    #[arg(long, value_name = "MS")]
    pub(crate) deadline: Option<f64>,
    /// Tell the server the deadline with each request
    #[arg(long, requires = "deadline")]
    pub(crate) send_deadline: bool,
    /// Rows of each request, where the model's first dimension is open
    #[arg(long)]
    pub(crate) batch: Option<usize>,
    /// Shape of an input with open dimensions; repeat for more
    #[arg(long = "shape", value_name = "NAME=d,d,…")]
    pub(crate) shapes: Vec<String>,
    /// Values of an integer input: lo <= value < hi; repeat for more
    #[arg(long = "range", value_name = "NAME=lo,hi")]
    pub(crate) ranges: Vec<String>,
    /// Seed of inputs and arrivals
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Send tensors as JSON, for servers without the binary extension
    #[arg(long)]
    pub(crate) json_tensors: bool,
    /// Most connections of an open loop
    #[arg(long, default_value_t = 512)]
    pub(crate) connections: usize,
    /// The server's metrics page, such as http://127.0.0.1:8002/metrics: adds what GPUs drew, also
    /// per answer
    #[arg(long, value_name = "URL")]
    pub(crate) metrics: Option<String>,
    /// Write a report with plots to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ZooArguments {
    /// resnet18, resnet50, resnet101, resnet152, vgg13, mobilenet-v2, bert-base, bert-large,
    /// roberta-base, roberta-large, gpt2, gpt2-medium, split-resnet50 or detector
    #[arg(required_unless_present = "list")]
    pub(crate) name: Option<String>,
    /// List the architectures
    #[arg(long)]
    pub(crate) list: bool,
    /// File to write [default: NAME.onnx in the current folder]
    #[arg(short, long)]
    pub(crate) output: Option<PathBuf>,
    /// Seed of the weights
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Make a fine-tuned sibling: its first stages have the weights of this seed
    #[arg(long, value_name = "SEED", requires = "stages")]
    pub(crate) share_with: Option<u64>,
    /// How many of its first stages a sibling has in common
    #[arg(long, value_name = "K", requires = "share_with")]
    pub(crate) stages: Option<usize>,
    /// Add side exits, listed in NAME.exits.json beside the model
    #[arg(long)]
    pub(crate) exits: bool,
    /// Batch size, or "dynamic" for a symbolic one
    #[arg(long, default_value = "1")]
    pub(crate) batch: String,
    /// Keep batch normalisation as layers of its own instead of folding it into convolutions
    #[arg(long)]
    pub(crate) batch_norm: bool,
    /// Length of sequences [default: the one that the architecture is known for]
    #[arg(long, value_name = "LENGTH")]
    pub(crate) sequence: Option<usize>,
    /// Print what was written as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct InspectArguments {
    /// ONNX file
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) arguments: ModelArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct SplitCommand {
    /// ONNX file
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) arguments: ModelArguments,
    #[command(flatten)]
    pub(crate) split: SplitArguments,
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    /// Name to keep the model under [default: the file's name]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Show the blocks and store nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ShareArguments {
    /// ONNX files; NAME=FILE where the file's name, or its folder's for several that are called
    /// alike, is not what a model should be called
    #[arg(required = true, num_args = 1.., value_name = "[NAME=]FILE")]
    pub(crate) models: Vec<PathBuf>,
    /// Fix the shape of an input, of all models that have it or of the one called NAME; repeat for
    /// more
    #[arg(long = "shape", value_name = "[NAME:]INPUT=d,d,…")]
    pub(crate) shapes: Vec<String>,
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    /// Show what would be shared and store nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Say which weights in common are in no common block, and why
    #[arg(long)]
    pub(crate) explain: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct RunArguments {
    /// ONNX file, or the name of a model in the repository
    pub(crate) model: String,
    /// An input: a .npy file, raw little-endian elements, or an image (.png, .jpg), which is
    /// resized and normalised as ImageNet models expect; inputs without a file get random values
    #[arg(short, long = "input", value_name = "[NAME=]FILE")]
    pub(crate) inputs: Vec<String>,
    /// Values of an integer input that is random: lo <= value < hi; repeat for more
    #[arg(long = "range", value_name = "NAME=lo,hi")]
    pub(crate) ranges: Vec<String>,
    /// Seed of random inputs
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) arguments: ModelArguments,
    #[command(flatten)]
    pub(crate) split: SplitArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    /// Never take a side exit
    #[arg(long)]
    pub(crate) no_exits: bool,
    /// Folder to write every output to, as OUTPUT.npy
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,
    /// Print JSON, with the outputs' elements where there are at most 1000
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct DevicesArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct VerifyArguments {
    /// ONNX file
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) arguments: ModelArguments,
    #[command(flatten)]
    pub(crate) split: SplitArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// What the whole model runs on, to compare devices [default: as --device]
    #[arg(long, value_name = "DEVICE")]
    pub(crate) against: Option<Device>,
    /// Values of an integer input: lo <= value < hi; repeat for more
    #[arg(long = "range", value_name = "NAME=lo,hi")]
    pub(crate) ranges: Vec<String>,
    /// How many random inputs
    #[arg(long, default_value_t = 1)]
    pub(crate) inputs: u64,
    /// Seed of the inputs
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Largest difference that is no failure, relative to the largest element of an output
    /// [default: 2e-5 for 32 bits, 4e-3 for 16, 2e-2 for 8, and more for deep models]
    #[arg(long)]
    pub(crate) tolerance: Option<f64>,
    /// Difference that is no failure whatever the size of the elements
    /// [default: a tenth of --tolerance]
    #[arg(long, value_name = "DIFFERENCE")]
    pub(crate) absolute_tolerance: Option<f64>,
    /// Find the first block whose output differs
    #[arg(long)]
    pub(crate) bisect: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ProfileArguments {
    /// ONNX file
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) arguments: ModelArguments,
    #[command(flatten)]
    pub(crate) split: SplitArguments,
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Values of an integer input: lo <= value < hi; repeat for more
    #[arg(long = "range", value_name = "NAME=lo,hi")]
    pub(crate) ranges: Vec<String>,
    /// Measured runs; 0 counts and measures nothing
    #[arg(long, default_value_t = 10)]
    pub(crate) runs: usize,
    /// On a GPU: how long a run takes for each part of the weights, in the GPU's memory and read
    /// from the host's, and how long each takes to come; with --json what `plan residency` takes
    #[arg(long, conflicts_with_all = ["csv", "blocks", "at", "every"])]
    pub(crate) residency: bool,
    /// Print CSV: the layers, then the blocks
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum Repo {
    /// List the models, and how much the repository holds
    List(RepoCommand),
    /// Show the path of a model through its blocks
    Show(RepoNamed),
    /// Forget a model; its blocks stay until gc
    Remove(RepoNamed),
    /// Check every file against its hash, and every reference
    Verify(RepoCommand),
    /// Remove what no model needs
    Gc(RepoGc),
    /// Put models into an object store: S3, or a folder that hosts share
    ///
    /// What is there already stays. Keys for S3 are in the environment: AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT for what is not Amazon's.
    Push(RepoPush),
    /// Fetch models from an object store
    ///
    /// What is here already stays, and each range is checked. An interrupted one goes on when it is
    /// asked for again.
    Pull(RepoPull),
}

#[derive(Args)]
pub(crate) struct RepoPush {
    /// Names of models [default: all]
    pub(crate) names: Vec<String>,
    /// Where to: s3://BUCKET/PREFIX or file:///FOLDER
    #[arg(long, value_name = "URL")]
    pub(crate) to: StoreAddress,
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct RepoPull {
    /// Names of models [default: all]
    pub(crate) names: Vec<String>,
    /// Where from: s3://BUCKET/PREFIX or file:///FOLDER
    #[arg(long, value_name = "URL")]
    pub(crate) from: StoreAddress,
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct RepoCommand {
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct RepoNamed {
    /// Name of the model
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct RepoGc {
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    /// Tell what would be removed and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
