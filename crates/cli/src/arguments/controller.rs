//! The command line of `tessera controller`, and what it means for it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tessera_command::{RepositoryArgument, parse_isolation};
use tessera_control::{PlacementChoice, TaskDefaults};
use tessera_core::{Device, Error, Result};
use tessera_deploy::Isolation;
use tessera_etcd::{EtcdConfig, EtcdIdentityFiles, EtcdTlsFiles};
use tessera_identity::NodeName;
use tessera_object_store::StoreAddress;
use tessera_server::{ControllerConfig, EtcdState, ListenSetting, PortKind};

use super::access::AccessArguments;
use super::logs::LogArguments;
use super::served_models::ServedModelArguments;
use super::wrong_flags::note_wrong;

#[derive(Args)]
pub(crate) struct ControllerArguments {
    #[command(flatten)]
    pub(crate) models: ServedModelArguments,
    #[command(flatten)]
    pub(crate) repository: RepositoryArgument,
    /// What the controller is called
    #[arg(long, default_value = "controller")]
    pub(crate) name: NodeName,
    /// What its cluster is called
    #[arg(long, default_value = "tessera")]
    pub(crate) cluster: String,
    #[command(flatten)]
    pub(crate) access: AccessArguments,
    /// Where nodes connect to, always with TLS and certificates of the cluster
    #[arg(long, default_value = "127.0.0.1:8004", value_name = "ADDRESS:PORT")]
    pub(crate) listen: SocketAddr,
    /// Port of the control plane
    #[arg(long, default_value_t = 8003, value_name = "PORT")]
    pub(crate) control: u16,
    /// thread: units run on threads of their nodes; process: each in a process of its own, where
    /// their task doesn't say
    #[arg(long, default_value = "thread", value_name = "HOW", value_parser = parse_isolation)]
    pub(crate) isolation: Isolation,
    /// What units run on where their task doesn't say: cpu, or cuda:N for a GPU
    #[arg(long, default_value_t = Device::Cpu)]
    pub(crate) device: Device,
    /// Milliseconds that a request may take where neither it nor its task says
    #[arg(long, default_value_t = 30_000, value_name = "MS")]
    pub(crate) deadline: u64,
    /// How tasks are placed that don't say where they run: a name as for `tessera plan placement`,
    /// or the path of an executable
    #[arg(long, default_value = "exact", value_name = "NAME|PATH")]
    pub(crate) strategy: String,
    /// Seconds for which a node's certificate is good; it renews it when half of that is over
    #[arg(long, default_value_t = 86_400, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(10..=31_536_000))]
    pub(crate) certificate_life: u64,
    /// Object store that models of tasks are put into, where nodes and other controllers find them:
    /// s3://BUCKET/PREFIX with keys in the environment, or file:///FOLDER
    #[arg(long, value_name = "URL")]
    pub(crate) object_store: Option<StoreAddress>,
    /// Members of etcd, where this is one of several controllers of the cluster, of which one leads:
    /// http:// or https:// and HOST:PORT, with commas between them
    #[arg(long, value_name = "URL,…", value_delimiter = ',')]
    pub(crate) etcd: Vec<String>,
    /// Authority of etcd's certificates (PEM), for https
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub(crate) etcd_ca: Option<PathBuf>,
    /// Certificate that etcd knows this controller by (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["etcd_ca", "etcd_key"])]
    pub(crate) etcd_cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub(crate) etcd_key: Option<PathBuf>,
    /// Name or address under which others reach this controller's control plane, where there are
    /// several [default: that of --host]
    #[arg(long, value_name = "HOST", requires = "etcd")]
    pub(crate) advertise: Option<String>,
    #[command(flatten)]
    pub(crate) log: LogArguments,
    /// Print one line of JSON when ready
    #[arg(long)]
    pub(crate) json: bool,
}

impl ControllerArguments {
    /// The controller that the user asks for; tells of every flag that is wrong.
    pub(crate) fn controller_config(&self) -> Result<ControllerConfig> {
        let mut wrong = Vec::new();
        let models = note_wrong(self.models.models_config(), &mut wrong);
        let access = note_wrong(self.access.access_config(), &mut wrong);
        let placement = note_wrong(PlacementChoice::from_name(&self.strategy), &mut wrong);
        if !self.etcd.is_empty() && models.as_ref().is_some_and(|models| !models.files.is_empty()) {
            wrong.push(
                "--etcd: models are not served from files there, expected PUT /v1/tasks/NAME at the \
                 controller that leads"
                    .to_owned(),
            );
        }
        let (Some(models), Some(access), Some(placement)) = (models, access, placement) else {
            return Err(Error::usage(wrong.join("; ")));
        };
        if !wrong.is_empty() {
            return Err(Error::usage(wrong.join("; ")));
        }
        Ok(ControllerConfig {
            repository: self.repository.repo.clone(),
            name: self.name.clone(),
            cluster: self.cluster.clone(),
            listen: ListenSetting {
                name: "--listen",
                kind: PortKind::Cluster,
                address: self.listen,
            },
            rest: self.access.listen_on("--control", PortKind::Control, self.control),
            access,
            defaults: TaskDefaults {
                isolation: self.isolation,
                deadline: Duration::from_millis(self.deadline),
                device: self.device,
            },
            certificate_life: Duration::from_secs(self.certificate_life),
            placement,
            models,
            object_store: self.object_store.clone(),
            etcd: self.etcd_state(),
        })
    }

    fn etcd_state(&self) -> Option<EtcdState> {
        let tls = self.etcd_ca.clone().map(|authority| EtcdTlsFiles {
            authority,
            identity: self
                .etcd_cert
                .clone()
                .zip(self.etcd_key.clone())
                .map(|(certificate, key)| EtcdIdentityFiles { certificate, key }),
        });
        (!self.etcd.is_empty()).then(|| EtcdState {
            config: EtcdConfig { endpoints: self.etcd.clone(), tls },
            advertise: self.advertise.clone(),
        })
    }
}
