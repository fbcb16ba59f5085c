//! The role that decides: what `tessera controller` runs. It has intent, members and nodes, and
//! neither computes nor answers requests.

mod election;
mod leader;
mod router_switch;
mod stored_models;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use serde::Serialize;
use tessera_control::{IntentRows, PlacementChoice, RedbRows, RowStore, TaskDefaults};
use tessera_core::{Error, Result};
use tessera_identity::NodeName;
use tessera_object_store::StoreAddress;
use tessera_repository::Repository;
use tokio::task::JoinHandle;

use crate::access::AccessConfig;
use crate::audit::AuditTrail;
use crate::listeners::{ListenSetting, Listener, PortContext, RunningListener, close_listeners};
use crate::model_files::{FailedModel, ModelFilesConfig};
use crate::shutdown::{ShutdownSignal, ShutdownTrigger, shutdown_channel};
use crate::state_folder::{create_state_folder, state_folder};
use election::Contender;
pub use election::EtcdState;
use leader::{Leader, LeaderParts};
use router_switch::RouterSwitch;
use stored_models::StoredModels;

/// How long connections may take to close.
const CLOSING_TIME: Duration = Duration::from_secs(1);
/// How long one among several may take to have another lead.
const ENDING_TIME: Duration = Duration::from_secs(5);

/// What a controller is made of.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// Where blocks are; made where it is not there.
    pub repository: PathBuf,
    /// What it is called, and its cluster.
    pub name: NodeName,
    /// See `name`.
    pub cluster: String,
    /// Where nodes connect to.
    pub listen: ListenSetting,
    /// Where the REST API is.
    pub rest: ListenSetting,
    /// Who may ask it.
    pub access: AccessConfig,
    /// How tasks are served that say nothing themselves.
    pub defaults: TaskDefaults,
    /// How long a node's certificate is good.
    pub certificate_life: Duration,
    /// How tasks are placed that don't say where they run.
    pub placement: PlacementChoice,
    /// What is served from the start on; nothing where there is etcd.
    pub models: ModelFilesConfig,
    /// Where models of tasks are kept beside its repository, if anywhere.
    pub object_store: Option<StoreAddress>,
    /// Where its state is, where others have it, too; else in its repository.
    pub etcd: Option<EtcdState>,
}

/// A controller whose ports answer.
pub struct Controller {
    addresses: ControllerAddresses,
    config: Arc<ControllerConfig>,
    role: ControllerRole,
    closing: ShutdownTrigger,
    rest: RunningListener,
}

/// Whether a controller decides alone.
enum ControllerRole {
    Alone(Box<Leader>),
    Among { ending: ShutdownTrigger, contending: JoinHandle<()> },
}

/// Where a controller is.
#[derive(Clone, Debug, Serialize)]
pub struct ControllerAddresses {
    /// For nodes.
    pub nodes: SocketAddr,
    /// The REST API.
    pub control: SocketAddr,
}

/// What a controller says of itself.
#[derive(Clone, Debug, Serialize)]
pub struct ControllerStatus {
    /// Where it is.
    #[serde(flatten)]
    pub addresses: ControllerAddresses,
    /// What its cluster is called.
    pub cluster: String,
    /// The fingerprint of its authority, which tokens carry; none where another may lead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// Its process.
    pub process: u32,
    /// Models that were to be served from the start on, and are not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedModel>,
}

impl ControllerConfig {
    /// Binds, puts the parts together, and answers from then on.
    pub async fn build(self) -> Result<Controller> {
        let access = self.access.open()?;
        let mut wrong = Vec::new();
        let listen = match &self.etcd {
            None => self.listen.bind_or_note(&mut wrong).await,
            // It is bound whenever this one leads.
            Some(_) if self.listen.address.port() == 0 => {
                wrong.push("--listen: with --etcd, expected a port that stays, got 0".to_owned());
                None
            }
            Some(_) => None,
        };
        let rest = self.rest.bind_or_note(&mut wrong).await;
        self.models.note_unreadable(&mut wrong);
        let (Some(rest), true) = (rest, wrong.is_empty()) else {
            return Err(Error::usage(wrong.join("; ")));
        };
        let nodes = listen.as_ref().map_or(self.listen.address, Listener::address);
        let addresses = ControllerAddresses { nodes, control: rest.address() };
        Repository::open_or_create(&self.repository)?;
        let folder = create_state_folder(&self.repository)?;
        let (closing, closed) = shutdown_channel();
        let audit = Arc::new(AuditTrail::open(&state_folder(&self.repository))?);
        let is_secured = access.tls.is_some();
        let context = PortContext { access, audit, closed };
        let stored = self.object_store.as_ref();
        let stored = stored.map(|store| StoredModels::start(self.repository.clone(), store));
        let stored = stored.transpose()?;
        let config = Arc::new(self);
        let switch = RouterSwitch::new(Router::new());
        let role = match (&config.etcd, listen) {
            (Some(etcd), _) => {
                let control = control_url(etcd, addresses.control, nodes, is_secured)?;
                let (shared, etcd) = (Arc::clone(&config), etcd.config.clone());
                let contender = Contender::new(shared, etcd, control, switch.clone(), stored)?;
                let (ending, ended) = shutdown_channel();
                ControllerRole::Among { ending, contending: tokio::spawn(contender.contend(ended)) }
            }
            (None, Some(listen)) => {
                let path = folder.join("intent.redb");
                let rows: Arc<dyn RowStore> = Arc::new(RedbRows::open(&path)?);
                let parts = LeaderParts {
                    config: Arc::clone(&config),
                    intent: IntentRows::with_copy_beside(Arc::clone(&rows), &path),
                    rows,
                    epoch: None,
                    stored,
                };
                let leader = parts.lead(listen).await?;
                switch.set_router(leader.router.clone());
                ControllerRole::Alone(Box::new(leader))
            }
            (None, None) => return Err(Error::usage("--listen: expected an address")),
        };
        let rest = rest.serve_router(switch.router(), &context);
        Ok(Controller { addresses, config, role, closing, rest })
    }
}

/// Where people reach the control plane.
fn control_url(
    etcd: &EtcdState,
    bound: SocketAddr,
    nodes: SocketAddr,
    is_secured: bool,
) -> Result<String> {
    let scheme = if is_secured { "https" } else { "http" };
    let host = match &etcd.advertise {
        Some(host) => host.clone(),
        None if !bound.ip().is_unspecified() => url_host(bound.ip()),
        None if !nodes.ip().is_unspecified() => url_host(nodes.ip()),
        None => {
            return Err(Error::usage(format!(
                "--host {}: others need an address to reach its control plane at: --advertise HOST",
                bound.ip()
            )));
        }
    };
    Ok(format!("{scheme}://{host}:{}", bound.port()))
}

fn url_host(address: IpAddr) -> String {
    if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
}

impl Controller {
    /// Has models served beside what was served before, where it decides; nothing where the
    /// shutdown came first.
    pub async fn start_tasks(
        &self,
        shutdown: &mut ShutdownSignal,
    ) -> Result<Option<ControllerStatus>> {
        let ControllerConfig { models, repository, cluster, .. } = &*self.config;
        let (mut failed, mut authority) = (Vec::new(), None);
        if let ControllerRole::Alone(leader) = &self.role {
            authority = Some(leader.authority.clone());
            if !models.files.is_empty() {
                failed = tokio::select! {
                    started = models.start_tasks(repository, &leader.manager) => started?,
                    () = shutdown.shutdown_requested() => return Ok(None),
                };
            }
        }
        Ok(Some(ControllerStatus {
            addresses: self.addresses.clone(),
            cluster: cluster.clone(),
            authority,
            process: std::process::id(),
            failed,
        }))
    }

    /// Decides until the shutdown. Nodes go on without it.
    pub async fn run_until(self, shutdown: &mut ShutdownSignal) {
        shutdown.shutdown_requested().await;
        tracing::info!("stopping: nodes go on with what they have");
        match self.role {
            ControllerRole::Alone(leader) => leader.stop().await,
            ControllerRole::Among { ending, contending } => {
                ending.request_shutdown();
                tokio::time::timeout(ENDING_TIME, contending).await.ok();
            }
        }
        close_listeners(self.closing, vec![self.rest], CLOSING_TIME).await;
    }
}
