//! The part that clients ask: the dispatcher, and the protocol over HTTP and gRPC before it.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tessera_core::Result;
use tessera_dispatch::{Dispatcher, DispatcherOptions};
use tessera_gateway::{
    ByteBudget, FrontEndOptions, InferenceService, LogControl, RegionRules, ServerSettings,
    SharedRegions, grpc_router, http_router,
};
use tessera_telemetry::RequestObserver;

use crate::host_memory::host_memory_bytes;
use crate::input_memory::InputMemory;
use crate::listeners::{ListenSetting, Listener, PortContext, RunningListener};
use crate::transport::TransportPart;

/// The inbox of replies where one dispatcher has all units to itself.
pub(crate) const REPLY_INBOX: &str = "replies";

/// Bytes of inputs that may wait.
const MAX_WAITING_BYTES: usize = 512 << 20;

/// How often memory is looked through that nobody uses.
const RELEASE_INTERVAL: Duration = Duration::from_secs(2);

/// What a dispatcher is made of.
#[derive(Clone, Debug)]
pub struct DispatchConfig {
    /// Cores that what it dispatches to computes on.
    pub cores: NonZeroUsize,
    /// Whether others send to the units that it dispatches to, too.
    pub shares_units: bool,
    /// The name of the inbox that replies come to, which nobody else has who sends to its units.
    pub reply_inbox: String,
}

/// A dispatcher that knows no task yet, with the memory that inputs are in.
pub struct DispatchPart {
    pub(crate) dispatcher: Dispatcher,
    pub(crate) memory: Arc<InputMemory>,
}

impl DispatchConfig {
    /// Starts the dispatcher; `observer` is told how requests ended.
    pub fn build(
        self,
        transport: &TransportPart,
        observer: Arc<dyn RequestObserver>,
    ) -> Result<DispatchPart> {
        let memory = Arc::new(InputMemory::new(transport.endpoint.clone()));
        let (allocator, exporter) = (Arc::clone(&memory), Arc::clone(&memory));
        let dispatcher = Dispatcher::start_empty(DispatcherOptions {
            endpoint: transport.endpoint.clone(),
            peers: Arc::clone(&transport.peers),
            reply_inbox: self.reply_inbox,
            cores: self.cores.get(),
            shares_units: self.shares_units,
            allocate_input: Arc::new(move |dtype, shape| allocator.allocate_tensor(dtype, shape)),
            export_input: Arc::new(move |tensor, device| exporter.place_for_reader(tensor, device)),
            most_waiting_bytes: MAX_WAITING_BYTES,
            observer,
        })?;
        release_idle_inputs(&memory);
        Ok(DispatchPart { dispatcher, memory })
    }
}

/// Gives memory of inputs back that nobody uses, for as long as there is such memory.
fn release_idle_inputs(memory: &Arc<InputMemory>) {
    let memory = Arc::downgrade(memory);
    tokio::spawn(async move {
        while let Some(memory) = memory.upgrade() {
            memory.release_idle_memory();
            drop(memory);
            tokio::time::sleep(RELEASE_INTERVAL).await;
        }
    });
}

/// Where the protocol is spoken.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Over HTTP.
    pub http: ListenSetting,
    /// Over gRPC.
    pub grpc: ListenSetting,
    /// Which regions of shared memory clients may register.
    pub shared_memory: RegionRules,
    /// Bytes of requests and answers that may be under way; `None`: a quarter of what there is.
    pub most_body_bytes: Option<u64>,
    /// What is logged, which clients may change.
    pub log: LogControl,
    /// Whether the server calls itself `triton` and words common errors as Triton does.
    pub triton_names: bool,
}

/// Front ends whose sockets are bound.
pub(crate) struct BoundGateway {
    pub(crate) http: Listener,
    pub(crate) grpc: Listener,
    pub(crate) config: GatewayConfig,
}

impl BoundGateway {
    /// Answers with this service until it is closed.
    pub(crate) fn serve_protocol(
        self,
        service: Arc<dyn InferenceService>,
        context: &PortContext,
    ) -> Result<[RunningListener; 2]> {
        let GatewayConfig { shared_memory, most_body_bytes, log, triton_names, .. } = self.config;
        let most_body_bytes = most_body_bytes.unwrap_or(host_memory_bytes() / 4);
        let most_body_bytes = usize::try_from(most_body_bytes).unwrap_or(usize::MAX);
        let front = FrontEndOptions {
            budget: Arc::new(ByteBudget::new(most_body_bytes)),
            shared_memory: Arc::new(SharedRegions::new(shared_memory)),
            settings: Arc::new(ServerSettings::new(log)),
            triton_names,
            ..FrontEndOptions::default()
        };
        let http = http_router(Arc::clone(&service), front.clone());
        let grpc = grpc_router(service, front)?;
        Ok([self.http.serve_router(http, context), self.grpc.serve_router(grpc, context)])
    }
}
