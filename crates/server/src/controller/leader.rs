//! A controller while it decides: members, nodes, tasks, and the port for nodes.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tessera_control::{
    Catalogue, ClusterAdmin, ClusterSite, ClusterSiteParts, IntentRows, Manager, MemberRegistry,
    NodeTable, RegistryConfig, Restored, RowStore, cluster_services, controller_router,
};
use tessera_core::{Error, Result};
use tessera_gateway::health_router;

use super::ControllerConfig;
use super::stored_models::{StoredCatalogue, StoredModels};
use crate::catalogue::RepositoryCatalogue;
use crate::cluster_port::{ControllerIdentity, serve_cluster};
use crate::listeners::{Listener, RunningListener, close_listeners};
use crate::repository_content::RepositoryContent;
use crate::repository_models::RepositoryModels;
use crate::shutdown::{ShutdownTrigger, shutdown_channel};

/// How long connections may take to close.
const CLOSING_TIME: Duration = Duration::from_secs(1);

/// A controller that decides.
pub(super) struct Leader {
    pub(super) manager: Manager,
    /// What people ask.
    pub(super) router: Router,
    /// The fingerprint of the cluster's authority.
    pub(super) authority: String,
    /// What it took up.
    pub(super) restored: Restored,
    nodes: Arc<NodeTable>,
    closing: ShutdownTrigger,
    running: RunningListener,
}

/// What a leader works with.
pub(super) struct LeaderParts {
    pub(super) config: Arc<ControllerConfig>,
    pub(super) rows: Arc<dyn RowStore>,
    pub(super) intent: IntentRows,
    /// The epoch of its orders; without one, the next that was not used.
    pub(super) epoch: Option<u64>,
    /// The models of tasks in an object store, where there is one.
    pub(super) stored: Option<Arc<StoredModels>>,
}

impl LeaderParts {
    /// Takes up what was kept, and answers nodes at a port from then on.
    pub(super) async fn lead(self, listener: Listener) -> Result<Leader> {
        let Self { config, rows, intent, epoch, stored } = self;
        let registry = RegistryConfig {
            cluster: config.cluster.clone(),
            certificate_life: config.certificate_life,
        };
        let kept = Arc::clone(&rows);
        let opened = tokio::task::spawn_blocking(move || {
            let members = MemberRegistry::open(kept, registry)?;
            let epoch = epoch.map_or_else(|| members.begin_epoch(), Ok)?;
            Ok::<_, Error>((members, epoch))
        });
        let (members, epoch) = opened.await.map_err(|error| Error::engine(error.to_string()))??;
        let (members, nodes) = (Arc::new(members), Arc::new(NodeTable::new(epoch)));
        let content = RepositoryContent::new(config.repository.clone())
            .with_object_store(stored.as_ref().map(|stored| stored.address()));
        let content = Arc::new(content);
        let site = ClusterSite::start(ClusterSiteParts {
            nodes: Arc::clone(&nodes),
            members: Arc::clone(&members),
            rows,
            content: Arc::clone(&content) as Arc<_>,
            placement: config.placement.clone(),
        });
        let known = RepositoryCatalogue::open(config.repository.clone())?;
        let catalogue: Arc<dyn Catalogue> = match stored {
            Some(models) => Arc::new(StoredCatalogue { inner: known, models }),
            None => Arc::new(known),
        };
        let defaults = config.defaults.clone();
        let manager =
            Manager::new(Arc::new(intent) as Arc<_>, catalogue, Arc::new(site.clone()), defaults);
        manager.keep_models_in(Arc::new(RepositoryModels::new(config.repository.clone())));
        // Nodes that come meanwhile are not to hear that there is nothing to do.
        let restored = manager.restore_tasks().await?;
        let services = cluster_services(Arc::clone(&members), Arc::clone(&nodes), content);
        let identity = ControllerIdentity::new(config.name.clone(), Arc::clone(&members))?;
        let (closing, closed) = shutdown_channel();
        let authority = members.authority().fingerprint().to_string();
        // It decides as soon as it answers.
        let health = health_router(Arc::new(|| true));
        let admin = ClusterAdmin::new(members, site);
        let router = controller_router(&manager, &admin).merge(health.clone());
        let running = serve_cluster(listener, services.merge(health), identity, closed);
        Ok(Leader { manager, router, authority, restored, nodes, closing, running })
    }
}

impl Leader {
    /// Commands nobody any more. Nodes go on without it.
    pub(super) async fn stop(self) {
        self.nodes.close();
        close_listeners(self.closing, vec![self.running], CLOSING_TIME).await;
    }
}
