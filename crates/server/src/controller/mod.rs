//! The role that decides: what `tessera controller` runs. It has intent, members and nodes, and
//! neither computes nor answers requests.

mod repository_content;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tessera_control::{
    ClusterAdmin, ClusterSite, ClusterSiteParts, IntentRows, Manager, MemberRegistry, NodeTable,
    PlacementChoice, RedbRows, RegistryConfig, RowStore, TaskDefaults, cluster_services,
    controller_router,
};
use tessera_core::{Error, Result};
use tessera_gateway::health_router;
use tessera_identity::NodeName;
use tessera_repository::Repository;

use crate::access::AccessConfig;
use crate::audit::AuditTrail;
use crate::catalogue::RepositoryCatalogue;
use crate::cluster_port::{ControllerIdentity, serve_cluster};
use crate::listeners::{ListenSetting, PortContext, RunningListener, close_listeners};
use crate::model_files::{FailedModel, ModelFilesConfig};
use crate::shutdown::{ShutdownSignal, ShutdownTrigger, shutdown_channel};
use crate::state_folder::{create_state_folder, state_folder};
use repository_content::RepositoryContent;

/// How long connections may take to close.
const CLOSING_TIME: Duration = Duration::from_secs(1);

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
    /// What is served from the start on.
    pub models: ModelFilesConfig,
}

/// A controller whose ports answer.
pub struct Controller {
    manager: Manager,
    addresses: ControllerAddresses,
    authority: String,
    cluster: String,
    models: ModelFilesConfig,
    repository: PathBuf,
    closing: ShutdownTrigger,
    running: Vec<RunningListener>,
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
    /// The fingerprint of its authority, which tokens carry.
    pub authority: String,
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
        let listen = self.listen.bind_or_note(&mut wrong).await;
        let rest = self.rest.bind_or_note(&mut wrong).await;
        self.models.note_unreadable(&mut wrong);
        let (Some(listen), Some(rest), true) = (listen, rest, wrong.is_empty()) else {
            return Err(Error::usage(wrong.join("; ")));
        };
        let addresses = ControllerAddresses { nodes: listen.address(), control: rest.address() };
        Repository::open_or_create(&self.repository)?;
        let path = create_state_folder(&self.repository)?.join("intent.redb");
        let rows: Arc<dyn RowStore> = Arc::new(RedbRows::open(&path)?);
        let registry = RegistryConfig {
            cluster: self.cluster.clone(),
            certificate_life: self.certificate_life,
        };
        let members = Arc::new(MemberRegistry::open(Arc::clone(&rows), registry)?);
        let nodes = Arc::new(NodeTable::new(members.begin_epoch()?));
        let content = Arc::new(RepositoryContent::new(self.repository.clone()));
        let site = ClusterSite::start(ClusterSiteParts {
            nodes: Arc::clone(&nodes),
            members: Arc::clone(&members),
            rows: Arc::clone(&rows),
            content: Arc::clone(&content) as Arc<_>,
            placement: self.placement.clone(),
        });
        let store = Arc::new(IntentRows::with_copy_beside(rows, &path));
        let catalogue = Arc::new(RepositoryCatalogue::open(self.repository.clone())?);
        let manager =
            Manager::new(store as Arc<_>, catalogue, Arc::new(site.clone()), self.defaults);
        let services = cluster_services(Arc::clone(&members), nodes, content);
        let identity = ControllerIdentity::new(self.name, Arc::clone(&members))?;
        let (closing, closed) = shutdown_channel();
        let audit = Arc::new(AuditTrail::open(&state_folder(&self.repository))?);
        let context = PortContext { access, audit, closed: closed.clone() };
        let authority = members.authority().fingerprint().to_string();
        let admin = ClusterAdmin::new(members, site);
        // It decides as soon as it answers.
        let health = health_router(Arc::new(|| true));
        let running = vec![
            serve_cluster(listen, services.merge(health.clone()), identity, closed),
            rest.serve_router(controller_router(&manager, &admin).merge(health), &context),
        ];
        let Self { models, repository, cluster, .. } = self;
        Ok(Controller {
            manager,
            addresses,
            authority,
            cluster,
            models,
            repository,
            closing,
            running,
        })
    }
}

impl Controller {
    /// Takes up what was served before, or has models served; nothing where the shutdown came
    /// first.
    pub async fn start_tasks(
        &self,
        shutdown: &mut ShutdownSignal,
    ) -> Result<Option<ControllerStatus>> {
        let starting = self.models.start_tasks(&self.repository, &self.manager);
        let failed = tokio::select! {
            started = starting => started?,
            () = shutdown.shutdown_requested() => return Ok(None),
        };
        Ok(Some(ControllerStatus {
            addresses: self.addresses.clone(),
            cluster: self.cluster.clone(),
            authority: self.authority.clone(),
            process: std::process::id(),
            failed,
        }))
    }

    /// Decides until the shutdown. Nodes go on without it.
    pub async fn run_until(self, shutdown: &mut ShutdownSignal) {
        shutdown.shutdown_requested().await;
        tracing::info!("stopping: nodes go on with what they have");
        close_listeners(self.closing, self.running, CLOSING_TIME).await;
    }
}
