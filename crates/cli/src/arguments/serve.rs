//! The command line of `tessera serve`, and what it means for the server.

use std::time::Duration;

use clap::Args;
use tessera_command::{RepositoryArgument, parse_isolation};
use tessera_control::TaskDefaults;
use tessera_core::{Device, Error, Result};
use tessera_deploy::Isolation;
use tessera_server::{
    ControlConfig, LogControl, ManagedSiteConfig, PortKind, StandaloneConfig, StoreConfig,
    TransportConfig,
};
use tessera_tensormq::Transport;

use super::access::AccessArguments;
use super::gateway::GatewayArguments;
use super::logs::{LogArguments, TraceArguments};
use super::node_engine::NodeArguments;
use super::served_models::ServedModelArguments;
use super::wrong_flags::note_wrong;

#[derive(Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    pub(crate) models: ServedModelArguments,
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    #[command(flatten)]
    pub(crate) access: AccessArguments,
    #[command(flatten)]
    pub(crate) gateway: GatewayArguments,
    /// Port of Prometheus' metrics
    #[arg(long, default_value_t = 8002, value_name = "PORT")]
    pub(crate) metrics: u16,
    /// Port of the control plane
    #[arg(long, default_value_t = 8003, value_name = "PORT")]
    pub(crate) control: u16,
    /// thread: units run on threads of the server; process: each in a process of its own
    #[arg(long, default_value = "thread", value_name = "HOW", value_parser = parse_isolation)]
    pub(crate) isolation: Isolation,
    /// What units run on where their task doesn't say: cpu, or cuda:N for a GPU
    #[arg(long, default_value_t = Device::Cpu)]
    pub(crate) device: Device,
    #[command(flatten)]
    pub(crate) node: NodeArguments,
    /// How tensors go between processes, to compare: shm, tcp, zmq-ipc or zmq-tcp (whole tensors)
    /// [default: shm]
    #[arg(long, value_name = "TRANSPORT")]
    pub(crate) transport: Option<Transport>,
    /// Milliseconds that a request may take where neither it nor its task says
    #[arg(long, default_value_t = 30_000, value_name = "MS")]
    pub(crate) deadline: u64,
    /// Milliseconds to wait for requests when stopping
    #[arg(long, default_value_t = 30_000, value_name = "MS")]
    pub(crate) drain: u64,
    /// Keep nothing of what is served for the next start
    #[arg(long)]
    pub(crate) no_store: bool,
    #[command(flatten)]
    pub(crate) traces: TraceArguments,
    #[command(flatten)]
    pub(crate) log: LogArguments,
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
        let models = note_wrong(self.models.models_config(), &mut wrong);
        let access = note_wrong(self.access.access_config(), &mut wrong);
        let (Some(transport), Some(models), Some(access)) = (transport, models, access) else {
            return Err(Error::usage(wrong.join("; ")));
        };
        Ok(StandaloneConfig {
            site: ManagedSiteConfig {
                transport: TransportConfig { transport, network: None },
                node: self.node.node_config(repository.clone()),
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
            gateway: self.gateway.gateway_config(&self.access, log),
            telemetry: self.traces.telemetry_config(),
            metrics: self.access.listen_on("--metrics", PortKind::Metrics, self.metrics),
            rest: self.access.listen_on("--control", PortKind::Control, self.control),
            access,
            models,
            drain: Duration::from_millis(self.drain),
        })
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
