//! The role with all parts in one process: what `tessera serve` runs.

mod loaded_model;
mod local_site;
mod managed_site;
mod service;
mod site_status;
mod task_descriptions;

pub use local_site::LocalSite;
pub use managed_site::{ManagedSite, ManagedSiteConfig};
pub(crate) use site_status::{describe_state, weight_report};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use tessera_control::{TaskStatus, UnitStatus};
use tessera_core::{Error, Result};
use tessera_gateway::{InferenceService, health_router};
use tessera_repository::Repository;
use tessera_telemetry::{TakeSample, Telemetry};

use crate::access::AccessConfig;
use crate::audit::AuditTrail;
use crate::gateway::{BoundGateway, GatewayConfig};
use crate::listeners::{ListenSetting, Listener, PortContext, RunningListener, close_listeners};
use crate::model_files::{FailedModel, ModelFilesConfig};
use crate::shutdown::{ShutdownSignal, ShutdownTrigger, shutdown_channel};
use crate::state_folder::{create_state_folder, state_folder};
use crate::telemetry::{TelemetryConfig, serve_telemetry};
use service::SiteService;
use task_descriptions::TaskDescriptions;

/// How long connections may take to close once everything is answered.
const CLOSING_TIME: Duration = Duration::from_secs(2);

/// What a server by itself is made of.
#[derive(Clone, Debug)]
pub struct StandaloneConfig {
    /// Where blocks are; made where it is not there.
    pub repository: PathBuf,
    /// What runs, and what decides that.
    pub site: ManagedSiteConfig,
    /// Where the protocol is spoken.
    pub gateway: GatewayConfig,
    /// Where spans are sent.
    pub telemetry: TelemetryConfig,
    /// Where metrics are.
    pub metrics: ListenSetting,
    /// Where the REST API is.
    pub rest: ListenSetting,
    /// Who may ask.
    pub access: AccessConfig,
    /// What is served from the start on.
    pub models: ModelFilesConfig,
    /// How long to wait for requests when stopping.
    pub drain: Duration,
}

/// A server whose sockets answer, and which serves no task yet.
pub struct Standalone {
    site: ManagedSite,
    addresses: ServerAddresses,
    /// Whether what was asked for at the start runs.
    is_up: Arc<AtomicBool>,
    models: ModelFilesConfig,
    repository: PathBuf,
    drain: Duration,
    closing: ShutdownTrigger,
    running: Vec<RunningListener>,
}

/// Where a server is.
#[derive(Clone, Debug, Serialize)]
pub struct ServerAddresses {
    /// The protocol over HTTP.
    pub http: SocketAddr,
    /// The protocol over gRPC.
    pub grpc: SocketAddr,
    /// Prometheus' metrics.
    pub metrics: SocketAddr,
    /// The control plane.
    pub control: SocketAddr,
}

/// What a server says of itself.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStatus {
    /// Where it is.
    #[serde(flatten)]
    pub addresses: ServerAddresses,
    /// Its process.
    pub process: u32,
    /// What runs units, with the version.
    pub engine: String,
    /// Cores that it computes on.
    pub cores: usize,
    /// What it serves.
    pub tasks: Vec<TaskStatus>,
    /// What runs for that.
    pub units: Vec<UnitStatus>,
    /// Models that were to be served from the start on, and are not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedModel>,
}

/// Sockets of all parts that listen.
struct BoundListeners {
    gateway: BoundGateway,
    metrics: Listener,
    rest: Listener,
}

impl StandaloneConfig {
    /// Binds, puts the parts together, and answers from then on. What is wrong with addresses and
    /// files is told all at once, before anything is made.
    pub async fn build(self) -> Result<Standalone> {
        let access = self.access.open()?;
        let listeners = self.bind_listeners().await?;
        let addresses = listeners.addresses();
        Repository::open_or_create(&self.repository)?;
        create_state_folder(&self.repository)?;
        let telemetry = self.telemetry.build()?;
        let site = self.site.build(Arc::clone(&telemetry), Arc::clone(&telemetry) as _)?;
        let is_up = Arc::new(AtomicBool::new(false));
        let (closing, closed) = shutdown_channel();
        let service = SiteService {
            site: Arc::clone(&site.site),
            manager: site.manager().clone(),
            repository: self.repository.clone(),
            is_up: Arc::clone(&is_up),
            descriptions: TaskDescriptions::default(),
        };
        let audit = Arc::new(AuditTrail::open(&state_folder(&self.repository))?);
        let context = PortContext { access, audit, closed };
        let running = listeners.serve_parts(service, &site, &telemetry, &context)?;
        let Self { models, repository, drain, .. } = self;
        Ok(Standalone { site, addresses, is_up, models, repository, drain, closing, running })
    }

    /// Binds all sockets; tells of everything that can't be bound or read.
    async fn bind_listeners(&self) -> Result<BoundListeners> {
        let mut wrong = Vec::new();
        let http = self.gateway.http.bind_or_note(&mut wrong).await;
        let grpc = self.gateway.grpc.bind_or_note(&mut wrong).await;
        let metrics = self.metrics.bind_or_note(&mut wrong).await;
        let rest = self.rest.bind_or_note(&mut wrong).await;
        self.models.note_unreadable(&mut wrong);
        match (http, grpc, metrics, rest) {
            (Some(http), Some(grpc), Some(metrics), Some(rest)) if wrong.is_empty() => {
                let gateway = BoundGateway { http, grpc, config: self.gateway.clone() };
                Ok(BoundListeners { gateway, metrics, rest })
            }
            _ => Err(Error::usage(wrong.join("; "))),
        }
    }
}

impl BoundListeners {
    fn addresses(&self) -> ServerAddresses {
        ServerAddresses {
            http: self.gateway.http.address(),
            grpc: self.gateway.grpc.address(),
            metrics: self.metrics.address(),
            control: self.rest.address(),
        }
    }

    /// Has each part answer at its own, until they are closed.
    fn serve_parts(
        self,
        service: SiteService,
        site: &ManagedSite,
        telemetry: &Arc<Telemetry>,
        context: &PortContext,
    ) -> Result<Vec<RunningListener>> {
        let sampled = Arc::clone(&site.site);
        let sample: TakeSample = Arc::new(move || sampled.take_sample());
        let service: Arc<dyn InferenceService> = Arc::new(service);
        let probed = Arc::clone(&service);
        let health = health_router(Arc::new(move || probed.is_ready()));
        let mut running = Vec::from(self.gateway.serve_protocol(service, context)?);
        running.push(serve_telemetry(telemetry, sample, health, self.metrics, context));
        running.push(site.control.serve_rest(self.rest, context));
        Ok(running)
    }
}

impl Standalone {
    /// Starts what is to be served, and is ready then; nothing where the shutdown came first.
    pub async fn start_tasks(self, shutdown: &mut ShutdownSignal) -> Result<Option<ReadyServer>> {
        let starting = self.models.start_tasks(&self.repository, self.site.manager());
        let failed = tokio::select! {
            started = starting => started?,
            () = shutdown.shutdown_requested() => {
                self.stop_node();
                return Ok(None);
            }
        };
        tessera_engine::release_freed_memory();
        self.is_up.store(true, Ordering::Release);
        Ok(Some(ReadyServer { server: self, failed }))
    }

    fn stop_node(&self) {
        tokio::task::block_in_place(|| self.site.local_site().node_supervisor().stop_all());
    }
}

/// A server that serves what it was asked for.
pub struct ReadyServer {
    server: Standalone,
    failed: Vec<FailedModel>,
}

impl ReadyServer {
    /// Where it is, and what it serves.
    pub fn server_status(&self) -> ServerStatus {
        let site = self.server.site.local_site();
        ServerStatus {
            addresses: self.server.addresses.clone(),
            process: std::process::id(),
            engine: site.engine_name(),
            cores: site.core_count(),
            tasks: site.list_tasks(),
            units: site.list_units(),
            failed: self.failed.clone(),
        }
    }

    /// Serves until the shutdown; then answers what was accepted, and ends.
    pub async fn run_until(self, shutdown: &mut ShutdownSignal) {
        let Self { server, .. } = self;
        shutdown.shutdown_requested().await;
        let (site, dispatcher) = (server.site.local_site(), server.site.local_site().dispatcher());
        tracing::info!("stopping: {} requests are on their way", site.in_flight());
        server.is_up.store(false, Ordering::Release);
        dispatcher.stop_accepting();
        if tokio::time::timeout(server.drain, dispatcher.wait_until_idle()).await.is_err() {
            tracing::warn!("{} requests were not done in time", site.in_flight());
        }
        close_listeners(server.closing, server.running, CLOSING_TIME).await;
        tokio::task::block_in_place(|| site.node_supervisor().stop_all());
    }
}
