//! The command line of `tessera serve`, and what it means for the server.

use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tessera_command::{
    CudaArguments, ModelArguments, RepositoryArgument, SplitArguments, parse_byte_size,
    parse_engine, parse_isolation,
};
use tessera_control::TaskDefaults;
use tessera_core::{Device, Error, Result};
use tessera_deploy::Isolation;
use tessera_engine::{CudaOptions, EngineName};
use tessera_repository::{ModelShapes, name_files};
use tessera_server::{
    AccessConfig, ControlConfig, GatewayConfig, ListenSetting, LogControl, ManagedSiteConfig,
    ModelFilesConfig, NodeConfig, PortKind, RegionRules, RunLimits, StandaloneConfig, StoreConfig,
    TelemetryConfig, TlsFiles, TransportConfig, WebAccess,
};
use tessera_tensormq::Transport;
use tracing::level_filters::LevelFilter;

#[derive(Args)]
#[command(mut_arg("blocks", |arg| {
    arg.help(
        "Cut each model into N blocks, the most expensive one as cheap as possible \
         [default: so that what models have in common is shared, and run as one what is not]",
    )
}))]
#[command(mut_arg("shapes", |arg| {
    arg.value_name("[NAME:]INPUT=d,d,…").help(
        "Fix the shape of an input, of all models that have it or of the one called NAME; repeat \
         for more",
    )
}))]
pub(crate) struct ServeArguments {
    /// ONNX files; NAME=FILE where the file's name, or its folder's for several that are called
    /// alike, is not what a task should be called
    #[arg(value_name = "[NAME=]FILE")]
    pub(crate) models: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) split: SplitArguments,
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    /// Address to listen on; 0.0.0.0 or :: for all of this machine's
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) host: IpAddr,
    /// Answer requests that ask for this host, beside addresses and names that nobody else can own;
    /// * for any; repeat for more
    #[arg(long = "allow-host", value_name = "NAME")]
    pub(crate) allowed_hosts: Vec<String>,
    /// Let web pages of this origin (SCHEME://HOST:PORT) ask; * for any; repeat for more
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    pub(crate) allowed_origins: Vec<String>,
    /// File of tokens, a line each: NAME ROLES TOKEN, with roles from infer, observe and change;
    /// requests carry one as Authorization: Bearer TOKEN [default: anybody may ask]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate of the server (PEM), for TLS on every port
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authority of clients' certificates (PEM): clients without one are refused
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Listen beyond this machine though there are no tokens or no TLS
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Port of the protocol over HTTP; 0 for any that is free
    #[arg(long, default_value_t = 8000, value_name = "PORT")]
    pub(crate) http: u16,
    /// Port of the protocol over gRPC
    #[arg(long, default_value_t = 8001, value_name = "PORT")]
    pub(crate) grpc: u16,
    /// Port of Prometheus' metrics
    #[arg(long, default_value_t = 8002, value_name = "PORT")]
    pub(crate) metrics: u16,
    /// Port of the control plane
    #[arg(long, default_value_t = 8003, value_name = "PORT")]
    pub(crate) control: u16,
    /// Call the server triton, and word common errors as Triton does, for scripts that compare them
    #[arg(long)]
    pub(crate) triton_names: bool,
    /// thread: units run on threads of the server; process: each in a process of its own
    #[arg(long, default_value = "thread", value_name = "HOW", value_parser = parse_isolation)]
    pub(crate) isolation: Isolation,
    /// What units run on where their task doesn't say: cpu, or cuda:N for a GPU
    #[arg(long, default_value_t = Device::Cpu)]
    pub(crate) device: Device,
    #[command(flatten)]
    pub(crate) cuda: CudaArguments,
    /// On a GPU: launch every kernel of every run, instead of capturing runs that take long to
    /// launch as CUDA graphs
    #[arg(long)]
    pub(crate) no_cuda_graphs: bool,
    /// How tensors go between processes, to compare: shm, tcp, zmq-ipc or zmq-tcp (whole tensors)
    /// [default: shm]
    #[arg(long, value_name = "TRANSPORT")]
    pub(crate) transport: Option<Transport>,
    /// Keep neighbouring blocks apart that no other task shares, instead of running them as one
    #[arg(long)]
    pub(crate) no_fusion: bool,
    /// Never put requests together, and do not calibrate whether it pays: models start sooner
    #[arg(long)]
    pub(crate) no_batching: bool,
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
    /// Seconds after which a run is ended, whoever waits for it [default: 100 times the longest so
    /// far, 10 at least]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) max_run_time: Option<NonZeroU64>,
    /// Memory that requests and answers under way may take, all together; such as 2GB [default: a
    /// quarter of what there is]
    #[arg(long, value_name = "SIZE", value_parser = parse_byte_size)]
    pub(crate) max_body_memory: Option<u64>,
    /// Let clients register shared memory whose keys begin with PREFIX; none for no shared memory
    /// [default: any where only this machine reaches the server, else none]
    #[arg(long, value_name = "PREFIX")]
    pub(crate) shared_memory: Option<String>,
    /// Milliseconds that a request may take where neither it nor its task says
    #[arg(long, default_value_t = 30_000, value_name = "MS")]
    pub(crate) deadline: u64,
    /// Milliseconds to wait for requests when stopping
    #[arg(long, default_value_t = 30_000, value_name = "MS")]
    pub(crate) drain: u64,
    /// Keep nothing of what is served for the next start
    #[arg(long)]
    pub(crate) no_store: bool,
    /// Send OpenTelemetry spans to this collector (OTLP over HTTP), such as http://localhost:4318
    #[arg(long, value_name = "URL")]
    pub(crate) traces: Option<String>,
    /// Headers that go with spans: NAME=VALUE, percent-encoded, with commas between them
    #[arg(
        long,
        value_name = "HEADERS",
        env = "OTEL_EXPORTER_OTLP_HEADERS",
        hide_env_values = true
    )]
    pub(crate) trace_headers: Option<String>,
    /// error, warn, info, debug or trace
    #[arg(long, default_value = "info", value_name = "LEVEL", env = "TESSERA_LOG")]
    pub(crate) log: LevelFilter,
    /// Write logs as JSON
    #[arg(long)]
    pub(crate) log_json: bool,
    /// Print one line of JSON when ready
    #[arg(long)]
    pub(crate) json: bool,
}

impl ServeArguments {
    /// The server that the user asks for, with the log it writes; tells of every flag that is
    /// wrong.
    pub(crate) fn server_config(&self, log: LogControl) -> Result<StandaloneConfig> {
        let repository = self.repository.repo.clone();
        let mut wrong = Vec::new();
        let transport = note_wrong(self.transport_between_processes(), &mut wrong);
        let shapes = note_wrong(self.model.parse_shapes(), &mut wrong);
        let exits = note_wrong(self.model.parse_exits(), &mut wrong);
        let files = note_wrong(name_files(&self.models), &mut wrong);
        let access = WebAccess::new(&self.allowed_hosts, &self.allowed_origins);
        let access = note_wrong(access, &mut wrong);
        note_wrong(self.check_exposure(), &mut wrong);
        let (Some(transport), Some(shapes), Some(exits), Some(files), Some(access)) =
            (transport, shapes, exits, files, access)
        else {
            return Err(Error::usage(wrong.join("; ")));
        };
        if !wrong.is_empty() {
            return Err(Error::usage(wrong.join("; ")));
        }
        let listen_on = |name: &'static str, kind: PortKind, port: u16| {
            let address = SocketAddr::new(self.host, port);
            ListenSetting { name, kind, address }
        };
        let models = ModelFilesConfig {
            files,
            shapes: ModelShapes::new(shapes),
            exits,
            split: self.split.chosen_split(),
            fusion: !self.no_fusion,
            batching: !self.no_batching,
        };
        Ok(StandaloneConfig {
            site: ManagedSiteConfig {
                transport: TransportConfig { transport },
                node: NodeConfig {
                    repository: repository.clone(),
                    engine: self.engine,
                    cuda: CudaOptions {
                        cuda_graphs: !self.no_cuda_graphs,
                        ..self.cuda.cuda_options()
                    },
                    cores: self.cores_to_use(),
                    run_limits: RunLimits {
                        memory: self.max_run_memory,
                        time: self.max_run_time.map(|s| Duration::from_secs(s.get())),
                    },
                },
                control: ControlConfig {
                    repository: repository.clone(),
                    store: if self.no_store {
                        StoreConfig::Memory
                    } else {
                        StoreConfig::Repository
                    },
                    defaults: TaskDefaults {
                        isolation: self.isolation,
                        deadline: Duration::from_millis(self.deadline),
                        device: self.device,
                    },
                },
            },
            repository,
            gateway: GatewayConfig {
                shared_memory: self.region_rules(),
                most_body_bytes: self.max_body_memory,
                http: listen_on("--http", PortKind::Http, self.http),
                grpc: listen_on("--grpc", PortKind::Grpc, self.grpc),
                log,
                triton_names: self.triton_names,
            },
            telemetry: TelemetryConfig {
                traces: self.traces.clone(),
                trace_headers: self.trace_headers.clone().unwrap_or_default(),
            },
            metrics: listen_on("--metrics", PortKind::Metrics, self.metrics),
            rest: listen_on("--control", PortKind::Control, self.control),
            access: AccessConfig {
                web: access,
                token_file: self.token_file.clone(),
                tls: self.tls_files(),
            },
            models,
            drain: Duration::from_millis(self.drain),
        })
    }

    /// Which regions clients may register: any on this machine alone, else those that were named.
    fn region_rules(&self) -> RegionRules {
        match &self.shared_memory {
            Some(prefix) if prefix == "none" => RegionRules::Nothing,
            Some(prefix) => RegionRules::KeysWith(prefix.trim_start_matches('/').to_owned()),
            None if self.host.is_loopback() => RegionRules::default(),
            None => RegionRules::Nothing,
        }
    }

    fn tls_files(&self) -> Option<TlsFiles> {
        Some(TlsFiles {
            certificate: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            client_authority: self.tls_client_ca.clone(),
        })
    }

    /// Whether a server that others reach keeps them from what is not theirs.
    fn check_exposure(&self) -> Result<()> {
        if self.host.is_loopback() || self.insecure {
            return Ok(());
        }
        let mut missing = Vec::new();
        if self.token_file.is_none() && self.tls_client_ca.is_none() {
            missing.push("--token-file (or --tls-client-ca)");
        }
        if self.tls_cert.is_none() {
            missing.push("--tls-cert and --tls-key");
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::usage(format!(
            "--host {}: others than this machine reach the server, which needs {}; --insecure \
             serves without",
            self.host,
            missing.join(" and ")
        )))
    }

    fn cores_to_use(&self) -> NonZeroUsize {
        let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.cores.unwrap_or(all)
    }

    fn transport_between_processes(&self) -> Result<Option<Transport>> {
        if self.transport == Some(Transport::THREAD) {
            return Err(Error::usage(
                "--transport thread leads to no other process, expected shm, tcp, zmq-ipc or zmq-tcp",
            ));
        }
        Ok(self.transport)
    }
}

/// What a flag says; notes what is wrong with it.
fn note_wrong<T>(parsed: Result<T>, wrong: &mut Vec<String>) -> Option<T> {
    parsed.map_err(|error| wrong.push(error.to_string())).ok()
}
