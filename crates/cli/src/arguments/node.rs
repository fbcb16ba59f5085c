//! The command line of `tessera node`, and what it means for it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use tessera_cluster::ControllerAddress;
use tessera_command::RepositoryArgument;
use tessera_core::{Error, Result};
use tessera_identity::{JoinToken, NodeName};
use tessera_object_store::StoreAddress;
use tessera_server::{ClusterNodeConfig, LogControl, NodeJoin, PortKind};

use super::access::AccessArguments;
use super::admin::AdminArguments;
use super::gateway::GatewayArguments;
use super::logs::{LogArguments, TraceArguments};
use super::node_engine::NodeArguments;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct NodeCommand {
    #[command(subcommand)]
    pub(crate) action: Option<NodeAction>,
    #[command(flatten)]
    pub(crate) run: RunNodeArguments,
}

#[derive(Subcommand)]
pub(crate) enum NodeAction {
    /// Have what runs at a node run elsewhere, and give it nothing to do
    Drain(NamedNode),
    /// Give a node something to do again
    Undrain(NamedNode),
    /// Have a node not belong to the cluster any more
    ///
    /// What runs there runs elsewhere before, where it can; its connections end at once.
    Remove(NamedNode),
}

#[derive(Args)]
pub(crate) struct NamedNode {
    /// Name of the node
    pub(crate) name: NodeName,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct RunNodeArguments {
    /// Where the cluster's controller is; repeat for more
    #[arg(long = "join", value_name = "HOST:PORT", required = true)]
    pub(crate) controllers: Vec<ControllerAddress>,
    /// What lets the node in, from `tessera token create`; not needed once it has joined
    #[arg(long, env = "TESSERA_JOIN_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<JoinToken>,
    /// The same in a file, which is read where the node has not joined yet
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub(crate) join_token_file: Option<PathBuf>,
    /// What the node is called [default: the host's name]
    #[arg(long)]
    pub(crate) name: Option<NodeName>,
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    #[command(flatten)]
    pub(crate) node: NodeArguments,
    /// Answer requests of clients here, too
    #[arg(long)]
    pub(crate) gateway: bool,
    #[command(flatten)]
    pub(crate) protocol: GatewayArguments,
    #[command(flatten)]
    pub(crate) access: AccessArguments,
    /// Address to listen on for tensors of other nodes, always with TLS and certificates of the
    /// cluster; 0.0.0.0 or :: for all of this machine's
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) listen: IpAddr,
    /// Name or address under which other nodes reach this one [default: that of --listen]
    #[arg(long, value_name = "HOST")]
    pub(crate) advertise: Option<String>,
    /// Object store of the cluster as this node reaches it: s3://BUCKET/PREFIX or file:///FOLDER
    /// [default: what the controller says]
    #[arg(long, value_name = "URL")]
    pub(crate) object_store: Option<StoreAddress>,
    /// How far the node is from where inputs come from: 0 for a device, 1 for the edge, 2 for the
    /// cloud. Requests never go back to a lower tier
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    pub(crate) tier: u32,
    /// Port of Prometheus' metrics
    #[arg(long, default_value_t = 8002, value_name = "PORT")]
    pub(crate) metrics: u16,
    /// Milliseconds to wait for requests when stopping
    #[arg(long, default_value_t = 30_000, value_name = "MS")]
    pub(crate) drain: u64,
    #[command(flatten)]
    pub(crate) traces: TraceArguments,
    #[command(flatten)]
    pub(crate) log: LogArguments,
    /// Print one line of JSON when ready
    #[arg(long)]
    pub(crate) json: bool,
}

impl RunNodeArguments {
    /// The node that the user asks for, with the log it writes; tells of every flag that is wrong.
    pub(crate) fn node_config(&self, log: LogControl) -> Result<ClusterNodeConfig> {
        let access = self.access.access_config()?;
        let repository = self.repository.repo.clone();
        let name = match &self.name {
            Some(name) => name.clone(),
            None => host_name()?,
        };
        let host = self.listen;
        let advertise = match &self.advertise {
            Some(name) => name.clone(),
            None if host.is_unspecified() => {
                return Err(Error::usage(format!(
                    "--listen {host}: others need an address to reach this node at: --advertise HOST"
                )));
            }
            None if host.is_ipv6() => format!("[{host}]"),
            None => host.to_string(),
        };
        let gateway = self.gateway.then(|| self.protocol.gateway_config(&self.access, log));
        Ok(ClusterNodeConfig {
            controllers: self.controllers.clone(),
            join: NodeJoin { name, token: self.join_token()? },
            node: self.node.node_config(repository.clone()),
            repository,
            object_store: self.object_store.clone(),
            address: host,
            advertise,
            tier: self.tier,
            gateway,
            telemetry: self.traces.telemetry_config(),
            metrics: self.access.listen_on("--metrics", PortKind::Metrics, self.metrics),
            access,
            drain: Duration::from_millis(self.drain),
        })
    }
}

impl RunNodeArguments {
    /// What lets the node in. A file that is not there is no error: it has joined before, or hears
    /// what is missing.
    fn join_token(&self) -> Result<Option<JoinToken>> {
        let Some(file) = &self.join_token_file else { return Ok(self.token.clone()) };
        let wrong = |error: &dyn std::fmt::Display| {
            Error::usage(format!("--join-token-file {}: {error}", file.display()))
        };
        match std::fs::read_to_string(file) {
            Ok(text) => text.trim().parse().map(Some).map_err(|error: Error| wrong(&error)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(wrong(&error)),
        }
    }
}

/// The host's name as that of a node.
fn host_name() -> Result<NodeName> {
    let path = "/proc/sys/kernel/hostname";
    let name = std::fs::read_to_string(path).map_err(|error| Error::from_io(path, &error))?;
    let name = name.trim().to_lowercase();
    let name = name.split('.').next().unwrap_or_default();
    name.parse().map_err(|_| {
        Error::usage(format!("the host's name \"{name}\" is none for a node, expected --name NAME"))
    })
}
