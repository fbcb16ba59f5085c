//! The part that clients ask: the dispatcher, and the protocol over HTTP and gRPC before it.

use std::num::NonZeroUsize;
use std::sync::Arc;

use tessera_core::Result;
use tessera_dispatch::{Dispatcher, DispatcherOptions};
use tessera_gateway::{
    FrontEndOptions, InferenceService, LogControl, ServerSettings, grpc_router, http_router,
};
use tessera_telemetry::RequestObserver;

use crate::input_memory::InputMemory;
use crate::listeners::{ListenSetting, Listener, RunningListener};
use crate::shutdown::ShutdownSignal;
use crate::transport::TransportPart;

/// Bytes of inputs that may wait.
const MAX_WAITING_BYTES: usize = 512 << 20;

/// What a dispatcher is made of.
#[derive(Clone, Copy, Debug)]
pub struct DispatchConfig {
    /// Cores that what it dispatches to computes on.
    pub cores: NonZeroUsize,
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
            cores: self.cores.get(),
            allocate_input: Arc::new(move |dtype, shape| allocator.allocate_tensor(dtype, shape)),
            export_input: Arc::new(move |tensor, device| exporter.place_for_reader(tensor, device)),
            most_waiting_bytes: MAX_WAITING_BYTES,
            observer,
        })?;
        Ok(DispatchPart { dispatcher, memory })
    }
}

/// Where the protocol is spoken.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Over HTTP.
    pub http: ListenSetting,
    /// Over gRPC.
    pub grpc: ListenSetting,
    /// What is logged, which clients may change.
    pub log: LogControl,
    /// Whether the server calls itself `triton` and words common errors as Triton does.
    pub triton_names: bool,
}

/// Front ends whose sockets are bound.
pub(crate) struct BoundGateway {
    pub(crate) http: Listener,
    pub(crate) grpc: Listener,
    pub(crate) log: LogControl,
    pub(crate) triton_names: bool,
}

impl BoundGateway {
    /// Answers with this service until `closed`.
    pub(crate) fn serve_protocol(
        self,
        service: Arc<dyn InferenceService>,
        closed: &ShutdownSignal,
    ) -> Result<[RunningListener; 2]> {
        let settings = Arc::new(ServerSettings::new(self.log));
        let triton_names = self.triton_names;
        let front = FrontEndOptions { settings, triton_names, ..FrontEndOptions::default() };
        let http = http_router(Arc::clone(&service), front.clone());
        let grpc = grpc_router(service, front)?;
        Ok([self.http.serve_router(http, closed), self.grpc.serve_router(grpc, closed)])
    }
}
