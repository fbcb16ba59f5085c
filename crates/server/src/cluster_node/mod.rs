//! The role that runs units of a cluster, and answers requests where it has a gateway: what
//! `tessera node` runs.

mod agent;
mod assignment_file;
mod candidate_trials;
mod candidates;
mod cluster_store;
mod content_fetch;
mod content_keeper;
mod content_peers;
mod content_port;
mod content_supply;
mod controller_link;
mod gateway_service;
mod grpc_source;
mod identity_file;
mod link_watch;
#[cfg(test)]
mod order_tests;
mod places_file;
mod places_watch;
mod probed_peers;
mod recent_times;
mod storage_watch;
mod unit_keeper;
mod workload;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tessera_cluster::wire::{GatewayDescription, NodeDescription, ProbeDescription};
use tessera_cluster::{ControllerAddress, JoinedNode, join_cluster, write_document};
use tessera_control::content_router;
use tessera_core::{Error, Result};
use tessera_gateway::{IsReady, health_router};
use tessera_identity::{JoinToken, NodeName};
use tessera_node::NodeEvent;
use tessera_object_store::StoreAddress;
use tessera_probe::LinkProber;
use tessera_repository::{ContentFetcher, Repository};
use tessera_telemetry::{RequestObserver, TakeSample};
use tessera_tensormq::TlsIdentity;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use crate::access::AccessConfig;
use crate::audit::AuditTrail;
use crate::gateway::{BoundGateway, DispatchConfig, DispatchPart, GatewayConfig};
use crate::host_memory::host_memory_bytes;
use crate::listeners::{ListenSetting, PortContext, RunningListener, close_listeners};
use crate::node::NodeConfig;
use crate::repository_content::RepositoryContent;
use crate::shutdown::{ShutdownSignal, ShutdownTrigger, shutdown_channel};
use crate::state_folder::{create_state_folder, state_folder};
use crate::telemetry::{TelemetryConfig, serve_telemetry};
use crate::transport::{NetworkConfig, TransportConfig, TransportPart};
use agent::{NodeAgent, drain_tables};
use assignment_file::AssignmentFile;
use candidate_trials::keep_candidates;
use candidates::Candidates;
use cluster_store::ClusterStore;
use content_keeper::ContentKeeper;
use content_peers::ContentPeers;
use content_port::ContentPort;
use content_supply::ContentSupply;
use controller_link::ControllerLink;
use gateway_service::ClusterService;
use identity_file::IdentityFile;
use link_watch::watch_links;
use places_file::{PlacesFile, ReplyPlace};
use places_watch::keep_places;
use recent_times::RecentTimes;
use storage_watch::keep_room;
use unit_keeper::keep_units;
use workload::{NodeWorkload, WorkloadState};

/// How long connections may take to close once everything is answered.
const CLOSING_TIME: Duration = Duration::from_secs(2);

/// How long to wait for a controller before the node says that it runs.
const ATTACH_TIME: Duration = Duration::from_secs(2);

/// How a node joins a cluster.
#[derive(Clone, Debug)]
pub struct NodeJoin {
    /// What it is to be called.
    pub name: NodeName,
    /// What lets it in; none where it has joined before.
    pub token: Option<JoinToken>,
}

/// What a node of a cluster is made of.
#[derive(Clone, Debug)]
pub struct ClusterNodeConfig {
    /// Where the cluster's controllers are.
    pub controllers: Vec<ControllerAddress>,
    /// How it joins.
    pub join: NodeJoin,
    /// Where blocks are; made where it is not there.
    pub repository: PathBuf,
    /// Where the cluster's object store is for this node, where a controller does not say it, or
    /// says something else.
    pub object_store: Option<StoreAddress>,
    /// What runs units.
    pub node: NodeConfig,
    /// Where it listens for tensors, and the name or address under which others reach it.
    pub address: IpAddr,
    /// See `address`.
    pub advertise: String,
    /// How far it is from where inputs come from: requests never go back to a lower tier.
    pub tier: u32,
    /// Where the protocol is spoken, where it has a gateway.
    pub gateway: Option<GatewayConfig>,
    /// Where spans are sent.
    pub telemetry: TelemetryConfig,
    /// Where metrics are.
    pub metrics: ListenSetting,
    /// Who may ask.
    pub access: AccessConfig,
    /// How long to wait for requests when stopping.
    pub drain: Duration,
}

/// A node that belongs to a cluster.
pub struct ClusterNode {
    agent: Arc<NodeAgent>,
    status: ClusterNodeStatus,
    drain: Duration,
    closing: ShutdownTrigger,
    running: Vec<RunningListener>,
    /// Ends when the node does not belong to its cluster any more.
    attached: JoinHandle<Error>,
}

/// What a node says of itself.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterNodeStatus {
    /// What it is called.
    pub name: String,
    /// What its cluster is called.
    pub cluster: String,
    /// The protocol over HTTP, where it has a gateway.
    pub http: Option<SocketAddr>,
    /// The same over gRPC.
    pub grpc: Option<SocketAddr>,
    /// Prometheus' metrics.
    pub metrics: SocketAddr,
    /// Its process.
    pub process: u32,
    /// What runs units, with the version.
    pub engine: String,
    /// Cores that it computes on.
    pub cores: usize,
}

impl ClusterNodeConfig {
    /// Joins the cluster where it has not, puts the parts together, takes up what it did last, and
    /// answers from then on.
    pub async fn build(self) -> Result<ClusterNode> {
        let access = self.access.open()?;
        let mut wrong = Vec::new();
        let metrics = self.metrics.bind_or_note(&mut wrong).await;
        let gateway = match &self.gateway {
            None => None,
            Some(config) => {
                let http = config.http.bind_or_note(&mut wrong).await;
                let grpc = config.grpc.bind_or_note(&mut wrong).await;
                http.zip(grpc).map(|(http, grpc)| BoundGateway {
                    http,
                    grpc,
                    config: config.clone(),
                })
            }
        };
        let (Some(metrics), true) = (metrics, wrong.is_empty()) else {
            return Err(Error::usage(wrong.join("; ")));
        };
        Repository::open_or_create(&self.repository)?;
        let folder = create_state_folder(&self.repository)?;
        let identity_file = IdentityFile::in_folder(&folder);
        let identity = self.find_identity(&identity_file).await?;
        let name = identity.name.certificate_name();
        let JoinedNode { certificate_pem, key_pem, authority_pem, .. } = &identity;
        let tls = TlsIdentity::from_pem(&name, certificate_pem, key_pem, authority_pem)?;
        let transport = TransportConfig {
            transport: None,
            network: Some(NetworkConfig {
                identity: tls.clone(),
                address: self.address,
                advertise: self.advertise.clone(),
            }),
        };
        let transport = transport.build()?;
        let telemetry = self.telemetry.clone().build()?;
        let places = PlacesFile::in_folder(&folder);
        let dispatch = match &gateway {
            None => None,
            Some(_) => Some(self.build_dispatch(
                &identity.name,
                &places,
                &transport,
                Arc::clone(&telemetry) as Arc<dyn RequestObserver>,
            )?),
        };
        let (draining, tables) = mpsc::unbounded_channel();
        let link = Arc::<ControllerLink>::default();
        let supply = self.build_supply(&tls, &link)?;
        let workload = self.build_workload(
            (&folder, places),
            tls.clone(),
            &transport,
            dispatch,
            draining,
            supply,
        )?;
        tokio::spawn(drain_tables(Arc::downgrade(&workload), tables));
        let status = ClusterNodeStatus {
            name: identity.name.to_string(),
            cluster: identity.cluster.clone(),
            http: gateway.as_ref().map(|gateway| gateway.http.address()),
            grpc: gateway.as_ref().map(|gateway| gateway.grpc.address()),
            metrics: metrics.address(),
            process: std::process::id(),
            engine: workload.node.engine_name(),
            cores: workload.cores.get(),
        };
        let content_port = ContentPort::bind(self.address).await?;
        let description = self.describe_node(&status, &workload, content_port.port())?;
        let (closing, closed) = shutdown_channel();
        let audit = Arc::new(AuditTrail::open(&state_folder(&self.repository))?);
        let content = Arc::new(RepositoryContent::new(self.repository.clone()));
        let content =
            content_port.serve_router(content_router(content), tls.clone(), closed.clone());
        let context = PortContext { access, audit, closed };
        let sampled = Arc::clone(&workload);
        let sample: TakeSample = Arc::new(move || sampled.take_sample());
        let (assigned, probed) = (Arc::clone(&workload.is_assigned), Arc::clone(&workload));
        let is_ready: IsReady = Arc::new(move || {
            let is_accepting = |part: &DispatchPart| part.dispatcher.is_accepting();
            assigned.load(Ordering::Acquire) && probed.dispatch.as_ref().is_none_or(is_accepting)
        });
        let metrics =
            serve_telemetry(&telemetry, sample, health_router(is_ready), metrics, &context);
        let mut running = vec![metrics, content];
        if let (Some(gateway), Some(dispatch)) = (gateway, &workload.dispatch) {
            let service = ClusterService {
                dispatcher: dispatch.dispatcher.clone(),
                is_assigned: Arc::clone(&workload.is_assigned),
            };
            running.extend(gateway.serve_protocol(Arc::new(service), &context)?);
        }
        let restoring = Arc::clone(&workload);
        let restored = tokio::task::spawn_blocking(move || restoring.restore()).await;
        restored.map_err(|error| Error::engine(error.to_string()))?;
        keep_units(&workload);
        keep_candidates(&workload);
        watch_links(&workload);
        keep_room(&workload);
        keep_places(&workload);
        let agent = Arc::new(NodeAgent {
            controllers: self.controllers,
            identity: Mutex::new(identity),
            identity_file,
            description,
            workload,
            link,
            was_attached: watch::Sender::new(false),
        });
        let mut was_attached = agent.was_attached.subscribe();
        let attached = tokio::spawn(Arc::clone(&agent).stay_attached());
        // One that has something to do goes on without a controller.
        let waiting = was_attached.wait_for(|attached| *attached);
        tokio::time::timeout(ATTACH_TIME, waiting).await.ok();
        tessera_engine::release_executable_pages();
        Ok(ClusterNode { agent, status, drain: self.drain, closing, running, attached })
    }

    /// Who this node is: what it has kept, or what a controller makes of its token.
    async fn find_identity(&self, file: &IdentityFile) -> Result<JoinedNode> {
        let NodeJoin { name, token } = &self.join;
        if let Some(known) = file.load()? {
            if known.name != *name {
                return Err(Error::usage(format!(
                    "--name {name}: it belongs to cluster \"{}\" as \"{}\"; another node needs a \
                     folder of its own: --repo",
                    known.cluster, known.name
                )));
            }
            if known.expires > SystemTime::now() {
                return Ok(known);
            }
            if token.is_none() {
                return Err(Error::usage(
                    "its certificate has expired: join again with a token of `tessera token create`",
                ));
            }
        }
        let token = token.as_ref().ok_or_else(|| {
            Error::usage("it belongs to no cluster yet, expected --token of `tessera token create`")
        })?;
        let mut refused = Error::usage("expected the address of a controller: --join HOST:PORT");
        for address in &self.controllers {
            match join_cluster(address, token, name).await {
                Ok(joined) => {
                    file.save(&joined)?;
                    return Ok(joined);
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn build_dispatch(
        &self,
        name: &NodeName,
        places: &PlacesFile,
        transport: &TransportPart,
        observer: Arc<dyn RequestObserver>,
    ) -> Result<DispatchPart> {
        let reply_inbox = match places.kept().replies {
            Some(ReplyPlace { inbox, port }) => {
                transport.peers.prefer_port(&inbox, port);
                inbox
            }
            None => format!("replies.{name}.{:x}", transport.endpoint.id()),
        };
        let cores = self.node.cores;
        DispatchConfig { cores, shares_units: true, reply_inbox }.build(transport, observer)
    }

    /// What fetches content, and what it knows the links to others by.
    fn build_supply(
        &self,
        tls: &TlsIdentity,
        link: &Arc<ControllerLink>,
    ) -> Result<(Arc<ContentSupply>, Arc<LinkProber>)> {
        let prober = Arc::new(LinkProber::start(self.address)?);
        let runtime = Handle::current();
        let supply = ContentSupply {
            repository: self.repository.clone(),
            fetcher: ContentFetcher::default(),
            link: Arc::clone(link),
            store: ClusterStore::open(self.object_store.as_ref())?,
            peers: ContentPeers::new(tls.clone(), Arc::clone(&prober), runtime.clone()),
            runtime,
        };
        Ok((Arc::new(supply), prober))
    }

    fn build_workload(
        &self,
        (folder, places): (&Path, PlacesFile),
        tls: TlsIdentity,
        transport: &TransportPart,
        dispatch: Option<DispatchPart>,
        draining: mpsc::UnboundedSender<workload::DrainingTable>,
        (content, prober): (Arc<ContentSupply>, Arc<LinkProber>),
    ) -> Result<Arc<NodeWorkload>> {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let config = NodeConfig {
            first_start: u64::try_from(started.as_millis()).unwrap_or(1),
            ..self.node.clone()
        };
        let listening: Arc<OnceLock<Weak<NodeWorkload>>> = Arc::default();
        let events = Arc::clone(&listening);
        let on_event = move |event: NodeEvent| {
            if let Some(workload) = events.get().and_then(Weak::upgrade) {
                workload.note_event(&event);
            }
        };
        let node = config.build(transport, on_event)?;
        node.supervisor.keep_places(places.kept().instances);
        // Until a controller is there.
        node.supervisor.set_keeps_names(true);
        if let Some(dispatch) = &dispatch {
            let canceller = node.supervisor.clone();
            dispatch.dispatcher.on_cancelled(move |request| canceller.cancel_request(request));
        }
        let workload = Arc::new(NodeWorkload {
            node,
            dispatch,
            endpoint: transport.endpoint.clone(),
            tls,
            cores: self.node.cores,
            repository: self.repository.clone(),
            file: AssignmentFile::in_folder(folder),
            places,
            state: Mutex::new(WorkloadState::default()),
            applying: Mutex::default(),
            is_assigned: Arc::new(AtomicBool::new(false)),
            units_changed: Notify::new(),
            report_due: Notify::new(),
            draining,
            content,
            prober,
            candidates: Candidates::default(),
            content_keeper: ContentKeeper::new(&self.repository)?,
            recent_times: RecentTimes::default(),
        });
        // Set once, here.
        listening.set(Arc::downgrade(&workload)).ok();
        Ok(workload)
    }

    fn describe_node(
        &self,
        status: &ClusterNodeStatus,
        workload: &NodeWorkload,
        content_port: u16,
    ) -> Result<NodeDescription> {
        let gateway = match (&workload.dispatch, status.http, status.grpc) {
            (Some(dispatch), Some(http), Some(grpc)) => {
                let address = dispatch.dispatcher.reply_address();
                Some(GatewayDescription {
                    reply_inbox: address.inbox.clone(),
                    reply_address: write_document(address)?,
                    http: self.client_address(http),
                    grpc: self.client_address(grpc),
                })
            }
            _ => None,
        };
        Ok(NodeDescription {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            engine: status.engine.clone(),
            cores: u32::try_from(status.cores).unwrap_or(u32::MAX),
            memory: host_memory_bytes(),
            gpus: Vec::new(),
            run_id: workload.endpoint.id(),
            gateway,
            probe: Some(ProbeDescription {
                address: format!("{}:{}", self.advertise, workload.prober.port()?),
                key: workload.prober.key().to_string(),
            }),
            tier: self.tier,
            content_address: format!("{}:{content_port}", self.advertise),
        })
    }
}

impl ClusterNodeConfig {
    /// Where clients reach what listens here.
    fn client_address(&self, bound: SocketAddr) -> String {
        if bound.ip().is_unspecified() {
            format!("{}:{}", self.advertise, bound.port())
        } else {
            bound.to_string()
        }
    }
}

impl ClusterNode {
    /// Who and where it is.
    pub fn node_status(&self) -> &ClusterNodeStatus {
        &self.status
    }

    /// Runs units and answers requests until the shutdown, or until it is removed from its cluster,
    /// which is an error.
    pub async fn run_until(self, shutdown: &mut ShutdownSignal) -> Result<()> {
        let Self { agent, drain, closing, running, attached, .. } = self;
        let workload = Arc::clone(&agent.workload);
        let ended = tokio::select! {
            () = shutdown.shutdown_requested() => Ok(()),
            ended = attached => {
                Err(ended.unwrap_or_else(|error| Error::engine(error.to_string())))
            }
        };
        if let Some(dispatch) = &workload.dispatch {
            let dispatcher = &dispatch.dispatcher;
            dispatcher.stop_accepting();
            if tokio::time::timeout(drain, dispatcher.wait_until_idle()).await.is_err() {
                tracing::warn!("not all requests were done in time");
            }
        }
        workload.content.fetcher.cancel();
        close_listeners(closing, running, CLOSING_TIME).await;
        tokio::task::block_in_place(|| workload.node.supervisor.stop_all());
        if ended.is_err() {
            // It does not belong to the cluster any more, and has to join to do so.
            if let Err(error) = agent.identity_file.remove() {
                tracing::error!(%error, "who it was is not forgotten");
            }
        }
        ended
    }
}
